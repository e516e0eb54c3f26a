"""From shards to clean shards in one command."""

import json
import shutil
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ncclean_cli.app import app
from PIL import Image
from typer.testing import CliRunner

import ncclean
from ncclean.storage.layout import written_embeddings
from tests.factories import rendered
from tests.pipelines.test_calibrate_by import corpus as embeddings

pytestmark = pytest.mark.usefixtures("rough_shifts")

STAGES = ("score", "report", "select", "export")
MODEL = {"model": "demo", "precision": "fp32"}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return rendered(
        tmp_path_factory.mktemp("corpus") / "shards",
        pairs=200,
        shard_size=50,
        noise={"ncr": 0.3},
        seed=5,
    )


@pytest.fixture(scope="module")
def few(shards):
    """A quarter of the corpus."""
    return shards / "00000.tar"


@pytest.fixture(scope="module")
def cleaned(shards, rough_shifts, tmp_path_factory):
    """The corpus cleaned once."""
    out = tmp_path_factory.mktemp("cleaned") / "out"
    return ncclean.clean(str(shards), str(out), **MODEL), out


@pytest.fixture
def own(cleaned, tmp_path):
    """A copy of the result to change: a folder that was moved is still the same run."""
    return shutil.copytree(cleaned[1], tmp_path / "out")


class StopsAt:
    """Ends the run as Ctrl-C does, when a stage begins."""

    def __init__(self, stage):
        self.stage = stage

    def say(self, text):
        if f", {self.stage}: " in text:
            raise KeyboardInterrupt

    def advance(self, done, total, unit, **facts):
        pass


def samples(folder):
    names = set()
    for path in folder.glob("*.tar"):
        with tarfile.open(path) as tar:
            names |= {name.rpartition(".")[0] for name in tar.getnames()}
    return names


def keys_below(out, threshold):
    rows = pq.read_table(out / "scores.parquet", columns=["key", "noise_probability"]).to_pylist()
    return {row["key"] for row in rows if row["noise_probability"] < threshold}


def test_what_it_leaves(cleaned):
    result, out = cleaned
    assert result.summary.ran == STAGES
    assert result.failures == {}
    kept = pq.read_table(out / "clean.parquet").column("key").to_pylist()
    assert samples(out / "clean") == set(kept) == keys_below(out, 0.5)
    assert pq.read_metadata(out / "scores.parquet").num_rows == 200
    assert 100 < len(kept) < 180
    assert (out / "report.html").read_text().startswith("<!")
    shown = "\n".join(map(str, result.shown))
    assert "noise rate" in shown
    assert f"{len(kept)} kept" in shown
    assert f"selection: {out}/clean.parquet" in shown
    assert f"embeddings, for review: {out}/embeddings" in shown
    assert f"clean shards: {out}/clean ({len(kept)} samples)" in shown


def test_it_leaves_embeddings_for_review_unless_refused(few, cleaned, own, tmp_path):
    _, out = cleaned
    moved = tmp_path / "moved"
    own.rename(moved)
    for folder in (out, moved):
        assert written_embeddings([str(folder / "scores.parquet")]) == [str(folder / "embeddings")]
    size = sum(file.stat().st_size for file in (out / "embeddings").rglob("*.npy"))
    assert size > 4 * 200 * 128
    planned = CliRunner().invoke(
        app, ["clean", str(few), "--out", "x", "--model", "demo", "--dry-run"]
    )
    assert "--no-embeddings leaves them out" in planned.stdout
    ncclean.clean(str(few), str(tmp_path / "without"), **MODEL, embeddings=False)
    assert not (tmp_path / "without" / "embeddings").exists()
    assert written_embeddings([str(tmp_path / "without" / "scores.parquet")]) == []


def test_again_with_nothing_changed(shards, own):
    before = (own / "clean" / "00000.tar").stat().st_mtime_ns
    again = ncclean.clean(str(shards), str(own), **MODEL)
    assert again.summary.ran == ()
    assert (own / "clean" / "00000.tar").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("options", "ran"),
    [
        ({"threshold": 0.01}, ("select", "export")),
        ({"where": "row < 20"}, ("select", "export")),
        ({"samples_per_shard": 20}, ("export",)),
        ({"device": "cpu", "engine": "local"}, ()),
    ],
)
def test_only_what_an_option_touches_runs(shards, own, options, ran):
    before = samples(own / "clean")
    assert ncclean.clean(str(shards), str(own), **MODEL, **options).summary.ran == ran
    if "threshold" in options:
        assert samples(own / "clean") == keys_below(own, 0.01) != before
    if "where" in options:
        assert samples(own / "clean") < before
    if "samples_per_shard" in options:
        assert samples(own / "clean") == before
        assert (own / "clean" / "00002.tar").exists()


def test_an_interrupted_one_goes_on(few, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        ncclean.clean(str(few), str(out), **MODEL, progress=StopsAt("select"))
    assert (out / "scores.parquet").exists()
    assert not (out / "clean.parquet").exists()
    assert ncclean.clean(str(few), str(out), **MODEL).summary.ran == ("select", "export")
    assert samples(out / "clean") == keys_below(out, 0.5) != set()


def test_on_the_command_line(shards, own):
    words = ["clean", str(shards), "--out", str(own), "--model", "demo", "--precision", "fp32"]
    found = CliRunner().invoke(app, [*words, "--json"])
    assert found.exit_code == 0, found.stderr
    values = json.loads(found.stdout)
    assert values["ran"] == []
    assert list(values["stages"]) == list(STAGES)
    assert found.stderr.count("unchanged, skipped") == 4
    shown = CliRunner().invoke(app, words)
    assert f"report: {own}/report.html" in shown.stdout
    quiet = CliRunner().invoke(app, [*words, "--quiet"])
    assert (quiet.stdout, quiet.stderr) == ("", "")


def test_a_caption_that_is_not_there_is_said(few, tmp_path):
    words = ["clean", str(few), "--out", str(tmp_path / "out"), "--caption-key", "alt"]
    shown = CliRunner().invoke(app, [*words, "--model", "demo", "--precision", "fp32"])
    assert "50 pairs: 0 scored, 50 caption_missing; 0 kept" in shown.stdout
    assert "mostly caption_missing; name the caption with --caption-key" in shown.stdout


def test_a_plan_runs_nothing(shards, own, tmp_path):
    planned = ncclean.clean(str(shards), str(tmp_path / "new"), **MODEL, dry_run=True)
    assert [stage["action"] for stage in planned["stages"]] == ["run"] * 4
    assert planned["stages"][0]["pairs"] == pytest.approx(200, rel=0.05)
    assert planned["stages"][0]["hours"] > 0
    assert not (tmp_path / "new").exists()
    again = ncclean.clean(str(shards), str(own), **MODEL, threshold=0.01, dry_run=True)
    assert [stage["action"] for stage in again["stages"]] == ["skip", "skip", "run", "run"]


def test_a_broken_shard_is_exit_code_1_and_named(few, tmp_path):
    (tmp_path / "bad.tar").write_bytes(b"<html>" * 1000)
    words = ["clean", str(few), str(tmp_path / "bad.tar"), "--out", str(tmp_path / "out")]
    found = CliRunner().invoke(app, [*words, "--model", "demo", "--precision", "fp32"])
    assert found.exit_code == 1
    assert "failed: score: bad: cannot be read" in found.stdout
    assert samples(tmp_path / "out" / "clean")


@pytest.mark.parametrize(
    "options",
    [
        {"threshold": 1.5},
        {"where": "hight > 3"},
        {"model": "demmo"},
        {"out": "s3://bucket/x"},
        {"source": "/nowhere"},
    ],
)
def test_mistakes_are_found_before_anything_starts(shards, tmp_path, options, refused):
    given = {"source": str(shards), "out": str(tmp_path / "out"), **MODEL, **options}
    refused(ncclean.clean, given.pop("source"), given.pop("out"), **given)
    assert not (tmp_path / "out").exists()


def test_further_columns_of_score_can_be_asked_for(few, tmp_path):
    out = str(tmp_path / "out")
    options = {"words": True, "signals": ["image"], "calibrate_by": "caption_key", **MODEL}
    where = "blur >= 0 AND coalesce(near_miss_probability, 0) < 0.9"
    result = ncclean.clean(str(few), out, where=where, **options)
    names = pq.read_schema(tmp_path / "out" / "scores.parquet").names
    assert {"suspect_word", "blur", "noise_probability"} <= set(names)
    assert result["stages"]["score"]["result"]["calibrate_by"] == "caption_key"
    assert ncclean.clean(str(few), out, where=where, **options).summary.ran == ()


@pytest.mark.parametrize("options", [{"words": True}, {"signals": ["image"]}])
def test_columns_that_take_images_are_refused_for_embeddings(tmp_path, options, refused):
    source = embeddings(tmp_path / "e", sizes=(50, 0, 0))
    refused(ncclean.clean, str(source), str(tmp_path / "out"), **options)


def test_embeddings_become_a_list_of_uids(tmp_path, refused):
    source = embeddings(tmp_path / "e", sizes=(900, 0, 0))
    result = ncclean.clean(str(source), str(tmp_path / "out"))
    kept = pq.read_table(tmp_path / "out" / "clean.parquet").column("uid").to_pylist()
    assert 0 < len(kept) < 900
    assert len(np.load(tmp_path / "out" / "uids.npy")) == len(kept)
    assert f"uids: {tmp_path / 'out' / 'uids.npy'}" in "\n".join(map(str, result.shown))
    fewer = ncclean.clean(str(source), str(tmp_path / "out"), threshold=0.01)
    assert fewer.summary.ran == ("select", "export")
    one, two = (np.load(source / kind / f"{kind}_0.npy") for kind in ("img_emb", "text_emb"))
    np.savez(tmp_path / "other.npz", one=one, two=two)
    shutil.copy(source / "metadata" / "metadata_0.parquet", tmp_path / "other.parquet")
    other = str(tmp_path / "other.parquet")
    refused(ncclean.clean, other, str(tmp_path / "o"))
    named = ncclean.clean(other, str(tmp_path / "o"), embedding_keys="one,two")
    assert named["stages"]["score"]["result"]["ok"] == 900
    refused(ncclean.clean, str(source), str(tmp_path / "other"), model="demo")


@pytest.mark.parametrize("kind", ["equal captions", "constant", "unrelated"])
def test_a_corpus_that_tells_nothing_is_not_cleaned_away(tmp_path, kind, refused):
    """Scores and report are there to see why; nothing is selected or exported."""
    rng = np.random.default_rng(0)
    source = tmp_path / "e"
    sides = rng.standard_normal((2, 500, 32))
    if kind == "constant":
        sides[:] = sides[:, :1]
    elif kind == "equal captions":
        sides[1] = sides[1, 0]
    captions = ["the same"] * 500 if kind == "equal captions" else [f"{n}" for n in range(500)]
    for side, vectors in zip(("img_emb", "text_emb"), sides, strict=True):
        (source / side).mkdir(parents=True)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        np.save(source / side / f"{side}_0.npy", vectors.astype(np.float16))
    (source / "metadata").mkdir()
    pq.write_table(pa.table({"caption": captions}), source / "metadata" / "metadata_0.parquet")
    out = tmp_path / "out"
    refused(ncclean.clean, str(source), str(out))
    assert (out / "scores.parquet").exists()
    assert (out / "report.html").exists()
    assert not (out / "clean.parquet").exists()
    assert not (out / "uids.npy").exists()
    score = CliRunner().invoke(app, ["score", str(source), "--out", str(tmp_path / "s.parquet")])
    said = " ".join(score.output.split())
    assert ("known to be mismatched" if kind == "equal captions" else "may be anything") in said


def test_results_in_the_folder_of_pictures_are_refused(tmp_path, monkeypatch, refused):
    """The pictures written there would be pairs of the next run."""
    (tmp_path / "one.jpg").write_bytes(b"not read before it is refused")
    monkeypatch.chdir(tmp_path)
    for out in (".", "clean", "a/../b"):
        refused(ncclean.clean, ".", out, **MODEL)
    assert [path.name for path in tmp_path.iterdir()] == ["one.jpg"]


def test_nothing_but_pictures_says_where_captions_lie(tmp_path):
    Image.new("RGB", (64, 64)).save(tmp_path / "one.jpg")
    words = ["score", str(tmp_path), "--out", str(tmp_path / "s.parquet"), "--model", "demo"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 1
    assert "there is nothing but jpg" in shown.stdout
    assert "a metadata.csv with the columns file_name and text" in shown.stdout
