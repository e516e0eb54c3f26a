"""FAISS, which must not be loaded beside another OpenMP runtime on macOS."""

from __future__ import annotations

import sys
from typing import Any


def load_faiss() -> Any:
    """FAISS, imported when it is first needed.

    Where torch or scikit-learn have brought another OpenMP runtime into the process, FAISS
    crashes on macOS as soon as it starts threads; one thread is safe there.
    """
    import faiss

    if sys.platform == "darwin":
        faiss.omp_set_num_threads(1)
    return faiss
