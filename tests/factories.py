"""What many tests begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ncclean.data.synthetic import CorpusOptions, write_corpus


def rendered(folder: Path, workers: int = 1, **options: Any) -> Path:
    """The folder, with the shards of a synthetic corpus; `options` are those of `CorpusOptions`."""
    write_corpus(folder, CorpusOptions(**options), workers)
    return folder
