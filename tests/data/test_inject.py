"""A shard rewritten: what the edits name changes, and every other byte stays."""

import io
import json
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclean.data.images.as_tar import open_as_tar
from ncclean.data.inject import ImageSource, SampleEdit, write_noisy
from ncclean.data.shard_index import images_of, index_shard, pairs_of
from ncclean.data.shards import resolve_shards
from ncclean.data.tar_ranges import local_tar
from tests import hostile

OTHER = hostile.encoded(hostile.photo(seed=5), "PNG")
MEMBERS = [
    ("README", b"of no sample"),
    ("a.jpg", hostile.JPEG),
    ("a.txt", b"one"),
    ("a.json", b'{"caption": "one", "uid": "7"}'),
    ("broken.txt", b"no image"),
    ("b.png", OTHER),
    ("b.txt", b"two"),
    ("b.cls", b"3"),
]


@pytest.fixture
def shard(tmp_path):
    (tmp_path / "s.tar").write_bytes(hostile.tar_bytes(MEMBERS))
    return resolve_shards([str(tmp_path / "s.tar")])[0]


def opened(shard):
    return lambda: open_as_tar(shard)


def rewrite(shard, edits):
    return rewritten(shard, edits, rows_of(shard))


def rewritten(shard, edits, rows):
    sink = io.BytesIO()
    with local_tar(opened(shard), False, []) as source:
        result = write_noisy(source, shard, rows, edits, sink)
    return sink.getvalue(), result


def rows_of(shard):
    return sorted(set(pairs_of(index_shard(shard))["row"].to_pylist()))


def members(data):
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [(m.name, tar.extractfile(m).read()) for m in tar]


def image_of(shard, pair):
    image = images_of(pairs_of(index_shard(shard))).to_pylist()[pair]
    return ImageSource(shard.url, image["begin"], image["end"])


def test_without_edits_only_the_truth_is_added(shard):
    data, result = rewrite(shard, {})
    truth = b'{"is_noisy": false, "noise_kind": null}'
    *others, unused = MEMBERS  # what is no image and no caption is copied without being held
    expected = [*others, ("b.json", truth), unused]
    expected[3] = ("a.json", b'{"caption": "one", "uid": "7", ' + truth[1:])
    assert members(data) == expected
    assert (result.json_added, result.json_replaced, result.already_noisy) == (1, 0, 0)


def test_a_new_caption_goes_wherever_one_is_read_from(shard):
    data, _ = rewrite(shard, {0: SampleEdit(("ncr",), ("new",)), 1: SampleEdit(("hard",), ("x",))})
    contents = dict(members(data))
    assert contents["a.txt"] == b"new"
    assert json.loads(contents["a.json"]) == {
        "caption": "new", "uid": "7", "is_noisy": True, "noise_kind": "ncr",
    }  # fmt: skip
    assert contents["b.txt"] == b"x"
    assert json.loads(contents["b.json"]) == {"is_noisy": True, "noise_kind": "hard"}
    untouched = ("README", "a.jpg", "broken.txt", "b.png", "b.cls")
    assert all(contents[name] == dict(MEMBERS)[name] for name in untouched)


def test_images_change_places_with_their_extensions(shard):
    edits = {
        0: SampleEdit(("decl",), image=image_of(shard, 1)),
        1: SampleEdit(("decl",), image=image_of(shard, 0)),
    }
    written = members(rewrite(shard, edits)[0])
    assert written[1] == ("a.png", OTHER)
    assert ("b.jpg", hostile.JPEG) in written
    assert len(written) == len(MEMBERS) + 1


def test_what_follows_the_archive_is_copied(shard, tmp_path):
    with open(shard.url, "ab") as file:
        file.write(b"appended by somebody")
    assert rewrite(shard, {})[0].endswith(b"appended by somebody")


@pytest.mark.parametrize(
    ("record", "is_noisy", "kind"),
    [
        ({"is_noisy": True, "noise_kind": "crawled"}, True, "crawled"),
        ({"IS_NOISY": 1}, True, None),
        ({"is_noisy": "yes"}, False, None),
        ({"is_noisy": False, "noise_kind": "none"}, False, None),
    ],
)
def test_noise_of_the_input_stays_noise(tmp_path, record, is_noisy, kind):
    data = [("a.jpg", OTHER), ("a.txt", b"one"), ("a.json", json.dumps(record).encode())]
    (tmp_path / "s.tar").write_bytes(hostile.tar_bytes(data))
    (shard,) = resolve_shards([str(tmp_path / "s.tar")])
    written, result = rewrite(shard, {})
    truth = json.loads(dict(members(written))["a.json"])
    assert truth == {"is_noisy": is_noisy, "noise_kind": kind}
    assert result.already_noisy == int(is_noisy)


def test_an_input_that_has_become_shorter_is_an_error(shard, refused):
    rows = rows_of(shard)
    with open(shard.url, "r+b") as file:
        file.truncate(3000)
    refused(rewritten, shard, {}, rows)


def test_an_image_that_is_gone_is_an_error(shard, refused):
    refused(rewrite, shard, {0: SampleEdit(("decl",), image=ImageSource("/nowhere/x.tar", 0, 512))})


@settings(max_examples=30, deadline=None)
@given(captions=st.dictionaries(st.integers(0, 1), st.text(max_size=20)))
def test_pairs_without_an_edit_are_copied_byte_for_byte(tmp_path_factory, captions):
    path = tmp_path_factory.mktemp("inject") / "s.tar"
    with_json = [*MEMBERS, ("b.json", b"{}")]
    path.write_bytes(hostile.tar_bytes(with_json))
    (shard,) = resolve_shards([str(path)])
    captions = {
        pair: caption.encode("utf-8", "replace").decode() for pair, caption in captions.items()
    }
    data, _ = rewrite(shard, {pair: SampleEdit(("ncr",), (c,)) for pair, c in captions.items()})
    keys = {"a": 0, "b": 1}
    for (name, before), (name_after, after) in zip(with_json, members(data), strict=True):
        assert name == name_after
        pair = keys.get(name.split(".")[0])
        if name.endswith("txt") and pair in captions:
            assert after == captions[pair].encode()
        elif not name.endswith("json"):
            assert after == before


def test_lines_beside_a_new_caption_keep_their_bytes(tmp_path):
    data = [("a.jpg", OTHER), ("a.txt", b"caf\xe9\n\ntwo\n"), ("a.json", b"{}")]
    (tmp_path / "s.tar").write_bytes(hostile.tar_bytes(data))
    (shard,) = resolve_shards([str(tmp_path / "s.tar")])
    sink, edit = io.BytesIO(), SampleEdit(("ncr",), ("new",))  # of what is text
    with local_tar(opened(shard), False, []) as source:
        write_noisy(source, shard, {0}, {0: edit}, sink, caption_key="txt.lines")
    assert dict(members(sink.getvalue()))["a.txt"] == b"caf\xe9\nnew"


def test_parts_of_several_captions(tmp_path):
    """One that was noisy before stays so, with its part."""
    record = {
        "caption": ["zero", "one", "two"], "is_noisy": [False, True, False],
        "noise_kind": [None, "foreign_sentence", None], "noisy_part": [None, 4, None],
    }  # fmt: skip
    data = [("a.jpg", OTHER), ("a.json", json.dumps(record).encode())]
    (tmp_path / "s.tar").write_bytes(hostile.tar_bytes(data))
    (shard,) = resolve_shards([str(tmp_path / "s.tar")])
    edit = SampleEdit(
        (None, None, "foreign_sentence"), ("zero", "one", "new"), noisy_parts=(None, None, 1)
    )
    written = json.loads(dict(members(rewrite(shard, {0: edit})[0]))["a.json"])
    assert written == {
        "caption": ["zero", "one", "new"], "is_noisy": [False, True, True],
        "noise_kind": [None, "foreign_sentence", "foreign_sentence"], "noisy_part": [None, 4, 1],
    }  # fmt: skip
    again = json.loads(dict(members(rewrite(shard, {})[0]))["a.json"])
    assert again == record


def test_a_part_of_a_clean_pair_is_forgotten(tmp_path):
    record = {"is_noisy": False, "noise_kind": None, "noisy_part": 3}
    data = [("a.jpg", OTHER), ("a.txt", b"one"), ("a.json", json.dumps(record).encode())]
    (tmp_path / "s.tar").write_bytes(hostile.tar_bytes(data))
    (shard,) = resolve_shards([str(tmp_path / "s.tar")])
    written = json.loads(dict(members(rewrite(shard, {})[0]))["a.json"])
    assert written == {"is_noisy": False, "noise_kind": None}
