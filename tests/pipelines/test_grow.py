"""A corpus that is scored in pieces and merged, or grows, has the table of one run over it."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests import command_line, object_store
from tests.factories import rendered
from tests.pipelines.score_tables import command

BROKEN = "00003"
MODEL = ["--model", "demo", "--precision", "fp32", "--shift", "shuffled"]


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """160 rendered pairs in 8 shards; one of the shards is cut in its middle."""
    folder = tmp_path_factory.mktemp("grow") / "shards"
    rendered(folder, pairs=160, shard_size=20, noise={"ncr": 0.2}, broken=0.02, seed=8)
    cut = folder / f"{BROKEN}.tar"
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    return sorted(map(str, folder.glob("*.tar")))


@pytest.fixture(scope="module")
def once(shards, tmp_path_factory):
    """A table of one run over some of the shards, each made once."""
    folder = tmp_path_factory.mktemp("once")

    def once(names, form="s.parquet"):
        out = folder / "-".join(name[-5:-4] for name in names) / form
        if not out.exists():
            command(names, out).run()
        return read(out)

    return once


def read(out):
    """The table as it is written; of a folder, part after part."""
    files = [out] if out.is_file() else sorted(out.glob("*.parquet"))
    tables = [pq.read_table(file) for file in files]
    for table in tables:
        assert table.schema.equals(tables[0].schema, check_metadata=True)
    return tables


def assert_same(found, expected):
    """The same files with the same rows in the same order, the metadata too."""
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.schema.equals(b.schema, check_metadata=True)
        for name in b.schema.names:
            assert a.column(name).to_pylist() == b.column(name).to_pylist(), name


def ncclean(*words):
    """Run the command line. A broken shard is named, and the exit code is 1."""
    finished = command_line.run(*words)
    assert finished.returncode in (0, 1), finished.stderr
    return finished


@pytest.mark.slow
@pytest.mark.parametrize("form", ["s.parquet", "s"])
def test_grown_in_three_steps(shards, once, tmp_path, form):
    out = tmp_path / form
    said = []
    for names in (shards[2:5], shards[1:7], shards):
        said.append(ncclean("score", *names, "--out", out, *MODEL).stderr)
    assert "new shards" not in said[0]
    assert "3 new shards, 3 kept" in said[1]
    assert "2 new shards, 6 kept" in said[2]
    assert_same(read(out), once(shards, form))
    again = command([], out, finalize_only=True).run().summary
    assert list(again.failed_shards) == [BROKEN]
    assert_same(read(out), once(shards, form))


@pytest.mark.parametrize("form", ["s.parquet", pytest.param("s", marks=pytest.mark.slow)])
def test_dropped_shards_leave_table_distributions_and_files(shards, once, tmp_path, form):
    out, folder = tmp_path / form, tmp_path / "e"
    embeddings = ["--embeddings", folder]
    ncclean("score", *shards[:6], "--out", out, *MODEL, *embeddings)
    present = [shards[7], *shards[3:6]]
    refused = command_line.run("score", *present, "--out", out, *MODEL, *embeddings)
    assert refused.returncode == 2
    assert "shard 00000 is missing now, and 2 more" in refused.stderr
    finished = ncclean("score", *present, "--out", out, *MODEL, *embeddings, "--drop-missing")
    assert "1 new shard, 3 kept, 3 dropped" in finished.stderr
    found = read(out)
    for table, expected in zip(found, once(present, form), strict=True):
        metadata = {**expected.schema.metadata, b"embeddings": b"beside the table: e"}
        assert table.schema.metadata == metadata
        assert table.to_pylist() == expected.to_pylist()
    numbers = {int(path.stem.rsplit("_", 1)[1]) for path in folder.rglob("*.*")}
    assert numbers == {3, 4, 5, 6}
    metadata = pq.read_table(folder / "metadata" / "metadata_6.parquet")
    assert set(metadata.column("shard").to_pylist()) == {"00007"}
    assert len(np.load(folder / "img_emb" / "img_emb_6.npy")) == len(metadata)


def test_dropping_is_not_for_finalize_only(refused):
    refused(command, [], "s.parquet", finalize_only=True, drop_missing=True)


@pytest.fixture(scope="module")
def pieces(shards, tmp_path_factory):
    """The shards scored in pieces, contiguous and strided, to files and folders."""
    folder = tmp_path_factory.mktemp("pieces")
    scored = {
        "contiguous": [shards[:2], shards[2:6], shards[6:]],
        "strided": [shards[::2], shards[1::2]],
    }
    runs = {}
    for way, lists in scored.items():
        runs[way] = [folder / f"{way}-{n}{'.parquet' * (n % 2)}" for n in range(len(lists))]
        for out, names in zip(runs[way], lists, strict=True):
            command(names, out).run()
    return runs


@pytest.mark.parametrize(("way", "form"), [("contiguous", "s.parquet"), ("strided", "s")])
def test_merged_pieces(shards, once, pieces, tmp_path, way, form):
    out = tmp_path / form
    finished = ncclean("merge", *pieces[way], "--out", out, "--shift", "shuffled", "--json")
    assert finished.returncode == 1
    summary = json.loads(finished.stdout)
    assert list(summary["failed_shards"]) == [BROKEN]
    assert_same(read(out), once(shards, form))
    assert summary["noise_rate"] == float(read(out)[0].schema.metadata[b"noise_rate"])
    again = command([], out, finalize_only=True).run().summary
    assert (again.rows, again.noise_rate.value) == (summary["rows"], summary["noise_rate"])
    assert_same(read(out), once(shards, form))


def test_a_merged_run_goes_on_with_more_shards(shards, once, pieces, tmp_path):
    out = tmp_path / "s.parquet"
    ncclean("merge", *pieces["contiguous"][:2], "--out", out, "--shift", "shuffled")
    said = ncclean("score", *shards, "--out", out, *MODEL).stderr
    assert "2 new shards, 6 kept" in said
    assert_same(read(out), once(shards))


def test_a_merged_table_has_the_weights_that_are_asked_for(pieces, tmp_path):
    options = ("--shift", "shuffled", "--osa-function", "linear")
    ncclean("merge", *pieces["contiguous"][:2], "--out", tmp_path / "s.parquet", *options)
    assert pq.read_schema(tmp_path / "s.parquet").metadata[b"osa_function"] == b"linear"


def test_other_options_are_refused_as_in_resuming(shards, pieces, tmp_path):
    command(shards[:1], tmp_path / "other.parquet", block_size=100, seed=3).run()
    words = [tmp_path / "other.parquet", pieces["contiguous"][1], "--out", tmp_path / "s.parquet"]
    refused = command_line.run("merge", *words)
    assert refused.returncode == 2
    assert "cannot be merged with" in refused.stderr
    assert "--block-size was 100, is 2048; --seed was 3, is 0" in " ".join(refused.stderr.split())


@pytest.mark.slow
def test_grown_and_merged_in_an_object_store(shards, once, pieces, tmp_path):
    with object_store.s3():
        system = object_store.filesystem()
        for form in ("s.parquet", "s"):
            for names in (shards[1:4], shards[:5]):
                command(names, f"s3://corpus/{form}").run()
            command(shards[5:], f"s3://corpus/rest-{form}").run()
            runs = [f"s3://corpus/{form}", f"s3://corpus/rest-{form}"]
            merged = f"s3://corpus/merged-{form}"
            ncclean("merge", *runs, "--out", merged, "--shift", "shuffled")
            command(shards[4:], f"s3://corpus/{form}", drop_missing=True).run()
            for place, names in ((merged, shards), (f"s3://corpus/{form}", shards[4:])):
                copy = tmp_path / place.rsplit("/", 1)[1]
                if form == "s":
                    copy.mkdir()
                    for name in system.glob(f"{place.removeprefix('s3://')}/*.parquet"):
                        system.get_file(name, str(copy / name.rsplit("/", 1)[1]))
                else:
                    system.get_file(place.removeprefix("s3://"), str(copy))
                assert_same(read(copy), once(names, form))
        assert len(system.glob("corpus/s/*.parquet")) == 1  # files of dropped shards are gone
