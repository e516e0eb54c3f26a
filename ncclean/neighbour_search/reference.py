"""Measure how near the images of a corpus are to those of another corpus.

The nearness to another corpus, such as an evaluation set, is NormSim-infinity of Wang et al. 2024,
"CLIPLoss and Norm-Based Data Selection Methods for Multimodal Contrastive Learning": the largest
cosine of an image with the images of the reference. Data near a target task are worth more for it;
copies of an evaluation set invalidate its results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from ncclean.data.embeddings.pairs import unit_vectors
from ncclean.data.embeddings.units import resolve_embeddings
from ncclean.data.embeddings.vectors import read_npy
from ncclean.data.samples import SkipReason
from ncclean.data.shards import expand, places
from ncclean.errors import InputError, ShardError
from ncclean.neighbour_search.blocks import embedded_blocks
from ncclean.neighbour_search.inverted_lists import InvertedLists, NearestHeap
from ncclean.neighbour_search.stages import Stages, chunks
from ncclean.neighbour_search.whitening import whitened
from ncclean.storage.array_files import ArrayFolder, Arrays

# Cosine from which an image counts as one of the reference, whitened and in the model's own space.
CONTAMINATED = {True: 0.95, False: 0.98}


def read_reference(
    sources: Sequence[str], keys: tuple[str, str] | None, dim: int
) -> tuple[np.ndarray, pa.Array]:
    """Read the (r, d) float16 image vectors of a reference, and their uids.

    The sources are embeddings as for a corpus, or `.npy` files of images, which are named by their
    rows. Raises `InputError` for unreadable sources, and for vectors of another width than `dim`.
    """
    locations = [place for source in sources for place in expand(source, places)]
    matrices = [place for place in locations if place.endswith(".npy")]
    if not matrices:
        return _of_embeddings(sources, keys, dim)
    if len(matrices) < len(locations):
        raise InputError("--reference takes .npy files or embeddings with their pairs, not both")
    images = np.concatenate(list(_of_files(matrices, dim)))
    if not len(images):
        raise InputError(f"{sources[0]} holds no vectors")
    return images, pa.array([str(row) for row in range(len(images))])


def _of_embeddings(
    sources: Sequence[str], keys: tuple[str, str] | None, dim: int
) -> tuple[np.ndarray, pa.Array]:
    blocks = embedded_blocks(resolve_embeddings(sources), keys)
    _check_dim(sources[0], blocks[0].dim, dim)
    read = [block.read() for block in blocks]
    images = np.concatenate([block.image for block in read])
    if not len(images):
        raise InputError(f"{sources[0]} holds no usable embeddings")
    uids = pa.chunked_array([c for block in read for c in block.facts.column("uid").chunks])
    return images, uids.combine_chunks()


def _of_files(matrices: Iterable[str], dim: int) -> Iterator[np.ndarray]:
    for place in matrices:
        try:
            vectors = read_npy(place)
        except ShardError as error:
            raise InputError(str(error)) from error
        _check_dim(place, vectors.shape[1], dim)
        problems: dict[int, tuple[SkipReason, str]] = {}
        units = unit_vectors(vectors, "image", None, problems)
        if problems:
            row, (_, what) = next(iter(problems.items()))
            raise InputError(f"{place}, row {row}: {what}")
        yield units.astype(np.float16, copy=False)


def _check_dim(source: str, own_dim: int, dim: int) -> None:
    if own_dim != dim:
        raise InputError(
            f"--reference {source} has {own_dim} dimensions, the embeddings {dim}: both must come "
            "from one model"
        )


def reference_matches(
    stages: Stages, reference: np.ndarray, tasks: Sequence[slice], whiten: bool
) -> Arrays:
    """Return the nearest of (r, d) reference images for each of u distinct images.

    `nearest` (u,) is its row, `similarity` (u,) the cosine with it, and `compared` (u,) the largest
    cosine, which is whitened if the search is. `tasks` are the rows of each task.
    """
    stages.save("reference", image=reference)
    text, arguments = "comparing with the reference", [(rows, whiten) for rows in tasks]
    files = stages.run(text, "reference", reference_block, arguments)
    shape = (tasks[-1].stop,)
    types = {"similarity": np.float32, "nearest": np.int32, "compared": np.float32}
    return stages.gather("matches", files, {name: (shape, kind) for name, kind in types.items()})


def reference_block(work: ArrayFolder, number: int, rows: slice, whiten: bool) -> None:
    """Find the nearest reference image of one task's images, and write it and its cosine to a file.

    `rows` are consecutive images in the order of lists.
    """
    lists, reference = InvertedLists.load(work, "image"), work.load("reference")["image"]
    learnt, queries = work.load("learnt"), lists.read(rows)
    plain, white = NearestHeap(queries, 1), NearestHeap(whitened(learnt, "image", queries), 1)
    for piece in chunks(len(reference)):
        vectors, numbers = reference[piece].astype(np.float32), np.arange(piece.start, piece.stop)
        plain.add(vectors, numbers)
        if whiten:
            white.add(whitened(learnt, "image", vectors), numbers)
    nearest = plain.nearest()
    compared = white.nearest() if whiten else nearest
    work.save(
        f"reference-{number}",
        {"rows": lists.ids[rows], "similarity": nearest.cosines[:, 0],
         "nearest": nearest.ids[:, 0], "compared": compared.cosines[:, 0]},
    )  # fmt: skip
