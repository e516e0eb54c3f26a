"""The rendered world: reproducible, varied, and true to what its json says."""

import dataclasses
import io
import json
import tarfile
from collections import Counter

import open_clip
import pytest
from PIL import Image

from ncclean.data.caption_parts import parts_of, sentence_starts
from ncclean.data.shards import resolve_shards
from ncclean.data.synthetic import (
    ZEROSHOT_SETS,
    CorpusOptions,
    sample_scene,
    write_caption,
    write_corpus,
    write_heldout,
)
from ncclean.data.synthetic.captions import TEMPLATES
from ncclean.data.synthetic.scene import COLOURS, SHAPES, alter_one_fact, generator
from ncclean.data.tar import TarSamples
from tests.factories import rendered

OPTIONS = CorpusOptions(
    pairs=600,
    shard_size=250,
    noise={"ncr": 0.2, "hard": 0.1, "junk": 0.05},
    broken=0.05,
    duplicates=0.1,
    seed=3,
)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("synthetic"), OPTIONS, workers=1)


def records(shards):
    for shard in shards:
        with tarfile.open(shard) as tar:
            for member in tar:
                if member.name.endswith(".json"):
                    yield json.load(tar.extractfile(member))


def test_same_bytes_from_any_number_of_processes(tmp_path):
    few = dataclasses.replace(OPTIONS, pairs=60, shard_size=25)
    one, two = (write_corpus(tmp_path / f"{n}", few, workers=n) for n in (1, 2))
    assert [p.name for p in two] == ["00000.tar", "00001.tar", "00002.tar"]
    assert [p.read_bytes() for p in two] == [p.read_bytes() for p in one]


def test_truth_in_the_json(shards):
    found = list(records(shards))
    kinds = Counter(r["noise_kind"] for r in found)
    assert len({r["uid"] for r in found}) == len(found) == 600
    assert kinds["hard"] == 60
    assert kinds["junk"] == 30
    assert 110 <= kinds["ncr"] <= 120  # fixed points of the permutation are clean
    assert all(r["is_noisy"] == (r["noise_kind"] is not None) for r in found)
    assert 30 <= sum(r["duplicate_of"] is not None for r in found) <= 90
    uids = {r["uid"] for r in found}
    assert all(r["duplicate_of"] in uids for r in found if r["duplicate_of"])
    assert 15 <= sum(r["broken"] is not None for r in found) <= 50


def test_captions_of_clean_pairs_name_shapes_of_their_scenes(shards):
    """Those of near-duplicates, too, whose scene is another pair's."""
    named = Counter()
    for record in records(shards):
        if record["noise_kind"] is None and isinstance(record.get("caption"), str):
            words = {word.strip(".,:s") for word in record["caption"].lower().split()}
            said = words & set(SHAPES)
            assert said <= {group["shape"] for group in record["scene"]["groups"]}
            named[record["duplicate_of"] is not None] += len(said)
    assert min(named[False], named[True]) > 10


def test_images_vary_in_format_and_size(shards):
    kinds, sizes = Counter(), set()
    for shard in shards:
        with tarfile.open(shard) as tar:
            for member in tar:
                if member.name.endswith(("jpg", "png", "webp")):
                    try:
                        image = Image.open(io.BytesIO(tar.extractfile(member).read()))
                        image.load()
                    except (OSError, Image.DecompressionBombError):
                        continue
                    kinds[image.format] += 1
                    sizes.add(image.size)
    assert set(kinds) == {"JPEG", "PNG", "WEBP"}
    assert kinds["JPEG"] > 0.8 * kinds.total()
    assert len(sizes) >= 5


def test_the_world_is_as_rich_as_promised():
    assert len(SHAPES) >= 10
    assert len(COLOURS) == 11
    assert len(set(TEMPLATES)) >= 20
    scenes = [sample_scene(generator("test", index)) for index in range(500)]
    assert {s.objects for s in scenes} == {1, 2, 3, 4}
    assert {g.shape for s in scenes for g in s.groups} == set(SHAPES)
    assert {g.colour for s in scenes for g in s.groups} == set(COLOURS)
    assert {s.relation for s in scenes} == {
        None, "left of", "right of", "above", "below", "in front of",
    }  # fmt: skip
    assert all(0 < p.x < 1 and 0 < p.y < 1 for s in scenes for p in s.placements)
    assert all(g.colour not in (s.ground, s.ground2) for s in scenes for g in s.groups)


def test_captions_have_3_to_40_tokens_and_vary():
    tokenizer = open_clip.get_tokenizer("ViT-B-32")
    captions = []
    for index in range(5000):
        rng = generator("caption-test", index)
        captions.append(write_caption(sample_scene(rng), rng).text)
    lengths = (tokenizer(captions) != 0).sum(dim=1) - 2
    assert lengths.min() >= 3
    assert lengths.max() <= 40
    assert len(set(captions)) > 4700


def test_captions_say_which_thing_is_on_the_left():
    said = 0
    for index in range(600):
        rng = generator("where", index)
        scene = sample_scene(rng)
        if scene.relation in ("above", "below"):
            first, second = sorted(scene.placements, key=lambda placed: placed.group)
            assert (scene.relation == "above") == (first.y < second.y)
        if scene.relation in ("left of", "right of"):
            shaped = zip(scene.groups, ("hexagon", "triangle"), strict=True)
            groups = tuple(dataclasses.replace(group, shape=shape) for group, shape in shaped)
            text = write_caption(dataclasses.replace(scene, groups=groups), rng).text
            hexagon, triangle = sorted(scene.placements, key=lambda placed: placed.group)
            if "left of" in text or "right of" in text:
                is_first = text.index("hexagon") < text.index("triangle")
                assert (("left of" in text) == is_first) == (hexagon.x < triangle.x)
                said += 1
    assert said > 10


def test_hard_noise_changes_few_words_and_the_meaning():
    changed = 0
    for index in range(300):
        scene = sample_scene(generator("hard-test", index))
        altered = alter_one_fact(scene, generator("alter", index))
        assert altered != scene
        before = write_caption(scene, generator("words", index)).text.split()
        after = write_caption(altered, generator("words", index)).text.split()
        differing = Counter(before) - Counter(after)
        assert differing.total() <= 4
        changed += before != after
    assert changed > 150


def test_heldout_sets_have_clip_benchmarks_layout(tmp_path):
    write_heldout(tmp_path, images=24, seed=0)
    with tarfile.open(tmp_path / "retrieval" / "test" / "0.tar") as tar:
        captions = [tar.extractfile(m).read() for m in tar if m.name.endswith(".txt")]
    assert len(captions) == 24
    assert all(len(c.decode().splitlines()) == 5 for c in captions)
    assert (tmp_path / "retrieval" / "test" / "nshards.txt").read_text().strip() == "1"
    for zeroshot in ZEROSHOT_SETS:
        folder = tmp_path / f"zeroshot-{zeroshot.name}"
        names = (folder / "classnames.txt").read_text().splitlines()
        templates = (folder / "zeroshot_classification_templates.txt").read_text().splitlines()
        assert all("{c}" in template for template in templates)
        images = {}
        for split in ("test", "train"):
            with tarfile.open(folder / split / "0.tar") as tar:
                files = {m.name: tar.extractfile(m).read() for m in tar}
            labels = [int(data) for name, data in files.items() if name.endswith(".cls")]
            assert len(labels) == 24
            assert set(labels) == set(range(len(names)))
            assert (folder / split / "nshards.txt").read_text().strip() == "1"
            images[split] = {data for name, data in files.items() if not name.endswith(".cls")}
        assert not images["test"] & images["train"]


def test_options_are_checked(tmp_path, shards, refused):
    refused(CorpusOptions, pairs=0)
    refused(CorpusOptions, pairs=10, broken=1.5)
    refused(write_corpus, tmp_path, CorpusOptions(pairs=10, noise={"salt": 0.1}))
    refused(write_corpus, shards[0].parent, OPTIONS)


def sentences_of(folder):
    """The caption and the json of every sample."""
    for shard in resolve_shards([str(folder)]):
        for sample in TarSamples(shard):
            yield sample.caption, sample.metadata


@pytest.mark.parametrize("kind", ["foreign_sentence", "added_detail"])
def test_the_truth_of_each_sentence(tmp_path, kind):
    options = CorpusOptions(pairs=60, shard_size=60, noise={kind: 0.5}, sentences=4, seed=2)
    write_corpus(tmp_path / "noisy", options, workers=1)
    clean = dataclasses.replace(options, noise={})
    write_corpus(tmp_path / "clean", clean, workers=1)
    every = {
        part
        for caption, _ in sentences_of(tmp_path / "clean")
        for part in parts_of(caption, sentence_starts(caption))
    }
    pairs = list(
        zip(sentences_of(tmp_path / "noisy"), sentences_of(tmp_path / "clean"), strict=True)
    )
    assert sum(fields["is_noisy"] for (_, fields), _ in pairs) == 30
    for (caption, fields), (original, clean_fields) in pairs:
        assert clean_fields["noisy_part"] is None
        own = parts_of(original, sentence_starts(original))
        parts = parts_of(caption, sentence_starts(caption))
        assert fields["caption"] == caption
        assert fields["is_noisy"] == (caption != original) == (fields["noisy_part"] is not None)
        if fields["is_noisy"]:
            foreign = [part for part in parts if part not in own]
            assert foreign == [parts[fields["noisy_part"]]]
            assert any(foreign[0].endswith(part) for part in every)
            assert len(parts) == len(own) + (kind == "added_detail") or "clip art" in caption


def test_a_sentence_that_all_captions_have_is_no_noise(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "ncclean.data.synthetic.corpus.write_sentences", lambda scene, rng, count: ["A dog."] * 2
    )
    rendered(
        tmp_path / "s",
        pairs=10,
        shard_size=10,
        noise={"foreign_sentence": 0.5},
        sentences=2,
        seed=2,
    )
    truth = [fields for _, fields in sentences_of(tmp_path / "s")]
    assert not any(fields["is_noisy"] for fields in truth)
    assert {fields["noise_kind"] for fields in truth} == {None}
