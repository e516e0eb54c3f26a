"""The commands as a user runs them: exit codes, JSON, one sentence for each mistake."""

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ncclean.data.synthetic import CorpusOptions, write_corpus
from tests import hostile
from tests.command_line import START, run

SCORE = ("--model", "demo", "--precision", "fp32", "--shift", "0.2")


def test_score_then_query(corpus, tmp_path):
    out = tmp_path / "scores.parquet"
    result = run("score", corpus, "--out", out, *SCORE, "--json")
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["rows"] == 600
    assert summary["ok"] + sum(summary["failures"].values()) == 600
    assert summary["shards"] == 3
    assert summary["shards_failed"] == 0
    assert summary["noise_rate_low"] <= summary["noise_rate"] <= summary["noise_rate_high"]
    assert summary["shift"] == 0.2
    assert summary["samples_per_second"] > 0
    assert summary["out"] == str(out)
    assert "3 shards to score" in result.stderr

    sql = "SELECT status, count(*) AS n FROM scores GROUP BY 1"
    found = json.loads(run("query", sql, out, "--json").stdout)
    assert found["columns"] == ["status", "n"]
    assert {r["status"]: r["n"] for r in found["rows"] if r["status"] != "ok"} == (
        summary["failures"]
    )
    assert "image_corrupt" in run("query", sql, out).stdout
    assert run("query", sql, out, "--csv").stdout.startswith("status,n\n")
    assert json.loads(
        run("query", "SELECT 'NaN'::FLOAT AS x FROM scores LIMIT 1", out, "--json").stdout
    )["rows"] == [{"x": None}]

    again = run("score", "--out", out, "--finalize-only", "--shift", "0.3", "--json")
    assert json.loads(again.stdout)["shift"] == 0.3


def test_a_failed_shard_is_exit_code_1_and_named(tmp_path):
    (tmp_path / "good.tar").write_bytes(hostile.tar_bytes(hostile.sample("a", hostile.JPEG)))
    (tmp_path / "bad.tar").write_bytes(b"<html>" * 1000)
    result = run("score", tmp_path, "--out", tmp_path / "s.parquet", *SCORE)
    assert result.returncode == 1
    assert "failed: bad: cannot be read" in result.stdout
    assert "Traceback" not in result.stderr
    assert "unexpected" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("score", "nowhere", "--out", "s.parquet"), "nowhere does not exist"),
        (("score", "x.tar", "--out", "nope://b/s.parquet"), "nope://b/s.parquet cannot be opened"),
        (("score", "x.tar", "--out", "s", "--shift", "much"), "--shift takes auto, noise"),
        (("score", "x.tar", "--out", "s", "--engine", "spark"), "--engine takes"),
        (("score", "x.tar", "--out", "s", "--forget-percent", "101"), "--forget-percent"),
        (("score", "x.tar", "--out", "s", "--nonsense"), "No such option"),
        (("score", "x.tar"), "--out"),
        (("score", "--out", "s", "--finalize-only"), "nothing has been scored to s yet"),
        (("query", "SELECT 1", "nowhere.parquet"), "nowhere.parquet does not exist"),
        (("report", "x.parquet", "--out", "x.parquet"), "--out takes an HTML file"),
        (
            (
                "select",
                "x.parquet",
                "--method",
                "noise-probability",
                "--threshold",
                "30",
                "--out",
                "y.parquet",
            ),
            "--threshold 30 is outside the range of noise_probability, 0 to 1",
        ),
        (("query", "DROP TABLE scores", "x.parquet"), "x.parquet"),
        (("synth", "--out", "c", "--noise", "0.9", "--hard", "0.5"), "sum to at most 1"),
        (
            ("synth", "--out", "c", "--kind", "salt"),
            "--kind takes ncr, decl, per_batch, foreign_sentence, added_detail, got",
        ),
        (("nonsense",), "No such command"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "x.tar").write_bytes(b"")
    result = run(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_process_ends_with_the_exit_code_and_the_sentence_on_stderr():
    """The other tests call `main` in this process."""
    for words, code in ((["--version"], 0), (["query", "SELECT 1", "nowhere.parquet"], 2)):
        process = subprocess.run(
            [sys.executable, "-c", START, *words], capture_output=True, text=True, check=False
        )
        here = run(*words)
        assert process.returncode == here.returncode == code
        assert (process.stdout, process.stderr) == (here.stdout, here.stderr)
        assert (process.stdout == "") == (code == 2)


def test_a_path_that_is_not_there_is_named_before_torch_is_loaded(tmp_path):
    code = (
        "import atexit, sys; from ncclean_cli.app import main\n"
        "atexit.register(lambda: print('torch' in sys.modules))\n"
        "main()"
    )
    words = ["score", str(tmp_path / "nowhere"), "--out", str(tmp_path / "s")]
    process = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert process.returncode == 2
    assert "nowhere does not exist" in process.stderr
    assert process.stdout == "False\n"


def test_what_only_the_values_show_to_be_wrong_is_a_failed_query(tmp_path):
    pq.write_table(pa.table({"similarity": [0.5], "text": ["a, b"]}), tmp_path / "s.parquet")
    result = run("query", "SELECT * FROM scores WHERE similarity > 'abc'", tmp_path / "s.parquet")
    assert result.returncode == 2
    assert result.stderr.startswith("ncclean: the query failed: Conversion Error")
    quiet = run("query", "--quiet", "SELECT 1", tmp_path / "s.parquet")
    assert (quiet.returncode, quiet.stdout) == (0, "")
    table = run("query", "--csv", "SELECT text, similarity FROM scores", tmp_path / "s.parquet")
    assert table.stdout == 'text,similarity\n"a, b",0.5\n'


def test_no_command_takes_the_place_of_what_it_reads(tmp_path):
    path = tmp_path / "s.parquet"
    pq.write_table(pa.table({"uid": ["a"], "noise_probability": [0.1]}), path)
    before = path.read_bytes()
    (tmp_path / "link.parquet").symlink_to(path)
    for out in (path, tmp_path / "link.parquet"):
        for more in ((), ("--overwrite",)):
            result = run("select", path, "--method", "noise-probability", "--out", out, *more)
            assert result.returncode == 2
            said = "would overwrite the input" if more else "is in the way"
            assert said in result.stderr
    assert path.read_bytes() == before


def test_a_file_in_the_way_is_one_sentence(tmp_path):
    (tmp_path / "taken").write_text("x")
    result = run("synth", "--out", tmp_path / "taken", "--pairs", "10")
    assert result.returncode == 2
    assert result.stderr.strip().endswith("taken is a file")


@pytest.mark.parametrize("command", ["", "finetune", "neighbours", "export", "evaluate"])
def test_help_cuts_no_word_off_on_a_narrow_terminal(monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    shown = run(*filter(None, [command]), "--help").stdout
    assert "…" not in shown
    assert "..." not in re.sub(r"[\]}]\.\.\.", "", shown)
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("command", [[], ["score"], ["evaluate"], ["evaluate", "noise"]])
def test_help_has_a_short_name(command):
    assert run(*command, "-h").stdout == run(*command, "--help").stdout != ""


def test_debug_shows_the_traceback(tmp_path):
    for words in (["--debug", "score", "nowhere"], ["score", "nowhere", "--debug"]):
        result = run(*words, "--out", tmp_path / "s")
        assert result.returncode == 2
        assert "Traceback" in result.stderr


@pytest.mark.slow
def test_a_training_run_names_the_shards_that_broke_off(tmp_path):
    write_corpus(tmp_path / "s", CorpusOptions(pairs=80, shard_size=40), 1)
    whole = (tmp_path / "s" / "00001.tar").read_bytes()
    (tmp_path / "s" / "00001.tar").write_bytes(whole[: len(whole) // 2])
    result = run("finetune", "--shards", tmp_path / "s", "--model", "demo-noisy", "--out",
                 tmp_path / "run", "--epochs", "1", "--batch-size", "8")  # fmt: skip
    assert result.returncode == 1
    assert "failed: 00001:" in result.stdout
    assert (tmp_path / "run" / "open_clip_config.json").exists()


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.slow
def test_interrupted_says_how_to_resume(tmp_path, kind):
    write_corpus(tmp_path / "shards", CorpusOptions(pairs=20_000, shard_size=500), 2)
    command = [sys.executable, "-c", START, "score", tmp_path / "shards", "--out", tmp_path / "s"]
    process = subprocess.Popen(
        [*command, *SCORE],
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job ignores Ctrl-C, and so would what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not list((tmp_path / "s" / ".ncclean").glob("part-*.parquet")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(kind)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "interrupted: run the same command again to resume" in errors
    assert "Traceback" not in errors


def test_dry_run_writes_nothing(corpus, tmp_path):
    out = tmp_path / "s.parquet"
    result = run("score", corpus, "--out", out, *SCORE, "--dry-run", "--json")
    plan = json.loads(result.stdout)
    assert plan["shards"] == 3
    assert plan["pairs"] == pytest.approx(600, rel=0.1)
    assert list(tmp_path.iterdir()) == []


def test_synth_writes_corpus_and_heldout_sets(tmp_path):
    result = run("synth", "--out", tmp_path / "c", "--pairs", 120, "--held-out", 10, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["pairs"] == 120
    assert (tmp_path / "c" / "00000.tar").exists()
    assert (tmp_path / "c" / "heldout" / "zeroshot-shape" / "classnames.txt").exists()


@contextlib.contextmanager
def full_disk(size):
    """No file of this process grows past `size` bytes: Python ignores SIGXFSZ, so writes fail."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_one_sentence_and_nothing_is_lost(corpus, tmp_path):
    out = tmp_path / "s.parquet"
    arguments = ["score", str(corpus), "--out", str(out), *SCORE, "--quiet"]
    with full_disk(20_000):
        result = run(*arguments)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert "cannot write" in result.stderr
    assert not out.exists()
    assert run(*arguments).returncode == 0


@pytest.mark.slow
def test_demo(tmp_path):
    result = run("demo", "--out", tmp_path / "d", "--pairs", 1000, "--json", "--quiet")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["summary"]["rows"] == 1000
    assert found["noise"]["auroc"]["noise_probability"]["ncr"] >= 0.95
    again = run("demo", "--out", tmp_path / "d", "--pairs", 1000)
    assert again.stderr.count("unchanged, skipped") == len(found["run"]["stages"])
    assert "AUROC against clean pairs" in again.stdout
    assert re.search(r"figure +demo-noisy +continued +selected +osa +ncu +oracle", again.stdout)
    assert again.stdout.count("$ ncclean query") == 3
    assert (tmp_path / "d" / "index.html").is_file()


def test_a_selection_without_a_rule_says_so(scored, tmp_path):
    table = scored / "scores.parquet"
    finished = run("select", table, "--out", tmp_path / "all.parquet")
    assert "no rule was given, so every scored pair is kept" in finished.stdout
    finished = run("select", table, "--where", "similarity > 0", "--out", tmp_path / "k.parquet")
    assert "no rule" not in finished.stdout


def test_nothing_scored_or_kept_is_a_failure(corpus, scored, tmp_path):
    out = tmp_path / "s.parquet"
    finished = run("score", corpus, "--caption-key", "nope", "--model", "demo", "--shift", "0.2",
                   "--out", out)  # fmt: skip
    assert finished.returncode == 1, finished.stderr
    assert "no pair could be scored: mostly caption_missing" in finished.stdout
    assert "--caption-key: there are " in finished.stdout
    assert "txt" in finished.stdout.partition("there are ")[2]
    table = scored / "scores.parquet"
    finished = run("select", table, "--where", "similarity > 5", "--out", tmp_path / "k.parquet")
    assert finished.returncode == 1
    assert "nothing is kept" in finished.stdout


def test_options_are_completed():
    code = "import sys; sys.argv = ['ncclean']; from ncclean_cli.app import main; main()"
    environment = {"_NCCLEAN_COMPLETE": "complete_bash", "COMP_CWORD": "2"}
    completed = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment, "COMP_WORDS": "ncclean score --calibrate-"},
        capture_output=True,
        text=True,
    )
    assert completed.stdout.split() == ["--calibrate-by", "--calibrate-on", "--calibrate-with"]
