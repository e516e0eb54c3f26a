"""Splits the name of a tar member into the key of its sample and an extension."""

from __future__ import annotations

import re
from collections.abc import Iterable

# The rule of webdataset's `base_plus_ext`.
_KEY_AND_EXTENSION = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")


def split_name(name: str) -> tuple[str | None, str]:
    """`a/b.c.jpg` -> (`a/b`, `c.jpg`): webdataset's rule. A name without an extension has no key.

    Ordinary names are split without the expression, which takes longer.
    """
    folder, slash, file = name.rpartition("/")
    stem, dot, extension = file.partition(".")
    if stem and dot and "\n" not in name:
        return folder + slash + stem, extension
    if not dot:
        return None, ""
    match = _KEY_AND_EXTENSION.match(name)
    return (match[1], match[2]) if match else (None, "")


def with_shorter_keys(keys: Iterable[str]) -> set[str]:
    """The keys, and those by the first dot of members whose key ends at the last one."""
    return {one for key in keys for one in (key, split_name(f"{key}.")[0] or key)}
