"""Resolve folders and files of embeddings to an ordered list of shards.

`ShardRef.url` is the Parquet file with a row for each pair, `files` are the vectors beside it.
Large files are several shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ncclean.data.embeddings.clip_retrieval import ClipRetrieval
from ncclean.data.embeddings.column_vectors import LanceVectors, ParquetVectors
from ncclean.data.embeddings.datacomp import DataComp
from ncclean.data.embeddings.layout import EmbeddingLayout, Keys
from ncclean.data.layout import Source, SourceFile, units_of
from ncclean.data.options import SourceOptions
from ncclean.data.shards import ShardRef, expand, places
from ncclean.errors import InputError, ShardError

# Names of the image's and the caption's vectors that are used by default.
_KNOWN_KEYS = (
    ("l14_img", "l14_txt"),
    ("b32_img", "b32_txt"),
    ("image_embedding", "text_embedding"),
    ("img_emb", "text_emb"),
    ("image_emb", "text_emb"),
    ("image", "text"),
)
_QUESTIONS = 32  # concurrent requests about the files of a corpus


def find_embeddings(url: str) -> list[SourceFile]:
    """Find the embedding files of a folder or file; none if no layout matches.

    Raises `InputError` if some are missing, or a store does not answer.
    """
    source = Source(url)
    files = (layout.files_of(source, SourceOptions()) for layout in LAYOUTS.values())
    return next(filter(None, files), [])


def resolve_embeddings(sources: Iterable[str]) -> list[ShardRef]:
    """Expand folders, globs and files of embeddings into shards, in the order given.

    A source is a folder of one of the layouts or a file, a glob, a brace range, `@list.txt` or a
    URL of these. Raises `InputError` for a source without embeddings, or one given twice.
    """
    locations = [place for source in sources for place in expand(source, places)]
    with ThreadPoolExecutor(_QUESTIONS) as pool:  # each may be a request to a store
        files = [one for several in pool.map(_files_at, locations) for one in several]
    if not files:
        raise InputError("name at least one file or folder of embeddings")
    return units_of(files, [one.url for one in files], SourceOptions())


def vector_keys(shards: Sequence[ShardRef], keys: Keys | None) -> Keys | None:
    """Return the names of image and caption vectors: those given, else well-known ones.

    None if the vectors have no names. Raises `InputError` if `keys` are given but nothing has
    names, or if they are needed to tell which vectors are meant.
    """
    named = [shard for shard in shards if LAYOUTS[shard.layout].keys_of is not None]
    if keys is not None:
        if not named:
            kinds = [layout.keys_of for layout in LAYOUTS.values() if layout.keys_of is not None]
            raise InputError(f"--embedding-keys is for embeddings in {' and '.join(kinds)} files")
        candidates: Sequence[Keys] = (keys,)
    else:
        candidates = _KNOWN_KEYS
    return _keys_there(named, candidates) if named else None


def _files_at(url: str) -> list[SourceFile]:
    if not (files := find_embeddings(url)):
        kinds = ", nor ".join(layout.files for layout in LAYOUTS.values())
        raise InputError(f"{url} holds no embeddings: neither {kinds}")
    return files


def _keys_there(shards: Sequence[ShardRef], candidates: Sequence[Keys]) -> Keys:
    """Return the first candidates that the first readable shard has."""
    failure: ShardError | None = None
    for shard in shards:
        where = shard.files[0] if shard.files else shard.url
        try:
            vector_names = LAYOUTS[shard.layout].vector_names(shard)
        except ShardError as error:
            failure = failure or error
            continue
        for keys in candidates:
            if set(keys) <= set(vector_names):
                return keys
        raise InputError(
            f"which vectors of {where} are of images, and which of captions? Name both with "
            f"--embedding-keys IMG,TEXT; there are {', '.join(vector_names) or 'none'}"
        )
    raise InputError(str(failure))


_LAYOUTS: tuple[EmbeddingLayout, ...] = (
    ClipRetrieval(),
    DataComp(),
    ParquetVectors(),
    LanceVectors(),
)
LAYOUTS = {layout.name: layout for layout in _LAYOUTS}
