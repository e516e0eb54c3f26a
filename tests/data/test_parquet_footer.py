"""Sizes of column chunks, as pyarrow has them, from the footer alone."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from upath import UPath

from ncclean.data.parquet_footer import read_chunks, read_struct
from ncclean.errors import ShardError


def test_what_pyarrow_reads(tmp_path):
    path = tmp_path / "t.parquet"
    columns = {
        "text": ["a", "b"] * 50,
        "numbers": list(range(100)),
        "image": [{"bytes": b"x" * n, "path": None} for n in range(100)],
        "flags": [True, None] * 50,
    }
    pq.write_table(pa.table(columns), path, row_group_size=30, use_dictionary=["text"])
    groups = read_chunks(UPath(path))
    metadata = pq.read_metadata(path)
    assert len(groups) == metadata.num_row_groups == 4
    for number, chunks in enumerate(groups):
        group = metadata.row_group(number)
        assert [(one.column, one.packed, one.unpacked, one.largest) for one in chunks] == [
            (
                column.path_in_schema.split(".")[0],
                column.total_compressed_size,
                column.total_uncompressed_size,
                column.data_page_offset - column.dictionary_page_offset
                if column.has_dictionary_page
                else 0,
            )
            for column in map(group.column, range(group.num_columns))
        ]
        assert chunks[0].largest > 0


@pytest.mark.parametrize(
    "data", [b"", b"PAR1", b"x" * 7, b"\xff\xff\xff\x7fPAR1", b"\x19\x03\x00\x00\x00PAR1"]
)
def test_what_has_no_footer(tmp_path, data):
    (tmp_path / "t.parquet").write_bytes(data)
    with pytest.raises(ShardError, match="has a footer that cannot be read"):
        read_chunks(UPath(tmp_path / "t.parquet"))


@pytest.mark.parametrize(
    "data",
    [
        b"\x1c" * 100,  # structs in structs
        b"\x19\xf5\xff\xff\xff\x7f\x00",  # a list of a billion
        b"\x15" + b"\xff" * 20 + b"\x00",  # a number without an end
        b"\x1b\xff\xff\x7f\x55\x00",  # a map of two millions
        b"\x18\x7fabc\x00",  # a text that is longer than the rest
    ],
)
def test_structs_that_mean_harm(data):
    with pytest.raises((ValueError, IndexError)):
        read_struct(data)
