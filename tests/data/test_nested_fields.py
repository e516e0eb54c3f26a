"""Captions that lie inside other fields."""

import io
import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ncclean.data.nested_fields import field_at, head_of
from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_sources
from tests import hostile

TALK = [{"from": "human", "value": "What?"}, {"from": "gpt", "Value": "a red square"}]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("talk[1].value", "a red square"),
        ("talk[-1].value", "a red square"),
        ("talk[0].from", "human"),
        ("a.b", "with a dot"),
        ("talk[2].value", None),
        ("talk[1]value", "a red square"),
        ("talk.value", None),
        ("nothing[0]", None),
        ("a[99999999999]", None),
        ("", None),
    ],
)
def test_paths(path, value):
    assert field_at({"talk": TALK, "a.b": "with a dot", "a": "text"}, path) == value


@pytest.mark.parametrize("kind", ["tar", "jsonl", "parquet"])
def test_every_layout_finds_the_caption(tmp_path, kind):
    place, fields = tmp_path / f"talks.{kind}", {"conversations": TALK}
    if kind == "tar":
        with tarfile.open(place, "w") as tar:
            for name, data in (("a.jpg", hostile.JPEG), ("a.json", json.dumps(fields).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    elif kind == "jsonl":
        (tmp_path / "a.jpg").write_bytes(hostile.JPEG)
        place.write_text(json.dumps({"image": "a.jpg", **fields}) + "\n")
    else:
        same = [{"value": one.get("value") or one["Value"]} for one in TALK]
        pq.write_table(pa.table({"image": [hostile.JPEG], "conversations": [same]}), place)
    (shard,) = resolve_sources([str(place)])
    (sample,) = read_samples(shard, "conversations[1].value")
    assert [caption.text for caption in sample.captions] == ["a red square"]


def test_the_field_that_a_path_begins_with():
    assert head_of("talk[1].value") == head_of("talk.value") == head_of("talk") == "talk"
