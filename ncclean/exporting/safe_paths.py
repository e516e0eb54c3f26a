"""Paths of files below an output, from keys and paths that anybody may have written."""

from __future__ import annotations

import hashlib
import re

from ncclean.base.file_names import short_name

# No part that is hidden, that leads upwards, or that another system takes for something else.
_PART = re.compile(r"[^./\\\0-\x1f:*?\"<>|][^/\\\0-\x1f:*?\"<>|]*")
_HASH_BYTES = 8
_LONGEST = 1000  # characters


def safe_path(path: str) -> str:
    """The path itself if it leads downwards in plain names, else one name that ends in its hash."""
    parts = path.split("/")
    is_plain = all(_PART.fullmatch(part) and short_name(part) == part for part in parts)
    text = path.encode("utf-8", "replace").decode()  # without lone surrogates
    if is_plain and len(path) <= _LONGEST and text == path:
        return path
    digest = hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=_HASH_BYTES)
    plain = re.sub(r"[^\w-]+", "_", text)[-60:].strip("_")
    return f"{plain or 'image'}-{digest.hexdigest()}"
