"""Fine-tuning end to end: selected pairs in, a run folder that is a model out."""

import os
import signal
import subprocess
import sys
import time

import open_clip
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from upath import UPath

from ncclean.data.weighted_loader import LoaderOptions
from ncclean.errors import InputError, ResumeError
from ncclean.selection.policy import Policy
from ncclean.selection.select import select
from ncclean.training.objectives.registry import ObjectiveOptions
from ncclean.training.run_log import read_results
from ncclean.training.trainer import TrainOptions
from pipelines.finetune import FinetuneRequest, finetune
from pipelines.score import ScoreRequest, score

COMMAND = "import sys; from cli.app import main; main()"


@pytest.fixture(scope="module")
def selection(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finetune")
    score(
        ScoreRequest(shards=[str(corpus)], out=str(folder / "s.parquet"), model="demo", shift=0.0)
    )
    policy = Policy(method="noise-probability")
    select([str(folder / "s.parquet")], UPath(folder / "clean.parquet"), policy)
    return folder / "clean.parquet"


def request(corpus, selection, out, **options):
    rate = options.pop("learning_rate", 3e-4)
    defaults = {"method": "clip", "batch_size": 100,
                "objective": ObjectiveOptions(learning_rate=rate, epochs=1)}  # fmt: skip
    return FinetuneRequest(
        shards=[str(corpus)], selection=str(selection), out=str(out), model="demo-noisy",
        loader=LoaderOptions(chunk=400), training=TrainOptions(log_steps=1),
        **{**defaults, **options},
    )  # fmt: skip


def test_the_run_folder_is_a_model(corpus, selection, tmp_path):
    summary = finetune(request(corpus, selection, tmp_path / "run"))
    pairs = pq.read_metadata(selection).num_rows
    assert summary.steps == pairs // 100
    assert summary.skipped == {}
    model = f"local-dir:{tmp_path / 'run'}"
    assert open_clip.create_model(model).visual.image_size == (64, 64)
    score(
        ScoreRequest(shards=[str(corpus)], out=str(tmp_path / "s.parquet"), model=model, shift=0.0)
    )
    assert pq.read_metadata(tmp_path / "s.parquet").num_rows == 1500
    params = yaml.safe_load((tmp_path / "run" / "params.yaml").read_text())
    assert params["method"] == "clip"
    assert params["objective"]["learning_rate"] == 3e-4
    assert len(read_results(tmp_path / "run")) == summary.steps
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    with pytest.raises(InputError, match="holds a run"):
        finetune(request(corpus, selection, tmp_path / "run"))
    with pytest.raises(ResumeError, match=r"objective\.learning_rate was 0\.0003, is"):
        finetune(request(corpus, selection, tmp_path / "run", learning_rate=0.1, resume=True))


def test_what_makes_no_sense_is_refused(corpus, selection, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(InputError, match="holds no run"):
        finetune(request(corpus, selection, tmp_path / "full"))
    with pytest.raises(InputError, match="--method takes"):
        finetune(request(corpus, selection, tmp_path / "run", method="magic"))
    with pytest.raises(InputError, match="make no batch"):
        finetune(request(corpus, selection, tmp_path / "run", batch_size=5000))


def command(corpus, selection, out, *options):
    return [
        "finetune", "--shards", str(corpus), "--selection", str(selection), "--out", str(out),
        "--model", "demo-noisy", "--epochs", "2", "--batch-size", "100", "--learning-rate", "3e-4",
        "--precision", "fp32", "--save-steps", "3", "--quiet", *options,
    ]  # fmt: skip


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
    subprocess.run(
        [*python, *command(corpus, selection, tmp_path / "broken", "--resume")], check=True
    )
    whole, broken = (
        open_clip.create_model(f"local-dir:{tmp_path / name}").state_dict()
        for name in ("whole", "broken")
    )
    assert all(torch.equal(whole[name], broken[name]) for name in whole)


@pytest.mark.slow
def test_torchrun_spreads_the_batch(corpus, selection, tmp_path):
    launcher = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "-m", "cli",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*launcher, *command(corpus, selection, tmp_path / "run")], check=True, env=environment
    )
    results = read_results(tmp_path / "run")
    assert results[-1]["loss"] < 1.2 * results[0]["loss"]
    assert open_clip.create_model(f"local-dir:{tmp_path / 'run'}") is not None
