"""A selection in the form that came in, or another one: rows, images and captions stay."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.score import Score
from ncclean_pipelines.select import Select
from PIL import Image
from upath import UPath

from ncclean.base import stores
from ncclean.data.member_samples import sample_uid
from ncclean.data.options import SourceOptions
from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_pairs
from ncclean.exporting import export as module
from ncclean.exporting.export import export_shards
from ncclean.exporting.out_layout import form_of, out_layout
from tests.data.image_layouts import LAYOUTS, read
from tests.object_store import s3

AUTO = {
    "tar": "webdataset", "files": "folder", "Hugging Face": "parquet", "img2dataset": "parquet",
    "imagefolder": "folder", "open_clip": "csv", "Karpathy": "webdataset", "Lance": "webdataset",
}  # fmt: skip


def picture(number):
    file = io.BytesIO()
    Image.new("RGB", (8, 6), (number % 256, 7, 99)).save(file, "PNG" if number % 5 == 4 else "JPEG")
    return file.getvalue()


@pytest.fixture(scope="module")
def pairs():
    return [
        (f"k{number:03d}", picture(number), f"caption, number {number}") for number in range(30)
    ]


def select(*sources, folder, drop=(), options=None, **columns):
    """A selection of all samples but those at the places in `drop`."""
    shards = resolve_pairs([*map(str, sources)], options or SourceOptions())
    rows = []
    for shard in shards:
        rows += [
            (sample_uid(sample.metadata, shard.name, sample.key), shard.name, sample.key)
            for sample in read_samples(shard)
        ]
    rows = [row for place, row in enumerate(rows) if place not in drop]
    count = len(rows)
    table = pa.table({
        "uid": [uid for uid, *_ in rows],
        "shard": [shard for _, shard, _ in rows], "key": [key for *_, key in rows],
        "weight": pa.array([1.0] * count, pa.float32()), "split": pa.nulls(count, pa.string()),
        **{name: values(count) for name, values in columns.items()},
    })  # fmt: skip
    pq.write_table(table, folder / "selection.parquet")
    return str(folder / "selection.parquet"), shards


def export(source, folder, layout="auto", out="out", drop=(), columns=None, **options):
    chosen, shards = select(source, folder=folder, drop=drop, **(columns or {}))
    place = str(folder / out)
    form = out_layout(layout, place, shards)
    summary = export_shards(chosen, shards, UPath(place), layout=form, **options)
    assert not summary.errors
    return folder / out


def facts(samples):
    return sorted((one.caption, one.image) for one in samples)


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_came_in_goes_out_and_comes_in_again(name, pairs, tmp_path):
    source = LAYOUTS[name](pairs, tmp_path / "source")
    shards = resolve_pairs([str(source)], SourceOptions())
    assert form_of(shards) == AUTO[name]
    out = export(source, tmp_path, drop={3, 11}, samples_per_shard=9)
    samples, errors = read(out)
    kept = [pair for place, pair in enumerate(pairs) if place not in (3, 11)]
    assert facts(samples) == sorted((caption, image) for _, image, caption in kept)
    assert errors == []
    before, _ = read(source)
    keys = {one.caption: one.key for one in before}
    if name != "Karpathy":
        assert {one.caption: one.key for one in samples} == {c: keys[c] for _, _, c in kept}


def test_parquet_keeps_types_metadata_and_every_column(pairs, tmp_path):
    """Vectors, nanoseconds, dictionaries and Hugging Face's features."""
    note = {"info": {"features": {"Image": {"_type": "Image"}}}, "mine": 1}
    (tmp_path / "source").mkdir()
    table = pa.table({
        "Image": [{"bytes": image, "path": f"{key}.jpg"} for key, image, _ in pairs],
        "Text": [caption for *_, caption in pairs],
        "When": pa.array([1700000000123456789 + n for n in range(30)], pa.timestamp("ns")),
        "vector": pa.array([[float(n), 2.0] for n in range(30)], pa.list_(pa.float32(), 2)),
        "kind": pa.array(["a", None, "b"] * 10).dictionary_encode(),
        "tags": pa.array([[{"x": n}] for n in range(30)]),
    }).replace_schema_metadata({"huggingface": json.dumps(note)})  # fmt: skip
    pq.write_table(table, tmp_path / "source" / "c.parquet", row_group_size=7)
    out = export(tmp_path / "source", tmp_path, drop={0, 5})
    written = pq.read_table(out / "00000.parquet")
    kept = [n for n in range(30) if n not in (0, 5)]
    read_back = pq.read_table(tmp_path / "source" / "c.parquet")
    assert written.drop(["uid"]).equals(read_back.take(kept))
    assert json.loads(written.schema.metadata[b"huggingface"]) == note
    assert written["uid"].null_count == 0


def test_one_file_of_parquet_is_a_file(pairs, tmp_path):
    source = LAYOUTS["tar"](pairs, tmp_path / "source")
    out = export(source, tmp_path, "parquet", "x.parquet", samples_per_shard=7)
    assert out.is_file()
    assert pq.read_table(out)["caption"].to_pylist() == [caption for *_, caption in pairs]
    assert [path.name for path in (tmp_path / "x.parquet.work").glob("*.parquet")] == []
    again = export(source, tmp_path, "parquet", "x.parquet", samples_per_shard=7)
    assert pq.read_table(again).num_rows == 30


@pytest.mark.parametrize(
    ("layout", "out"), [("webdataset", "x.parquet"), ("csv", "x.csv"), ("folder", "x.tar")]
)
def test_an_output_that_is_called_something_else_is_refused(layout, out, pairs, tmp_path, refused):
    source = LAYOUTS["tar"](pairs, tmp_path / "source")
    refused(export, source, tmp_path, layout, out)


def test_mended_captions_replace_those_of_the_row(pairs, tmp_path):
    texts = [None] * 30
    texts[2] = 'mended, "with" \n<b>'
    columns = {"caption": lambda count: pa.array(texts[:count], pa.string())}
    for name in ("Hugging Face", "open_clip", "imagefolder", "files", "tar"):
        source = LAYOUTS[name](pairs, tmp_path / name)
        out = export(source, tmp_path, out=f"out {name}", columns=columns)
        samples, _ = read(out)
        by_key = {one.key.rpartition("/")[2]: one for one in samples}
        assert by_key["k002"].caption == texts[2].strip(), name
        assert by_key["k002"].metadata["original_caption"] == "caption, number 2", name
        assert by_key["k003"].caption == "caption, number 3"
        if name == "files":
            (beside,) = out.rglob("k002.txt")
            assert beside.read_bytes().decode() == texts[2]


def test_files_keep_the_endings_that_cameras_gave_them(pairs, tmp_path):
    source = tmp_path / "source"
    places = ("album/{}.JPG", "album/{}.jpeg", "other/{}.Png")
    names = []
    for (key, image, caption), place in zip(pairs, places, strict=False):
        names += [place.format(key), place.format(key).rpartition(".")[0] + ".txt"]
        for name, data in zip(names[-2:], (image, caption.encode()), strict=True):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(data)
    out = export(source, tmp_path)
    assert sorted(str(path.relative_to(out)) for path in out.rglob("k0*")) == sorted(names)
    for name in names:
        assert (out / name).read_bytes() == (source / name).read_bytes()


@pytest.mark.parametrize("layout", ["folder", "parquet"])
def test_overwriting_removes_what_was_written_and_nothing_else(layout, pairs, tmp_path, refused):
    source = LAYOUTS["tar"](pairs, tmp_path / "source")
    out = export(source, tmp_path, layout)
    (out / "mine.jpg").write_bytes(b"mine")
    refused(export, source, tmp_path, layout, samples_per_shard=4)
    export(source, tmp_path, layout, drop=set(range(29)), overwrite=True)
    files = [path for path in out.rglob("*") if path.is_file() and ".ncclean" not in path.parts]
    new = {"folder": ["metadata.jsonl", "k029.png"], "parquet": ["00000.parquet"]}[layout]
    assert {path.name for path in files} == {"mine.jpg", *new}


def test_an_interrupted_export_goes_on(pairs, tmp_path, monkeypatch):
    source = LAYOUTS["tar"](pairs, tmp_path / "source")
    calls = []

    def fails(task, options):
        calls.append(task.number)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return module_rows(task, options)

    module_rows = module.export_task
    monkeypatch.setattr(module, "export_task", fails)
    with pytest.raises(KeyboardInterrupt):
        export(source, tmp_path, "csv", samples_per_shard=8)
    (
        tmp_path / "out" / ".ncclean" / "00000_files-00000.parquet"
    ).unlink()  # its statistics are there
    out = export(source, tmp_path, "csv", samples_per_shard=8)
    assert calls == [0, 1, 2, 0, 2, 3]
    assert facts(read(out)[0]) == sorted((caption, image) for _, image, caption in pairs)


@pytest.mark.usefixtures("behind_a_wall")
def test_a_store_gets_the_same(pairs, tmp_path):
    """Any that fsspec knows; that of memory has no folders and no links."""
    source = LAYOUTS["files"](pairs, tmp_path / "source")
    chosen, shards = select(source, folder=tmp_path)
    for layout in ("folder", "parquet"):
        url = f"memory://layouts/{layout}"
        form = out_layout(layout, url, shards)
        export_shards(chosen, shards, stores.location(url), layout=form, samples_per_shard=8)
        assert facts(read(url)[0]) == sorted((caption, image) for _, image, caption in pairs)


def test_s3_holds_a_table_of_many_parts_and_its_images(pairs, tmp_path):
    pairs = pairs[:9]
    source = LAYOUTS["Hugging Face"](pairs, tmp_path / "source")
    chosen, shards = select(source, folder=tmp_path)
    with s3("out"):
        for layout, place in (("csv", "s3://out/csv"), ("parquet", "s3://out/one.parquet")):
            form = out_layout(layout, place, shards)
            for _ in range(2):  # the second goes on, and finds all done
                export_shards(
                    chosen, shards, stores.location(place), layout=form, samples_per_shard=4
                )
            assert facts(read(place)[0]) == sorted((c, image) for _, image, c in pairs)


def test_of_columns_that_share_a_name_the_first_stays(pairs, tmp_path):
    (tmp_path / "source").mkdir()
    columns = [[image for _, image, _ in pairs], [c for *_, c in pairs], [*range(30)], ["x"] * 30]
    table = pa.Table.from_arrays([pa.array(one) for one in columns], ["jpg", "text", "n", "n"])
    pq.write_table(table, tmp_path / "source" / "c.parquet")
    out = export(tmp_path / "source", tmp_path, drop={0})
    assert pq.read_table(out / "00000.parquet")["n"].to_pylist() == [*range(1, 30)]


def test_a_number_in_the_json_that_is_the_key_is_no_original_key(tmp_path):
    (tmp_path / "source").mkdir()
    for name, key in (("7", 7), ("8", 9)):
        (tmp_path / "source" / f"{name}.jpg").write_bytes(picture(1))
        fields = {"caption": f"caption {name}", "key": key}
        (tmp_path / "source" / f"{name}.json").write_text(json.dumps(fields))
    out = export(tmp_path / "source", tmp_path, "parquet")
    assert pq.read_table(out / "00000.parquet")["original_key"].to_pylist() == [None, 9]


@pytest.mark.parametrize("table", ["jsonl", "csv", "parquet"])
def test_an_image_of_another_task_does_not_stand_in_for_one_of_its_path(
    table, tmp_path, monkeypatch
):
    """Key and name of a shard together may be the path of another shard's image."""
    monkeypatch.chdir(tmp_path)
    files = []
    for name, key, number in (("x", "y/z", 1), ("x/y", "z", 200), ("w/y", "k", 95)):
        columns = {"key": [key], "jpg": [picture(number)], "caption": [f"caption {number}"]}
        files.append(Path(f"{name}.parquet"))
        files[-1].parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), files[-1])
    chosen, shards = select(*files, folder=tmp_path)
    out = tmp_path / "out"
    form = out_layout("csv" if table == "csv" else "folder", str(out), shards)
    if table == "parquet":
        form = replace(form, table="metadata.parquet")
    for _ in range(2):
        summary = export_shards(chosen, shards, UPath(out), layout=form, samples_per_shard=1)
        (problem,) = summary.errors.values()
        assert problem == "x/y/z.jpg: another image has this path"
        assert summary.samples == 2
    samples, _ = read(out)
    assert len(samples) == 2
    pairs = {picture(n): f"caption {n}" for n in (1, 200, 95)}
    assert all(one.caption == pairs[one.image] for one in samples)


def test_images_replaced_since_the_scoring_are_counted(pairs, tmp_path):
    source = LAYOUTS["open_clip"](pairs, tmp_path / "source")
    scores, selection = str(tmp_path / "s.parquet"), str(tmp_path / "sel.parquet")
    Score(shards=[str(source)], out=scores, model="demo", shift=0.1).run()
    Select(scores=[scores], out=selection).run()
    counts = []
    for out in ("before", "after"):
        shards = resolve_pairs([str(source)], SourceOptions())
        summary = export_shards(selection, shards, UPath(tmp_path / out), samples_per_shard=3)
        counts.append(summary.changed_images)
        first, second, *_ = sorted((tmp_path / "source").rglob("*.jpg"))
        first.write_bytes(second.read_bytes() + b"\0")
    assert counts == [0, 1]


def test_a_table_that_is_gone_is_an_error_of_its_shard(pairs, tmp_path):
    source = LAYOUTS["open_clip"](pairs, tmp_path / "source")
    chosen, shards = select(source, folder=tmp_path)
    out = tmp_path / "out"
    form = out_layout("csv", str(out), shards)
    source.unlink()
    summary = export_shards(chosen, shards, UPath(out), layout=form)
    assert summary.samples == 0
    assert list(summary.errors) == [shards[0].name]
