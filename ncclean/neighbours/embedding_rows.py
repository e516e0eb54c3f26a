"""Embeddings of a corpus as one matrix, wherever its rows lie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from ncclean.neighbours.chunked import CHUNK_ROWS, chunks


class Rows(ABC):
    """(n, d) vectors that are handed out as float32 when they are asked for."""

    dim: int

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, rows: np.ndarray) -> np.ndarray:
        """(m,) row numbers -> (m, d) float32, in the order asked for."""

    def chunks(self, size: int = CHUNK_ROWS) -> Iterator[tuple[int, np.ndarray]]:
        """The rows in order: the number of the first one, and up to `size` of them."""
        for rows in chunks(len(self), size):
            yield rows.start, self.take(np.arange(rows.start, rows.stop))


class EmbeddingMatrix(Rows):
    """(n, d) float16 rows in one or several arrays, which may be memory-mapped files.

    Rows are handed out as float32, rounded to float16 if they were stored with more digits.
    """

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self._arrays = list(arrays)
        self._ends = np.cumsum([len(array) for array in self._arrays])
        self.dim = int(self._arrays[0].shape[1])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def take(self, rows: np.ndarray) -> np.ndarray:
        """(m,) row numbers -> (m, d) float32, in the order asked for."""
        gathered = np.empty((len(rows), self.dim), dtype=np.float32)
        where = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(where):
            chosen = where == number
            array = self._arrays[number]
            local = rows[chosen] - (self._ends[number] - len(array))
            gathered[chosen] = array[local].astype(np.float16, copy=False)
        return gathered


def pair_cosines(image: EmbeddingMatrix, text: EmbeddingMatrix) -> np.ndarray:
    """(n,) float32 cosines of the pairs themselves."""
    cosines = np.empty(len(image), dtype=np.float32)
    for (start, images), (_, texts) in zip(image.chunks(), text.chunks(), strict=True):
        cosines[start : start + len(images)] = np.einsum("nd,nd->n", images, texts)
    return cosines
