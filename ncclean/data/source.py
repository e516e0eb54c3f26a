"""A file or a folder that somebody names as a source, and what lies in it."""

from __future__ import annotations

import os
from functools import cached_property

from upath import UPath

from ncclean.base import stores


class Source:
    """A file or a folder, listed when it is first asked for.

    Raises `InputError` for a URL that cannot be opened, and where a store does not answer.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/") or url
        self._place = stores.location(self.url)

    @cached_property
    def is_file(self) -> bool:
        """Whether it is a file; of a URL the name tells."""
        is_url = stores.is_url(self.url)
        return bool(self._place.suffix) if is_url else os.path.isfile(self.url)

    @cached_property
    def entries(self) -> list[stores.Entry]:
        """The files and folders in a folder, sorted by name; none for a file."""
        return [] if self.is_file else stores.listing(self.url)

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of the files and folders in a folder; none for a file."""
        return frozenset() if self.is_file else _names(self._place)

    @property
    def files(self) -> list[str]:
        """Names of the files in a folder, sorted."""
        return [entry.name for entry in self.entries if not entry.is_folder]

    def names_in(self, folder: str) -> frozenset[str]:
        """Names of the files in a subfolder; none if it does not exist."""
        return _names(self._place / folder)

    def below(self, *names: str) -> str:
        """The path of a file in this folder."""
        return str(self._place.joinpath(*names))


def _names(folder: UPath) -> frozenset[str]:
    return frozenset(entry.name for entry in stores.listing(folder))
