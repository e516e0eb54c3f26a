"""A selection without the pairs of causes."""

import dataclasses

import duckdb
import pytest
from ncclean_pipelines.explain import Explain
from ncclean_pipelines.select import Select
from upath import UPath

from ncclean.errors import InputError
from ncclean.explaining.cause_table import write_causes
from ncclean.explaining.excluded import without_causes
from ncclean.selection.policy import Policy
from tests.explaining.tables import write
from tests.explaining.test_explain_scores import planted


@pytest.fixture(scope="module")
def explained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("excluded")
    scores, causes = write(folder / "scores.parquet", planted()), str(folder / "causes.parquet")
    return folder, scores, causes, Explain(scores=[scores], out=causes).run().summary.causes


def select(explained, **options):
    folder, scores, causes, _ = explained
    out = str(folder / "selection.parquet")
    return Select(scores=[scores], out=out, exclude_causes=causes, **options).run().summary


def test_the_pairs_of_all_causes_are_dropped(explained):
    _, scores, _, causes = explained
    kept = select(explained)
    any_of = " OR ".join(f"({cause.condition})" for cause in causes)
    left = duckdb.sql(f"SELECT count(*) FROM '{scores}' WHERE NOT ({any_of})").fetchall()[0][0]
    assert kept.kept == left
    assert kept.dropped_by_reason == {"where": 6000 - left}


def test_some_causes_beside_a_condition(explained):
    numbers = [cause.number for cause in explained[3] if cause.kind == "host"]
    kept = select(explained, causes=numbers, policy=Policy(where="width = 100"))
    _, scores, _, _ = explained
    assert (
        kept.kept
        == duckdb.sql(
            f"SELECT count(*) FROM '{scores}' WHERE width = 100 AND url NOT LIKE '%broken.example%'"
        ).fetchall()[0][0]
    )


def test_what_is_no_cause_is_refused(explained):
    folder, scores, _, _ = explained
    with pytest.raises(InputError, match="has no cause 99"):
        select(explained, causes=[99])
    with pytest.raises(InputError, match="--causes needs --exclude-causes"):
        Select(scores=[scores], out="s.parquet", causes=[1])
    with pytest.raises(InputError, match="has no causes of `ncclean explain`"):
        Select(scores=[scores], out=str(folder / "s.parquet"), exclude_causes=scores).run()
    with pytest.raises(InputError, match="does not exist"):
        Select(scores=[scores], out=str(folder / "s.parquet"), exclude_causes="gone.parquet").run()


def test_a_condition_over_clusters_needs_their_table(explained):
    folder, scores, _, causes = explained
    path = str(folder / "clustered.parquet")
    cause = dataclasses.replace(
        causes[0], kind="image cluster", condition="clusters.cluster = 1", join="clusters=c.parquet"
    )
    write_causes(UPath(path), [cause], {})
    with pytest.raises(InputError, match=r"needs --join clusters=c\.parquet"):
        Select(scores=[scores], out=str(folder / "s.parquet"), exclude_causes=path).run()


def test_a_condition_cannot_be_a_statement(explained):
    folder, scores, _, causes = explained
    path = str(folder / "hostile.parquet")
    for condition in ("true); DROP TABLE scores; --", "(SELECT count(*) FROM read_csv('x')) > 0"):
        write_causes(UPath(path), [dataclasses.replace(causes[0], condition=condition)], {})
        with pytest.raises(InputError):
            Select(scores=[scores], out=str(folder / "s.parquet"), exclude_causes=path).run()


@pytest.mark.parametrize("condition", ["width = 1) OR (true", "", "width = 1; DROP TABLE scores"])
def test_a_condition_that_is_none_is_named_by_its_cause(explained, tmp_path, condition):
    cause = dataclasses.replace(explained[3][0], condition=condition)
    causes = tmp_path / "causes.parquet"
    write_causes(UPath(causes), [cause], {})
    with pytest.raises(InputError, match=r"causes.parquet: the condition of cause 1 takes one SQL"):
        without_causes(Policy(), str(causes), [explained[1]])


def test_causes_of_another_table_are_named(explained, tmp_path):
    folder, _, causes, found = explained
    columns = planted()
    other = write(tmp_path / "other.parquet", columns | {"uid": [f"x{u}" for u in columns["uid"]]})
    without = {name: values for name, values in columns.items() if name != "uid"}
    for table in (other, write(tmp_path / "without.parquet", without)):
        with pytest.raises(InputError, match=r"causes\.parquet is about another table"):
            Select(scores=[table], out=str(folder / "s.parquet"), exclude_causes=causes).run()
    path = str(tmp_path / "c.parquet")
    write_causes(
        UPath(path), [dataclasses.replace(found[0], kind="weight", condition="weight = 1")], {}
    )
    with pytest.raises(InputError, match=r"c\.parquet: the condition of cause 1: there is no col"):
        select((folder, explained[1], path, found))


def test_a_comment_in_a_condition_hides_nothing(explained):
    folder, scores, _, causes = explained
    path = str(folder / "comment.parquet")
    write_causes(
        UPath(path),
        [dataclasses.replace(causes[0], kind="wide", condition="width = 100 -- all")],
        {},
    )
    kept = Select(scores=[scores], out=str(folder / "c.parquet"), exclude_causes=path).run().summary
    wide = duckdb.sql(f"SELECT count(*) FROM '{scores}' WHERE width IS DISTINCT FROM 100")
    assert kept.kept == wide.fetchall()[0][0]


def planted_cause(explained, folder, condition, kind="rating", value="x"):
    """A table of causes in which somebody has changed a condition."""
    cause = dataclasses.replace(
        explained[3][0], number=1, kind=kind, value=value, condition=condition
    )
    write_causes(UPath(folder / "planted.parquet"), [cause], {})
    return str(folder / "planted.parquet")


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        ("length(repeat(text, 10000000)) > 5", "rating"),
        ("(SELECT count(*) FROM range(1000000000000)) > 3", "rating"),
        ("(lpad(text, 2000000000, 'x'))::VARCHAR = 'x'", "rating"),
        ("row_number() OVER () > 3", "rating"),
        ("len(list_transform(range(1000000000), lambda x: text)) > 3", "rating"),
        ("true", "host"),
        ("shard = 'another'", "shard"),
        ("regexp_matches(lower(text), 'x')", "word"),
        ("width = 1", "image size"),
        ("len(text) > 3", "length of the caption"),
        ("true", "exchanged words"),
        ("1 = 1) OR (1 = 1", "rating"),
    ],
)
def test_conditions_that_explain_does_not_write_are_refused(explained, tmp_path, condition, kind):
    causes = planted_cause(explained, tmp_path, condition, kind)
    with pytest.raises(InputError, match="cause 1"):
        without_causes(Policy(), causes, [explained[1]])


@pytest.mark.parametrize(
    "condition",
    [
        "(width)::VARCHAR = '640'",
        "(lower(split_part(url, '/', 3)))::VARCHAR = 'x'",
        "(similarity) >= 0.1 AND (similarity) < 0.2",
        "(CASE WHEN width > 100 THEN 'large' END)::VARCHAR = 'large'",
        "cluster = 3 AND regexp_matches(lower(text), 'x')",
    ],
)
def test_conditions_of_by_and_of_clusters_are_taken(explained, tmp_path, condition):
    causes = planted_cause(explained, tmp_path, condition)
    join = ()
    if "cluster" in condition:  # which is checked once its table is joined
        join = ("clusters=causes.clusters.parquet",)
    assert condition.split()[0].strip("(") in without_causes(
        Policy(), causes, [explained[1]], join=join
    ).where.replace('"', "")


def test_pairs_without_a_caption_are_not_of_a_cause_of_words(tmp_path):
    values = planted()
    values["text"][1000:1300] = None
    scores = write(tmp_path / "scores.parquet", values)
    causes, out = str(tmp_path / "causes.parquet"), str(tmp_path / "selection.parquet")
    found = Explain(scores=[scores], out=causes).run().summary
    (number,) = (cause.number for cause in found.causes if cause.kind == "phrase")
    condition = found.causes[number - 1].condition
    kept = Select(scores=[scores], out=out, exclude_causes=causes, causes=[number]).run().summary
    left = duckdb.sql(f"SELECT count_if(NOT coalesce({condition}, false)) FROM '{scores}'")
    assert kept.kept == left.fetchall()[0][0]
