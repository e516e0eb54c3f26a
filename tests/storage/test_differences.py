"""Differences between two runs, said the way the command line says its options."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclean.errors import ResumeError
from ncclean.storage.differences import check_same, differences

LABELS = {"rates": "--noise", "model.fingerprint": "the weights' fingerprint"}


@pytest.mark.parametrize(
    ("before", "now", "clauses"),
    [
        ({"batch_size": 8}, {"batch_size": 16}, ["--batch-size was 8, is 16"]),
        ({"options": {"lr": 1e-4}}, {"options": {"lr": 1e-5}}, ["--lr was 0.0001, is 1e-05"]),
        ({}, {"caption_key": "alt"}, ["--caption-key was not set, is alt"]),
        ({"caption_key": "alt"}, {}, ["--caption-key was alt, is not set"]),
        ({"columns": ["a", "b"]}, {"columns": []}, ["--columns was a, b, is not set"]),
        ({"batch_size": 0}, {"batch_size": None}, ["--batch-size was 0, is not set"]),
        ({"rates": {"ncr": 0.2}}, {"rates": {"ncr": 0.3}}, ["--noise ncr was 0.2, is 0.3"]),
        ({"rates": {"ncr": 0.2}}, {"rates": {}}, ["--noise ncr was 0.2, is not set"]),
        ({"rates": None}, {"rates": {"ncr": 0.2}}, ["--noise ncr was not set, is 0.2"]),
        (
            {"model": {"fingerprint": "aa", "precision": "fp32"}},
            {"model": {"fingerprint": "bb", "precision": "fp32"}},
            ["the weights' fingerprint was aa, is bb"],
        ),
        ({"a": 1, "b": [1], "c": None}, {"a": 1.0, "b": [1]}, []),
        ({"x": math.nan}, {"x": math.nan}, []),
    ],
)
def test_fields(before, now, clauses):
    assert differences(before, now, LABELS) == clauses


def shards(*names, size=1):
    return {"shards": [{"name": name, "size": size} for name in names]}


@pytest.mark.parametrize(
    ("before", "now", "clauses"),
    [
        (shards("a", "b"), shards("a", "b"), []),
        (shards("a", "b"), shards("a"), ["shard b is missing now"]),
        (shards("a"), shards("a", "b"), ["shard b is new"]),
        (shards("a"), shards("a", size=2), ["shard a is another file, or has changed"]),
        (shards("a", "b"), shards("b", "a"), ["the shards are in another order"]),
        (shards(), shards("a"), ["shard a is new"]),
        (shards("a"), shards(), ["shard a is missing now"]),
    ],
)
def test_shards_by_name(before, now, clauses):
    assert differences(before, now) == clauses


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
IDENTITIES = st.dictionaries(st.text(min_size=1, max_size=3), VALUES, max_size=4)


@given(IDENTITIES)
def test_a_run_does_not_differ_from_itself(identity):
    assert differences(identity, dict(reversed(identity.items()))) == []


@given(IDENTITIES, IDENTITIES)
def test_differences_are_there_both_ways_or_neither(one, other):
    assert bool(differences(one, other)) == bool(differences(other, one))


def test_five_are_shown_and_the_others_counted():
    check_same("out", [])
    with pytest.raises(ResumeError) as refusal:
        check_same("out", [f"--o{n} was 1, is 2" for n in range(7)])
    assert str(refusal.value) == (
        "out was made by another run: --o0 was 1, is 2; --o1 was 1, is 2; --o2 was 1, is 2; "
        "--o3 was 1, is 2; --o4 was 1, is 2; and 2 more. Use --overwrite to start again, or "
        "another --out"
    )


def test_a_file_is_named_by_its_path():
    (clause,) = differences({"/a/my_pairs.parquet": 1}, {"/a/my_pairs.parquet": 2}, {})
    assert clause == "/a/my_pairs.parquet was 1, is 2"
