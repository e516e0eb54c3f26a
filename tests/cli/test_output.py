"""`--json` and `--quiet` of every command, and what only the first of several ranks says."""

import json
import shutil

import lance
import pyarrow.parquet as pq
import pytest
from ncclean_cli.app import app
from ncclean_pipelines.command import Result
from ncclean_pipelines.display import Note
from ncclean_pipelines.finetune import Finetune
from ncclean_pipelines.registry import COMMANDS
from typer.testing import CliRunner

import ncclean
from ncclean.data.synthetic.heldout import ZEROSHOT_SETS, write_retrieval_set, write_zeroshot_set
from ncclean.models.checkpoint import resolve
from ncclean.models.heads import Heads, HeadsConfig, write_heads

pytestmark = pytest.mark.usefixtures("rough_shifts")

RECIPE = "stages:\n  synth:\n    pairs: 20\n    shard_size: 20\n    held_out: 0\n    workers: 1\n"
FINETUNE = ("--shards", "{data}/shards", "--model", "demo-noisy", "--steps", "2",
            "--batch-size", "20", "--precision", "fp32")  # fmt: skip
MODEL = ("--model", "demo", "--precision", "fp32", "--device", "cpu")
DRY = ("--dry-run", "--batch-size", 16, *MODEL)  # one batch is timed
# What to type after the name: `{data}` holds inputs, `{out}` is to be written.
COMMAND_LINES = {
    "clean": ("{data}/shards", "--out", "{out}", *MODEL),
    "run": ("{data}/r.yaml", "--out", "{out}"),
    "score": ("{data}/shards", "--out", "{out}.parquet", "--shift", "0.2", *MODEL),
    "merge": ("{data}/s.parquet", "--out", "{out}.parquet", "--shift", "0.2"),
    "annotate": ("{data}/s.parquet", "--dataset", "{data}/s.lance"),
    "query": ("SELECT 'NaN'::FLOAT AS x, count(*) AS n FROM scores", "{data}/s.parquet"),
    "audit": ("{data}/s.parquet", "--pairs", 12, "--out", "{out}"),
    "explain": ("{data}/s.parquet", "--out", "{out}.parquet"),
    "select": ("{data}/s.parquet", "--method", "noise-probability", "--out", "{out}.parquet"),
    "export": ("{data}/c.parquet", "--shards", "{data}/shards", "--out", "{out}", "--workers", 1),
    "neighbours": ("{data}/embeddings", "--out", "{out}.parquet"),
    "adapt": ("{data}/s.parquet", "--shards", "{data}/shards", "--out", "{out}", "--steps", 2,
              "--batch-size", 4, "--threshold", 0.1, *MODEL),
    "finetune": (*FINETUNE, "--out", "{out}"),
    "report": ("{data}/s.parquet", "--out", "{out}.html"),
    "synth": ("--out", "{out}", "--pairs", 20, "--held-out", 4, "--workers", 1),
    "inject-noise": ("{data}/shards", "--out", "{out}", "--noise", "ncr=0.2", "--workers", 1),
    "evaluate noise": ("{data}/s.parquet",),
    "evaluate zeroshot": ("--data", "{data}/z", *MODEL),
    "evaluate retrieval": ("--data", "{data}/r", *MODEL),
    "evaluate linear-probe": ("--data", "{data}/z", "--solver", "adamw", "--epochs", 1, *MODEL),
    "evaluate compare": ("{data}/before.json", "{data}/after.json", "--draws", 100),
    "evaluate similarity": ("--data", "{data}/r", *MODEL),
    "evaluate disentanglement": ("--data", "{data}/shards", "--model", "local-dir:{data}/heads"),
    "evaluate judgements": ("{data}/judged.csv", "--scores", "{data}/s.parquet"),
    "demo": ("--out", "{out}", "--pairs", 100),
}  # fmt: skip
TO_DO_AGAIN = {"neighbours": ("--overwrite",)}  # others go on, or replace their own file
SLOW = {"demo", "evaluate disentanglement"}
PARAMETERS = [
    pytest.param(name, id=name, marks=[pytest.mark.slow] if name in SLOW else [])
    for name in COMMAND_LINES
]
OTHERS = {
    "run --list": ("run", "--list"),
    "run --dry-run": ("run", "{data}/r.yaml", "--out", "{out}", "--dry-run"),
    "score --dry-run": ("score", "{data}/shards", "--out", "{out}", *DRY),
    "export --dry-run": ("export", "{data}/c.parquet", "--shards", "{data}/shards", "--out",
                         "{out}", "--dry-run"),
    "neighbours --dry-run": ("neighbours", "{data}/embeddings", "--out", "{out}.parquet",
                             "--dry-run"),
    "audit --answers": ("audit", "{data}/s.parquet", "--answers", "{data}/answers.csv"),
}  # fmt: skip


def run(*words):
    """In this process: starting one takes seconds."""
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Inputs for every command."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "r.yaml").write_text(RECIPE)
    shards, table = str(folder / "shards"), str(folder / "s.parquet")
    ncclean.synth(shards, pairs=120, shard_size=60, noise=0.2, held_out=0, workers=1)
    ncclean.score(
        shards, table, model="demo", precision="fp32", shift=0.2,
        embeddings=str(folder / "embeddings"),
    )  # fmt: skip
    lance.write_dataset(pq.read_table(table, columns=["uid", "text"]), folder / "s.lance")
    ncclean.select(table, str(folder / "c.parquet"), method="noise-probability")
    ncclean.audit(table, out=str(folder / "audit"), pairs=12)
    judged = pq.read_table(folder / "audit" / "sample.parquet")["uid"].to_pylist()
    (folder / "answers.csv").write_text(
        "\n".join(["uid,answer", *(f"{uid},match" for uid in judged)])
    )
    rows = pq.read_table(table, columns=["key", "text"]).slice(0, 40).to_pylist()
    judged_rows = (f'{row["key"]},"{row["text"]}",{n % 4}' for n, row in enumerate(rows))
    (folder / "judged.csv").write_text("\n".join(["image,caption,judge1", *judged_rows]))
    write_zeroshot_set(folder / "z", ZEROSHOT_SETS[0], 8, 1)
    write_retrieval_set(folder / "r", 8, 1)
    heads = shutil.copytree(resolve("demo", None).folder, folder / "heads")
    write_heads(Heads(HeadsConfig(feature_dim=128, hidden_dim=16, dim=16)), heads)
    for name, model in (("before", "demo-noisy"), ("after", "demo")):
        result = str(folder / f"{name}.json")
        ncclean.evaluate_retrieval(model=model, data=str(folder / "r"), out=result)
    return folder


def one_object(text):
    """The JSON object that the text is, all of it."""

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    assert text.endswith("\n")
    values = json.loads(text, parse_constant=refuse)
    assert isinstance(values, dict)
    return values


def test_every_command_is_here():
    # A review is a server, which runs until a person ends it: tests/reviewing.
    assert list(COMMAND_LINES) == [name for name in COMMANDS if name != "review"]


@pytest.mark.parametrize("name", PARAMETERS)
def test_json_is_one_object_and_quiet_says_nothing(data, tmp_path, name):
    """What `--quiet` says without `--json` is nothing for all: the tests below see that."""
    typed = [str(word).format(data=data, out=tmp_path / "a") for word in COMMAND_LINES[name]]
    words = (*name.split(), *typed)
    found = run(*words, "--json", "--quiet")
    assert found.exit_code == 0, found.stderr
    one_object(found.stdout)
    assert found.stderr == ""
    again = run(*words, *TO_DO_AGAIN.get(name, ()), "--json")
    assert again.exit_code == 0, again.stderr
    one_object(again.stdout)


@pytest.mark.parametrize("name", OTHERS)
def test_json_of_what_is_only_looked_at(data, tmp_path, name):
    words = [str(word).format(data=data, out=tmp_path / "o") for word in OTHERS[name]]
    one_object(run(*words, "--json").stdout)
    assert run(*words).stdout
    quiet = run(*words, "--quiet")
    assert (quiet.exit_code, quiet.stdout, quiet.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


class Trains:
    """In place of a training: says something, and has one failure."""

    def __call__(self, command, progress):
        progress.say("training")
        progress.advance(1, 1, "steps")
        return Result("finetune", None, {"steps": 1}, failures={"a": "gone"}, shown=[Note("done")])


@pytest.mark.parametrize("switches", [(), ("--json",), ("--quiet",)])
def test_only_the_first_of_several_ranks_says_anything(monkeypatch, switches):
    trains = Trains()
    monkeypatch.setattr(Finetune, "run", lambda self, progress: trains(self, progress))
    words = ("finetune", "--shards", "x", "--out", "o", *switches)
    monkeypatch.setenv("RANK", "1")
    other = run(*words)
    assert (other.exit_code, other.stdout, other.stderr) == (0, "", "")
    for rank in ("0", None):
        monkeypatch.setenv("RANK", rank) if rank else monkeypatch.delenv("RANK")
        first = run(*words)
        assert first.exit_code == 1
        assert (first.stderr == "") == ("--quiet" in switches)
        assert (first.stdout == "") == ("--quiet" in switches)
        if not switches:
            assert "failed: a: gone" in first.stdout


def test_ranks_are_about_training_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("RANK", "1")
    found = run("synth", "--out", tmp_path / "c", "--pairs", 10, "--held-out", 0, "--workers", 1)
    assert found.exit_code == 0
    assert found.stdout


def test_interrupted_is_130_with_the_hint_of_the_command(monkeypatch):
    def stop(self, progress):
        raise KeyboardInterrupt

    monkeypatch.setattr(Finetune, "run", stop)
    found = run("finetune", "--shards", "x", "--out", "o")
    assert found.exit_code == 130
    assert Finetune.resume_hint
    assert found.stderr == f"ncclean: interrupted: {Finetune.resume_hint}\n"
    assert found.stdout == ""
