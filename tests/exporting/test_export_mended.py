"""Exports of a selection whose captions were mended: wherever a caption is read from."""

import csv
import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from upath import UPath

from ncclean.data.reader import read_samples
from ncclean.data.shards import resolve_shards
from ncclean.data.sources import resolve_pairs
from ncclean.exporting.export import export_shards
from ncclean.exporting.uid_file import export_uids
from tests import hostile

WHOLE, LEFT = "A dog runs. A cat sits.", "A dog runs."


def write_selection(folder, shard, rows):
    """`rows` are (key, mended caption or None, caption number or None)."""
    keys, captions, numbers = zip(*rows, strict=True)
    columns = {
        "uid": keys, "shard": [shard] * len(rows), "key": keys,
        "weight": pa.array([1.0] * len(rows), pa.float32()),
        "split": pa.nulls(len(rows), pa.string()), "caption": pa.array(captions, pa.string()),
    }  # fmt: skip
    if numbers[0] is not None:
        columns["caption_number"] = pa.array(numbers, pa.int16())
        columns["caption_rank"] = pa.array(
            [keys[:place].count(key) for place, key in enumerate(keys)], pa.int16()
        )
    pq.write_table(pa.table(columns), folder / "selection.parquet")
    return str(folder / "selection.parquet")


def tar(folder, samples):
    """A shard of samples: their members by extension, an image each."""
    members = []
    for key, contents in samples.items():
        members.append((f"{key}.jpg", hostile.JPEG))
        for extension, content in contents.items():
            raw = json.dumps(content) if extension == "json" else content
            members.append((f"{key}.{extension}", raw.encode()))
    (folder / "s.tar").write_bytes(hostile.tar_bytes(members))
    return resolve_shards([str(folder / "s.tar")])


def exported(folder, selection, shards, **options):
    summary = export_shards(selection, shards, UPath(folder / "out"), **options)
    found = {}
    with tarfile.open(folder / "out" / "00000.tar") as archive:
        for member in archive:
            key, _, extension = member.name.partition(".")
            content = archive.extractfile(member).read()
            if extension == "json":
                content = json.loads(content)
            found.setdefault(key, {})[extension] = content
    return found, summary


def captions(folder, caption_key=None):
    """By key, the captions that a reader of the export finds."""
    shards = resolve_shards([str(folder / "out")])
    samples = [sample for shard in shards for sample in read_samples(shard, caption_key)]
    return {one.key: [caption.text for caption in one.captions] for one in samples}


def test_txt_and_json(tmp_path):
    shards = tar(tmp_path, {
        "a": {"txt": WHOLE, "json": {"caption": WHOLE, "uid": "a", "n": 1}},
        "b": {"txt": WHOLE},
        "c": {"json": {"caption": WHOLE, "uid": "c"}},
        "d": {"caption": WHOLE, "json": {"text": WHOLE}},
        "e": {"txt": WHOLE, "json": {"uid": "e"}},
        "f": {"txt": WHOLE},
    })  # fmt: skip
    rows = [(key, LEFT, None) for key in "abcd"] + [("e", None, None)]
    chosen = write_selection(tmp_path, "s", rows)
    found, summary = exported(tmp_path, chosen, shards)
    assert (summary.samples, summary.missing, summary.errors) == (5, {}, {})
    assert found["a"]["txt"] == LEFT.encode()
    assert found["a"]["json"] == {
        "caption": LEFT, "original_caption": WHOLE, "uid": "a", "n": 1,
    }  # fmt: skip
    assert found["b"]["json"] == {"caption": LEFT, "original_caption": WHOLE}
    assert found["c"]["txt"] == LEFT.encode()
    assert found["d"]["caption"] == LEFT.encode()
    assert "txt" not in found["d"]
    # What was not mended is as it was, byte for byte.
    assert found["e"] == {"jpg": hostile.JPEG, "txt": WHOLE.encode(), "json": {"uid": "e"}}
    assert captions(tmp_path) == {key: [LEFT] for key in "abcd"} | {"e": [WHOLE]}


@pytest.mark.parametrize(
    ("caption_key", "contents"),
    [
        ("alt", {"txt": "other", "json": {"Alt": WHOLE, "caption": "other"}}),
        ("alt", {"alt": WHOLE, "txt": "other"}),
        ("a.b[1]", {"json": {"a": {"B": ["other", WHOLE]}}}),
    ],
)
def test_a_caption_of_another_name(tmp_path, caption_key, contents):
    """Readers of that name, too, find the mended one: others beside it were not mended."""
    shards = tar(tmp_path, {"a": contents, "b": contents})
    chosen = write_selection(tmp_path, "s", [("a", LEFT, None), ("b", None, None)])
    found, _ = exported(tmp_path, chosen, shards, caption_key=caption_key)
    assert captions(tmp_path, caption_key) == {"a": [LEFT], "b": [WHOLE]}
    assert captions(tmp_path)["a"] == [LEFT]
    assert found["a"]["json"]["original_caption"] == WHOLE


def test_several_captions(tmp_path):
    record = {
        "captions": ["zero one", "An ant. B dog.", "C cat. D."],
        "is_noisy": [False, True, False],
        "noise_kind": [None, "foreign_sentence", None],
        "noisy_part": [None, 1, None],
    }
    shards = tar(tmp_path, {"a": {"json": record}, "b": {"json": record}})
    rows = [("a", "B dog.", 1), ("a", None, 0), ("b", None, 2), ("b", "An ant.", 1)]
    chosen = write_selection(tmp_path, "s", rows)
    found, summary = exported(tmp_path, chosen, shards, caption_key="captions")
    assert (summary.samples, summary.missing) == (2, {})
    assert found["a"]["txt"] == b"B dog."
    assert found["a"]["json"] == {
        "caption": "B dog.", "captions": ["B dog.", "zero one"], "other_captions": ["C cat. D."],
        "original_caption": "An ant. B dog.", "original_captions": ["An ant. B dog.", "zero one"],
        "is_noisy": [True, False], "noise_kind": ["foreign_sentence", None],
        "noisy_part": [0, None], "original_is_noisy": [True, False],
        "original_noise_kind": ["foreign_sentence", None], "original_noisy_part": [1, None],
    }  # fmt: skip
    second = found["b"]["json"]
    assert (second["caption"], second["captions"]) == ("C cat. D.", ["C cat. D.", "An ant."])
    assert second["original_captions"] == ["C cat. D.", "An ant. B dog."]
    assert "original_caption" not in second
    assert second["is_noisy"] == [False, False]
    assert captions(tmp_path, "captions") == {
        "a": ["B dog.", "zero one"], "b": ["C cat. D.", "An ant."],
    }  # fmt: skip


def test_copies_are_mended_too(tmp_path):
    shards = tar(tmp_path, {"a": {"txt": WHOLE}})
    chosen = write_selection(tmp_path, "s", [("a", LEFT, None), ("a", LEFT, None)])
    found, summary = exported(tmp_path, chosen, shards)
    assert summary.samples == 2
    assert [one["txt"] for one in found.values()] == [LEFT.encode()] * 2


@pytest.mark.parametrize("caption_key", [None, "words"])
def test_a_csv_table(tmp_path, caption_key):
    column = caption_key or "caption"
    with open(tmp_path / "pairs.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["filepath", column, "n"])
        for name in "abc":
            (tmp_path / f"{name}.jpg").write_bytes(hostile.JPEG)
            writer.writerow([f"{name}.jpg", WHOLE, name])
    (shard,) = resolve_pairs([str(tmp_path / "pairs.csv")])
    keys = [sample.key for sample in read_samples(shard, caption_key)]
    rows = [(keys[0], LEFT, None), (keys[2], None, None)]
    chosen = write_selection(tmp_path, shard.name, rows)
    found, summary = exported(tmp_path, chosen, [shard], caption_key=caption_key)
    assert (summary.samples, summary.missing) == (2, {})
    first, third = found.values()
    assert (first["txt"], third["txt"]) == (LEFT.encode(), WHOLE.encode())
    assert first["json"]["original_caption"] == WHOLE
    assert first["json"]["caption"] == LEFT
    assert "original_caption" not in third["json"]
    assert [*captions(tmp_path).values()] == [[LEFT], [WHOLE]]
    assert [*captions(tmp_path, column).values()] == [[LEFT], [WHOLE]]


def test_hostile_captions(tmp_path):
    text = "\u202e\x07\u2066 <b>猫</b> 'x' \\ \"q\" 😀 \ufeff"
    shards = tar(tmp_path, {"a": {"txt": f"{text}. A cat.", "json": {"caption": "x"}}})
    found, _ = exported(tmp_path, write_selection(tmp_path, "s", [("a", text, None)]), shards)
    assert found["a"]["txt"].decode() == found["a"]["json"]["caption"] == text
    assert found["a"]["json"]["original_caption"] == f"{text}. A cat."


def test_columns_of_parts_are_exported_as_short_numbers(tmp_path):
    shards = tar(tmp_path, {"a": {"txt": WHOLE}})
    table = pa.table({
        "uid": ["a"], "shard": ["s"], "key": ["a"], "row": pa.array([0], pa.int32()),
        "part_starts": pa.array([[0, 12]], pa.list_(pa.int32())),
        "part_noise_probabilities": pa.array([[0.1, None]], pa.list_(pa.float32())),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "scores.parquet")
    chosen = write_selection(tmp_path, "s", [("a", None, None)])
    columns = ["part_starts", "part_noise_probabilities"]
    found, _ = exported(
        tmp_path, chosen, shards, scores=[str(tmp_path / "scores.parquet")], columns=columns
    )
    assert found["a"]["json"] == {"part_starts": [0, 12], "part_noise_probabilities": [0.1, None]}


def test_a_file_of_uids_cannot_hold_mended_captions(tmp_path):
    chosen = write_selection(tmp_path, "00000", [("a", LEFT, None), ("b", None, None)])
    table = pq.read_table(chosen)
    uids = pa.array([f"{number:032x}" for number in range(2)])
    pq.write_table(table.set_column(0, "uid", uids), chosen)
    assert export_uids(chosen, UPath(tmp_path / "uids.npy")).mended_lost == 1
