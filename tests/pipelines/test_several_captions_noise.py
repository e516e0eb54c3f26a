"""Noise in corpora whose images have several captions: Karpathy's json, lists in a json."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.inject_noise import InjectNoise
from ncclean_pipelines.score import Score

from ncclean.data.options import SourceOptions
from ncclean.data.samples import SkipReason
from tests.pipelines.noisy_shards import inject, jpeg, members, samples, write_shard

IMAGES, EACH = 12, 3


@pytest.fixture
def corpus(tmp_path):
    """Twelve images with three captions each in the training split; the fourth file is missing."""
    listed = []
    for number in range(IMAGES):
        if number != 3:
            (tmp_path / f"{number}.jpg").write_bytes(jpeg(number))
        raws = [f"a red photo {number} {place}" for place in range(EACH)]
        listed.append(
            {"filename": f"{number}.jpg", "split": "train", "sentences": [{"raw": r} for r in raws]}
        )
        listed.append({"filename": "v.jpg", "split": "val", "sentences": [{"raw": "other"}]})
    (tmp_path / "dataset_x.json").write_text(json.dumps({"images": listed}))
    return tmp_path


def noisy(corpus, out, **options):
    source = SourceOptions(split=["train"])
    return (
        InjectNoise(
            shards=[str(corpus / "dataset_x.json")],
            out=str(corpus / out),
            source_options=source,
            **options,
        )
        .run()
        .summary
    )


def pairs(path):
    """image -> (image that the caption is of, whether it is said to be noisy) of each caption."""
    found = {}
    for sample in samples(path):
        if sample.status is not SkipReason.OK:
            continue
        flags, kinds = sample.metadata["is_noisy"], sample.metadata["noise_kind"]
        assert [kind is not None for kind in kinds] == flags
        texts = [caption.text for caption in sample.captions]
        found[int(sample.key)] = [
            (int(t.split()[3]), flag) for t, flag in zip(texts, flags, strict=True)
        ]
    return found


def test_a_file_there_and_back(corpus):
    file = np.repeat(np.arange(IMAGES), EACH)
    file[[0, 1, 2, 15, 16, 30]] = [5, 5, 0, 0, 10, 5]  # caption 30 is of image 10
    file[10] = 2  # of the image whose file is missing
    np.save(corpus / "noise.npy", file)
    summary = noisy(
        corpus, "out", noise_file=str(corpus / "noise.npy"), write_noise_file=str(corpus / "b.npy")
    )
    assert summary.noisy == {"noise_file": 5}
    found = pairs(corpus / "out" / "dataset_x.tar")
    assert found[0] == [(5, True), (0, False)]
    assert found[10] == [(5, True), (10, False), (10, False)]
    assert found[5] == [(0, True), (0, True), (5, False), (10, True)]
    assert found[7] == [(7, False)] * 3
    back = np.load(corpus / "b.npy")
    file[10] = 3  # nobody could use it
    assert back.tolist() == file.tolist()
    noisy(
        corpus, "out", noise_file=str(corpus / "noise.npy"), write_noise_file=str(corpus / "b.npy")
    )
    assert np.load(corpus / "b.npy").tolist() == file.tolist()  # of a finished run, too


def test_a_noise_file_replaces_only_what_the_command_wrote(corpus, refused):
    options = {"kind": ["ncr"], "rate": [0.4]}
    np.save(corpus / "mine.npy", np.arange(3))
    refused(noisy, corpus, "out", write_noise_file=str(corpus / "mine.npy"), **options)
    assert not (corpus / "out").exists()
    target = corpus / "out" / "dataset_x.tar"
    for taken in (corpus / "dataset_x.json", target):
        refused(noisy, corpus, "out", write_noise_file=str(taken), **options)
        refused(noisy, corpus, "out", write_noise_file=str(taken), overwrite=True, **options)
    noisy(corpus, "out", write_noise_file=str(corpus / "mine.npy"), overwrite=True, **options)
    assert len(np.load(corpus / "mine.npy", mmap_mode="r")) == IMAGES * EACH


@pytest.mark.slow
def test_scores_know_which_caption_is_noisy(corpus):
    noisy(corpus, "out", kind=["ncr"], rate=[0.4], seed=2)
    Score(shards=[str(corpus / "out")], out=str(corpus / "s.parquet"), model="demo").run()
    table = pq.read_table(corpus / "s.parquet")
    assert set(table["caption_number"].to_pylist()) == {0, 1, 2}
    for row in table.filter(table["status"].to_numpy(zero_copy_only=False) == "ok").to_pylist():
        is_own = row["text"].split()[3] == row["key"]
        assert row["is_noisy"] == (not is_own)
        assert row["noise_kind"] == (None if is_own else "ncr")
    assert 0 < sum(filter(None, table["is_noisy"].to_pylist())) <= 13


def test_images_move_with_all_their_captions(corpus):
    noisy(corpus, "out", kind=["ncr_image"], rate=[0.5], seed=1)
    found = pairs(corpus / "out" / "dataset_x.tar")
    moved = {image: {of for of, _ in here} for image, here in found.items()}
    assert all(len(of) == 1 for of in moved.values())
    assert 3 <= sum(of != {image} for image, of in moved.items()) <= 5
    assert all(flag == (of != image) for image, here in found.items() for of, flag in here)


def test_lists_under_a_path_and_what_is_beside_them(tmp_path):
    records = [
        {
            "talk": {"Texts": [f"red {n}", "", f"blue {n}"]},
            "caption": "old",
            "is_noisy": [False, True, False],
        }
        for n in range(2)
    ]
    groups = [
        [(f"{n}.jpg", jpeg(n)), (f"{n}.json", json.dumps(record).encode())]
        for n, record in enumerate(records)
    ]
    write_shard(tmp_path / "in" / "a.tar", *groups)
    summary = inject(tmp_path / "in", tmp_path / "out", {"junk": 0.25}, caption_key="talk.texts")
    assert (summary.pairs, summary.noisy) == (4, {"junk": 1})
    found = [
        json.loads(data) for name, data in members(tmp_path / "out" / "a.tar") if "json" in name
    ]
    changed = 0
    for n, record in enumerate(found):
        texts = record["talk"]["Texts"]
        assert texts[1] == ""
        assert record["is_noisy"][1] is True  # as it said before
        for place, text in ((0, f"red {n}"), (2, f"blue {n}")):
            assert record["is_noisy"][place] == (texts[place] != text)
            assert record["noise_kind"][place] == ("junk" if texts[place] != text else None)
            changed += texts[place] != text
    assert changed == 1


def jsons(folder):
    return [json.loads(data) for name, data in members(folder / "a.tar") if name.endswith("json")]


@pytest.mark.parametrize("layout", ["member", "member_and_json", "json", "list", "key"])
def test_images_get_and_lose_captions_where_there_was_one(tmp_path, layout):
    """A file may pair an image with two captions or with none: nothing is lost, nothing stays."""
    groups = []
    for n in range(4):
        text = f"red {n}"
        record = {"caption": [text] if layout == "list" else text} if "m" not in layout else {}
        group = [(f"{n}.jpg", jpeg(n))]
        if "m" in layout or layout == "key":
            group.append((f"{n}.cap" if layout == "key" else f"{n}.txt", text.encode()))
        if layout != "member":
            group.append((f"{n}.json", json.dumps(record).encode()))
        groups.append(group)
    write_shard(tmp_path / "in" / "a.tar", *groups)
    np.save(tmp_path / "n.npy", np.array([0, 0, 3, 2]))
    key = "cap" if layout == "key" else None
    InjectNoise(
        shards=[str(tmp_path / "in")],
        out=str(tmp_path / "out"),
        noise_file=str(tmp_path / "n.npy"),
        caption_key=key,
    ).run()
    found = {
        sample.key: ([c.text for c in sample.captions], sample.metadata["is_noisy"])
        for sample in samples(tmp_path / "out" / "a.tar", key)
    }
    assert found.pop("1")[0] in ([None], [])
    assert found == {
        "0": (["red 0", "red 1"], [False, True]),
        "2": (["red 3"], True),
        "3": (["red 2"], True),
    }


def test_what_is_said_of_a_caption_goes_with_it(tmp_path):
    """The first of three captions moves away; the second, noisy before, is now the first."""
    groups = []
    for n in range(2):
        record = {"caption": [f"{n} a", f"{n} b", f"{n} c"], "is_noisy": [False, True, False]}
        groups.append([(f"{n}.jpg", jpeg(n)), (f"{n}.json", json.dumps(record).encode())])
    write_shard(tmp_path / "in" / "a.tar", *groups)
    np.save(tmp_path / "n.npy", np.array([1, 0, 0, 1, 1, 1]))
    written = InjectNoise(
        shards=[str(tmp_path / "in")], out=str(tmp_path / "out"), noise_file=str(tmp_path / "n.npy")
    )
    assert written.run().summary.already_noisy == 2
    first, second = jsons(tmp_path / "out")
    truth = dict(zip(first["caption"], first["is_noisy"], strict=True))
    assert truth == {"0 b": True, "0 c": False}
    assert second["caption"] == ["1 a", "1 b", "1 c", "0 a"]
    assert second["is_noisy"] == [False, True, False, True]


def test_requests_that_do_not_fit(corpus, refused):
    for options in (
        {"noise_file": "x.npy", "kind": ["ncr"], "rate": [0.1]},
        {},
        {"noise_file": str(corpus / "nothing.npy")},
        {"kind": ["hard"], "rate": [0.5], "write_noise_file": str(corpus / "w.npy")},
    ):
        refused(noisy, corpus, "out", **options)


def test_sentences_never_come_from_a_caption_of_the_image(corpus):
    """And the list of truth says which sentence it is, None for the others."""
    summary = noisy(corpus, "out", kind=["foreign_sentence"], rate=[0.5])
    seen = 0
    for path in sorted((corpus / "out").glob("*.tar")):
        for image, captions in pairs(path).items():
            assert all((number != image) == is_noisy for number, is_noisy in captions)
            seen += sum(is_noisy for _, is_noisy in captions)
        for sample in samples(path):
            fields = {"is_noisy": [False] * EACH, "noisy_part": [None] * EACH, **sample.metadata}
            parts = [0 if is_noisy else None for is_noisy in fields["is_noisy"]]
            assert fields["noisy_part"] == parts
    assert seen == sum(summary.noisy.values()) > 10


def test_captions_that_draw_a_sentence_of_their_image_are_counted(corpus):
    summary = noisy(corpus, "out", kind=["added_detail"], rate=[1.0])
    of_own = summary.left_in_place["added_detail"]
    assert summary.noisy["added_detail"] + of_own == summary.planned["added_detail"]
    assert of_own > 0
