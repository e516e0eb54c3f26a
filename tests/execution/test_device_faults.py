"""Errors of the device: what is one, what it ends, and batches that its memory does not hold."""

import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from ncclean_pipelines.score import Score

from ncclean.base.config import ScoreOptions
from ncclean.execution.device_faults import BatchSize, is_device_error
from ncclean.models.estimator import Estimator
from ncclean.runners.ray_cluster import one_line
from tests.factories import rendered
from tests.pipelines.score_tables import assert_same_rows, read

MODEL = {"model": "demo", "precision": "fp32", "device": "cpu", "shift": 0.2}


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), True),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate`"),
            True,
        ),
        (RuntimeError("NCCL Error 1: unhandled cuda error"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (1x2 and 3x4)"), False),
        (
            RuntimeError("Expected all tensors to be on the same device, but found cuda:0, cpu"),
            False,
        ),
        (ValueError("CUDA error: of a file with this name"), False),
    ],
)
def test_which_errors_are_the_device_s(error, is_one):
    assert is_device_error(error) is is_one


def embedded(size, most):
    if size > most:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return size


def test_the_batch_is_halved_until_it_fits_and_stays_so(caplog):
    batch = BatchSize(100)
    assert batch.fit(lambda size: embedded(size, 30)) == 25
    assert batch.fit(lambda size: embedded(size, 30)) == 25
    assert [message[-8:] for message in caplog.messages] == [" with 50", " with 25"]
    with pytest.raises(torch.OutOfMemoryError):
        batch.fit(lambda size: embedded(size, 0))
    assert batch.size == 1


def test_threads_that_run_out_of_memory_together_halve_once():
    batch, together = BatchSize(100), 4
    with ThreadPoolExecutor(together) as pool:
        assert (
            list(pool.map(lambda _: batch.fit(lambda size: embedded(size, 60)), range(4)))
            == [50] * together
        )
    assert batch.size == 50


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return rendered(
        tmp_path_factory.mktemp("device") / "shards",
        pairs=120,
        shard_size=30,
        noise={"ncr": 0.2},
        seed=3,
    )


@pytest.fixture(scope="module")
def reference(shards, tmp_path_factory):
    return scored(shards, tmp_path_factory.mktemp("reference") / "s.parquet")


def scored(shards, out, **options):
    options = ScoreOptions(batch_size=24, **options)
    Score(shards=[str(shards)], out=str(out), options=options, **MODEL).run()
    return read(out)


@pytest.mark.parametrize(("tower", "most"), [("_encode_pixels", 12), ("_encode_tokens", 2)])
def test_a_run_out_of_memory_goes_on_with_smaller_batches(
    shards, reference, tmp_path, monkeypatch, caplog, tower, most
):
    whole = getattr(Estimator, tower)

    def encode(self, rows):
        if len(rows) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(self, rows)

    monkeypatch.setattr(Estimator, tower, encode)
    monkeypatch.setattr(Estimator, "_rows_at_a_time", lambda self, size: size)
    assert_same_rows(scored(shards, tmp_path / "s.parquet"), reference)
    said = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert len(said) >= 2
    assert all("out of memory at --batch-size" in one.getMessage() for one in said)


def test_an_error_of_the_device_ends_the_run_and_fails_no_shard(
    shards, reference, tmp_path, monkeypatch, refused
):
    """What was done is kept, and the same command goes on."""
    start, batches = Estimator.start_image, []

    def ill(self, pixels):
        batches.append(len(pixels))
        if len(batches) > 5:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return start(self, pixels)

    with monkeypatch.context() as patched:
        patched.setattr(Estimator, "start_image", ill)
        refused(
            scored, shards, tmp_path / "s.parquet", decode_threads=1
        )  # one shard after the other
    assert len(list((tmp_path / "s.parquet.work").glob("part-*.parquet"))) == 2
    assert_same_rows(scored(shards, tmp_path / "s.parquet"), reference)


# Freed memory is kept for the next batch, unless the environment says otherwise.

_FAULTS = """
import resource
import numpy as np
from ncclean.execution.device_faults import keep_freed_memory

keep_freed_memory()
before = 0
for turn in range(8):
    blocks = [np.ones(1 << 20) for _ in range(8)]  # of 8 MB
    del blocks
    if turn == 0:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(**environment):
    """Pages that the system gave after the first turn."""
    inherited = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    done = subprocess.run(
        [sys.executable, "-c", _FAULTS],
        env=inherited | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_freed_memory_is_used_again():
    assert 5 * faults() < faults(MALLOC_TRIM_THRESHOLD_="1000000")


# What Ray's errors become in a message.


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("no  such\taddress", "no such address"),
        ("", ""),
        (
            "failed: \x1b[36mray::Worker\x1b[39m\n  File x\n    ^^^^\nModuleNotFoundError: p\n",
            "failed: ray::Worker ... ModuleNotFoundError: p",
        ),
    ],
)
def test_the_beginning_and_the_end_of_a_traceback(said, shown):
    assert one_line(RuntimeError(said)) == shown


def test_more_of_the_end_of_a_traceback():
    error = RuntimeError("ray::score 7()\n  File a\n    x = y\n  File b\n    y = z\nKeyError: z\n")
    assert one_line(error, last=3) == "ray::score 7() ... File b ... y = z ... KeyError: z"
