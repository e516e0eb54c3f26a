"""The layouts of embeddings, in the order in which a source is tried."""

from __future__ import annotations

from ncclean.data.embeddings.clip_retrieval import ClipRetrieval
from ncclean.data.embeddings.datacomp import DataComp
from ncclean.data.embeddings.lance_vectors import LanceVectors
from ncclean.data.embeddings.layout import EmbeddingLayout
from ncclean.data.embeddings.parquet_vectors import ParquetVectors

_LAYOUTS: tuple[EmbeddingLayout, ...] = (
    ClipRetrieval(),
    DataComp(),
    ParquetVectors(),
    LanceVectors(),
)
LAYOUTS = {layout.name: layout for layout in _LAYOUTS}
