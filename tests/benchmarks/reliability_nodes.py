"""Nodes of a Ray cluster that are lost at random moments, and others that join."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster
from records import Row
from reliability_compare import compare, half_written
from reliability_jobs import (
    FIGURES,
    Running,
    emptied,
    finish,
    finish_again,
    summed,
    uninterrupted,
    words_of,
    write_corpora,
)

from tests.execution import clusters

_COMMANDS = ("export", "score, one file", "neighbours", "inject-noise")
_AT_MOST = 3  # losses of one run
_WORKERS = 2  # nodes of one core, beside the head
_MEMORY = 100 << 20
_ATTEMPTS = 10  # to start a node
_LONGEST_SECONDS = 900


def measure(folder: Path, count: int, done: list[Row]) -> Iterator[Row]:
    """A row for each run, until so many nodes were lost in the middle of one, all in all."""
    corpus = write_corpora(folder)
    losses = sum(row["losses"] for row in done)
    seconds: dict[str, float] = {}
    with clusters.cluster(folder / "site", [1]) as cluster:
        nodes = [_add(cluster) for _ in range(_WORKERS)]
        for number in range(len(done), 10 * count):
            if losses >= count:
                return
            name = _COMMANDS[number % len(_COMMANDS)]
            if name not in seconds:
                uninterrupted(name, folder)
                words = _words(name, corpus, emptied(folder / "whole"), cluster)
                seconds[name] = finish(words, folder / "log")
            row = trial(name, folder, cluster, nodes, seconds[name], number)
            losses += row["losses"]
            yield row


def trial(
    name: str, folder: Path, cluster: Cluster, nodes: list[Any], seconds: float, number: int
) -> Row:
    """One run; nodes are lost and replaced while it is at work."""
    seed = f"{name} {number}"
    rng = random.Random(seed)
    out, log = emptied(folder / "out"), folder / "log"
    words = _words(name, folder / "corpus", out, cluster)
    running = Running(words, log)
    files, losses = [], 0
    code = None
    for moment in sorted(seconds * rng.random() for _ in range(rng.randint(1, _AT_MOST))):
        code = running.wait(max(0.0, running.begun + moment - time.monotonic()))
        if code is not None:
            break
        cluster.remove_node(nodes.pop(rng.randrange(len(nodes))), allow_graceful=False)
        losses += running.wait(0) is None
        files.append(sum(path.is_file() for path in out.rglob("*")))
        nodes.append(_add(cluster))
    code = running.wait(_LONGEST_SECONDS)
    said = log.read_text("utf-8", "replace").strip()[-1000:] if code != 0 else ""
    if code is None:
        running.kill()
    broken = half_written(out)
    if code != 0:
        finish_again(words, log)
    return {
        "command": name, "seed": seed, "seconds": round(seconds, 1), "losses": losses,
        "files": files, "code": code, "said": said, "half_written": broken,
        **asdict(compare(folder / "expected" / name, out)),
    }  # fmt: skip


def _words(name: str, corpus: Path, out: Path, cluster: Cluster) -> list[str]:
    """The command on the cluster, with tasks of one core."""
    words = [*words_of(name, corpus, out), "--engine", "ray", "--ray-address", cluster.address]
    if "--workers" in words:
        at = words.index("--workers")
        del words[at : at + 2]
    return [*words, "--cpus-per-worker", "1"] if name.startswith("score") else words


def _add(cluster: Cluster) -> Any:
    """A node of one core. Ray waits 30 s for one to start, which a busy machine may not meet."""
    for _ in range(_ATTEMPTS):
        try:
            return cluster.add_node(num_cpus=1, object_store_memory=_MEMORY)
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
    raise TimeoutError("no node starts")


def summary(rows: list[Row]) -> list[Row]:
    """A row for each command: how many nodes it lost, and all that differed."""
    return summed(
        rows,
        sums=("losses", "half_written", *FIGURES),
        runs=len,
        ended_with_an_error=lambda some: sum(row["code"] != 0 for row in some),
    )
