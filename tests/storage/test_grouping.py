"""SQL that names groups of pairs is checked before anything is encoded."""

import pyarrow as pa
import pytest

from ncclean.errors import InputError
from ncclean.execution.sample_rows import fields_of
from ncclean.storage.grouping import check_grouping, group_labels, names_in


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


def test_only_names_of_columns_are_looked_for_in_the_samples():
    records = [{"lang": "de", "other": 1, "lower": "x", 'an "odd" name': {"id": 7}}, {"lang": "en"}]
    sql = 'lower(lang) || \'other\' /* other */ || "an ""odd"" name".id'
    assert fields_of(records, names_in(sql)).keys() == {"lang", 'an "odd" name'}
    assert fields_of(records, names_in("'other'")) == {}
