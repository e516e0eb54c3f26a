"""A real Ray cluster of several nodes on this machine, and ways to make its workers fail."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ray.cluster_utils import Cluster

# Workers import this at start: it makes them fail in ways that a test asks for, from outside.
_SITECUSTOMIZE = """
import os, sys, importlib.abc, importlib.util

def patch_estimator(module):
    def load(cls, *args, **kwargs):
        from ncclean.errors import ModelError
        raise ModelError("the weights cannot be read on this node")
    module.Estimator.load = classmethod(load)

def patch_weights(module):
    load = module.Estimator.load
    def other(cls, *args, **kwargs):
        import dataclasses
        estimator = load(*args, **kwargs)
        estimator.identity = dataclasses.replace(estimator.identity, fingerprint="other")
        return estimator
    module.Estimator.load = classmethod(other)

def patch_device(module):
    import time
    import torch
    start = module.Estimator.start_image
    def faulty(self, pixels):
        time.sleep(float(os.environ.get("SECONDS_A_BATCH", 0)))
        if "ILL_FROM_BATCH" in os.environ and has_come(int(os.environ["ILL_FROM_BATCH"])):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if len(pixels) > int(os.environ.get("LARGEST_BATCH", sys.maxsize)):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return start(self, pixels)
    module.Estimator.start_image = faulty

def patch_readers(module):
    from tests.workers import fatal
    module.shard_reader = fatal

def patch_scoring(module):
    finish = module.ShardScoring.finish
    def odd(self, shard):
        if shard.name == os.environ.get("FATAL_SHARD"):
            os.abort()
        if shard.name == os.environ.get("ODD_SHARD"):
            raise LookupError("nobody has thought of this")
        return finish(self, shard)
    module.ShardScoring.finish = odd

def has_come(batch):  # of all processes together
    with open(os.path.join(os.path.dirname(__file__), "batches"), "a") as batches:
        batches.write(".")
        batches.flush()
        return batches.tell() >= batch

PATCHES = {}
if os.environ.get("BROKEN_NODE"):
    PATCHES["ncclean.models.estimator"] = patch_estimator
if {"ILL_FROM_BATCH", "LARGEST_BATCH", "SECONDS_A_BATCH"} & set(os.environ):
    PATCHES["ncclean.models.estimator"] = patch_device
if os.environ.get("OTHER_WEIGHTS"):
    PATCHES["ncclean.models.estimator"] = patch_weights
if {"ODD_SHARD", "FATAL_SHARD"} & set(os.environ):
    PATCHES["ncclean.execution.finish_shard"] = patch_scoring
if {"UNREADABLE_SHARD", "SLOW_SHARD"} & set(os.environ):
    PATCHES["ncclean.execution.shard_feed"] = patch_readers

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name not in PATCHES or not any("default_worker" in a for a in sys.argv):
            return None
        patch = PATCHES.pop(name)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module
        def exec_module(module):
            execute(module)
            patch(module)
        spec.loader.exec_module = exec_module
        return spec

if PATCHES:
    sys.meta_path.insert(0, Finder())
"""


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set for a while what processes started meanwhile inherit."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def sitecustomize(scratch: Path) -> dict[str, str]:
    """Variables of processes whose workers can be made to fail; `scratch` is for their module."""
    scratch.mkdir(exist_ok=True)
    (scratch / "sitecustomize.py").write_text(_SITECUSTOMIZE)
    path = os.pathsep.join([str(scratch), os.getcwd(), os.environ.get("PYTHONPATH", "")])
    return {"PYTHONPATH": path, "ASKED_BEFORE": str(scratch / "asked")}


@contextlib.contextmanager
def cluster(scratch: Path, cpus: list[int], **variables: str) -> Iterator[Cluster]:
    """Nodes of so many CPUs each; `variables` are set in the environment of all workers."""
    with environment({**sitecustomize(scratch), **variables}):
        made = Cluster()
        for count in cpus:
            made.add_node(num_cpus=count, object_store_memory=100 << 20)
        try:
            yield made
        finally:
            made.shutdown()


class OnFirst:
    """A progress that does something once, when a shard has been committed or written."""

    def __init__(self, event: Callable[[], object]) -> None:
        self._event = event
        self.has_happened = False

    def say(self, text: str) -> None: ...

    def advance(self, done: int, total: int, unit: str, **facts: object) -> None:
        if not self.has_happened and not str(facts.get("shards", "")).startswith("0/"):
            self.has_happened = True
            self._event()


def kill_workers(count: int = 1, timeout: float = 120, task: str = "score ") -> None:
    """SIGKILL so many workers at once, when that many are at work on shards, or on a task."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        found = subprocess.run(["pgrep", "-f", f"ray::{task}"], capture_output=True)
        chosen = list(filter(_is_of_these_tests, map(int, found.stdout.split())))[:count]
        if len(chosen) == count:
            for process in chosen:
                os.kill(process, signal.SIGKILL)
            return
        time.sleep(0.02)
    raise AssertionError(f"not {count} workers at work")


def _is_of_these_tests(process: int) -> bool:
    """Whether a process was started by this one of the processes among which tests are shared."""
    name = "PYTEST_XDIST_WORKER"
    try:
        variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended
        return False
    own = os.environ.get(name)
    return own is None or f"{name}={own}".encode() in variables
