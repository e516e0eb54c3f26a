"""What the columns of joined tables are called."""

import pytest

from ncclean.errors import InputError
from ncclean.storage.column_names import ColumnNames, JoinedFile

SCORES = {"uid": "VARCHAR", "shard": "VARCHAR", "key": "VARCHAR", "similarity": "FLOAT"}


@pytest.mark.parametrize(
    ("text", "name", "path"),
    [
        ("dfn.parquet", "dfn", "dfn.parquet"),
        ("dfn=runs/a.parquet", "dfn", "runs/a.parquet"),
        ("runs/dfn-large 2.parquet", "dfn_large_2", "runs/dfn-large 2.parquet"),
        ("runs/dfn/", "dfn", "runs/dfn/"),
        ("s3://bucket/dfn.parquet", "dfn", "s3://bucket/dfn.parquet"),
        ("d=s3://bucket/a=b/*.parquet", "d", "s3://bucket/a=b/*.parquet"),
        ("00000.parquet", "_00000", "00000.parquet"),
        ("./date=2024/a.parquet", "a", "./date=2024/a.parquet"),
        ("it's;x.parquet", "it_s_x", "it's;x.parquet"),
    ],
)
def test_a_table_has_a_name(text, name, path):
    assert JoinedFile.parse(text) == JoinedFile(name, path)


def test_a_stem_without_letters_asks_for_a_name(refused):
    refused(JoinedFile.parse, "runs/*.parquet")


def names(**tables):
    joined = [(JoinedFile(name, f"{name}.parquet"), columns) for name, columns in tables.items()]
    return ColumnNames.of(SCORES, joined)


def test_a_column_keeps_its_own_name_where_no_other_has_it():
    columns = names(
        dfn={"uid": "VARCHAR", "similarity": "DOUBLE", "Blur": "FLOAT"},
        siglip={"UID": "BIGINT", "Similarity": "FLOAT", "blur": "FLOAT"},
    )
    assert list(columns.types) == [
        *SCORES, "dfn.similarity", "Blur", "siglip.Similarity", "siglip.blur",
    ]  # fmt: skip
    assert columns.types["dfn.similarity"] == "DOUBLE"
    assert columns.find(["similarity"]) == "similarity"
    assert columns.find(["DFN", "SIMILARITY"]) == "dfn.similarity"
    assert columns.find(["dfn", "blur"]) == columns.find(["blur"]) == "Blur"
    assert columns.find(["siglip", "blur"]) == "siglip.blur"
    assert columns.find(["siglip", "uid"]) == "uid"
    assert columns.find(["dfn.similarity"]) == "dfn.similarity"
    assert columns.find(["nosuch"]) is None
    assert columns.named("dfn.blur") == "Blur"


def test_a_table_may_be_called_as_its_column():
    columns = names(similarity={"uid": "VARCHAR", "similarity": "FLOAT"}, a={"uid": "V", "a": "F"})
    assert columns.find(["similarity", "similarity"]) == "similarity.similarity"
    assert columns.find(["a"]) == columns.find(["a", "a"]) == "a"


def test_keys():
    with_captions = {**SCORES, "caption_number": "SMALLINT"}
    tables = {
        "a": {"uid": "V", "shard": "V", "key": "V"},
        "b": {"shard": "V", "key": "V", "caption_number": "BIGINT"},
        "c": {"uid": "V", "Caption_Number": "BIGINT"},
    }
    joined = [(JoinedFile(name, name), columns) for name, columns in tables.items()]
    assert ColumnNames.of(SCORES, joined).keys == (("uid",), ("shard", "key"), ("uid",))
    assert ColumnNames.of(with_captions, joined).keys == (
        ("uid",),
        ("shard", "key", "caption_number"),
        ("uid", "caption_number"),
    )


def test_what_cannot_be_joined_is_said(refused):
    refused(names, a={"shard": "V", "x": "F"})
    refused(ColumnNames.of, {"x": "F"}, [(JoinedFile("a", "a"), {"uid": "V"})])
    refused(names, Scores={"uid": "V"})
    refused(names, a={"uid": "V"}, A={"uid": "V"})
    with pytest.raises(InputError, match="dfn has no column 'nosuch'; it has uid, x"):
        names(dfn={"uid": "V", "x": "F"}).find(["dfn", "nosuch"])
