"""Read and write noise files of the noisy-correspondence literature (NCR, BiCro, L2RM, others).

A file is a one-dimensional integer array in NumPy's format. Entry i is the number of the image that
caption i is paired with; captions and images are numbered in the order of the corpus, five captions
to an image in Flickr30K and COCO, one in CC152K.
"""

from __future__ import annotations

import io

import numpy as np
from upath import UPath

from ncclean.base import stores
from ncclean.base.atomic import published
from ncclean.base.output_mark import npy_header
from ncclean.data.embeddings.vectors import read_header
from ncclean.data.noise import CODES, FROM_FILE, PERMUTING, NoisePlan, placed
from ncclean.errors import InputError, ShardError, one_line


def read_noise_file(url: str) -> np.ndarray:
    """Read (C,) int64 image numbers. Raises `InputError` unless they are a vector of integers."""
    place = stores.location(url)
    data = stores.ask("read", place, stores.read_bytes, place)
    try:
        header = read_header(url, io.BytesIO(data))
    except ShardError as error:
        raise InputError(f"{one_line(error)}; a noise file is a vector of integers") from error
    shape, kind = header.shape, header.dtype
    if len(shape) != 1 or kind.kind not in "iu":
        raise InputError(
            f"{url} is not a noise file: it holds {kind} of the shape {shape}, not a vector of "
            "integers"
        )
    if len(data) - header.size != shape[0] * kind.itemsize:
        raise InputError(f"{url} is not a noise file: its size is not what its header says")
    entries = np.frombuffer(data, kind, offset=header.size)
    if len(entries) and (largest := int(entries.max())) > np.iinfo(np.int64).max:
        raise InputError(
            f"{url}: entry {int(entries.argmax()):,} of the noise file is image {largest:,}, which "
            "no corpus has"
        )
    return entries.astype(np.int64)


def write_noise_file(place: UPath, entries: np.ndarray) -> None:
    """Write (C,) image numbers as int64 in NumPy's format, marked as made by `inject-noise`."""
    fields = {"descr": "<i8", "fortran_order": False, "shape": entries.shape}
    with published(place) as aside, aside.open("wb") as file:
        file.write(npy_header(fields, "inject-noise"))
        file.write(entries.astype("<i8").tobytes())


class FilePlaces:
    """The positions of a corpus's captions in a noise file.

    Unusable samples and captions count as well: a file numbers what the corpus lists.
    """

    def __init__(
        self, entries: np.ndarray, rows: np.ndarray, images: np.ndarray, numbers: np.ndarray
    ) -> None:
        """Index the captions of a corpus.

        `entries` (S,) is how many captions each sample lists, `rows` (I,) the usable samples;
        `images` (C,) and `numbers` (C,) are each caption's index in `rows` and within its sample.
        """
        self._entries, self._rows, self._images, self._numbers = entries, rows, images, numbers

    def plan(self, file: np.ndarray) -> NoisePlan:
        """Return the plan of the noise that a noise file gives the corpus.

        A file of k entries per image covers its first k captions; the others stay. A caption whose
        new image is unusable is dropped. Raises `InputError` for a file of another corpus.
        """
        listed = self._listed(len(file))
        if len(file) and not 0 <= file.min() <= file.max() < len(listed):
            wrong = int(np.flatnonzero((file < 0) | (file >= len(listed)))[0])
            raise InputError(
                f"entry {wrong:,} of the noise file is image {file[wrong]:,}, and there are "
                f"{len(listed):,} images"
            )
        places, is_listed = self._places(listed)
        image_of = self._images.copy()
        pair_of_sample = np.full(len(listed), -1)
        pair_of_sample[self._rows] = np.arange(len(self._rows))
        image_of[is_listed] = pair_of_sample[file[places[is_listed]]]
        source, images = placed(self._images, image_of)
        code = np.where(images == self._images[source], 0, CODES.index(FROM_FILE)).astype(np.int8)
        moved = int((image_of != self._images).sum())
        return NoisePlan(np.arange(len(self._rows)), images, source, code, {FROM_FILE: moved})

    def file(self, plan: NoisePlan) -> np.ndarray:
        """Return the noise file of a plan: `FilePlaces.plan` of it moves the same captions.

        Raises `InputError` for noise other than moving captions or images of the corpus.
        """
        kinds = {CODES[code] for code in np.unique(plan.code)}
        if others := sorted(kinds - {"", *PERMUTING, FROM_FILE}):
            raise InputError(f"a noise file cannot say {others[0]}: it only moves captions")
        file = np.repeat(np.arange(len(self._entries)), self._entries)
        places, _ = self._places(self._entries)
        # An image that shows another one's content has its captions with that one.
        file[places[plan.caption_source]] = self._rows[plan.image_source[plan.images]]
        return file

    def _listed(self, length: int) -> np.ndarray:
        """Return (S,) how many entries of a file of this length each sample has."""
        samples, total = len(self._entries), int(self._entries.sum())
        if length == total:
            return self._entries
        per_sample = length // samples if samples else 0
        if per_sample and per_sample * samples == length and per_sample <= self._entries.min():
            return np.full(samples, per_sample)
        raise InputError(
            f"the noise file has {length:,} entries, and the corpus {total:,} captions of "
            f"{samples:,} images: it is of another corpus, or of another --split"
        )

    def _places(self, listed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (C,) position of each caption in a file, and whether it has one."""
        samples = self._rows[self._images]
        begins = np.cumsum(listed) - listed
        return begins[samples] + self._numbers, self._numbers < listed[samples]
