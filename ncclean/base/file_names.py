"""Names of files and folders: fixed ones, those made from others, and endings of figures."""

from __future__ import annotations

import hashlib

# In an output folder, for everything that is not data. Loaders of whole folders, such as Hugging
# Face's `load_dataset`, treat every file as data unless a part of its path begins with a dot.
WORKING_FOLDER = ".ncclean"
FIGURE_ENDINGS = (".png", ".svg", ".pdf")
TABLE_ENDINGS = (".csv", ".tex")
_MOST_BYTES = 200  # of the 255 that file systems allow, leaving room for endings and numbers


def short_name(name: str) -> str:
    """Return a file name unchanged, or cut and ended by a hash of the whole if too long."""
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) <= _MOST_BYTES:
        return name
    digest = hashlib.blake2b(encoded, digest_size=16).hexdigest()
    return f"{encoded[: _MOST_BYTES - len(digest) - 1].decode('utf-8', 'ignore')}-{digest}"
