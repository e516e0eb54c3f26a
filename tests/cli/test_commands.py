"""The commands as a user runs them: exit codes, JSON, one sentence for each mistake."""

import contextlib
import csv
import io
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ncclean_cli.app import app
from ncclean_pipelines.registry import COMMANDS, PURPOSES
from typer.testing import CliRunner
from upath import UPath

from ncclean.data.synthetic.heldout import write_heldout
from ncclean.storage.parts import write_embeddings
from ncclean.workers.fork_server import SERVER
from tests import hostile
from tests.command_line import START, run
from tests.factories import rendered

SCORE = ("--model", "demo", "--precision", "fp32", "--shift", "0.2")


def test_score_then_query(corpus, tmp_path):
    out = tmp_path / "scores.parquet"
    result = run("score", corpus / "00000.tar", "--out", out, *SCORE, "--json")
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["rows"] == 200
    assert summary["ok"] + sum(summary["failures"].values()) == 200
    assert summary["shards"] == 1
    assert summary["shards_failed"] == 0
    assert summary["noise_rate_low"] <= summary["noise_rate"] <= summary["noise_rate_high"]
    assert summary["shift"] == 0.2
    assert summary["samples_per_second"] > 0
    assert summary["out"] == str(out)
    assert "1 shard to score" in result.stderr

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


MISTAKES = {
    "score nowhere --out s.parquet": "nowhere does not exist",
    "score x.tar --out nope://b/s.parquet": "nope://b/s.parquet cannot be opened",
    "score x.tar --out s --shift much": "--shift takes auto, noise",
    "score x.tar --out s --engine spark": "--engine takes",
    "score x.tar --out s --forget-percent 101": "--forget-percent",
    "score x.tar --out s --nonsense": "No such option",
    "score x.tar": "--out",
    "score --out s --finalize-only": "nothing has been scored to s yet",
    "query 'SELECT 1' nowhere.parquet": "nowhere.parquet does not exist",
    "query 'DROP TABLE scores' x.parquet": "x.parquet",
    "report x.parquet --out x.parquet": "--out takes an HTML file",
    "select x.parquet --method noise-probability --threshold 30 --out y.parquet":
        "--threshold 30 is outside the range of noise_probability, 0 to 1",
    "synth --out c --noise 0.9 --hard 0.5": "sum to at most 1",
    "synth --out c --kind salt":
        "--kind takes ncr, decl, per_batch, foreign_sentence, added_detail, got",
    "nonsense": "No such command",
    "inject-noise x --out o": "name the noise to inject",
    "inject-noise x --out o --kind ncr": "give each kind its rate",
    "inject-noise x --out o --kind salt --rate 0.1": "unknown kind",
    "inject-noise nowhere --out o --noise ncr=0.1": "nowhere does not exist",
    "evaluate noise nowhere.parquet": "nowhere.parquet does not exist",
    "evaluate noise x --plot f.gif": "--plot takes a file ending in",
    "evaluate noise x --threshold a": "--threshold takes",
    "evaluate zeroshot --model demo --data {heldout}/no": "does not exist",
    "evaluate zeroshot --model demo --data {heldout}/retrieval": "use `evaluate retr",
    "evaluate retrieval --model demo --data {heldout}/zeroshot-count": "use `evaluate z",
    "evaluate linear-probe --model demo --data {heldout} --solver sgd": "--solver takes",
    "evaluate compare {heldout} {heldout}": "names no result",
    "evaluate zeroshot --model demmo --data {heldout}": "did you mean demo or",
    "evaluate retrieval --model demo --data {heldout} --pretrained a --pretrained a":
        "2 --pretrained for 1 --model",
    "neighbours nowhere --out n.parquet": "nowhere holds no embeddings",
    "neighbours nowhere --out n.parquet --index lsh": "--index takes auto, flat",
    "neighbours nowhere": "--out",
    "run --out r": "name a recipe, or list the bundled ones",
    "run nonsense --out r": "neither a file nor a bundled recipe",
    "run {recipe} --out r --from later": "--from later: no such stage; the stages are corpus",
    "run {recipe} --out r --set score.batch=3": "--set score.batch: score has no option 'batch'",
    "run {recipe} --out r --set data=3": "no variable 'data'",
    "run {recipe} --out s3://bucket/run": "a local folder, got s3://bucket/run",
}  # fmt: skip


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes_are_one_sentence_and_exit_code_2(tmp_path, monkeypatch, heldout, recipe, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "x.tar").write_bytes(b"")
    result = run(*shlex.split(words.format(heldout=heldout, recipe=recipe)))
    assert result.returncode == 2
    assert MISTAKES[words] in " ".join(result.stderr.split())
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


def test_a_caption_of_several_lines_is_one_value_of_a_csv(tmp_path):
    captions = ["a red\nball", 'a "blue", one', "\n", None]
    pq.write_table(pa.table({"text": captions, "n": range(4)}), tmp_path / "s.parquet")
    found = run("query", "--csv", "SELECT * FROM scores", tmp_path / "s.parquet").stdout
    _, *rows = csv.reader(io.StringIO(found))
    assert rows == [[text or "", str(n)] for n, text in enumerate(captions)]


def test_lists_in_a_csv_are_json_as_in_exports(tmp_path):
    lists = [["it's", None], [], None]
    pq.write_table(pa.table({"captions": lists, "s": [{"x": True}] * 3}), tmp_path / "s.parquet")
    printed = run("query", "--csv", "SELECT * FROM scores", tmp_path / "s.parquet").stdout
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert [row["captions"] and json.loads(row["captions"]) for row in rows] == [*lists[:2], ""]
    assert json.loads(rows[0]["s"]) == {"x": True}


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
    rendered(tmp_path / "s", pairs=80, shard_size=40)
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
    rendered(tmp_path / "shards", workers=2, pairs=20000, shard_size=500)
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


@contextlib.contextmanager
def full_disk(size):
    """No file of this process grows past `size` bytes: Python ignores SIGXFSZ, so writes fail."""
    SERVER.imports(contextlib.__name__)  # a server that starts below would keep the limit
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_one_sentence_and_nothing_is_lost(corpus, tmp_path):
    out = tmp_path / "s.parquet"
    arguments = ["score", str(corpus / "00000.tar"), "--out", str(out), *SCORE, "--quiet"]
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
    finished = run("score", corpus / "00000.tar", "--caption-key", "nope", *SCORE, "--out", out)
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


# `inject-noise` and `evaluate noise` as a user runs them.


def write_shard(folder):
    folder.mkdir()
    groups = [hostile.sample(f"{n:02d}", hostile.JPEG, b"no. %d dog" % n) for n in range(20)]
    members = [member for group in groups for member in group]
    (folder / "a.tar").write_bytes(hostile.tar_bytes(members))


def test_inject_then_again_with_another_rate(tmp_path):
    write_shard(tmp_path / "in")
    command = ("inject-noise", tmp_path / "in", "--out", tmp_path / "out", "--kind", "ncr")
    result = run(*command, "--rate", "0.5", "--json")
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["planned"] == {"ncr": 10}
    assert summary["noisy"]["ncr"] + summary["left_in_place"]["ncr"] == 10
    assert "1 shard to write" in result.stderr
    again = run(*command, "--rate", "0.4")
    assert again.returncode == 2
    assert "--noise ncr was 0.5, is 0.4" in again.stderr
    assert run(*command, "--rate", "0.5", "--quiet").stdout == ""


def test_a_broken_shard_is_exit_code_1_and_named(tmp_path):
    write_shard(tmp_path / "in")
    (tmp_path / "in" / "b.tar").write_bytes(b"<html>" * 1000)
    result = run("inject-noise", tmp_path / "in", "--out", tmp_path / "o", "--noise", "hard=0.1")
    assert result.returncode == 1
    assert "failed: b: cannot be read" in result.stdout


def test_evaluate_noise(tmp_path):
    table = pa.table({"similarity": [0.1, 0.2, 0.9], "is_noisy": [True, False, False]})
    pq.write_table(table, tmp_path / "s.parquet")
    shown = run("evaluate", "noise", tmp_path / "s.parquet", "--plot", tmp_path / "f.svg")
    assert shown.returncode == 0, shown.stderr
    assert "1 unspecified" in shown.stdout
    assert (tmp_path / "f.svg").exists()
    found = json.loads(run("evaluate", "noise", tmp_path / "s.parquet", "--json").stdout)
    assert found["scores"][0]["kinds"][0]["report"]["auroc"] == 1
    # What cannot be computed is null, not NaN.
    pq.write_table(table.slice(1), tmp_path / "clean.parquet")
    found = json.loads(run("evaluate", "noise", tmp_path / "clean.parquet", "--json").stdout)
    assert found["scores"][0]["kinds"][0]["report"]["auroc"] is None


# `ncclean evaluate ...` of models as a user runs it.

FAST = ("--precision", "fp32", "--device", "cpu")


@pytest.fixture(scope="module")
def heldout(tmp_path_factory):
    out = tmp_path_factory.mktemp("heldout")
    write_heldout(out, 24, seed=5)
    return out


def test_two_models_in_one_table_then_compared(heldout, tmp_path):
    shape = heldout / "zeroshot-shape"
    command = ("evaluate", "zeroshot", "--data", shape, *FAST)
    both = ("--model", "demo-noisy", "--model", "demo")
    shown = run(*command, *both, "--out", tmp_path)
    assert shown.returncode == 0, shown.stderr
    head = next(line.split() for line in shown.stdout.splitlines() if " metric " in line)
    assert head[-2:] == ["demo-noisy", "demo"]
    assert "mean_per_class_recall" in shown.stdout
    assert "demo: zeroshot-shape" in shown.stderr
    pair = [next(tmp_path.glob(f"*_{name}_*.json")) for name in ("demo-noisy", "demo")]
    again = json.loads(run(*command, "--model", "demo", "--json").stdout)["results"][0]
    assert json.loads(pair[1].read_text())["metrics"] == again["metrics"]
    found = json.loads(run("evaluate", "compare", *pair, "--draws", 200, "--json").stdout)
    acc1 = found["comparisons"][0]["metrics"]["acc1"]
    assert acc1["excludes_zero"]
    assert acc1["difference"] == pytest.approx(acc1["b"] - acc1["a"])
    table = run("evaluate", "compare", *pair, "--draws", 200)
    line = next(line for line in table.stdout.splitlines() if " acc1 " in line)
    assert line.rstrip().endswith("*")
    assert "zeroshot-shape (24)" in line


def test_similarities_of_two_models_are_shown_and_drawn(heldout, tmp_path):
    figure = tmp_path / "f.pdf"
    pairs = ("--data", heldout / "retrieval", "--plot", figure, *FAST)
    both = run("evaluate", "similarity", "--model", "demo-noisy", "--against", "demo", *pairs)
    assert both.returncode == 0, both.stderr
    assert "own captions beat the hardest others" in both.stdout
    assert figure.exists()


# `ncclean run` as a user runs it: lists, plans, exit codes, one sentence for each mistake.

RECIPE = """\
about: Two stages.
stages:
  corpus:
    command: synth
    pairs: 40
    shard_size: 40
    held_out: 0
    workers: 1
  score:
    shards: ${corpus}
    model: demo
    precision: fp32
    shift: 0.2
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(RECIPE)
    return path


def test_run_then_skip_then_from(recipe, tmp_path):
    out = tmp_path / "run"
    first = run("run", recipe, "--out", out, "--json")
    assert first.returncode == 0, first.stderr
    found = json.loads(first.stdout)
    assert found["ran"] == ["corpus", "score"]
    assert found["stages"]["score"]["result"]["rows"] == 40
    assert found["page"] == str(out / "index.html")
    again = run("run", recipe, "--out", out)
    assert "score: unchanged, skipped" in again.stderr
    assert f"the page of the run: {out / 'index.html'}" in again.stdout
    forced = run("run", recipe, "--out", out, "--from", "score", "--json", "--quiet")
    assert json.loads(forced.stdout)["ran"] == ["score"]
    assert forced.stderr == ""


def test_dry_run_of_a_recipe_writes_nothing(recipe, tmp_path):
    result = run("run", recipe, "--out", tmp_path / "run", "--dry-run", "--json",
                 "--set", "score.pairs_per_second=40", "--set", "score.engine=ray")  # fmt: skip
    assert [stage["action"] for stage in json.loads(result.stdout)["stages"]] == ["run", "run"]
    assert json.loads(result.stdout)["stages"][1]["hours"] == pytest.approx(1 / 3600)
    shown = run("run", recipe, "--out", tmp_path / "run", "--dry-run").stdout
    assert "seconds of computing for the stages with an estimate" in shown
    assert not (tmp_path / "run").exists()


def test_list_shows_the_bundled_recipes():
    assert "--set data=cc3m | cc3m_b32 | cc12m" in run("run", "--list").stdout
    assert "demo" in json.loads(run("run", "--list", "--json").stdout)


@pytest.fixture
def embeddings(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((60, 8))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)
    rows[50:] = rows[:10]
    names = [str(i) for i in range(60)]
    table = pa.table({"uid": names, "shard": ["s"] * 60, "key": names, "caption": names})
    write_embeddings(UPath(tmp_path / "e"), "0", rows, rows, table)
    return tmp_path / "e"


def test_json_and_summary_of_neighbours(embeddings, tmp_path):
    out = tmp_path / "n.parquet"
    result = run("neighbours", embeddings, "--out", out, "--json")
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["pairs"] == 60
    assert summary["image_duplicates"] == 10
    assert summary["index_image"] == "flat (exact)"
    assert pq.read_table(out).num_rows == 60
    result = run("neighbours", embeddings, "--out", out, "--overwrite", "--index", "ivf")
    assert result.returncode == 0, result.stderr
    assert "recall" in result.stdout
    assert "searching image neighbours, 1 task\n" in result.stderr
    assert run("neighbours", embeddings, "--out", out, "--overwrite", "--quiet").stdout == ""


def test_missing_recall_is_null_in_json(embeddings, tmp_path):
    """Without any near-duplicate in the sample, that recall cannot be measured."""
    arguments = ("--index", "ivf", "--image-threshold", "1", "--no-whiten", "--json")
    result = run("neighbours", embeddings, "--out", tmp_path / "n.parquet", *arguments)
    assert json.loads(result.stdout)["image_duplicate_recall"] is None


def test_torch_is_not_loaded(embeddings, tmp_path):
    """Its OpenMP runtime beside that of FAISS crashes on macOS."""
    code = (
        "import sys; from ncclean_cli.app import app\n"
        "try: app(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print({'torch', 'faiss'} & set(sys.modules), file=sys.stderr)"
    )
    words = ["neighbours", str(embeddings), "--out", str(tmp_path / "n.parquet"), "--quiet"]
    result = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )
    assert result.stderr.strip() == "{'faiss'}"


def test_the_help_lists_every_command_once_by_its_purpose():
    listed = [name for names in PURPOSES.values() for name in names]
    assert sorted(listed) == sorted({name.split()[0] for name in COMMANDS})
    shown = CliRunner().invoke(app, ["--help"]).output
    assert all(f"{purpose}:\n" in shown for purpose in PURPOSES)
    assert all(re.search(rf"^  {name}  +\w", shown, re.M) for name in listed)
