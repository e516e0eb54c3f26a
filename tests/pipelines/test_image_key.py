"""Samples with several pictures: what is scored is what is shown, exported and counted."""

import io
import tarfile

import duckdb
import pytest
from ncclean_pipelines.export import Export
from ncclean_pipelines.inject_noise import InjectNoise
from ncclean_pipelines.report import Report
from ncclean_pipelines.score import Score
from ncclean_pipelines.select import Select
from PIL import Image

from ncclean.data.options import SourceOptions
from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_pairs
from ncclean.selection.policy import Policy
from ncclean.storage.run_facts import read_facts
from ncclean.storage.tables import table_metadata

pytestmark = pytest.mark.usefixtures("rough_shifts")
EVEN = Policy(where="row % 2 = 0")
WITH_DEPTH = SourceOptions(image_key="depth.png")


def picture(color):
    buffer = io.BytesIO()
    Image.new("RGB", (32, 32), color).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def sources(corpus, tmp_path_factory):
    """A shard as it is; with a depth map before each picture; and under keys with a dot in them."""
    folder = tmp_path_factory.mktemp("several")
    with tarfile.open(sorted(corpus.glob("*.tar"))[0]) as tar:
        members = {one.name: tar.extractfile(one).read() for one in tar}
    names = sorted(members)[:90]
    keys = sorted({name.partition(".")[0] for name in names})
    renamed = {key: f"{keys[n // 2]}{'.edit' * (n % 2)}" for n, key in enumerate(keys)}
    for kind in ("plain", "depth", "dotted"):
        (folder / kind).mkdir()
        with tarfile.open(folder / kind / "c.tar", "w") as tar:
            for key in keys:
                of_key = {
                    name.partition(".")[2]: members[name]
                    for name in names
                    if name.partition(".")[0] == key
                }
                if kind == "depth":
                    of_key["depth.png"] = picture((len(key), 20, 90))
                for ending in sorted(of_key):
                    name = f"{renamed[key] if kind == 'dotted' else key}.{ending}"
                    info = tarfile.TarInfo(name)
                    info.size = len(of_key[ending])
                    tar.addfile(info, io.BytesIO(of_key[ending]))
    return folder


def score(folder, out, **options):
    command = Score(
        shards=[str(folder)], out=str(out), model="demo", precision="fp32", shift=0.2, **options
    )
    return command.run()


def pictures(source, options):
    """Row, caption and picture of each sample."""
    (shard,) = resolve_pairs([str(source)], options)
    return [[sample.row, sample.caption, sample.image] for sample in read_samples(shard)]


def similarities(table):
    rows = duckdb.sql(f"SELECT similarity, status FROM '{table}' ORDER BY row").fetchall()
    return [(round(s, 6) if s is not None else None, status) for s, status in rows]


@pytest.fixture(scope="module")
def tables(sources, tmp_path_factory, rough_shifts):
    folder = tmp_path_factory.mktemp("tables")
    results = {
        kind: score(sources / kind, folder / f"{kind}.parquet")
        for kind in ("plain", "depth", "dotted")
    }
    results["by key"] = score(
        sources / "depth", folder / "by key.parquet", source_options=WITH_DEPTH
    )
    return folder, results


def test_the_same_pairs_are_scored_and_the_rest_is_counted(tables):
    folder, results = tables
    plain = similarities(folder / "plain.parquet")
    assert similarities(folder / "depth.parquet") == plain
    assert similarities(folder / "dotted.parquet") == plain
    pairs = results["plain"].summary.rows
    assert results["plain"].summary.further_images == {}
    assert results["depth"].summary.further_images == {"depth.png": pairs}
    assert results["dotted"].summary.split_keys == pairs // 2
    assert f"depth.png {pairs}" in str(list(results["depth"].shown))
    assert similarities(folder / "by key.parquet") != plain
    assert sum(results["by key"].summary.further_images.values()) == pairs


def test_the_report_counts_what_is_in_no_row(tables, tmp_path):
    folder, results = tables
    report = Report(scores=[str(folder / "depth.parquet")], out=str(tmp_path / "r.html")).run()
    pairs = results["plain"].summary.rows
    assert report.summary.to_json()["further_images"] == {"depth.png": pairs}
    assert f"depth.png {pairs}" in (tmp_path / "r.html").read_text()
    assert read_facts([str(folder / "depth.parquet")]).further.images == {"depth.png": pairs}


def test_another_image_key_is_another_run(sources, tables, refused):
    folder, _ = tables
    refused(score, sources / "depth", folder / "depth.parquet", source_options=WITH_DEPTH)


@pytest.mark.parametrize("kind", ["depth", "dotted", "by key"])
def test_a_selection_is_exported_with_the_pictures_that_were_scored(
    sources, tables, tmp_path, kind
):
    folder, _ = tables
    selection = str(tmp_path / "selection.parquet")
    Select(scores=[str(folder / f"{kind}.parquet")], out=selection, policy=EVEN).run()
    source = str(sources / ("depth" if kind == "by key" else kind))
    table = folder / f"{kind}.parquet"
    query = f"SELECT row FROM '{table}' WHERE row % 2 = 0 AND status = 'ok'"
    rows = {row for (row,) in duckdb.sql(query).fetchall()}
    by_key = WITH_DEPTH if kind == "by key" else SourceOptions()
    kept = sorted(pairs for row, *pairs in pictures(source, by_key) if row in rows)
    for layout in ("webdataset", "parquet"):
        out = tmp_path / layout
        exported = Export(selection=selection, shards=[source], out=str(out), layout=layout).run()
        assert exported.summary.samples == len(kept)
        is_cut = layout != "webdataset" and kind != "dotted"
        assert exported.summary.further_images == (len(kept) if is_cut else 0)
        assert ("further image" in str(list(exported.shown))) == is_cut
        again = pictures(out, by_key if layout == "webdataset" else SourceOptions())
        assert sorted(pairs for _, *pairs in again) == kept
    assert table_metadata(selection)["image_key"] == ("depth.png" if kind == "by key" else "")


def test_another_picture_than_was_scored_is_refused(sources, tables, tmp_path, refused):
    folder, _ = tables
    refused(
        Report,
        scores=[str(folder / "depth.parquet")],
        shards=[str(sources / "depth")],
        source_options=WITH_DEPTH,
        out=str(tmp_path / "r.html"),
    )


@pytest.mark.parametrize(("kind", "noise"), [("dotted", "ncr"), ("depth", "ncr_image")])
def test_noise_is_injected_into_the_samples_that_are_scored(sources, tables, tmp_path, kind, noise):
    injected = InjectNoise(
        shards=[str(sources / kind)], out=str(tmp_path / "noisy"), noise={noise: 0.5}
    ).run()
    scored = score(tmp_path / "noisy", tmp_path / "noisy.parquet")
    plain = tables[1][kind]
    assert scored.summary.rows == plain.summary.rows
    assert scored.summary.further_images == plain.summary.further_images
    query = f"SELECT count(*) FILTER (is_noisy) FROM '{tmp_path / 'noisy.parquet'}'"
    assert duckdb.sql(query).fetchall()[0][0] > plain.summary.rows // 4
    assert injected.summary.pairs == plain.summary.ok
