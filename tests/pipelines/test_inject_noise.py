"""Shards with known noise: exact counts, untouched bytes, the same output however it is made."""

import contextlib
import gzip
import hashlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter

import pytest
import webdataset

from ncclean.data.shards import resolve_shards
from ncclean.data.synthetic import CorpusOptions, write_corpus
from ncclean.data.tar import TarSamples
from ncclean.errors import InputError, ResumeError, ShardError
from pipelines import inject_noise as stage
from pipelines.evaluate_noise import NoiseEvaluationRequest, evaluate_noise
from pipelines.inject_noise import NoiseRequest, inject_noise
from pipelines.score import ScoreRequest, score
from tests import hostile, object_store

RATES = {"ncr": 0.2, "decl": 0.1, "hard": 0.05, "junk": 0.02}
IMAGES = ("jpg", "png", "webp")


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """600 clean pairs in 3 shards, 2 % broken."""
    out = tmp_path_factory.mktemp("clean") / "shards"
    write_corpus(out, CorpusOptions(pairs=600, shard_size=200, broken=0.02, seed=5), 1)
    return out


def inject(shards, out, rates=RATES, **options):
    return inject_noise(NoiseRequest(shards=[str(shards)], out=str(out), rates=rates, **options))


def test_noise_of_synth_is_not_met_again_with_the_same_seed(tmp_path):
    write_corpus(tmp_path / "a", CorpusOptions(pairs=400, noise={"ncr": 0.2}, shard_size=400), 1)
    inject(tmp_path / "a", tmp_path / "b", {"ncr": 0.2})
    (shard,) = resolve_shards([str(tmp_path / "b")])
    noisy = sum(bool(sample.metadata["is_noisy"]) for sample in TarSamples(shard))
    assert 80 + 64 * 0.6 < noisy <= 160  # 64 of the 80 are expected to be clean ones


def digests(folder):
    """Name -> hash of every visible shard."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in (".tar", ".gz", ".tgz")
    }


def samples(path, caption_key=None):
    """The samples of a shard, broken ones included, and whether it breaks off."""
    (shard,) = resolve_shards([str(path)])
    found, reader = [], TarSamples(shard, caption_key)
    with contextlib.suppress(ShardError):
        found.extend(reader)
    for row, late in reader.late_metadata.items():
        next(s for s in found if s.row == row).metadata.update(late)
    return sorted(found, key=lambda sample: sample.row)


def members(path):
    with tarfile.open(path) as tar:
        return [(m.name, tar.extractfile(m).read()) for m in tar.getmembers() if m.isreg()]


def write_shard(path, *groups):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(hostile.tar_bytes([member for group in groups for member in group]))
    return path


def jpeg(seed):
    return hostile.encoded(hostile.photo(seed=seed))


def test_counts_truth_and_untouched_members(clean, tmp_path):
    summary = inject(clean, tmp_path / "noisy")
    kinds = Counter()
    pairs = 0
    for path in sorted(clean.glob("*.tar")):
        noisy_path = tmp_path / "noisy" / path.name
        assert [name for name, _ in members(path) if not name.endswith(IMAGES)] == [
            name for name, _ in members(noisy_path) if not name.endswith(IMAGES)
        ]
        for before, after in zip(samples(path), samples(noisy_path), strict=True):
            assert (before.key, before.status, before.error) == (
                after.key,
                after.status,
                after.error,
            )
            if before.status != "ok":
                continue
            pairs += 1
            kind = after.metadata["noise_kind"]
            kinds[kind] += 1
            assert after.metadata["is_noisy"] is (kind is not None)
            assert (after.image != before.image) == (kind == "decl")
            assert (after.caption != before.caption) == (kind in ("ncr", "hard", "junk"))
            assert after.metadata["caption"] == after.caption
            kept = ("uid", "url", "scene", "text_only", "key")
            assert [after.metadata[n] for n in kept] == [before.metadata[n] for n in kept]
    assert summary.pairs == pairs
    assert summary.planned == {kind: math.floor(rate * pairs) for kind, rate in RATES.items()}
    for kind, planned in summary.planned.items():
        stayed = summary.left_in_place.get(kind, 0) + summary.unchanged[kind]
        assert summary.noisy[kind] == kinds[kind] == planned - stayed
    assert summary.shortage == {}
    assert not (tmp_path / "noisy" / "_work" / "index-000000.npz").exists()


def test_broken_samples_are_copied_byte_for_byte(clean, tmp_path):
    inject(clean, tmp_path / "noisy")
    for path in sorted(clean.glob("*.tar")):
        broken = {s.key for s in samples(path) if s.status != "ok"}
        assert broken
        before, after = members(path), members(tmp_path / "noisy" / path.name)
        assert [m for m in before if m[0].split(".")[0] in broken] == [
            m for m in after if m[0].split(".")[0] in broken
        ]


def test_seeded(clean, tmp_path):
    inject(clean, tmp_path / "one")
    inject(clean, tmp_path / "again")
    inject(clean, tmp_path / "other", seed=1)
    assert digests(tmp_path / "one") == digests(tmp_path / "again")
    assert digests(tmp_path / "one") != digests(tmp_path / "other")


@pytest.mark.slow
def test_same_bytes_with_processes(clean, tmp_path):
    inject(clean, tmp_path / "one", workers=1)
    inject(clean, tmp_path / "two", workers=2)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")


def test_webdataset_reads_it(clean, tmp_path):
    inject(clean, tmp_path / "noisy", {"decl": 0.5})
    urls = sorted(map(str, (tmp_path / "noisy").glob("*.tar")))
    read = list(webdataset.WebDataset(urls, shardshuffle=False))
    assert len(read) == 600
    assert sum(json.loads(sample["json"])["is_noisy"] for sample in read) > 250


def test_finished_shards_are_kept_and_others_refused(clean, tmp_path):
    out = tmp_path / "noisy"
    first = inject(clean, out)
    made = {path: path.stat().st_mtime_ns for path in out.glob("*.tar")}
    again = inject(clean, out)
    assert again.noisy == first.noisy
    assert again.samples_per_second is None
    assert {path: path.stat().st_mtime_ns for path in out.glob("*.tar")} == made
    with pytest.raises(ResumeError, match="--seed was 0, is 1"):
        inject(clean, out, seed=1)
    with pytest.raises(
        ResumeError, match=r"--noise ncr was 0.2, is 0.3; --noise decl was 0.1, is not set"
    ):
        inject(clean, out, {"ncr": 0.3})
    with pytest.raises(ResumeError, match="shard 00001 is missing now"):
        inject(clean / "00000.tar", out)
    # A shard that went missing is written again, to the same bytes.
    before = digests(out)
    (out / "00001.tar").unlink()
    inject(clean, out)
    assert digests(out) == before
    (out / "mine.tar").write_bytes(b"mine")
    (out / "_work" / "mine.npz").write_bytes(b"mine")
    assert inject(clean / "00000.tar", out, {"ncr": 0.3}, overwrite=True).shards == 1
    assert list(digests(out)) == ["00000.tar", "mine.tar"]
    assert (out / "_work" / "mine.npz").read_bytes() == b"mine"


def test_a_changed_input_is_refused(clean, tmp_path):
    shard = tmp_path / "in" / "a.tar"
    shard.parent.mkdir()
    shard.write_bytes((clean / "00000.tar").read_bytes())
    inject(shard, tmp_path / "noisy")
    shard.write_bytes((clean / "00001.tar").read_bytes())
    with pytest.raises(ResumeError, match="shard a is another file, or has changed"):
        inject(shard, tmp_path / "noisy")


def test_what_is_in_the_way_stays(clean, tmp_path):
    with pytest.raises(InputError, match="would overwrite the input"):
        inject(clean, clean)
    (tmp_path / "00000.tar").write_bytes(b"mine")
    with pytest.raises(InputError, match="no record lists it as made by `ncclean inject-noise`"):
        inject(clean, tmp_path)
    assert (tmp_path / "00000.tar").read_bytes() == b"mine"


def test_interrupted_between_shards_and_resumed(clean, tmp_path, monkeypatch):
    inject(clean, tmp_path / "whole")
    write, calls = stage.write_shard, []

    def interrupted(task):
        calls.append(task)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return write(task)

    monkeypatch.setattr(stage, "write_shard", interrupted)
    with pytest.raises(KeyboardInterrupt):
        inject(clean, tmp_path / "noisy")
    assert len(digests(tmp_path / "noisy")) == 1
    monkeypatch.setattr(stage, "write_shard", write)
    inject(clean, tmp_path / "noisy")
    assert digests(tmp_path / "noisy") == digests(tmp_path / "whole")


@pytest.mark.slow
def test_killed_and_resumed(tmp_path):
    shards = tmp_path / "shards"
    write_corpus(shards, CorpusOptions(pairs=2000, shard_size=50, seed=1), 2)
    code = "import sys; from cli.app import main; main()"
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


def test_hostile_shards_do_not_stop_it(tmp_path):
    cases, broken = hostile.write_hostile(tmp_path / "in")
    summary = inject(tmp_path / "in", tmp_path / "out", {"ncr": 0.5, "junk": 0.5})
    assert summary.shards == len(cases) + len(broken)
    assert set(summary.failed_shards) == {shard.name for shard in broken}
    assert list(digests(tmp_path / "in")) == list(digests(tmp_path / "out"))
    assert sum(summary.noisy.values()) > summary.pairs * 0.6
    for path in (tmp_path / "in").glob("*.tar"):
        before, after = samples(path), samples(tmp_path / "out" / path.name)
        assert [(s.key, s.status) for s in before] == [(s.key, s.status) for s in after], path
        for one in after:
            assert (one.status == "ok") == isinstance(one.metadata.get("is_noisy"), bool), one.key
    assert not (tmp_path / "etc").exists()
    # What cannot be read is the same to the last byte.
    for name in ("zero_bytes", "not_a_tar", "short"):
        assert (tmp_path / "in" / f"{name}.tar").read_bytes() == (
            tmp_path / "out" / f"{name}.tar"
        ).read_bytes()
    cut = tmp_path / "out" / "cut_in_image.tar"
    assert not cut.read_bytes().endswith(bytes(1024))


def test_captions_follow_wherever_they_are(tmp_path):
    record = {"caption": "one", "TEXT": "one", "Caption": 7, "sha256": "x", "is_noisy": "perhaps"}
    image = jpeg(0)
    write_shard(
        tmp_path / "in" / "a.tar",
        [("a.jpg", image), ("a.json", json.dumps(record).encode()), ("a.txt", b"one\n")],
        [("b.jpg", image), ("b.txt", b"two")],
        [("c.jpg", image), ("c.json", b"{broken"), ("c.caption", b"three")],
        [("d.json", json.dumps({"TEXT": "four", "URL": "u"}).encode()), ("d.PNG", image)],
    )
    summary = inject(tmp_path / "in", tmp_path / "out", {"junk": 1.0})
    assert (summary.json_added, summary.json_replaced) == (1, 1)
    found = dict(members(tmp_path / "out" / "a.tar"))
    assert list(found) == [
        *("a.jpg", "a.json", "a.txt", "b.jpg", "b.txt", "b.json"),
        *("c.jpg", "c.json", "c.caption", "d.json", "d.PNG"),
    ]
    a = json.loads(found["a.json"])
    new = found["a.txt"].decode()
    assert new != "one"
    assert a == {
        "caption": new,
        "TEXT": new,
        "Caption": 7,
        "sha256": "x",
        "is_noisy": True,
        "noise_kind": "junk",
    }
    assert json.loads(found["b.json"]) == {"is_noisy": True, "noise_kind": "junk"}
    assert json.loads(found["c.json"]) == {"is_noisy": True, "noise_kind": "junk"}
    assert json.loads(found["d.json"])["TEXT"] != "four"
    assert json.loads(found["d.json"])["URL"] == "u"


def test_caption_key(tmp_path):
    record = {"alt": "a red circle", "caption": "something else"}
    write_shard(
        tmp_path / "in" / "a.tar",
        [("a.jpg", jpeg(0)), ("a.json", json.dumps(record).encode())],
    )
    inject(tmp_path / "in", tmp_path / "out", {"hard": 1.0}, caption_key="alt")
    (found,) = samples(tmp_path / "out" / "a.tar", "alt")
    assert found.caption not in ("a red circle", "something else")
    assert found.metadata["caption"] == found.caption
    with pytest.raises(InputError, match="--caption-key json"):
        NoiseRequest(shards=["x"], out="y", rates={"ncr": 0.1}, caption_key="json")


def test_equal_captions_and_images_are_clean(tmp_path):
    groups = [hostile.sample(f"{n:03d}", hostile.JPEG, b"the same") for n in range(40)]
    write_shard(tmp_path / "in" / "a.tar", *groups)
    summary = inject(tmp_path / "in", tmp_path / "out", {"ncr": 0.5, "decl": 0.5})
    assert summary.noisy == {"ncr": 0, "decl": 0}
    assert sum(summary.unchanged.values()) + sum(summary.left_in_place.values()) == 40
    for one in samples(tmp_path / "out" / "a.tar"):
        assert one.metadata["is_noisy"] is False
        assert one.metadata["noise_kind"] is None


def test_noise_of_the_input_stays(tmp_path):
    groups = []
    for number in range(20):
        record = {"is_noisy": number < 5, "noise_kind": "crawled" if number < 5 else None}
        groups.append(
            [
                *hostile.sample(f"{number:02d}", jpeg(number), b"no. %d" % number),
                (f"{number:02d}.json", json.dumps(record).encode()),
            ]
        )
    write_shard(tmp_path / "in" / "a.tar", *groups)
    summary = inject(tmp_path / "in", tmp_path / "out", {"junk": 0.5})
    found = samples(tmp_path / "out" / "a.tar")
    kinds = Counter(one.metadata["noise_kind"] for one in found)
    assert kinds["junk"] == summary.noisy["junk"] == 10
    assert kinds["crawled"] == summary.already_noisy
    assert all(one.metadata["is_noisy"] for one in found[:5])
    assert sum(one.metadata["is_noisy"] for one in found) == 10 + kinds["crawled"]


def test_shortage_of_words_is_told(tmp_path):
    groups = [
        hostile.sample(f"{n:02d}", jpeg(n), b"a dog" if n < 3 else b"\xe7\x8c\xab")
        for n in range(20)
    ]
    write_shard(tmp_path / "in" / "a.tar", *groups)
    summary = inject(tmp_path / "in", tmp_path / "out", {"hard": 0.5})
    assert summary.planned == summary.noisy == {"hard": 3}
    assert summary.shortage == {"hard": 7}


def test_moved_images_bring_their_extension(tmp_path):
    png = hostile.encoded(hostile.photo(seed=1), "PNG")
    write_shard(
        tmp_path / "in" / "a.tar",
        [("a.jpg", jpeg(0)), ("a.txt", b"first")],
        [("b.png", png), ("b.txt", b"second")],
    )
    for seed in range(20):  # until the permutation of two is the one that moves
        summary = inject(tmp_path / "in", tmp_path / f"out{seed}", {"decl": 1.0}, seed=seed)
        if summary.noisy["decl"]:
            break
    found = dict(members(tmp_path / f"out{seed}" / "a.tar"))
    assert list(found) == ["a.png", "a.txt", "a.json", "b.jpg", "b.txt", "b.json"]
    assert found["a.png"] == png


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
    assert [p.name for p in (tmp_path / "packed" / "_work").iterdir()] == ["manifest.jsonl"]


def test_shards_of_one_name_keep_apart(clean, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        os.link(clean / "00000.tar", tmp_path / folder / "00000.tar")
    request = NoiseRequest(
        shards=[str(tmp_path / "a"), str(tmp_path / "b")],
        out=str(tmp_path / "out"),
        rates={"ncr": 0.2},
    )
    assert inject_noise(request).shards == 2
    assert list(digests(tmp_path / "out")) == ["a/00000.tar", "b/00000.tar"]


def test_per_batch(clean, tmp_path):
    summary = inject(clean, tmp_path / "out", {"per_batch": 1.0}, batch_size=10)
    before = [s for p in sorted(clean.glob("*.tar")) for s in samples(p) if s.status == "ok"]
    after = [
        s for p in sorted((tmp_path / "out").glob("*.tar")) for s in samples(p) if s.status == "ok"
    ]
    for start in range(0, len(before), 10):
        batch = slice(start, start + 10)
        assert Counter(s.caption for s in before[batch]) == Counter(s.caption for s in after[batch])
    assert summary.noisy["per_batch"] > 500


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


@pytest.mark.slow
def test_injected_scored_and_found(tmp_path):
    write_corpus(tmp_path / "clean", CorpusOptions(pairs=1000, shard_size=500, seed=3), 2)
    summary = inject(tmp_path / "clean", tmp_path / "noisy", {"ncr": 0.2, "decl": 0.1})
    out = str(tmp_path / "s.parquet")
    score(ScoreRequest(shards=[str(tmp_path / "noisy")], out=out, model="demo"))
    found = evaluate_noise(NoiseEvaluationRequest(scores=[out])).evaluation
    assert found.noisy == summary.noisy
    similarity = found.scores[0]
    assert [one.kind for one in similarity.kinds] == ["all", "ncr", "decl"]
    assert all(one.report.auroc > 0.98 for one in similarity.kinds)
