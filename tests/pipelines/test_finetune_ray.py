"""Fine-tuning under Ray Train: the ranks of a real cluster train as one process does."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import open_clip
import pytest
import torch
from ncclean_pipelines.finetune import Finetune

from ncclean.base.config import ClusterOptions
from ncclean.data.options import LoaderOptions
from ncclean.training.objectives.options import ObjectiveOptions
from ncclean.training.options import TrainOptions
from ncclean.training.run_files import read_results
from tests.execution.clusters import cluster
from tests.factories import rendered

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return rendered(tmp_path_factory.mktemp("corpus"), pairs=320, shard_size=80)


def request(corpus: Path, out: Path) -> Finetune:
    return Finetune(
        method="clip",
        shards=[str(corpus)],
        out=str(out),
        model="demo-noisy",
        precision="fp32",
        objective=ObjectiveOptions(learning_rate=3e-4, epochs=12),
        batch_size=320,  # the whole corpus: the same batch however it is shared out
        loader=LoaderOptions(augment=False, shuffle=False, decode_threads=1),
        training=TrainOptions(log_steps=1, save_steps=2, tensorboard=False),
    )


def losses(out: Path) -> list[float]:
    return [record["loss"] for record in read_results(out)]


def on_ray(wanted: Finetune, made, out: Path) -> Finetune:
    options = ClusterOptions(address=made.address, workers=2, cpus_per_worker=1)
    return replace(wanted, out=str(out), engine="ray", cluster=options)


class Steps:
    """A progress that counts what it is told."""

    def __init__(self) -> None:
        self.count = 0

    def say(self, text: str) -> None: ...

    def advance(self, done: int, total: int, unit: str, **facts: object) -> None:
        self.count += 1


def kill_a_rank(after: Path) -> int:
    while not after.exists():
        time.sleep(0.01)
    found = subprocess.run(["pgrep", "-f", "ray::.*RayTrainWorker"], capture_output=True, text=True)
    chosen = int(found.stdout.split()[0])
    os.kill(chosen, signal.SIGKILL)
    return chosen


def test_two_ranks_on_two_nodes_train_like_one_process(corpus, tmp_path, monkeypatch):
    alone = request(corpus, tmp_path / "alone")
    alone.run()
    watched = Steps()
    with cluster(tmp_path / "ray", [1, 1]) as made:
        # As one types it: the ranks work in a folder of their own.
        monkeypatch.chdir(tmp_path)
        relative = replace(alone, shards=[os.path.relpath(each) for each in alone.shards])
        summary = on_ray(relative, made, Path("ranks")).run(watched).summary
    assert summary.out == "ranks"
    first, whole = losses(tmp_path / "ranks"), losses(tmp_path / "alone")
    assert len(whole) == summary.steps == watched.count == 12
    assert first == pytest.approx(whole, abs=1e-4)
    assert whole[-1] < whole[0]
    assert open_clip.create_model(f"local-dir:{tmp_path / 'ranks'}") is not None


def test_a_killed_rank_costs_no_step(corpus, tmp_path):
    wanted = request(corpus, tmp_path / "whole")
    with cluster(tmp_path / "ray", [1, 1]) as made:
        on_ray(wanted, made, tmp_path / "whole").run()
        broken = tmp_path / "broken"
        killed = []
        waits = threading.Thread(
            target=lambda: killed.append(kill_a_rank(broken / "checkpoints" / "step_00000004.pt"))
        )
        waits.start()
        summary = on_ray(wanted, made, broken).run().summary
        waits.join()
    assert killed
    assert summary.steps == 12
    weights = [
        open_clip.create_model(f"local-dir:{tmp_path / name}").state_dict()
        for name in ("whole", "broken")
    ]
    assert all(torch.allclose(weights[0][name], weights[1][name], atol=1e-6) for name in weights[0])
    assert losses(broken) == pytest.approx(losses(tmp_path / "whole"), abs=1e-5)


def test_what_a_rank_refuses_is_said_and_leaves_no_run(corpus, tmp_path, refused):
    wanted = replace(request(corpus, tmp_path / "run"), batch_size=5000)
    with cluster(tmp_path / "ray", [1, 1]) as made:
        for _ in range(2):
            refused(on_ray, wanted, made, tmp_path / "run")
