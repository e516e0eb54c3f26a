"""Names of files and folders: fixed ones, those made from others, and endings of figures."""

from __future__ import annotations

import hashlib

# In an output folder, for all that is not data. Loaders of whole folders, such as Hugging Face's
# `load_dataset`, take every file for data unless a name on its way begins with a dot.
WORKING_FOLDER = ".ncclean"
FIGURE_ENDINGS = (".png", ".svg", ".pdf")
TABLE_ENDINGS = (".csv", ".tex")
_MOST_BYTES = 200  # of the 255 that file systems allow, for endings and numbers to be added


def short_name(name: str) -> str:
    """A file name as it is, or cut and ended by a hash of the whole if it is too long."""
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) <= _MOST_BYTES:
        return name
    digest = hashlib.blake2b(encoded, digest_size=16).hexdigest()
    return f"{encoded[: _MOST_BYTES - len(digest) - 1].decode('utf-8', 'ignore')}-{digest}"
