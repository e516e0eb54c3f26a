"""Files of kilobytes that stand for gigabytes: they cost their rows, and no memory to speak of."""

import json
import subprocess
import sys
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ncclean.data.embeddings import datacomp
from ncclean.data.embeddings.pairs import read_pairs
from ncclean.data.embeddings.units import resolve_embeddings
from ncclean.data.embeddings.vectors import npy_shape
from ncclean.data.images.parquet_images import read_group
from ncclean.data.images.registry import layout_of
from ncclean.data.images.text_rows import LeftOut
from ncclean.data.member_samples import CaptionsLeft
from ncclean.data.reader import read_samples
from ncclean.data.samples import Caption, Sample, SkipReason
from ncclean.data.sources import resolve_sources
from ncclean.errors import ShardError
from ncclean.workers.call import Limits, contained
from tests.footers import UNPACKED, rewrite_footer, set_field

ROWS = 60
# Reads a source in a process of its own, which tells its statuses and what it took.
READ = """
import json, resource, sys, torch
from collections import Counter
from tests.data.image_layouts import read, statuses
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
samples, errors = read(sys.argv[1])
taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps([Counter(statuses(samples)), errors, taken >> 10, samples[0].error]))
"""


def write_dictionary(path, large, text):
    """A column whose dictionary holds one text that all rows share."""
    words = pa.DictionaryArray.from_arrays(pa.array(np.zeros(ROWS, np.int32)), pa.array([text]))
    columns = {"jpg": [b"image"] * ROWS, "caption": ["fine"] * ROWS, large: words}
    pq.write_table(pa.table(columns), path, compression="zstd", store_schema=False)


@pytest.mark.parametrize(
    ("large", "status", "lies"),
    [pytest.param("other", "ok", False, marks=pytest.mark.slow), ("caption", "row_broken", True)],
)
def test_a_dictionary_with_one_huge_text(tmp_path, large, status, lies):
    path = tmp_path / "t.parquet"
    write_dictionary(path, large, "x" * 40_000_000)
    assert path.stat().st_size < 200_000
    if lies:
        rewrite_footer(path, set_field(UNPACKED, 1000))
    done = subprocess.run(
        [sys.executable, "-c", READ, path], capture_output=True, text=True, timeout=60, check=True
    )
    found, errors, megabytes, error = json.loads(done.stdout)
    assert found == {status: ROWS}
    assert errors == []
    assert megabytes < 1000
    assert status == "ok" or "column caption " in error


def test_a_column_of_which_memory_does_not_hold_a_single_text(tmp_path):
    path = tmp_path / "t.parquet"
    write_dictionary(path, "other", "x" * 100_000_000)
    limits = Limits(memory=150 << 20)
    columns = ["jpg", "caption", "other"]
    read = list(contained(read_group, str(path), 0, columns, limits=limits))
    assert sum(batch.num_rows for batch, _ in read) == ROWS
    assert {tuple(batch.schema.names) for batch, _ in read} == {("jpg", "caption")}
    assert all(list(left_out) == ["other"] for _, left_out in read)


@pytest.mark.parametrize("groups", [1, 40])
def test_rows_that_the_bytes_do_not_account_for(tmp_path, groups):
    """Nulls are runs: a billion of them take a few bytes."""
    path, rows = tmp_path / "t.parquet", 2_000_000
    columns = {"image": pa.nulls(rows, pa.binary()), "caption": pa.nulls(rows, pa.string())}
    pq.write_table(pa.table(columns), path, row_group_size=rows // groups)
    (shard,) = resolve_sources([str(path)])
    with pytest.raises(
        ShardError, match=r"announces 2,000,000 rows in .* bytes, so it is not read"
    ):
        next(iter(read_samples(shard)))


def npy(shape, dtype="<f4", size=0, length=None):
    """An npy file of zeros whose header says what it likes."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    length = len(header) if length is None else length
    return b"\x93NUMPY\x02\x00" + length.to_bytes(4, "little") + header.encode() + bytes(size)


def write_datacomp(folder, member):
    pq.write_table(pa.table({"uid": [f"{n}" for n in range(8)]}), folder / "a.parquet")
    with zipfile.ZipFile(folder / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("l14_img", "l14_txt"):
            archive.writestr(f"{name}.npy", member)


@pytest.mark.parametrize(
    "member",
    [
        npy((1 << 10, 64), size=1 << 18),
        npy((8, 1 << 17), size=1 << 22),
        npy((8, 4), size=1 << 20),
        npy((8, 4), size=12),
        npy((8, 1 << 60)),
        npy((8, -4), size=128),
        npy((8, 4), "|O", size=256),
        npy((8, 4), size=128, length=1 << 31),
        b"",
    ],
    ids=range(9),
)
def test_archives_that_are_not_what_their_headers_say(tmp_path, monkeypatch, member):
    monkeypatch.setattr(datacomp, "_WORTH_A_LOOK", 1 << 20)
    write_datacomp(tmp_path, member)
    (shard,) = resolve_embeddings([str(tmp_path)])
    pairs = read_pairs(shard, ("l14_img", "l14_txt"))
    assert pairs.error
    assert "a.npz" in pairs.error
    assert len(pairs.facts) == len(pairs.problems) == 8


def test_a_matrix_of_another_length_of_header(tmp_path, refused):
    place = tmp_path / "x.npy"
    with place.open("wb") as file:
        file.write(npy((8, 4), length=(1 << 32) - 1))
        file.truncate(1 << 33)
    refused(npy_shape, str(place))


def write_one_text(path, size, rows):
    """A table whose rows share one text, which its file has once."""
    text = pa.array(["a red ball " * (size // 11)], pa.string())
    shared = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), text)
    images = [{"bytes": bytes([number]), "path": f"{number}.jpg"} for number in range(rows)]
    pq.write_table(
        pa.table({"image": images, "caption": shared}), path,
        compression="zstd", dictionary_pagesize_limit=1 << 30, store_schema=False,
    )  # fmt: skip


def test_a_text_that_no_caption_has_is_not_held(tmp_path):
    path = tmp_path / "t.parquet"
    write_one_text(path, 40 << 20, 12)
    (shard,) = resolve_sources([str(tmp_path)])
    captions, before, most = [], pa.total_allocated_bytes(), 0
    for row in layout_of(shard).rows(shard):
        most = max(most, pa.total_allocated_bytes() - before)
        captions.append(row["caption"])
    assert len(captions) == 12
    assert all(isinstance(caption, LeftOut) and "caption" in caption.what for caption in captions)
    assert most < 200 << 20


def test_captions_of_one_image_are_no_more_than_the_bytes_account_for():
    left = CaptionsLeft(640)

    def rejected(captions):
        one = Sample(row=0, key="a", captions=[Caption(n, None, "a") for n in range(captions)])
        left.take(one)
        return one.status is SkipReason.CAPTION_TOO_LARGE

    assert not any(rejected(1) for _ in range(30_000))
    assert not rejected(1 + 20_000 + 10)
    assert rejected(2)
    assert not rejected(1)
