"""Exported shards: the bytes of the input, whoever reads them, whatever interrupts the writing."""

import contextlib
import datetime
import decimal
import gzip
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset
from ncclean_pipelines.export import Export
from upath import UPath

from ncclean.data.shards import resolve_shards
from ncclean.data.tar import TarSamples
from ncclean.errors import ShardError
from ncclean.exporting.export import export_shards
from ncclean.exporting.out_layout import OutLayout
from ncclean.exporting.uid_file import export_uids
from ncclean.runners.process_runner import Processes
from ncclean.selection.policy import Policy
from ncclean.selection.select import select
from tests import hostile
from tests.command_line import START, run


@pytest.fixture(scope="module")
def selected(scored, tmp_path_factory):
    """The score table of the corpus, and a selection of about 480 of its 600 pairs."""
    folder = tmp_path_factory.mktemp("export")
    shutil.copy(scored / "scores.parquet", folder)
    policy = Policy(method="noise-probability")
    select([str(folder / "scores.parquet")], UPath(folder / "clean.parquet"), policy)
    return folder


def members(shards):
    """Name and bytes of every member, in order."""
    found = []
    for shard in sorted(Path(shards).glob("*.tar")):
        with tarfile.open(shard) as tar:
            found += [(m.name, tar.extractfile(m).read()) for m in tar if m.isfile()]
    return found


def test_a_column_that_is_not_there_is_named_and_nothing_is_begun(
    corpus, selected, tmp_path, refused
):
    refused(
        export,
        corpus,
        selected / "clean.parquet",
        tmp_path / "x",
        scores=[str(selected / "scores.parquet")],
        columns=["similarity", "beauty"],
    )
    assert not (tmp_path / "x").exists()


def export(corpus, selection, out, workers=1, **options):
    with Processes(workers) as runner:
        shards = resolve_shards([str(corpus)])
        return export_shards(str(selection), shards, UPath(out), runner=runner, **options)


@pytest.fixture(scope="module")
def exported(corpus, selected):
    out = selected / "clean"
    summary = export(corpus, selected / "clean.parquet", out, samples_per_shard=160, workers=2)
    return out, summary


def test_members_are_those_of_the_input_byte_for_byte(corpus, selected, exported):
    out, summary = exported
    keys = pq.read_table(selected / "clean.parquet")["key"].to_pylist()
    chosen = set(keys)
    expected = [(n, data) for n, data in members(corpus) if n.split(".")[0] in chosen]
    assert members(out) == expected
    assert summary.samples == len(keys)
    assert (summary.missing, summary.errors) == ({}, {})


def test_shards_are_rolled_and_counted(exported):
    out, summary = exported
    sizes = json.loads((out / "sizes.json").read_text())
    assert list(sizes) == [f"{n:05d}.tar" for n in range(summary.shards)]
    assert set(list(sizes.values())[:-1]) == {160}
    assert sum(sizes.values()) == summary.samples
    stats = json.loads((out / "00000_stats.json").read_text())
    assert (stats["count"], stats["successes"]) == (160, 160)
    assert stats["status_dict"] == {"success": 160}


def test_webdataset_reads_the_export(selected, exported):
    urls = [str(path) for path in sorted(exported[0].glob("*.tar"))]
    loader = (
        webdataset.WebDataset(urls, shardshuffle=False)
        .decode("pil")
        .to_tuple("jpg;png;webp", "txt", "__key__")
    )
    keys = [key for image, text, key in loader if image.size[0] > 0 and text]
    assert keys == pq.read_table(selected / "clean.parquet")["key"].to_pylist()


def test_scores_go_into_the_json(corpus, selected, tmp_path):
    out = tmp_path / "clean"
    export(corpus, selected / "clean.parquet", out, scores=[str(selected / "scores.parquet")],
           columns=["similarity", "osa_noisy"])  # fmt: skip
    table = pq.read_table(selected / "scores.parquet").to_pandas().set_index("key")
    records = {name: json.loads(data) for name, data in members(out) if name.endswith("json")}
    before = {name: json.loads(data) for name, data in members(corpus) if name.endswith("json")}
    assert len(records) > 400
    for name, record in records.items():
        row = table.loc[name.split(".")[0]]
        assert np.float32(record.pop("similarity")) == row.similarity
        assert record.pop("osa_noisy") == row.osa_noisy
        assert record == before[name]


def test_weights_as_repeats(corpus, selected, tmp_path):
    selection = tmp_path / "weighted.parquet"
    table = pq.read_table(selected / "clean.parquet")
    weights = np.linspace(0, 4, len(table)).astype(np.float32)
    pq.write_table(table.set_column(3, "weight", pa.array(weights)), selection)
    out = tmp_path / "repeated"
    summary = export(corpus, selection, out, repeat=True, samples_per_shard=120, workers=2)
    assert summary.samples == pytest.approx(len(table), rel=0.05)
    images: dict[str, int] = {}
    seen = []
    for shard in resolve_shards([str(out)]):
        for sample in TarSamples(shard):
            assert sample.status.value == "ok"
            seen.append(sample.key)
            images[sample.metadata["key"]] = images.get(sample.metadata["key"], 0) + 1
    assert len(seen) == len(set(seen)) == summary.samples
    for key, weight in zip(table["key"].to_pylist(), weights, strict=True):
        assert abs(images.get(key, 0) - weight / weights.mean()) <= 1


def test_columns_of_joined_tables_go_into_the_json(corpus, selected, tmp_path, refused):
    table = pq.read_table(selected / "scores.parquet")
    uids = table["uid"].to_pylist()[::-1]
    columns = {"lemon_score": np.arange(600.0), "similarity": np.arange(600.0) / 600}
    other = pa.table({"uid": uids, **columns})
    pq.write_table(other, tmp_path / "n.parquet")
    options = {
        "scores": [str(selected / "scores.parquet")], "join": [f"dfn={tmp_path / 'n.parquet'}"],
        "columns": ["similarity", "dfn.lemon_score", "dfn.similarity"], "samples_per_shard": 160,
    }  # fmt: skip
    export(corpus, selected / "clean.parquet", tmp_path / "out", workers=2, **options)
    frame = table.to_pandas().assign(place=np.arange(600.0)[::-1]).set_index("key")
    records = {name: json.loads(data) for name, data in members(tmp_path / "out")
               if name.endswith("json")}  # fmt: skip
    assert len(records) > 400
    for name, record in records.items():
        row = frame.loc[name.split(".")[0]]
        assert record["lemon_score"] == row.place
        assert np.float32(record["similarity"]) == row.similarity
        assert record["dfn.similarity"] == pytest.approx(row.place / 600, abs=1e-6)
    refused(
        export,
        corpus,
        selected / "clean.parquet",
        tmp_path / "out",
        samples_per_shard=160,
        scores=[str(selected / "scores.parquet")],
        columns=["similarity"],
    )
    turned = {name: values[::-1] for name, values in columns.items()}  # the footer is the same
    pq.write_table(pa.table({"uid": uids, **turned}), tmp_path / "n.parquet")
    refused(export, corpus, selected / "clean.parquet", tmp_path / "out", **options)


def test_killed_and_started_again(corpus, selected, exported, tmp_path):
    out = tmp_path / "again"
    command = [
        "export", str(selected / "clean.parquet"), "--shards", str(corpus), "--out", str(out),
        "--samples-per-shard", "8", "--workers", "1", "--quiet",
    ]  # fmt: skip
    process = subprocess.Popen([sys.executable, "-c", START, *command])
    while process.poll() is None and len(list(out.glob("*_stats.json"))) < 5:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    written = {path: path.stat().st_mtime_ns for path in out.glob("*_stats.json")}
    assert run(*command).returncode == 0
    assert all(path.stat().st_mtime_ns == before for path, before in written.items())
    assert members(out) == members(exported[0])
    assert not list(out.rglob(".*.tmp"))


def test_a_shard_that_was_cut_is_written_again(corpus, selected, exported, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(exported[0], out)
    (shard, *_) = sorted(out.glob("*.tar"))
    os.truncate(shard, shard.stat().st_size // 1024 * 512)
    written = {path: path.stat().st_mtime_ns for path in out.glob("*.tar") if path != shard}
    export(corpus, selected / "clean.parquet", out, samples_per_shard=160)
    assert members(out) == members(exported[0])
    assert all(path.stat().st_mtime_ns == before for path, before in written.items())


def test_another_export_in_the_same_place_is_refused(corpus, selected, exported, tmp_path, refused):
    refused(export, corpus, selected / "clean.parquet", exported[0], samples_per_shard=200)
    (tmp_path / "00000.tar").write_bytes(b"mine")
    refused(export, corpus, selected / "clean.parquet", tmp_path)


def test_overwrite_leaves_a_users_files_alone(corpus, selected, exported, tmp_path):
    out = tmp_path / "over"
    export(corpus, selected / "clean.parquet", out, samples_per_shard=40)
    mine = [out / "mine.tar", out / "mine_stats.json", out / ".mine.tar.7.tmp"]
    for path in mine:
        path.write_bytes(b"mine")
    export(corpus, selected / "clean.parquet", out, samples_per_shard=320, overwrite=True)
    assert all(path.read_bytes() == b"mine" for path in mine)
    mine[0].unlink()
    assert members(out) == members(exported[0])
    assert {path.name for path in out.glob("*_stats.json")} == {
        *("00000_stats.json", "00001_stats.json", "mine_stats.json")
    }


def test_a_selection_of_other_shards_is_refused(corpus, selected, tmp_path, refused):
    refused(export, corpus / "00000.tar", selected / "clean.parquet", tmp_path / "out")
    refused(export, corpus, selected / "scores.parquet", tmp_path / "out")


def test_missing_samples_are_counted(corpus, selected, tmp_path):
    table = pq.read_table(selected / "clean.parquet").slice(0, 10)
    keys = pa.array(["no such key", *table["key"].to_pylist()[1:]])
    pq.write_table(table.set_column(2, "key", keys), tmp_path / "s.parquet")
    summary = export(corpus, tmp_path / "s.parquet", tmp_path / "out")
    assert (summary.samples, summary.missing) == (9, {"00000": 1})


def test_hostile_tars(tmp_path):
    """Interleaved members, long and odd names, duplicates: samples are those of scoring."""
    source = tmp_path / "shards"
    source.mkdir()
    image = hostile.encoded(hostile.photo(), "JPEG")
    long = "x" * 150
    with tarfile.open(source / "a.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in [
            ("1.jpg", image), ("2.jpg", image), ("1.txt", b"one"), ("2.txt", b"two"),
            ("1.jpg", b"again"), (f"{long}.jpg", image), (f"{long}.txt", b"long"),
            ("ümlaut.jpg", image), ("ümlaut.txt", b"u"), ("dir/3.JPG", image), ("dir/3.txt", b"3"),
        ]:  # fmt: skip
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    keys = ["1", long, "ümlaut", "dir/3"]
    fields = {"uid": [f"{n:032x}" for n in range(4)], "shard": ["a"] * 4, "key": keys}
    selection = pa.table({**fields, "weight": [1.0] * 4, "split": [None] * 4})
    pq.write_table(selection, tmp_path / "s.parquet")
    summary = export(source, tmp_path / "s.parquet", tmp_path / "out")
    assert summary.samples == 4
    found = {s.key: s for s in TarSamples(resolve_shards([str(tmp_path / "out")])[0])}
    assert list(found) == keys
    assert all(sample.status.value == "ok" for sample in found.values())
    assert found["1"].image == image
    packed = tmp_path / "packed"
    packed.mkdir()
    subprocess.run(["tar", "-czf", packed / "a.tar.gz", "-C", source, "a.tar"], check=True)
    import gzip

    (packed / "a.tar.gz").write_bytes(gzip.compress((source / "a.tar").read_bytes()))
    export(packed, tmp_path / "s.parquet", tmp_path / "from_gz")
    assert members(tmp_path / "from_gz") == members(tmp_path / "out")


def test_uid_file(selected, tmp_path, refused):
    summary = export_uids(str(selected / "clean.parquet"), UPath(tmp_path / "uids.npy"))
    found = np.load(tmp_path / "uids.npy")
    assert found.dtype == np.dtype("u8,u8")
    uids = pq.read_table(selected / "clean.parquet")["uid"].to_pylist()
    expected = sorted((int(uid[:16], 16), int(uid[16:], 16)) for uid in set(uids))
    assert found.tolist() == expected
    assert summary.samples == len(expected)
    table = pq.read_table(selected / "clean.parquet")
    odd = table.set_column(0, "uid", pa.array(["not hex"] * len(table)))
    pq.write_table(odd, tmp_path / "odd.parquet")
    refused(export_uids, str(tmp_path / "odd.parquet"), UPath(tmp_path / "odd.npy"))


def test_to_and_from_an_object_store(corpus, selected, exported):
    from tests import object_store

    with object_store.s3():
        object_store.upload(corpus, "s3://corpus/shards")
        system = object_store.filesystem()
        system.put_file(str(selected / "clean.parquet"), "corpus/clean.parquet")
        export("s3://corpus/shards", "s3://corpus/clean.parquet", UPath("s3://corpus/out"),
               samples_per_shard=160)  # fmt: skip
        local = selected / "copy"
        system.get("corpus/out", str(local), recursive=True)
    assert members(local) == members(exported[0])
    assert os.path.exists(local / "sizes.json")


def _selected(tmp_path, keys):
    """A selection of samples of the shard `s`, without scores."""
    table = pa.table({
        "uid": [f"{number:032x}" for number in range(len(keys))], "shard": ["s"] * len(keys),
        "key": keys, "weight": [1.0] * len(keys), "split": ["retain"] * len(keys),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "k.parquet")
    return str(tmp_path / "k.parquet")


@pytest.mark.parametrize("broken", ["checksum", "middle"])
def test_what_comes_before_a_broken_place_of_a_compressed_shard_is_exported(tmp_path, broken):
    keys = [f"{number:03d}" for number in range(60)]
    content = random.Random(39)  # with which a piece of 1 MB, lost where it breaks, costs a sample
    members = [
        m for key in keys for m in hostile.sample(key, content.randbytes(2000).hex().encode(), b"a")
    ]
    data = bytearray(gzip.compress(hostile.tar_bytes(members)))
    if broken == "checksum":
        data[-5] ^= 0xFF
    else:  # not one bit: as often as not it only changes a letter, and the stream goes on
        middle = len(data) // 2
        data[middle : middle + 200] = bytes(200)
    (tmp_path / "s.tar").write_bytes(data)  # told by its content, not its name
    shards = resolve_shards([str(tmp_path / "s.tar")])
    reader, readable = TarSamples(shards[0]), []
    with contextlib.suppress(ShardError):
        readable += (sample.key for sample in reader if sample.status.value == "ok")
    summary = export_shards(_selected(tmp_path, keys), shards, UPath(tmp_path / "x"))
    assert summary.samples >= len(readable)
    assert summary.samples + summary.missing.get("s", 0) == len(keys)
    assert len(readable) == len(keys) if broken == "checksum" else 0 < len(readable) < len(keys)
    assert summary.errors.keys() | summary.missing.keys() == {"s"}


def test_a_json_that_cannot_be_parsed_is_replaced_and_named(tmp_path):
    members = [
        *hostile.sample("a", hostile.JPEG), ("a.json", b"[" * 100_000),
        *hostile.sample("b", hostile.JPEG), ("b.json", b'{"x": 1}'),
    ]  # fmt: skip
    (tmp_path / "s.tar").write_bytes(hostile.tar_bytes(members))
    selection = _selected(tmp_path, ["a", "b"])
    scores = pa.table({"shard": ["s", "s"], "key": ["a", "b"], "row": [0, 1], "q": [0.5, 0.25]})
    pq.write_table(scores, tmp_path / "scores.parquet")
    summary = export_shards(
        selection, resolve_shards([str(tmp_path / "s.tar")]), UPath(tmp_path / "x"),
        scores=[str(tmp_path / "scores.parquet")], columns=["q"],
    )  # fmt: skip
    assert summary.samples == 2
    assert summary.errors == {"s": "the json of a cannot be read: it is replaced"}
    (shard,) = resolve_shards([str(tmp_path / "x" / "00000.tar")])
    fields = {sample.key: sample.metadata for sample in TarSamples(shard)}
    assert fields == {"a": {"q": 0.5}, "b": {"x": 1, "q": 0.25}}


def test_an_export_of_another_selection_of_as_many_bytes_is_refused(tmp_path, refused):
    (tmp_path / "s.tar").write_bytes(hostile.tar_bytes(hostile.sample("a", hostile.JPEG)))
    shards = resolve_shards([str(tmp_path / "s.tar")])
    table = pq.read_table(_selected(tmp_path, ["a"]))
    for caption in ("a red cat", "a tan cat"):
        mended = table.append_column("caption", pa.array([caption]))
        pq.write_table(mended, tmp_path / f"{caption}.parquet")
    red, tan = ((tmp_path / f"a {what} cat.parquet").read_bytes() for what in ("red", "tan"))
    assert len(red) == len(tan)
    selection = tmp_path / "k.parquet"
    selection.write_bytes(red)
    for _ in range(2):  # the same again is no other export
        export_shards(str(selection), shards, UPath(tmp_path / "x"))
    selection.write_bytes(tan)
    refused(export_shards, str(selection), shards, UPath(tmp_path / "x"))
    selection.write_bytes(red)
    rows = OutLayout("parquet")
    refused(export_shards, str(selection), shards, UPath(tmp_path / "x"), layout=rows)
    os.utime(tmp_path / "s.tar", ns=(1, 1))
    shards = resolve_shards([str(tmp_path / "s.tar")])
    refused(export_shards, str(selection), shards, UPath(tmp_path / "x"))
    assert dict(members(tmp_path / "x"))["a.txt"] == b"a red cat"


def test_an_export_with_other_scores_of_the_same_name_is_refused(tmp_path, refused):
    """The footer of a table is the same if two values change places."""
    (tmp_path / "s.tar").write_bytes(hostile.tar_bytes(hostile.sample("a", hostile.JPEG)))
    shards = resolve_shards([str(tmp_path / "s.tar")])
    selection, scores = _selected(tmp_path, ["a"]), tmp_path / "scores.parquet"

    def export_with(*values):
        rows = {"shard": ["s"] * 4, "key": [*"abcd"], "row": range(4), "q": [*values, 0.0, 1.0]}
        pq.write_table(pa.table(rows), scores)
        export_shards(selection, shards, UPath(tmp_path / "x"), scores=[str(scores)], columns=["q"])

    export_with(0.5, 0.25)
    export_with(0.5, 0.25)
    refused(export_with, 0.25, 0.5)


@pytest.mark.parametrize("names", [["uid"], ["uid", "shard", "key"]])
def test_a_table_that_is_no_score_table_is_refused(tmp_path, refused, names):
    """DuckDB's error about a column was unexpected, of a table that belongs to --join."""
    (tmp_path / "s.tar").write_bytes(hostile.tar_bytes(hostile.sample("a", hostile.JPEG)))
    rows = {"uid": ["0" * 32], "shard": ["s"], "key": ["a"]}
    pq.write_table(pa.table({n: rows[n] for n in names} | {"q": [0.5]}), tmp_path / "own.parquet")
    selection, out = _selected(tmp_path, ["a"]), str(tmp_path / "x")
    shards, scores = [str(tmp_path / "s.tar")], [str(tmp_path / "own.parquet")]
    refused(Export(selection=selection, shards=shards, out=out, scores=scores, columns=["q"]).run)


def test_added_columns_of_any_type_keep_their_values(tmp_path):
    (tmp_path / "s.tar").write_bytes(hostile.tar_bytes(hostile.sample("a", hostile.JPEG)))
    time = datetime.datetime(2020, 1, 2, 3, tzinfo=datetime.timezone.utc)
    values = {
        "single": pa.array([0.1], pa.float32()),
        "double": pa.array([1_700_000_000.123]),
        "large": pa.array([1e300]),
        "nothing": pa.array([float("nan")]),
        "price": pa.array([decimal.Decimal("1.10")]),
        "day": pa.array([time.date()]),
        "time": pa.array([time]),
        "hash": pa.array([b"\xff\0"]),
        "nested": pa.array([{"day": time.date(), "scores": [float("inf"), 1e300]}]),
        "counts": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
    }
    table = pa.table({"shard": ["s"], "key": ["a"], "row": [0], **values})
    pq.write_table(table, tmp_path / "scores.parquet")
    for name in ("webdataset", "parquet"):
        export_shards(
            _selected(tmp_path, ["a"]), resolve_shards([str(tmp_path / "s.tar")]),
            UPath(tmp_path / name), scores=[str(tmp_path / "scores.parquet")],
            columns=list(values), layout=OutLayout(name),
        )  # fmt: skip
    (record,) = (data for name, data in members(tmp_path / "webdataset") if name.endswith("json"))
    assert json.loads(record, parse_constant=pytest.fail) == {
        "single": 0.1, "double": 1_700_000_000.123, "large": 1e300, "nothing": None,
        "price": "1.10", "day": "2020-01-02", "time": "2020-01-02 03:00:00+00:00", "hash": "/wA=",
        "nested": {"day": "2020-01-02", "scores": [None, 1e300]}, "counts": [["a", 1]],
    }  # fmt: skip
    exported = pq.read_table(tmp_path / "parquet" / "00000.parquet")
    (row,) = exported.select(list(values)).to_pylist()
    (before,) = table.select(list(values)).to_pylist()
    nested = {"day": time.date(), "scores": [None, 1e300]}
    assert row == {**before, "nothing": None, "nested": nested}
