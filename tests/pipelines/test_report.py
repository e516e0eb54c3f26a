"""The report stage end to end: tables of every layout and age, shards, figures, the command."""

import json
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from ncclean_cli.app import app
from ncclean_pipelines.report import Report
from typer.testing import CliRunner

from ncclean.base.schema import PLACE_COLUMNS
from ncclean.data import fetch
from ncclean.report.measurements import measure_table
from ncclean.report.table import ScoreTable
from ncclean.storage.joined import query
from tests import hostile, object_store
from tests.report.tables import graded, write_scores


@pytest.fixture(scope="module")
def tables(scored, tmp_path_factory):
    """The same table as one file and as a folder of parts."""
    folder = tmp_path_factory.mktemp("tables")
    shutil.copy(scored / "scores.parquet", folder)
    table = pq.read_table(folder / "scores.parquet")
    (folder / "parts").mkdir()
    for number in range(3):
        part = table.filter(pc.field("shard") == f"{number:05d}")
        pq.write_table(part, folder / "parts" / f"part-{number:05d}.parquet")
    return folder


def run(*words):
    return CliRunner().invoke(app, ["report", *map(str, words)])


def test_numbers_equal_duckdbs(tables, corpus, tmp_path):
    out = tmp_path / "r.html"
    result = run(
        tables / "scores.parquet", "--shards", corpus, "--out", out, "--json", "--pairs", 5,
        "--figures", tmp_path / "figures", "--title", "Mine",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    rows, ok, wrong, kept, kept_wrong, flagged = query(
        "SELECT count(*), count(*) FILTER (status = 'ok'), sum(noise_probability), "
        "count(*) FILTER (noise_probability < 0.5), "
        "sum(noise_probability) FILTER (noise_probability < 0.5), "
        "count(*) FILTER (osa_noisy) FROM scores",
        [str(tables / "scores.parquet")],
    ).fetchall()[0]
    assert (found["rows"], found["ok"]) == (rows, ok) == (600, ok)
    assert ok + sum(found["failures"].values()) == rows
    assert found["expected_mismatched"] == pytest.approx(wrong)
    assert found["kept_at_half"] == kept
    assert found["expected_mismatched_kept_at_half"] == pytest.approx(kept_wrong, abs=1e-3)
    assert found["rules"]["osa_noisy"] == flagged
    assert "not disncl_clean" not in found["rules"]
    assert found["noise_rate_low"] <= found["noise_rate"] <= found["noise_rate_high"]
    assert found["detection"]["noise_probability ≥ 0.5"]["precision"] > 0.95
    assert found["missing"] == []
    assert 15 <= found["pairs_shown"] <= 20
    assert found["pictures"] >= 15
    assert found["bytes"] == out.stat().st_size < 5_000_000
    assert len(found["figures"]) == 12
    assert (tmp_path / "figures" / "cosine_distribution.pdf").read_bytes()[:4] == b"%PDF"
    assert "<h1><bdi>Mine</bdi></h1>" in out.read_text()


def test_folder_glob_and_url_give_the_same_page(tables, tmp_path):
    def page(path):
        out = tmp_path / "r.html"
        assert run(path, "--out", out, "--quiet", "--title", "t").exit_code == 0
        text = out.read_text()
        return (
            text.replace(str(path), "PATH").replace(f"'{path}'", "PATH").replace("'PATH'", "PATH")
        )

    whole = page(tables / "scores.parquet")
    assert "with <code>--shards</code> to see them" in whole

    def numbers(text):
        return re.findall(r"<td data-value=[^>]*>|<td>[^<]*</td>|<dd>[^<]*</dd>", text)

    assert numbers(page(tables / "parts")) == numbers(whole)
    assert numbers(page(tables / "parts" / "*.parquet")) == numbers(whole)


def test_object_stores(tables, corpus):
    with object_store.s3():
        system = object_store.filesystem()
        for path in (tables / "parts").glob("*.parquet"):
            system.put_file(str(path), f"corpus/parts/{path.name}")
        object_store.upload(corpus, "s3://corpus/shards")
        request = Report(
            scores=["s3://corpus/parts"],
            out="s3://corpus/reports/r.html",
            shards=["s3://corpus/shards"],
            pairs=3,
            figures="s3://corpus/reports/figures",
        )
        result = request.run().summary
        assert result.numbers.counts.rows == 600
        assert result.page.thumbnails.count(result.page.pairs) >= 9
        assert system.cat("corpus/reports/r.html").startswith(b"<!DOCTYPE html>")
        assert len(system.ls("corpus/reports/figures")) == 12


def test_scores_of_joined_tables_are_shown(tables, corpus, tmp_path):
    scores = pq.read_table(tables / "scores.parquet")
    other = pa.table({
        "uid": scores["uid"],
        "similarity": scores["similarity"],
        "lemon_score": pc.multiply(scores["similarity"], -1.0),
        "beauty": scores["similarity"],
    }).slice(0, 500)  # fmt: skip
    pq.write_table(other, tmp_path / "dfn.parquet")
    out = tmp_path / "r.html"
    result = run(tables / "scores.parquet", "--join", tmp_path / "dfn.parquet", "--out", out,
                 "--shards", corpus, "--pairs", 3, "--json")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["joined"] == {"dfn": 500}
    table = ScoreTable.open([str(tables / "scores.parquet")], None, [str(tmp_path / "dfn.parquet")])
    numbers = measure_table(table)
    curve, own = numbers.curve("dfn.similarity"), numbers.curve("similarity")
    assert curve.score.label == "Cosine similarity, dfn"
    assert curve.keeps_below is False
    assert numbers.curve("lemon_score").keeps_below
    scored = other["similarity"].drop_null()
    assert curve.total == len(scored) < own.total
    condition = curve.condition(curve.start)
    kept = query(f"SELECT count(*) FROM scores WHERE {condition}", [str(tables / "scores.parquet")],
                 joins=[str(tmp_path / "dfn.parquet")]).fetchall()[0][0]  # fmt: skip
    assert kept == curve.kept(curve.pairs)[curve.start]
    page = out.read_text()
    assert "Cosine similarity, dfn" in page
    assert "dfn.similarity" in page
    assert "beauty" not in page
    assert f"--join {tmp_path / 'dfn.parquet'}" in page


def test_an_older_table_says_what_it_lacks(tables, tmp_path):
    table = pq.read_table(tables / "scores.parquet")
    kept = [name for name in table.column_names if name not in ("clean_posterior", "noise_kind")]
    metadata = dict(table.schema.metadata)
    del metadata[b"mismatched_histogram"]
    path = tmp_path / "old.parquet"
    pq.write_table(table.select(kept).replace_schema_metadata(metadata), path)
    out = tmp_path / "r.html"
    result = Report(scores=[str(path)], out=str(out)).run().summary
    said = " ".join(result.numbers.missing)
    assert "histogram of known mismatches" in said
    assert "no column clean_posterior" in said
    assert "sum of noise probabilities" in out.read_text()
    assert result.numbers.curve("clean_posterior") is None


def test_a_shard_that_breaks_off_is_exit_code_1_and_named(tmp_path):
    whole = hostile.tar_bytes([*hostile.sample("k0", hostile.JPEG), *hostile.sample("k1", b"")])
    (tmp_path / "00000.tar").write_bytes(whole[:700])
    path = write_scores(tmp_path / "s.parquet", graded(2))
    result = run(path, "--shards", tmp_path, "--out", tmp_path / "r.html")
    assert result.exit_code == 1
    assert "failed: 00000: cannot be read" in result.output
    assert "cannot be read" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.parquet"], "nowhere.parquet does not exist"),
        (["{scores}", "--pairs", "301"], "Invalid value for '--pairs'"),
        (["{scores}", "--shards", "nowhere"], "nowhere does not exist"),
        (["{scores}", "more.tar"], "more.tar is a shard, not a score table"),
        (["{other}"], "is not a score table: it has no column"),
        (["{scores}", "{other}"], "40 of 80 rows have no status"),
        (["{text}"], "cannot be read as Parquet"),
        (["{scores}", "--memory-limit", "much"], "--memory-limit"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(tmp_path, arguments, message):
    places = {name: tmp_path / f"{name}.parquet" for name in ("scores", "other", "text")}
    write_scores(places["scores"], graded())
    pq.write_table(pq.read_table(places["scores"]).select(["uid", "key"]), places["other"])
    places["text"].write_text("no parquet")
    out = tmp_path / "r.html"
    result = run(*(word.format(**places) for word in arguments), "--out", out)
    assert result.exit_code == 2
    assert message in result.output
    assert not out.exists()


def test_a_page_that_cannot_be_written_leaves_nothing(tmp_path, refused):
    path = write_scores(tmp_path / "s.parquet", graded())
    (tmp_path / "file").write_text("")
    refused(Report, scores=[str(path)], out=str(tmp_path / "file" / "r.html"))


def test_the_python_example_of_the_docs_runs(tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "report.md"
    code = re.search(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.S | re.M)[1]
    monkeypatch.chdir(tmp_path)
    write_scores(tmp_path / "scores.parquet", graded())
    exec(compile(code, str(page), "exec"), {})
    assert (tmp_path / "cosines.pdf").stat().st_size > 1000
    assert (tmp_path / "threshold.pdf").exists()


@pytest.mark.parametrize("command", ["report", "audit"])
def test_a_table_of_before_0_4_shows_the_same_pictures_and_says_how(
    tables, corpus, tmp_path, command
):
    pages, said = {}, {}
    for age in ("new", "old"):
        folder = tmp_path / age
        folder.mkdir()
        table = pq.read_table(tables / "scores.parquet")
        metadata = table.schema.metadata
        if age == "old":
            table = table.drop_columns(list(PLACE_COLUMNS)).replace_schema_metadata(metadata)
        pq.write_table(table, folder / "scores.parquet")
        out = folder / "out.html" if command == "report" else folder / "out"
        words = [command, folder / "scores.parquet", "--shards", corpus, "--out", out,
                 "--title", "t"]  # fmt: skip
        result = CliRunner().invoke(app, list(map(str, words)))
        assert result.exit_code == 0, result.output
        page = out.read_text() if command == "report" else (out / "audit.html").read_text()
        pages[age] = re.findall("data:image/webp;base64,[^\"']+", page)
        said[age] = result.stderr.count("before 0.4")
    assert len(pages["new"]) > 10
    assert pages["new"] == pages["old"]
    assert said == {"new": 0, "old": 1}


def test_places_of_another_type_are_looked_for(tables, corpus, tmp_path):
    table = pq.read_table(tables / "scores.parquet")
    for name in PLACE_COLUMNS:
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, pa.array([[b"x"]] * len(table)))
    pq.write_table(table, tmp_path / "s.parquet")
    result = run(tmp_path / "s.parquet", "--shards", corpus, "--out", tmp_path / "r.html",
                 "--json", "--pairs", 5)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["pictures"] >= 15


def test_a_report_reads_no_shard_from_its_front(tables, corpus, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError

    monkeypatch.setattr(fetch, "read_samples", refuse)
    result = run(tables / "scores.parquet", "--shards", corpus, "--out", tmp_path / "r.html",
                 "--json", "--pairs", 5)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["pictures"] >= 15


def test_decisions_about_other_pairs_are_counted_apart(tables, tmp_path):
    scores = tables / "scores.parquet"
    first, second, *_ = pq.read_table(scores, columns=["uid"])["uid"].to_pylist()
    lines = [
        {"uid": uid, "decision": decision, "time": "2026-01-01T00:00:00"}
        for uid, decision in ((first, "drop"), (second, "keep"), ("foreign", "drop"))
    ]
    file = tmp_path / "d.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    report = {"scores": [str(scores)], "decisions": [str(file)]}
    result = Report(**report, out=str(tmp_path / "r.html")).run().to_json()
    assert (result["decided"], result["decided_elsewhere"]) == ({"keep": 1, "drop": 1}, 1)
    page = (tmp_path / "r.html").read_text()
    assert '<dd>2</dd><dd class="note">1 keep, 1 drop; 1 on pairs that the table' in page
