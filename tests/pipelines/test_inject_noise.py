"""Shards with known noise: exact counts and untouched bytes."""

import json
import math
from collections import Counter

import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.inject_noise import InjectNoise

from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_pairs
from tests import hostile
from tests.factories import rendered
from tests.pipelines.noisy_shards import RATES, digests, inject, jpeg, members, samples, write_shard

IMAGES = ("jpg", "png", "webp")


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
    assert not (tmp_path / "noisy" / ".ncclean" / "index-000000.parquet").exists()


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


def test_caption_key(tmp_path, refused):
    record = {"alt": "a red circle", "caption": "something else"}
    write_shard(
        tmp_path / "in" / "a.tar", [("a.jpg", jpeg(0)), ("a.json", json.dumps(record).encode())]
    )
    inject(tmp_path / "in", tmp_path / "out", {"hard": 1.0}, caption_key="alt")
    (found,) = samples(tmp_path / "out" / "a.tar", "alt")
    assert found.caption not in ("a red circle", "something else")
    assert found.metadata["caption"] == found.caption
    refused(InjectNoise, shards=["x"], out="y", noise={"ncr": 0.1}, caption_key="json")


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


@pytest.fixture(scope="module")
def donors(tmp_path_factory):
    """A shard of 200 other scenes, and their captions."""
    out = tmp_path_factory.mktemp("donors") / "shards"
    rendered(out, pairs=200, seed=99)
    return out, {sample.caption for sample in samples(out / "00000.tar")}


def test_captions_of_another_corpus(clean, donors, tmp_path):
    folder, texts = donors
    summary = inject(clean, tmp_path / "out", {"donor": 0.2, "ncr": 0.1}, donors=[str(folder)])
    assert summary.planned["donor"] == int(0.2 * summary.pairs)
    assert summary.noisy["donor"] + summary.unchanged["donor"] == summary.planned["donor"]
    taken = Counter()
    for path in sorted(clean.glob("*.tar")):
        pairs = zip(samples(path), samples(tmp_path / "out" / path.name), strict=True)
        for before, after in pairs:
            if after.metadata.get("noise_kind") == "donor":
                assert after.image == before.image
                assert after.caption in texts
                assert after.caption != before.caption
                taken[after.caption] += 1
    assert sum(taken.values()) == summary.noisy["donor"] > 100
    # 200 captions are enough for each to be drawn once; a text may be that of several.
    of_text = Counter(sample.caption for sample in samples(folder / "00000.tar"))
    assert all(count <= of_text[text] for text, count in taken.items())
    assert not list((tmp_path / "out" / ".ncclean").glob("*.parquet"))


def test_donors_from_embeddings_and_tables_are_the_same_captions(clean, scored, tmp_path):
    facts = pq.read_table(scored / "embeddings" / "metadata")
    lines = "\n".join(
        json.dumps({"path": "x.jpg", "text": t}) for t in facts["caption"].to_pylist()
    )
    (tmp_path / "t.jsonl").write_text(lines)
    for name, source in (("a", scored / "embeddings"), ("b", tmp_path / "t.jsonl")):
        inject(clean, tmp_path / name, {"donor": 0.5}, donors=[str(source)])
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


@pytest.mark.parametrize(
    "options",
    [
        {"noise": {"donor": 0.2}},
        {"noise": {"ncr": 0.2}, "donors": ["x"]},
        {"noise": {"donor": 0.2}, "donors": ["nowhere"]},
    ],
)
def test_donors_and_their_kind_go_together(clean, tmp_path, options, refused):
    refused(InjectNoise, shards=[str(clean)], out=str(tmp_path / "out"), **options)


def test_donors_without_a_caption_are_refused(clean, tmp_path, refused):
    write_shard(tmp_path / "d.tar", [("a.jpg", jpeg(0))])
    refused(inject, clean, tmp_path / "out", {"donor": 0.2}, donors=[str(tmp_path / "d.tar")])


@pytest.mark.parametrize(("extension", "key"), [("jpg.txt", None), ("txt", "txt.lines")])
@pytest.mark.parametrize("kind", ["ncr", "ncr_image", "hard", "junk"])
def test_the_truth_is_true_wherever_a_caption_is_read_from(tmp_path, extension, key, kind):
    texts = [f"a red dog {n}\na green cat {n}" if key else f"a red dog {n}" for n in range(40)]
    members = [
        member
        for number, text in enumerate(texts)
        for member in ((f"{number}.jpg", hostile.JPEG), (f"{number}.{extension}", text.encode()))
    ]
    (tmp_path / "s.tar").write_bytes(hostile.tar_bytes(members))
    out = str(tmp_path / "out")
    InjectNoise(
        shards=[str(tmp_path / "s.tar")], out=out, noise=[f"{kind}=0.5"], caption_key=key
    ).run()
    [shard] = resolve_pairs([out])
    noisy = 0
    for sample in read_samples(shard, key):
        flags = sample.metadata["is_noisy"]
        flags = flags if isinstance(flags, list) else [flags]
        before = texts[int(sample.key)].split("\n")
        assert flags == [one.text not in before for one in sample.captions]
        noisy += sum(flags)
    assert noisy > 10
