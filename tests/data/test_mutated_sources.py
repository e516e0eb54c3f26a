"""One file of a source changed at random: it ends with rows, a status or a reason, never a crash.

    python -m tests.data.test_mutated_sources 1500

runs as many of each layout and counts how they end.
"""

import io
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ncclean.data.decode import ImageDecoder, Preprocessing
from ncclean.data.reader import read_samples
from ncclean.data.sources import are_embeddings, resolve_sources
from ncclean.errors import NccleanError, ShardError
from tests.data.image_layouts import LAYOUTS, PEOPLES, write_imagefolder, write_recaptioned

SECONDS = 20  # that one of them may take
_DECODER = ImageDecoder(Preprocessing((32, 32), (0.5,) * 3, (0.5,) * 3), 1 << 20)


def _pairs(count=30):
    pixels = np.random.default_rng(0).integers(0, 256, (count, 24, 24, 3)).astype(np.uint8)
    pairs = []
    for number, picture in enumerate(pixels):
        buffer = io.BytesIO()
        Image.fromarray(picture).save(buffer, "JPEG", quality=40)
        pairs.append((f"{number:05d}", buffer.getvalue(), f"a caption, number {number} é"))
    return pairs


def _of_imagefolder(ending):
    return lambda pairs, folder: write_imagefolder(pairs, folder, ending)


ALL = {
    **LAYOUTS,
    **PEOPLES,
    "imagefolder csv": _of_imagefolder("csv"),
    "imagefolder parquet": _of_imagefolder("parquet"),
    "recaptioned": write_recaptioned,
}


def mutated(rng, data):
    """Bytes flipped, cut, swapped, grown, emptied or repeated, once or several times."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5])):
        size = len(data)
        if size < 4:
            data += rng.randbytes(9)
            continue
        begin = rng.randrange(size)
        end = min(size, begin + rng.choice([1, 4, 16, 200]))
        kind = rng.choice(["flip", "cut", "swap", "grow", "zero", "repeat"])
        if kind == "flip":
            for place in range(begin, end):
                data[place] ^= 1 << rng.randrange(8)
        elif kind == "cut":
            del data[begin : end if rng.random() < 0.5 else size]
        elif kind == "swap":
            other, part = rng.randrange(size), bytes(data[begin:end])
            data[begin:end] = data[other : other + len(part)]
            data[other : other + len(part)] = part
        elif kind == "grow":
            data[begin:begin] = rng.randbytes(end - begin)
        elif kind == "zero":
            data[begin:end] = bytes(end - begin)
        else:
            data[begin:begin] = bytes(data[begin:end]) * rng.choice([1, 50])
    return bytes(data)


def outcome(source, caption_key):
    """How a source ends: its statuses, or why it was refused."""
    found = Counter()
    try:
        shards = resolve_sources([str(source)])
        if are_embeddings(shards):
            return Counter(["taken for embeddings"])
        for shard in shards:
            samples = read_samples(shard, caption_key)
            try:
                for sample in samples:
                    status = sample.status.value
                    if sample.image is not None:
                        decoded = _DECODER.decode_or_reject(sample.image)
                        status = getattr(decoded, "reason", sample.status).value
                    found[status] += 1
            except ShardError:
                found["failed unit"] += 1
        if all(shard.rows == (0, 0) for shard in shards):
            found["a table without rows"] += 1
    except NccleanError:
        found["refused"] += 1
    return found


class _Hang(Exception):
    pass


def _hang(*_):
    raise _Hang


def run(name, count):
    """Mutate a file of a layout `count` times; how often each outcome occurred."""
    outcomes = Counter()
    before = signal.signal(signal.SIGALRM, _hang)
    folder = Path(tempfile.mkdtemp())
    try:
        source = ALL[name](_pairs(), folder / "source")
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        tables = [path for path in files if path.suffix != ".jpg"] or files
        for number in range(count):
            rng = random.Random(f"{name} {number}")
            file = rng.choice(tables if rng.random() < 0.8 else files)
            original = file.read_bytes()
            file.write_bytes(mutated(rng, original))
            signal.alarm(SECONDS)
            try:
                ended = outcome(source, ("caption", "recaption") if name == "recaptioned" else None)
            except Exception as error:
                raise AssertionError(f"{name}, mutation {number} of {file.name}") from error
            finally:
                signal.alarm(0)
                file.write_bytes(original)
            assert ended, f"{name}, mutation {number}: neither rows nor a reason"
            outcomes.update(ended.keys())
    finally:
        signal.signal(signal.SIGALRM, before)
        shutil.rmtree(folder)
    return outcomes


@pytest.mark.parametrize("name", ALL)
def test_mutated_files(name):
    assert run(name, 4 if name == "Lance" else 12)["ok"] >= 1


if __name__ == "__main__":
    for layout in ALL:
        begin = time.perf_counter()
        print(layout, dict(run(layout, int(sys.argv[1]))), f"{time.perf_counter() - begin:.0f} s")
