"""The files of a training run: in its folder, or on this machine with a copy in a store."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from upath import UPath

from ncclean.base import stores
from ncclean.base.atomic import published
from ncclean.base.file_names import WORKING_FOLDER
from ncclean.base.scratch import scratch_folder


class RunFiles:
    """The folder `local` that a run writes to, of which `out` is the copy if it is in a store."""

    def __init__(self, out: UPath, local: Path) -> None:
        self.out, self.local = out, local
        self._copied: dict[str, tuple[int, int]] = {}

    @classmethod
    @contextlib.contextmanager
    def open(cls, out: str) -> Iterator[RunFiles]:
        """Yield the files of the run at `out`; those of a store are fetched first."""
        place = stores.location(out)
        if not stores.is_url(out):
            yield cls(place, Path(out))
            return
        with scratch_folder() as folder:
            files = cls(place, folder / "run")
            files._fetch()
            yield files

    def recorded(self, *paths: Path) -> list[UPath]:
        """Where files of the folder will be in the end."""
        return [self.out / path.relative_to(self.local).as_posix() for path in paths]

    def push(self) -> None:
        """Copy what is new to the store, and remove from it what the run has removed."""
        if not stores.is_url(self.out):
            return
        present = self._versions()
        for name, version in present.items():
            if self._copied.get(name) != version:
                with published(self.out / name) as aside:
                    shutil.copyfile(self.local / name, aside)
        stores.remove_files(self.out / name for name in self._copied.keys() - present.keys())
        self._copied = present

    def _fetch(self) -> None:
        self.local.mkdir()
        for url in stores.ask("list", self.out, _files_below, self.out):
            name = str(url).removeprefix(f"{self.out}/")
            if name.partition("/")[0] == WORKING_FOLDER or ".." in name.split("/"):
                continue  # the second is no name of the run's, and would lead elsewhere
            place = self.local / name
            place.parent.mkdir(parents=True, exist_ok=True)
            stores.ask("read", url, url.fs.get_file, url.path, str(place))
        self._copied = self._versions()

    def _versions(self) -> dict[str, tuple[int, int]]:
        """Size and time of the files of the folder; those that are being written are hidden."""
        return {
            path.relative_to(self.local).as_posix(): (status.st_size, status.st_mtime_ns)
            for path in self.local.rglob("*")
            if path.is_file() and not path.name.startswith(".")
            for status in [path.stat()]
        }


def _files_below(folder: UPath) -> list[UPath]:
    names = folder.fs.find(folder.path)
    return [folder / name.removeprefix(folder.path.rstrip("/")).lstrip("/") for name in names]
