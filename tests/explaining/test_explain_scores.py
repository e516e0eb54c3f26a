"""Causes of score tables: planted ones are found, nothing else is, and runs resume."""

import json

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.explain import Explain

from ncclean.errors import InputError
from ncclean.explaining.cause_table import read_causes
from ncclean.explaining.explain_scores import explain_scores
from ncclean.explaining.options import ExplainOptions
from ncclean.storage.joined import JoinedScores, query
from tests.explaining.tables import columns, judged, write


def explain(folder, values, **options):
    scores = write(folder / "scores.parquet", values)
    return explain_scores([scores], str(folder / "causes.parquet"), ExplainOptions(**options))


def planted(rows=6000, seed=0):
    """A host, a phrase and a shard of 200 wrong pairs each."""
    values = columns(rows, seed)
    rng = np.random.default_rng(seed)
    free = rng.permutation(np.arange(1000, rows))
    for number in free[:200]:
        values["url"][number] = f"https://broken.example/x/{number}.jpg"
    for number in free[200:400]:
        values["text"][number] += " via snorf"
    values["wrong"][free[:400]] = True
    values["wrong"][500:700] = True
    return judged(values, seed)


def test_planted_causes_are_found_and_nothing_else(tmp_path):
    found = explain(tmp_path, planted())
    assert {(c.kind, c.label) for c in found.causes} == {
        ("host", "broken.example"), ("phrase", "via snorf"), ("shard", "00001"),
    }  # fmt: skip
    for cause in found.causes:
        assert cause.rate.low <= (0.46 if cause.kind == "shard" else 1.0) <= cause.rate.high
        assert cause.outside.value == pytest.approx(0.1, abs=0.03)
        assert cause.q_value < 0.05
        assert len(cause.examples) == 6
        assert all(example.probability > 0.4 for example in cause.examples)
        selected = duckdb.sql(
            f"SELECT count(*) FROM '{tmp_path}/scores.parquet' WHERE {cause.condition}"
        ).fetchall()[0][0]
        assert selected == cause.pairs
    # The words of the phrase and the folder of the host are explained by them.
    folded = {(c.kind, c.label): c.folded_into for c in found.folded}
    numbers = {c.label: c.number for c in found.causes}
    assert folded["folder of the url", "broken.example/x"] == numbers["broken.example"]
    assert folded["word", "snorf"] == numbers["via snorf"]
    assert [c.to_json() for c in read_causes(found.out)] == [
        c.to_json() for c in (*found.causes, *found.folded)
    ]


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.3])
def test_noise_without_causes_has_none(tmp_path, noise):
    for seed in range(2):
        values = judged(columns(4000, seed, noise), seed + 10)
        folder = tmp_path / str(seed)
        folder.mkdir()
        assert not explain(folder, values).causes


def test_groups_of_short_captions_are_no_causes(tmp_path):
    """Their cosines are lower than those of others, and their images among the first all the same.

    Where other captions are as short, and where no others are.
    """
    for share in (0.0, 0.2):
        values = planted()
        rng = np.random.default_rng(5)
        short = np.arange(2000, 2300)
        others = rng.permutation(np.arange(2300, 6000))[: int(share * 3700)]
        for number in short:
            values["url"][number] = f"https://short.example/a/{number}.jpg"
        for number in (*short, *others):
            values["text"][number] = values["text"][number].split()[0]
            if not values["wrong"][number]:
                values["noise_probability"][number] = rng.random() * 0.9
                values["t2i_rank"][number] = int(499 * 0.3 * rng.random())
                values["i2t_rank"][number] = rng.integers(500)
        folder = tmp_path / str(share)
        folder.mkdir()
        found = explain(folder, values)
        assert "short.example" not in {cause.label for cause in found.causes}
        assert not [cause for cause in found.causes if "length" in cause.kind]
        assert found.uncertain
        listed = (*found.causes, *found.uncertain)
        assert {"broken.example", "via snorf"} <= {group.label for group in listed}


def test_short_captions_that_a_weak_estimator_ranks_low_are_no_cause(tmp_path):
    """A fifth of their images are in the lower half, and no other captions are as short."""
    values = columns(6000, 0)
    rng = np.random.default_rng(5)
    values["wrong"][2000:2300] = False
    values = judged(values)
    for number in range(2000, 2300):
        values["url"][number] = f"https://short.example/a/{number}.jpg"
        values["text"][number] = values["text"][number].split()[0]
        values["noise_probability"][number] = rng.random() * 0.7
        values["t2i_rank"][number] = int(499 * rng.random() ** 2.2)
        values["i2t_rank"][number] = int(499 * rng.random() ** 2.2)
    assert np.mean(values["t2i_rank"][2000:2300] > 250) == pytest.approx(0.25, abs=0.05)
    assert not explain(tmp_path, values).causes
    # The captions of others make them a cause, as short as they are.
    values["wrong"][2000:2300] = True
    assert "short.example" in {cause.label for cause in explain(tmp_path, judged(values)).causes}


def test_columns_given_are_groups_too(tmp_path):
    values = planted()
    bad = np.isin(np.arange(6000), np.flatnonzero(values["wrong"])[::2])
    values["source"] = np.where(bad, "it's", "ok")
    values["blur"] = np.where(bad, 5.0, np.arange(6000) / 6000)
    found = explain(tmp_path, values, by=["source", "blur", "width % 2"])
    first = found.causes[0]
    assert (first.kind, first.value) == ("source", "it's")
    assert [c for c in found.folded if c.kind == "blur"]


def test_what_another_command_wrote_is_refused(tmp_path):
    scores = write(tmp_path / "scores.parquet", planted())
    with pytest.raises(InputError, match="in the way"):
        explain_scores([scores], scores)
    explain_scores([scores], str(tmp_path / "causes.parquet"))
    explain_scores([scores], str(tmp_path / "causes.parquet"))  # its own is replaced


@pytest.mark.parametrize("missing", ["noise_probability", "status"])
def test_a_table_without_probabilities_is_refused(tmp_path, missing):
    values = planted()
    del values[missing]
    with pytest.raises(InputError, match="no noise probabilities"):
        explain(tmp_path, values)
    assert not (tmp_path / "causes.parquet").exists()


@pytest.mark.parametrize("rows", [0, 1, 30])
def test_tiny_tables_have_no_causes(tmp_path, rows):
    assert not explain(tmp_path, judged(columns(rows))).causes
    assert pq.read_table(tmp_path / "causes.parquet").num_rows == 0


def test_failed_pairs_and_unknown_numbers_count_for_nothing(tmp_path):
    values = planted()
    values["status"] = ["image_corrupt"] * 6000
    assert not explain(tmp_path, values).causes
    values = planted()
    values["noise_probability"][::2] = np.nan
    values["text"][::3] = None
    values["url"][::5] = None
    explain(tmp_path, values)


def test_only_some_columns_are_needed(tmp_path):
    values = planted()
    kept = ("uid", "shard", "row", "status", "noise_probability", "wrong")
    found = explain(tmp_path, {name: values[name] for name in kept})
    assert [c.label for c in found.causes] == ["00001"]


def test_hostile_captions_and_hosts_are_named_as_they_are(tmp_path):
    values = planted()
    host, word = "o'brien\"<b>.example", "\u202e\x00<script>alert(1)</script> '; DROP TABLE scores"
    for number in range(500, 700):
        values["url"][number] = f"https://{host}/it's/{number}.jpg"
        values["text"][number] = f"{word} {values['text'][number]}"
    found = explain(tmp_path, values)
    mine = [c for c in (*found.causes, *found.uncertain, *found.folded) if c.pairs == 200]
    assert {"host", "phrase", "word"} <= {c.kind for c in mine}
    assert host in {c.value for c in mine}
    for cause in mine:
        select = "SELECT count(*) FROM scores WHERE " + cause.condition
        assert query(select, [str(tmp_path / "scores.parquet")]).fetchall() == [(200,)]
    printed = "\n".join(map(str, Explain(
        scores=[str(tmp_path / "scores.parquet")], out=str(tmp_path / "c.parquet")
    ).run().shown))  # fmt: skip
    assert "\u202e" not in printed
    json.dumps(found.to_json())


def test_a_screen_in_buckets_finds_the_same(tmp_path, monkeypatch):
    whole = explain(tmp_path, planted())
    monkeypatch.setattr("ncclean.explaining.aggregates._ALL_BUCKETS", 5)
    monkeypatch.setattr("ncclean.explaining.aggregates._SAMPLED", 20)
    screened = explain(tmp_path, planted())
    assert [(c.kind, c.label) for c in whole.causes] == [(c.kind, c.label) for c in screened.causes]


def test_values_of_any_type_are_groups(tmp_path):
    given = [
        "source = 'bad'", "[source]", "{'of': source}", "DATE '2026-01-01' + len(source)::INT",
        "encode(source)", "source -- as named by the crawler",
    ]  # fmt: skip
    values = planted()
    bad = np.flatnonzero(values["wrong"])[::2]
    values["source"] = np.where(np.isin(np.arange(6000), bad), "bad", "right")
    found = explain(tmp_path, values, by=given)
    for by in given:
        (group,) = (one for one in (*found.causes, *found.folded) if one.kind == by)
        assert group.pairs == len(bad)
        assert pairs_of(group, tmp_path / "scores.parquet") == group.pairs
    assert found.causes[0].kind in given


def test_a_column_given_may_have_the_name_of_another_kind(tmp_path):
    """The host that crawled a pair is not that of its url; nor is a region one of clusters."""
    values = planted()
    crawled = np.where(np.arange(6000) % 20 == 0, "crawler", "broken.example")
    values["wrong"] |= crawled == "crawler"
    hosts = pa.table({
        "uid": values["uid"], "host": crawled, "region": ["EU", "US"] * 3000,
        "tokens": [[1]] * 6000, "_rivals": [0] * 6000, "_shard": ["x"] * 6000,
    })  # fmt: skip
    pq.write_table(hosts, tmp_path / "hosts.parquet")
    scores = write(tmp_path / "scores.parquet", judged(values))
    out = str(tmp_path / "causes.parquet")
    joined = [str(tmp_path / "hosts.parquet")]
    found = explain_scores([scores], out, ExplainOptions(by=["host", "host"]), join=joined)
    causes = {(cause.kind, cause.value): cause for cause in (*found.causes, *found.folded)}
    assert causes["host of --by", "crawler"].pairs == 300
    assert causes["host", "broken.example"].pairs == 200
    for cause in causes.values():
        assert pairs_of(cause, scores, joined) == cause.pairs


@pytest.mark.slow
def test_one_long_caption_of_many_pairs(tmp_path):
    """Its file unpacks to far more than it holds: it was written here, by this command."""
    values = planted()
    for number in range(1000, 1400):
        values["text"][number] = "boilerplate of a shop " * 9_000
        values["wrong"][number] = True
    found = explain(tmp_path, judged(values))
    assert any(cause.pairs == 400 for cause in found.causes)


def pairs_of(cause, scores, joined=()):
    """The scored pairs that the condition of a cause selects in `select --where`."""
    with JoinedScores.open([str(scores)], joined) as table:
        condition = table.expression(cause.condition, "--where", is_condition=True)
        table.prepare(["status"], [condition])
        counted = f"SELECT count(*) FROM scores WHERE status = 'ok' AND {condition.sql}"
        return table.connection.execute(counted).fetchall()[0][0]


def test_a_cause_in_another_language_is_said_to_be_that(tmp_path):
    values = planted()
    for number in range(500, 700):
        values["text"][number] = f"der kleine braune Hund läuft über die Wiese Nummer {number}"
    found = explain(tmp_path, values)
    said = {cause.label: cause.proposal for cause in found.causes}
    foreign = [label for label, proposal in said.items() if proposal and "language de" in proposal]
    assert len(foreign) == 1
    assert said["broken.example"] is None
