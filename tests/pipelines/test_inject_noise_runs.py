"""Noise again, interrupted, with processes, elsewhere: the same output however it is made."""

import gzip
import hashlib
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from ncclean_pipelines.inject_noise import InjectNoise

from ncclean.base.config import TaskOptions
from ncclean.data.shards import resolve_shards
from ncclean.data.tar import TarSamples
from ncclean.execution import inject_noise as module
from tests import command_line, object_store
from tests.factories import rendered
from tests.pipelines.noisy_shards import RATES, digests, inject, samples


def test_noise_of_synth_is_not_met_again_with_the_same_seed(tmp_path):
    rendered(tmp_path / "a", pairs=400, noise={"ncr": 0.2}, shard_size=400)
    inject(tmp_path / "a", tmp_path / "b", {"ncr": 0.2})
    (shard,) = resolve_shards([str(tmp_path / "b")])
    noisy = sum(bool(sample.metadata["is_noisy"]) for sample in TarSamples(shard))
    assert 80 + 64 * 0.6 < noisy <= 160  # 64 of the 80 are expected to be clean ones


@pytest.mark.slow
def test_same_bytes_with_processes(clean, tmp_path):
    inject(clean, tmp_path / "one", tasks=TaskOptions(workers=1))
    inject(clean, tmp_path / "two", tasks=TaskOptions(workers=2))
    assert digests(tmp_path / "one") == digests(tmp_path / "two")


def test_finished_shards_are_kept_and_others_refused(clean, tmp_path, refused):
    out = tmp_path / "noisy"
    first = inject(clean, out)
    made = {path: path.stat().st_mtime_ns for path in out.glob("*.tar")}
    again = inject(clean, out)
    assert again.noisy == first.noisy
    assert again.samples_per_second is None
    assert {path: path.stat().st_mtime_ns for path in out.glob("*.tar")} == made
    refused(inject, clean, out, seed=1)
    refused(inject, clean, out, {"ncr": 0.3})
    refused(inject, clean / "00000.tar", out)
    # A shard that went missing or was cut is written again, to the same bytes.
    before = digests(out)
    (out / "00001.tar").unlink()
    os.truncate(out / "00000.tar", 5 * 512)
    inject(clean, out)
    assert digests(out) == before
    (out / "mine.tar").write_bytes(b"mine")
    (out / ".ncclean" / "mine.parquet").write_bytes(b"mine")
    assert inject(clean / "00000.tar", out, {"ncr": 0.3}, overwrite=True).shards == 1
    assert list(digests(out)) == ["00000.tar", "mine.tar"]
    assert (out / ".ncclean" / "mine.parquet").read_bytes() == b"mine"


def test_a_changed_input_is_refused(clean, tmp_path, refused):
    shard = tmp_path / "in" / "a.tar"
    shard.parent.mkdir()
    shard.write_bytes((clean / "00000.tar").read_bytes())
    inject(shard, tmp_path / "noisy")
    shard.write_bytes((clean / "00001.tar").read_bytes())
    refused(inject, shard, tmp_path / "noisy")


def test_what_is_in_the_way_stays(clean, tmp_path, refused):
    refused(inject, clean, clean)
    (tmp_path / "00000.tar").write_bytes(b"mine")
    refused(inject, clean, tmp_path)
    assert (tmp_path / "00000.tar").read_bytes() == b"mine"


def test_interrupted_with_donors_and_resumed(clean, tmp_path, monkeypatch, refused):
    """The captions of the donors are read once; other donors are another run."""
    rendered(tmp_path / "donors", pairs=100, seed=9, shard_size=50)
    options = {"rates": {"donor": 0.3}, "donors": [str(tmp_path / "donors")]}
    inject(clean, tmp_path / "whole", **options)
    write, read, calls = module.write_shard, module.read_captions, []

    def interrupted(*task):
        calls.append(task)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return write(*task)

    monkeypatch.setattr(module, "write_shard", interrupted)
    with pytest.raises(KeyboardInterrupt):
        inject(clean, tmp_path / "noisy", **options)
    monkeypatch.setattr(module, "write_shard", write)
    monkeypatch.setattr(module, "read_captions", None)
    inject(clean, tmp_path / "noisy", **options)
    assert digests(tmp_path / "noisy") == digests(tmp_path / "whole")
    monkeypatch.setattr(module, "read_captions", read)
    refused(
        inject, clean, tmp_path / "noisy", {"donor": 0.3}, donors=[f"{tmp_path}/donors/00000.tar"]
    )
    left = {path.name for path in (tmp_path / "noisy" / ".ncclean").iterdir()}
    assert left == {"run.json"}


@pytest.mark.slow
def test_killed_and_resumed(tmp_path):
    shards = tmp_path / "shards"
    rendered(shards, workers=2, pairs=2000, shard_size=50, seed=1)
    code = "import sys; from ncclean_cli.app import main; main()"
    inject(shards, tmp_path / "whole")
    arguments = ["inject-noise", str(shards), "--out", str(tmp_path / "noisy"), "--quiet"]
    noise = [f"--noise={kind}={rate}" for kind, rate in RATES.items()]
    command = [sys.executable, "-c", code, *arguments, *noise, "--workers", "2"]
    rng = random.Random(0)
    for _ in range(5):
        process = subprocess.Popen(command)
        time.sleep(4 + 4 * rng.random())
        process.send_signal(signal.SIGKILL)
        process.wait()
        for path in (tmp_path / "noisy").glob("*.tar"):
            assert len(samples(path)) == 50
    subprocess.run(command, check=True)
    assert digests(tmp_path / "noisy") == digests(tmp_path / "whole")


def test_compressed_shards(clean, tmp_path):
    (tmp_path / "in").mkdir()
    for path in clean.glob("*.tar"):
        data = gzip.compress(path.read_bytes(), 1)
        (tmp_path / "in" / f"{path.name}.gz").write_bytes(data)
    inject(clean, tmp_path / "plain", {"decl": 0.3, "ncr": 0.2})
    inject(tmp_path / "in", tmp_path / "packed", {"decl": 0.3, "ncr": 0.2})
    for path in clean.glob("*.tar"):
        packed = tmp_path / "packed" / f"{path.name}.gz"
        assert gzip.decompress(packed.read_bytes()) == (tmp_path / "plain" / path.name).read_bytes()
    assert [p.name for p in (tmp_path / "packed" / ".ncclean").iterdir()] == ["run.json"]


def test_a_shard_that_is_packed_in_another_way_is_named(clean, tmp_path):
    (tmp_path / "in").mkdir()
    os.link(clean / "00000.tar", tmp_path / "in" / "00000.tar")
    (tmp_path / "in" / "other.tar").write_bytes(b"\x28\xb5\x2f\xfd" * 9)
    found = command_line.run("inject-noise", tmp_path / "in", "--out", tmp_path / "out",
                             "--noise", "ncr=0.2", "--workers", 1)  # fmt: skip
    assert found.returncode == 1
    assert "failed: other: cannot be read: it is packed with Zstandard" in found.stdout
    assert list(digests(tmp_path / "out")) == ["00000.tar"]


def test_shards_of_one_name_keep_apart(clean, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        os.link(clean / "00000.tar", tmp_path / folder / "00000.tar")
    request = InjectNoise(
        shards=[str(tmp_path / "a"), str(tmp_path / "b")],
        out=str(tmp_path / "out"),
        noise={"ncr": 0.2},
    )
    assert request.run().summary.shards == 2
    assert list(digests(tmp_path / "out")) == ["a/00000.tar", "b/00000.tar"]


@pytest.mark.slow
def test_on_an_object_store(clean, tmp_path):
    inject(clean, tmp_path / "here")
    with object_store.s3():
        object_store.upload(clean, "s3://corpus/clean")
        summary = inject("s3://corpus/clean", "s3://corpus/noisy")
        assert summary.pairs > 0
        assert inject("s3://corpus/clean", "s3://corpus/noisy").samples_per_second is None
        system = object_store.filesystem()
        for name, digest in digests(tmp_path / "here").items():
            assert hashlib.sha256(system.cat_file(f"corpus/noisy/{name}")).hexdigest() == digest


def test_a_request_that_the_corpus_cannot_meet_leaves_the_output_free(clean, tmp_path, refused):
    """The mended command is another run, which the record of the refused one must not refuse."""
    np.save(tmp_path / "other.npy", np.zeros(7, np.int64))
    refused(
        InjectNoise,
        shards=[str(clean)],
        out=str(tmp_path / "out"),
        noise_file=str(tmp_path / "other.npy"),
    )
    refused(
        InjectNoise,
        shards=[str(clean)],
        out=str(tmp_path / "out"),
        noise={"ncr": 0.2},
        caption_key="nope",
    )
    assert inject(clean, tmp_path / "out", {"ncr": 0.2}).pairs
