"""`ncclean run` as a user runs it: lists, plans, exit codes, one sentence for each mistake."""

import json

import pytest
from ncclean_cli.app import app
from typer.testing import CliRunner

RECIPE = """\
about: Two stages.
stages:
  corpus:
    command: synth
    pairs: 60
    shard_size: 60
    held_out: 0
    workers: 1
  score:
    shards: ${corpus}
    model: demo
    precision: fp32
    shift: 0.2
"""


def run(*arguments):
    """In this process: starting one takes seconds."""
    return CliRunner().invoke(app, ["run", *map(str, arguments)])


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(RECIPE)
    return path


def test_run_then_skip_then_from(recipe, tmp_path):
    out = tmp_path / "run"
    first = run(recipe, "--out", out, "--json")
    assert first.exit_code == 0, first.stderr
    found = json.loads(first.stdout)
    assert found["ran"] == ["corpus", "score"]
    assert found["stages"]["score"]["result"]["rows"] == 60
    assert found["page"] == str(out / "index.html")
    again = run(recipe, "--out", out)
    assert "score: unchanged, skipped" in again.stderr
    assert f"the page of the run: {out / 'index.html'}" in again.stdout
    forced = run(recipe, "--out", out, "--from", "score", "--json", "--quiet")
    assert json.loads(forced.stdout)["ran"] == ["score"]
    assert forced.stderr == ""


def test_a_failed_shard_is_exit_code_1_and_named(recipe, tmp_path):
    (tmp_path / "bad.tar").write_bytes(b"<html>" * 1000)
    recipe.write_text(RECIPE.replace("${corpus}", f"['${{corpus}}', '{tmp_path}/bad.tar']"))
    result = run(recipe, "--out", tmp_path / "run")
    assert result.exit_code == 1
    assert "failed: score: bad: cannot be read" in result.stdout


def test_dry_run_writes_nothing(recipe, tmp_path):
    result = run(recipe, "--out", tmp_path / "run", "--dry-run", "--json",
                 "--set", "score.pairs_per_second=60", "--set", "score.engine=ray")  # fmt: skip
    assert [stage["action"] for stage in json.loads(result.stdout)["stages"]] == ["run", "run"]
    assert json.loads(result.stdout)["stages"][1]["hours"] == pytest.approx(1 / 3600)
    shown = run(recipe, "--out", tmp_path / "run", "--dry-run").stdout
    assert "seconds of computing for the stages with an estimate" in shown
    assert not (tmp_path / "run").exists()


def test_list_shows_the_bundled_recipes():
    assert "ncu_cc3m" in run("--list").stdout
    assert "demo" in json.loads(run("--list", "--json").stdout)


def test_the_folder_of_a_run_is_local(recipe):
    result = run(recipe, "--out", "s3://bucket/run")
    assert result.exit_code == 2
    assert "a local folder, got s3://bucket/run" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name a recipe, or list the bundled ones"),
        (("nonsense",), "neither a file nor a bundled recipe"),
        (("{recipe}", "--from", "later"), "--from later: no such stage; the stages are corpus"),
        (("{recipe}", "--set", "score.batch=3"), "--set score.batch: score has no option 'batch'"),
        (("{recipe}", "--set", "data=3"), "no variable 'data'"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(recipe, tmp_path, arguments, message):
    given = [each.format(recipe=recipe) for each in arguments]
    result = run(*given, "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
