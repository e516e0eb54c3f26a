"""What is copied from a shard and what is counted, in shards of a few samples."""

import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from upath import UPath

from ncclean.data.shards import resolve_shards
from ncclean.data.tar import LocatedSamples
from ncclean.exporting.export import export_shards
from ncclean.exporting.out_layout import out_layout
from ncclean.exporting.tars import TarWriter
from tests import hostile


def shard(folder, keys, **fields):
    """`0.tar` with a sample for each key, and these fields in every json."""
    members = []
    for key in keys:
        members += hostile.sample(key, hostile.JPEG)
        if fields:
            members.append((f"{key}.json", json.dumps(fields).encode()))
    (folder / "0.tar").write_bytes(hostile.tar_bytes(members))
    return resolve_shards([str(folder / "0.tar")])


def selection(folder, keys, **columns):
    """Of these samples of the shard."""
    count = len(keys)
    table = pa.table({
        "uid": keys, "shard": ["0"] * count, "key": keys,
        "weight": pa.array([1.0] * count, pa.float32()), "split": pa.nulls(count, pa.string()),
        **columns,
    })  # fmt: skip
    pq.write_table(table, folder / "selection.parquet")
    return str(folder / "selection.parquet")


def records(out):
    """The json members of all shards."""
    found = []
    for path in sorted(out.glob("*.tar")):
        with tarfile.open(path) as tar:
            found += [json.load(tar.extractfile(one)) for one in tar if one.name.endswith("json")]
    return found


def placed(folder, keys, **columns):
    """A selection with the places of the samples of `0.tar`."""
    (shard,) = resolve_shards([str(folder / "0.tar")])
    places = {}
    for sample in LocatedSamples(shard):
        first, *_, last = [*sample.members.values()]
        places.setdefault(sample.key, (first.begin, last.end - first.begin))
    offsets, sizes = zip(*(places[key] for key in keys), strict=True)
    return selection(folder, keys, sample_offset=offsets, sample_size=sizes, **columns)


@pytest.fixture
def walks(monkeypatch):
    """How often a tar was searched for its samples."""
    calls = []
    walked = TarWriter._walked

    def counted(*args):
        calls.append(args)
        return walked(*args)

    monkeypatch.setattr(TarWriter, "_walked", counted)
    return calls


@pytest.mark.parametrize("mended", [False, True])
@pytest.mark.parametrize("keys", ["abc", "acc", "b"])
def test_the_places_of_a_selection_stand_for_a_walk(keys, mended, walks, tmp_path):
    """Whatever changes: nothing, captions, or the keys of copies."""
    shards = shard(tmp_path, ["a", "b", "x" * 120, "c"], n=1)
    captions = {"caption": ["new"] * len(keys)} if mended else {}
    written = []
    for chosen in (selection, placed):
        out = tmp_path / chosen.__name__
        summary = export_shards(chosen(tmp_path, list(keys), **captions), shards, UPath(out))
        assert (summary.samples, summary.missing, summary.walked) == (len(keys), {}, [])
        written.append((out / "00000.tar").read_bytes())
    assert written[0] == written[1]
    assert len(walks) == 1
    if mended:
        assert records(tmp_path / "placed")[0]["original_caption"] == "a red circle"


@pytest.mark.parametrize("chosen", [selection, placed])
@pytest.mark.parametrize("form", ["webdataset", "parquet"])
@pytest.mark.parametrize(("keys", "uids"), [("bax", "bax"), ("xx", "ax"), ("x", "a")])
def test_samples_of_another_uid_are_missing(chosen, form, keys, uids, tmp_path):
    """Of another corpus with the same names of shards and keys, one selected beside this one."""
    shards = shard(tmp_path, list("abx"), uid="x")
    selected, out = chosen(tmp_path, list(keys), uid=list(uids)), UPath(tmp_path / "out")
    layout = out_layout(form, str(out), shards)
    summary = export_shards(selected, shards, out, layout=layout)
    assert (summary.samples, summary.missing) == ("x" in uids, {"0": len(keys) - ("x" in uids)})
    assert summary.walked == []
    if form == "webdataset":
        with tarfile.open(out / "00000.tar") as tar:
            assert {name[:2] for name in tar.getnames()} == ({"x."} if "x" in uids else set())


@pytest.mark.parametrize("change", ["another in front", "shorter", "longer"])
def test_a_tar_that_was_written_anew_is_searched_and_named(change, walks, tmp_path):
    shards = shard(tmp_path, list("abc"))
    chosen = placed(tmp_path, list("bc"))
    if change == "another in front":
        shards = shard(tmp_path, list("0abc"))
    else:
        members = [("b.jpg", hostile.JPEG), ("b.txt", b"two"), ("c.jpg", hostile.JPEG)]
        members.append(("c.txt", b"x" * 5000) if change == "longer" else ("d.txt", b""))
        (tmp_path / "0.tar").write_bytes(hostile.tar_bytes(members))
        shards = resolve_shards([str(tmp_path / "0.tar")])
    summary = export_shards(chosen, shards, UPath(tmp_path / "out"))
    assert (summary.samples, summary.missing, summary.walked) == (2, {}, ["0"])
    assert len(walks) == 1
    with tarfile.open(tmp_path / "out" / "00000.tar") as tar:
        assert [name[0] for name in tar.getnames()] in (list("bbcc"), list("bbc"))


def test_a_mended_caption_replaces_that_of_every_member(tmp_path):
    """Which of them a loader reads is not known."""
    members = [("a.jpg", hostile.JPEG), ("a.txt", b"old"), ("a.jpg.txt", b"old")]
    (tmp_path / "0.tar").write_bytes(hostile.tar_bytes(members))
    shards = resolve_shards([str(tmp_path / "0.tar")])
    export_shards(selection(tmp_path, ["a"], caption=["new"]), shards, UPath(tmp_path / "out"))
    with tarfile.open(tmp_path / "out" / "00000.tar") as tar:
        texts = {one.name: tar.extractfile(one).read() for one in tar if one.name.endswith("txt")}
    assert texts == {"a.txt": b"new", "a.jpg.txt": b"new"}


def test_a_mended_caption_leaves_the_added_scores(tmp_path):
    """Its pair has them in place of the input's field of that name, like any other pair."""
    shards = shard(tmp_path, ["a", "b"], q=7)
    scores = {"shard": ["0"] * 2, "key": ["a", "b"], "row": [0, 1], "q": [0.5, 0.25]}
    pq.write_table(pa.table(scores), tmp_path / "scores.parquet")
    export_shards(
        selection(tmp_path, ["a", "b"], caption=["new", None]), shards, UPath(tmp_path / "out"),
        scores=[str(tmp_path / "scores.parquet")], columns=["q"],
    )  # fmt: skip
    first, second = records(tmp_path / "out")
    assert (first["q"], second["q"]) == (0.5, 0.25)
    assert first["original_q"] == second["original_q"] == 7
    assert (first["caption"], first["original_caption"]) == ("new", "a red circle")
