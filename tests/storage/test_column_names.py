"""What the columns of joined tables are called."""

import json

import numpy as np
import pyarrow as pa
import pytest

from ncclean.errors import InputError
from ncclean.execution.sample_rows import fields_of
from ncclean.scoring.null import BINS, Histogram
from ncclean.scoring.stats import pack_histogram
from ncclean.storage.column_names import ColumnNames, JoinedFile
from ncclean.storage.grouping import check_grouping, group_labels, names_in
from ncclean.storage.run_facts import RunFacts, parse_facts, read_facts
from tests.report.tables import graded, write_scores

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


# SQL that names groups of pairs is checked before anything is encoded.


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("count(*)", "an aggregate has one value for all pairs"),
        ("unnest([1, 2])", "unnest gives several rows"),
        ("row_number() OVER ()", "a window function looks at other pairs"),
        ("'a'), ('b'", "takes one SQL expression"),
        ("1 AS a, 2", "takes one SQL expression"),
        ("language FROM pairs, pairs AS b", "takes one SQL expression"),
        ("(SELECT content FROM read_text('/etc/passwd'))", "Cannot access file"),
    ],
)
def test_what_is_not_one_value_for_each_pair_is_refused(sql, reason):
    with pytest.raises(InputError, match=f"--calibrate-by.*{reason}"):
        check_grouping(sql)


def test_a_column_of_the_samples_and_sql_over_it():
    check_grouping("lower(language)")
    table = pa.table({"language": ["DE", "en", None]})
    assert group_labels("lower(language)", table).to_pylist() == ["de", "en", None]
    assert group_labels("other", table).to_pylist() == [None] * 3


def test_a_group_has_one_label_whatever_numbers_a_shard_holds_it_in():
    whole = pa.table({"year": pa.array([2020, 2021, 2021], pa.int64())})
    gaps = pa.table({"year": np.array([2020, np.nan, 2021.0])})
    assert group_labels("year", whole).to_pylist() == ["2020", "2021", "2021"]
    assert group_labels("year", gaps).to_pylist() == ["2020", None, "2021"]
    assert group_labels("year / 10", whole).to_pylist()[1:] == ["202.1", "202.1"]
    assert group_labels("1e300 * year", whole).to_pylist()[0] == "2.02e+303"


def test_only_names_of_columns_are_looked_for_in_the_samples():
    records = [{"lang": "de", "other": 1, "lower": "x", 'an "odd" name': {"id": 7}}, {"lang": "en"}]
    sql = 'lower(lang) || \'other\' /* other */ || "an ""odd"" name".id'
    assert fields_of(records, names_in(sql)).keys() == {"lang", 'an "odd" name'}
    assert fields_of(records, names_in("'other'")) == {}


# Facts of the run from the Parquet metadata.

COUNTS = np.arange(BINS)
FIELDS = {
    "model": "demo",
    "pretrained": "bundled",
    "shift": "-0.125",
    "noise_rate": "0.2",
    "noise_rate_low": "nan",
    "mismatched_histogram": json.dumps(pack_histogram(Histogram(COUNTS, 0))),
}


def test_values_and_what_is_not_recorded():
    facts = parse_facts(FIELDS)
    assert (facts.model_name, facts.shift, facts.noise_rate.value) == (
        "demo / bundled",
        -0.125,
        0.2,
    )
    assert not facts.noise_rate.has_interval
    assert np.array_equal(facts.mismatched.counts, COUNTS)
    assert parse_facts({}) == RunFacts()
    assert parse_facts({"model": "m", "pretrained": "None"}).model_name == "m"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"counts": "eA==", "units": 0}', "null"])
def test_a_broken_histogram_counts_as_missing(text):
    assert parse_facts({**FIELDS, "mismatched_histogram": text}).mismatched is None


def test_files_of_several_runs_have_no_facts_in_common(tmp_path):
    one = write_scores(tmp_path / "1.parquet", graded(), FIELDS)
    same = write_scores(tmp_path / "2.parquet", graded(), FIELDS)
    other = write_scores(tmp_path / "3.parquet", graded(), {**FIELDS, "shift": "0.3"})
    assert read_facts([str(one), str(same)]).model == "demo"
    unlike = write_scores(tmp_path / "4.parquet", graded(), {**FIELDS, "preprocessing": "{}"})
    assert read_facts([str(one), str(unlike)]).several_runs
    mixed = read_facts([str(one), str(other)])
    assert mixed.several_runs
    assert not mixed.noise_rate.is_known
    assert read_facts([*[str(one)] * 33, str(other)]).several_runs  # the last of many
    write_scores(tmp_path / "5.parquet", graded(), {**FIELDS, "mismatched_histogram": "{}"})
    assert read_facts([str(tmp_path / "[125].parquet")]).runs == (0, 0, 2)
