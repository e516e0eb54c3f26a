"""Fine-tuning end to end: selected pairs in, a run folder that is a model out."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import open_clip
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from ncclean_cli.app import app
from ncclean_pipelines.command import build
from ncclean_pipelines.finetune import Finetune
from ncclean_pipelines.score import Score
from typer.testing import CliRunner
from upath import UPath

from ncclean.base.progress import Silent
from ncclean.data.options import LoaderOptions
from ncclean.errors import InputError
from ncclean.selection.policy import Policy
from ncclean.selection.select import select
from ncclean.training.objectives.options import NcuOptions, ObjectiveOptions
from ncclean.training.options import TrainOptions
from ncclean.training.run_files import read_results
from tests import object_store

COMMAND = "import sys; from ncclean_cli.app import main; main()"


@pytest.fixture(scope="module")
def selection(scored, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finetune")
    policy = Policy(method="noise-probability")
    select([str(scored / "scores.parquet")], UPath(folder / "clean.parquet"), policy)
    return folder / "clean.parquet"


def request(corpus, selection, out, **options):
    rate = options.pop("learning_rate", 3e-4)
    defaults = {"method": "clip", "batch_size": 40,
                "objective": ObjectiveOptions(learning_rate=rate, epochs=1)}  # fmt: skip
    return Finetune(
        shards=corpus if isinstance(corpus, list) else [str(corpus)], out=str(out),
        selection=str(selection) if selection is not None else None, model="demo-noisy",
        loader=LoaderOptions(chunk=160), training=TrainOptions(log_steps=1),
        **{**defaults, **options},
    )  # fmt: skip


def test_the_run_folder_is_a_model(corpus, selection, tmp_path):
    summary = request(corpus, selection, tmp_path / "run").run().summary
    pairs = pq.read_metadata(selection).num_rows
    assert summary.steps == pairs // 40
    assert summary.skipped == {}
    model = f"local-dir:{tmp_path / 'run'}"
    assert open_clip.create_model(model).visual.image_size == (64, 64)
    shard = str(corpus / "00000.tar")
    Score(shards=[shard], out=str(tmp_path / "s.parquet"), model=model, shift=0.0).run()
    assert pq.read_metadata(tmp_path / "s.parquet").num_rows == 200
    params = yaml.safe_load((tmp_path / "run" / "params.yaml").read_text())
    assert params["method"] == "clip"
    assert params["learning_rate"] == 3e-4
    assert "gamma" not in params  # an option of another method
    assert len(read_results(tmp_path / "run")) == summary.steps
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_an_incomplete_batch_counts_the_samples_that_it_has(corpus, selection, tmp_path):
    asked = request(corpus, selection, tmp_path / "run", batch_size=250)
    loader = LoaderOptions(chunk=250, drop_last=False, augment=False)
    pairs, each = pq.read_metadata(selection).num_rows, TrainOptions(steps=4)
    summary = replace(asked, loader=loader, training=each).run().summary
    rounds, rest = divmod(4, -(-pairs // 250))
    assert rounds
    assert summary.samples == rounds * pairs + rest * 250


@pytest.mark.slow
def test_the_losses_of_a_result_are_of_one_phase(corpus, tmp_path):
    """NCU's first phase sums other terms, and begins at a loss a hundred times as high."""
    asked = request(
        [str(corpus / "00000.tar")], None, tmp_path / "run", method="ncu",
        objective=ObjectiveOptions(epochs=1, prompt_epochs=1),
    )  # fmt: skip
    summary = asked.run().summary
    losses = [line["loss"] for line in read_results(tmp_path / "run") if line["phase"] == "UL"]
    assert (summary.first_loss, summary.last_loss) == (losses[0], losses[-1])


def test_a_run_in_a_store_goes_on_and_is_that_of_a_folder(corpus, selection, tmp_path, refused):
    training = TrainOptions(log_steps=1, save_steps=2, steps=6, tensorboard=False)
    local = replace(request(corpus, selection, tmp_path / "run"), training=training)
    local.run()

    class Stops(Silent):
        def advance(self, done, *rest, **facts):
            if done == 5:
                raise KeyboardInterrupt

    with object_store.s3("runs"):
        out = "s3://runs/a/run"
        remote = replace(request(corpus, selection, out), training=training)
        with pytest.raises(KeyboardInterrupt):
            remote.run(Stops())
        system = object_store.filesystem()
        assert "runs/a/run/checkpoints/step_00000004.pt" in system.find("runs/a/run")
        summary = remote.run().summary
        assert (summary.steps, summary.out) == (6, out)
        kept = {name.removeprefix("runs/a/run/") for name in system.find("runs/a/run")}
        system.get("runs/a/run/open_clip_model.safetensors", str(tmp_path / "weights"))
        system.get("runs/a/run/results.jsonl", str(tmp_path / "results.jsonl"))
        refused(replace, request(corpus, selection, out, learning_rate=0.1), training=training)
        assert replace(remote, overwrite=True).run().summary.steps == 6
    weights = tmp_path / "run" / "open_clip_model.safetensors"
    assert (tmp_path / "weights").read_bytes() == weights.read_bytes()
    assert [one["step"] for one in read_results(tmp_path)] == [1, 2, 3, 4, 5, 6]
    present = (path for path in (tmp_path / "run").rglob("*") if path.is_file())
    names = {path.relative_to(tmp_path / "run").as_posix() for path in present}
    is_own = ".ncclean/"
    assert {one for one in kept if is_own not in one} == {one for one in names if is_own not in one}


def test_the_same_again_goes_on_and_another_is_refused(corpus, selection, tmp_path, refused):
    out, training = tmp_path / "run", TrainOptions(log_steps=1, steps=3)

    def asked(**options):
        return replace(request(corpus, selection, out, **options), training=training)

    first = asked().run().summary
    weights = out / "open_clip_model.safetensors"
    trained, results = weights.read_bytes(), read_results(out)
    for resume in (False, True):  # `resume` says what happens anyway
        again = asked(resume=resume).run().summary
        assert again == first
        assert (weights.read_bytes(), read_results(out)) == (trained, results)
    refused(asked, learning_rate=0.1)
    assert weights.read_bytes() == trained


def test_overwrite_replaces_a_run_and_keeps_a_users_files(corpus, tmp_path):
    out, one = tmp_path / "run", [str(corpus / "00000.tar")]
    assert request(one, None, out).run().summary.steps == 5
    mine = [out / "notes.txt", out / "checkpoints" / "notes.txt", out / "tensorboard" / "notes.txt"]
    for path in mine:
        path.write_text("mine")
    changed = {"batch_size": 60, "learning_rate": 1e-4, "overwrite": True}
    assert request(one, None, out, **changed).run().summary.steps == 3
    assert len(read_results(out)) == 3
    assert [path.name for path in (out / "checkpoints").glob("*.pt")] == ["step_00000003.pt"]
    assert yaml.safe_load((out / "params.yaml").read_text())["learning_rate"] == 1e-4
    assert all(path.read_text() == "mine" for path in mine)


def test_what_makes_no_sense_is_refused(corpus, selection, tmp_path, refused):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    for overwrite in (False, True):
        refused(request, corpus, selection, tmp_path / "full", overwrite=overwrite)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.tex"]
    refused(request, corpus, selection, tmp_path / "run", method="magic")
    refused(request, corpus, selection, tmp_path / "run", batch_size=5000)


WRONG = [
    ("gamma", "0.5", "--gamma is an option of --method ncu and does nothing with clip"),
    ("moving_average", "0.5", "--moving-average is an option of --method bayes and decl"),
    ("disncl_variant", "reverse", "--disncl-variant is an option of --method disncl"),
    ("prompt_epochs", "2", "--prompt-epochs is an option of --method ncu"),  # its default
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_options_of_other_methods_are_refused(tmp_path, name, value, message):
    options = {"method": "clip", "shards": "x.tar", "out": str(tmp_path / "run")}
    with pytest.raises(InputError, match=message):
        build(Finetune, {**options, name: value})
    flag = "--" + name.replace("_", "-")
    words = ["--method", "clip", "--shards", "x.tar", "--out", str(tmp_path / "run"), flag, value]
    refused = CliRunner().invoke(app, ["finetune", *words])
    assert refused.exit_code == 2
    assert message in refused.output
    set_word = ["--set", f"{name}={value}"]
    refused = CliRunner().invoke(app, ["finetune", *words[:-2], *set_word])
    assert refused.exit_code == 2
    assert message in refused.output
    assert not (tmp_path / "run").exists()


def test_options_of_other_methods_are_refused_in_the_dataclass_too(refused):
    changed = ObjectiveOptions(ncu=NcuOptions(gamma=0.5))
    refused(Finetune, method="clip", shards=["x.tar"], out="run", objective=changed)
    mine = Finetune(method="ncu", shards=["x.tar"], out="run", objective=changed)
    assert mine.objective_options.ncu.gamma == 0.5


def command(corpus, selection, out, *options):
    return [
        "finetune", "--shards", str(corpus), "--selection", str(selection), "--out", str(out),
        "--model", "demo-noisy", "--epochs", "2", "--batch-size", "40", "--learning-rate", "3e-4",
        "--precision", "fp32", "--save-steps", "3", "--quiet", *options,
    ]  # fmt: skip


def test_a_shard_that_ends_early_is_told_without_a_selection_too(corpus, tmp_path):
    """Of every start: one that goes on does not count the samples again."""
    whole = (corpus / "00000.tar").read_bytes()
    (tmp_path / "00000.tar").write_bytes(whole[: len(whole) // 2])
    for _ in range(2):
        summary = request(tmp_path / "00000.tar", None, tmp_path / "run").run().summary
        assert "unexpected end" in summary.failed_shards["00000"]
    assert summary.steps == 2


@pytest.mark.slow
def test_killed_and_resumed_it_ends_like_one_run(corpus, selection, tmp_path):
    python = [sys.executable, "-c", COMMAND]
    subprocess.run([*python, *command(corpus, selection, tmp_path / "whole")], check=True)
    process = subprocess.Popen([*python, *command(corpus, selection, tmp_path / "broken")])
    checkpoints = tmp_path / "broken" / "checkpoints"
    while process.poll() is None and not list(checkpoints.glob("step_*6.pt")):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    subprocess.run([*python, *command(corpus, selection, tmp_path / "broken")], check=True)
    whole, broken = (
        open_clip.create_model(f"local-dir:{tmp_path / name}").state_dict()
        for name in ("whole", "broken")
    )
    assert all(torch.equal(whole[name], broken[name]) for name in whole)


@pytest.mark.slow
def test_more_processes_go_on_where_one_was_killed(corpus, selection, tmp_path):
    """The losses of each step are those of an undisturbed run: it has the same samples."""
    single = [sys.executable, "-c", COMMAND]
    several = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "-m", "ncclean_cli",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*single, *command(corpus, selection, tmp_path / "whole")], check=True)
    broken = tmp_path / "broken"
    process = subprocess.Popen([*single, *command(corpus, selection, broken)])
    while process.poll() is None and not list((broken / "checkpoints").glob("step_*6.pt")):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = len(read_results(broken))
    subprocess.run([*several, *command(corpus, selection, broken)], check=True, env=environment)
    losses = [[line["loss"] for line in read_results(tmp_path / name)]
              for name in ("whole", "broken")]  # fmt: skip
    assert len(losses[0]) == len(losses[1]) > done
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
