"""Shared fixtures: the bundled estimator, rendered corpora, and random models of other kinds.

Fixtures import what takes seconds, which the process that only shares out the tests never needs.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

# Before torch is loaded, as the command line does: see cli/app.py.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
if "PYTEST_XDIST_WORKER" in os.environ:  # there are more workers than cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # a test that means a cluster starts it
# Shifts are estimated once in a session, whatever process asks for them; nothing is kept after it.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _CACHE = tempfile.TemporaryDirectory(prefix="ncclean-cache-")
    os.environ["NCCLEAN_CACHE"] = _CACHE.name
# No test cuts the power: waiting for the disk, some ten times for each small table, tells nothing.
os.fsync = os.fstat  # which refuses what is no open file, as fsync does

import pytest
from hypothesis import settings

from ncclean.base.config import ScoreOptions
from ncclean.workers.worker import trust
from tests import sentences
from tests.factories import rendered

# An example may take as long as a busy machine makes it.
settings.register_profile("ncclean", deadline=None)
settings.load_profile("ncclean")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """The workers of `-n auto`: one more than cores, as some wait for others; each takes 2 GB."""
    return min((os.cpu_count() or 1) + 1, 4)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among the 700,000 objects of the libraries, which live until the end.

    That took a fifth of the time in which tests are collected.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # else some libraries complain at the end


@pytest.fixture(scope="session", autouse=True)
def demo_loaded_once() -> Iterator[None]:
    """Runs that score read `demo` once in a process, a third of the time of a small one.

    Each has an estimator of its own, around the same weights; training changes those, and loads
    its own. `tests/models` holds how models are loaded.
    """
    from ncclean.execution.image_encoder import ImageRequest
    from ncclean.models.estimator import Estimator
    from ncclean.models.request import ModelRequest

    opened, load = ImageRequest.open, ModelRequest.load
    loaded: dict[object, Estimator] = {}

    def load_once(request: ModelRequest) -> Estimator:
        key = request, vars(Estimator)["load"]  # which a test may replace
        if key not in loaded:
            loaded[key] = load(request)
        return copy.copy(loaded[key]) if request.model == "demo" else loaded.pop(key)

    def open_encoder(*words: Any) -> Any:
        with mock.patch.object(ModelRequest, "load", load_once):
            return opened(*words)

    with mock.patch.object(ImageRequest, "open", open_encoder):
        yield


@pytest.fixture(scope="session")
def all_sentences() -> Iterator[tuple[dict[str, list[str]], dict[str, list[str]]]]:
    """The sentences of refusals by test: those of the file, and those said in this session."""
    said: dict[str, list[str]] = {}
    yield sentences.read(), said
    if sentences.is_writing():
        sentences.write(said)


@pytest.fixture
def snapshot(
    all_sentences: tuple[dict[str, list[str]], dict[str, list[str]]],
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[sentences.Sentences]:
    """What a test says must be what `sentences.yaml` has of it."""
    expected, said = all_sentences
    test = request.node.nodeid
    snapshot = sentences.Sentences(expected.get(test, []), tmp_path_factory.getbasetemp())
    yield snapshot
    said[test] = snapshot.said
    if not sentences.is_writing():
        snapshot.assert_complete()


@pytest.fixture
def refused(snapshot: sentences.Sentences) -> Callable[..., None]:
    """Call a function, and run the command that it makes: it must fail with its sentence."""
    return snapshot.refused


@pytest.fixture
def behind_a_wall() -> Iterator[None]:
    """Sources are read in this process: no other one sees its `memory://`."""
    trust(True)
    yield
    trust(False)


@pytest.fixture(scope="session")
def demo_estimator() -> Any:
    from ncclean.models.estimator import Estimator

    return Estimator.load("demo", precision="fp32", device="cpu")


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 rendered pairs in 3 shards: 20 % permuted, 2 % broken."""
    return rendered(
        tmp_path_factory.mktemp("corpus") / "shards",
        pairs=600,
        shard_size=200,
        noise={"ncr": 0.2},
        broken=0.02,
        seed=7,
    )


@pytest.fixture(scope="session")
def scored(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the table of the corpus, `scores.parquet`, and its `embeddings`; only read."""
    from ncclean_pipelines.score import Score

    folder = tmp_path_factory.mktemp("scored")
    Score(
        shards=[str(corpus)],
        out=str(folder / "scores.parquet"),
        model="demo",
        precision="fp32",
        shift=0.2,
        options=ScoreOptions(embeddings=str(folder / "embeddings")),
    ).run()
    return folder


@pytest.fixture(scope="module")
def rough_shifts() -> Iterator[None]:
    """For commands whose shift is estimated and not the matter: the last digit takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ncclean.execution.score_corpus._SHIFT_TOLERANCE", 0.1)
        yield


def write_model(folder: Path, model_cfg: dict, preprocess_cfg: dict | None = None) -> Path:
    """A local-dir model with seeded random weights."""
    import open_clip
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_cfg": model_cfg, "preprocess_cfg": preprocess_cfg or {}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    custom = model_cfg.pop("custom_text", False)
    kind = open_clip.model.CustomTextCLIP if custom else open_clip.model.CLIP
    state = kind(**model_cfg).state_dict()
    save_file({k: v.contiguous() for k, v in state.items()}, folder / "open_clip_model.safetensors")
    return folder
