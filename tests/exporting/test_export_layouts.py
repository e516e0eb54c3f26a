"""A selection in the form that came in, or another one: rows, images and captions stay."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
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
from tests import hostile
from tests.data.image_layouts import LAYOUTS, read, write_csv, write_imagefolder
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


def test_fields_of_other_types_in_other_shards_get_one_schema(tmp_path):
    """Loaders take the schema of the first file for all."""
    rows = [{"file_name": f"{n}.jpg", "text": f"c {n}"} for n in range(6)]
    rows[0]["Score"], rows[2]["Score"], rows[4]["tags"] = 1, 2.5, {"deep": [1]}
    rows[3]["odd"], rows[5]["odd"] = 7, "seven"
    rows[1]["mixed"], rows[5]["mixed"] = {"a": [1]}, "text"
    place = tmp_path / "source"
    place.mkdir()
    for n in range(6):
        (place / f"{n}.jpg").write_bytes(picture(n))
    (place / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = export(place, tmp_path, "parquet", samples_per_shard=2)
    tables = [pq.read_table(path) for path in sorted(out.glob("*.parquet"))]
    assert len({str(table.schema) for table in tables}) == 1
    whole = pa.concat_tables(tables)
    assert whole["Score"].to_pylist() == [1.0, None, 2.5, None, None, None]
    assert whole["odd"].to_pylist() == [None, None, None, "7", None, "seven"]
    assert whole["mixed"].to_pylist() == [None, '{"a": [1]}', None, None, None, "text"]
    assert whole["tags"].to_pylist()[4] == {"deep": [1]}


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


def test_captions_that_are_not_kept_leave_their_rows_lists_and_columns(pairs, tmp_path):
    place = tmp_path / "source"
    place.mkdir()
    (place / "a.jpg").write_bytes(picture(1))
    (place / "b.jpg").write_bytes(picture(2))
    rows = [
        {"file_name": "a.jpg", "text": "a0", "n": 0},
        {"file_name": "a.jpg", "text": "a1", "n": 1},
        {"file_name": "a.jpg", "text": "a2", "n": 2},
        {"file_name": "b.jpg", "text": ["b0", "b1", "b2"], "n": 3, "is_noisy": [0, 1, 0]},
    ]
    (place / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (shard,) = resolve_pairs([str(place)], SourceOptions())
    table = pa.table({
        "uid": list("wxyz"), "shard": [shard.name] * 4, "key": ["a", "a", "b", "b"],
        "weight": pa.array([1.0] * 4, pa.float32()), "split": pa.nulls(4, pa.string()),
        "caption_number": pa.array([2, 0, 2, 1], pa.int16()),
        "caption_rank": pa.array([0, 1, 0, 1], pa.int16()),
        "caption": pa.array(["A2", None, None, "B1"], pa.string()),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "selection.parquet")
    out = tmp_path / "out"
    export_shards(
        str(tmp_path / "selection.parquet"), [shard], UPath(out),
        layout=out_layout("auto", str(out), [shard]),
    )  # fmt: skip
    written = [json.loads(line) for line in (out / "metadata.jsonl").read_text().splitlines()]
    assert [(row["file_name"], row["text"], row["n"]) for row in written] == [
        ("a.jpg", "a0", 0), ("a.jpg", "A2", 2), ("b.jpg", ["B1", "b2"], 3),
    ]  # fmt: skip
    assert written[1]["original_caption"] == "a2"
    assert written[2]["original_captions"] == ["b1", "b2"]


def test_a_repeated_sample_is_there_as_often_under_keys_of_its_own(pairs, tmp_path):
    weights = {"weight": lambda count: pa.array([4.0] + [1.0] * (count - 1), pa.float32())}
    for layout in ("csv", "parquet"):
        source = LAYOUTS["img2dataset"](pairs[:3], tmp_path / layout)
        chosen, shards = select(source, folder=tmp_path, **weights)
        out = tmp_path / f"out {layout}"
        form = out_layout(layout, str(out), shards)
        summary = export_shards(chosen, shards, UPath(out), layout=form, repeat=True)
        samples, _ = read(out)
        assert len(samples) == summary.samples
        assert "k000_copy1" in {one.key for one in samples}
        if layout == "csv":
            assert (out / "k000_copy1.jpg").read_bytes() == pairs[0][1]
        assert len({one.key for one in samples}) == len(samples)


def test_paths_that_lead_out_of_the_folder_or_into_the_working_folder_do_not(tmp_path):
    """Keys of a tar, or of a Parquet file, are anybody's."""
    (tmp_path / "source").mkdir()
    keys = ["../../up", "/x", ".ncclean/a", "a/../../b", "C:\\x", "metadata.jsonl", "n\nl"]
    table = pa.table({
        "key": keys, "jpg": [picture(0)] * len(keys), "caption": [f"c {key}" for key in keys],
    })  # fmt: skip
    pq.write_table(table, tmp_path / "source" / "c.parquet")
    out = export(tmp_path / "source", tmp_path, "folder")
    files = list(tmp_path.rglob("*.jpg"))
    assert len(files) == len(keys)
    assert all(path.parent == out for path in files)
    samples, _ = read(out)
    assert len(samples) == len(keys)
    assert {one.key for one in samples} == set(keys)


def test_an_image_where_another_has_its_folder_costs_itself(tmp_path):
    (tmp_path / "source").mkdir()
    table = pa.table({
        "key": ["a.jpg/b", "a"], "jpg": [picture(0), picture(1)], "caption": ["x", "y"]
    })  # fmt: skip
    pq.write_table(table, tmp_path / "source" / "c.parquet")
    chosen, shards = select(tmp_path / "source", folder=tmp_path)
    out = tmp_path / "out"
    form = out_layout("folder", str(out), shards)
    summary = export_shards(chosen, shards, UPath(out), layout=form)
    assert summary.samples == 1
    assert "a.jpg" in summary.errors[shards[0].name]


def test_each_folder_of_an_imagefolder_keeps_its_table(pairs, tmp_path):
    """`load_dataset` finds the splits by these folders."""
    write_imagefolder(pairs[:5], tmp_path / "source" / "train", "csv")
    write_imagefolder(pairs[5:9], tmp_path / "source" / "test", "csv")
    out = export(tmp_path / "source", tmp_path)
    tables = {str(path.relative_to(out)): path for path in out.rglob("metadata.csv")}
    assert sorted(tables) == ["test/c/metadata.csv", "train/c/metadata.csv"]
    with tables["test/c/metadata.csv"].open(newline="") as file:
        assert [row["file_name"] for row in csv.DictReader(file)] == [
            f"{k}.jpg" for k, *_ in pairs[5:9]
        ]


def test_a_csv_keeps_its_name_separator_and_columns(pairs, tmp_path):
    source = LAYOUTS["open_clip"](pairs, tmp_path / "source")
    rows = [{"filepath": f"images/{key}.jpg", "title": c, "Extra": "=1"} for key, _, c in pairs]
    write_csv(source, rows, delimiter="\t")
    out = export(source, tmp_path)
    with (out / "c.csv").open(newline="") as file:
        assert list(csv.DictReader(file, delimiter="\t"))[4].items() >= rows[4].items()


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
    source = LAYOUTS["Hugging Face"](pairs, tmp_path / "source")
    chosen, shards = select(source, folder=tmp_path)
    with s3("out"):
        for layout, place in (("csv", "s3://out/csv"), ("parquet", "s3://out/one.parquet")):
            form = out_layout(layout, place, shards)
            for _ in range(2):  # the second goes on, and finds all done
                export_shards(
                    chosen, shards, stores.location(place), layout=form, samples_per_shard=8
                )
            assert facts(read(place)[0]) == sorted((c, image) for _, image, c in pairs)


@pytest.mark.parametrize("layout", ["folder", "csv", "parquet"])
def test_fields_that_would_be_read_in_place_of_ours_are_set_aside(layout, tmp_path):
    """A json may have fields called as the columns of images, paths, keys and captions are."""
    fields = {"caption": "another", "Image": "x.png", "file_name": "y.jpg", "key": "z", "URL": "u"}
    members = [*hostile.sample("k", picture(1), b"mine"), ("k.json", json.dumps(fields).encode())]
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "0.tar").write_bytes(hostile.tar_bytes(members))
    (sample,), _ = read(export(tmp_path / "source", tmp_path, layout))
    assert (sample.caption, sample.image, sample.key) == ("mine", picture(1), "k")
    kept = {"original_caption": "another", "original_key": "z", "url": "u"}
    assert kept.items() <= sample.metadata.items()
    assert sample.metadata["original_image"] == "x.png"


def test_of_columns_that_share_a_name_the_first_stays(pairs, tmp_path):
    (tmp_path / "source").mkdir()
    columns = [[image for _, image, _ in pairs], [c for *_, c in pairs], [*range(30)], ["x"] * 30]
    table = pa.Table.from_arrays([pa.array(one) for one in columns], ["jpg", "text", "n", "n"])
    pq.write_table(table, tmp_path / "source" / "c.parquet")
    out = export(tmp_path / "source", tmp_path, drop={0})
    assert pq.read_table(out / "00000.parquet")["n"].to_pylist() == [*range(1, 30)]


def test_an_image_does_not_replace_another_of_its_path(tmp_path):
    """A key that is the name of another's copy costs itself, and is said."""
    keys = ["k", "k_copy1"]
    columns = {"key": keys, "jpg": [picture(1), picture(200)], "caption": ["x", "y"]}
    (tmp_path / "source").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "source" / "c.parquet")
    chosen, shards = select(tmp_path / "source", folder=tmp_path)
    rows = pq.read_table(chosen)
    twice = pa.concat_tables([rows.slice(0, 1), rows])  # k drawn twice
    pq.write_table(twice, chosen)
    out = tmp_path / "out"
    form = out_layout("folder", str(out), shards)
    summary = export_shards(chosen, shards, UPath(out), layout=form)
    assert "another image has this path" in summary.errors[shards[0].name]
    assert summary.samples == 2
    assert {one.image for one in read(out)[0]} == {picture(1)}


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


@pytest.mark.parametrize("layout", ["webdataset", "folder", "csv", "parquet"])
@pytest.mark.parametrize("source", ["tar", "parquet"])
def test_samples_of_two_shards_that_share_a_key_are_two(source, layout, tmp_path):
    """Shards may each count from 0. Readers join neighbours that share a key, or drop one."""
    (tmp_path / "source").mkdir()
    for name, numbers in (("a", (1, 7)), ("b", (7, 9))):
        images = {str(one): picture(one if name == "a" else one + 100) for one in numbers}
        if source == "parquet":
            captions = [f"{one} of {name}" for one in numbers]
            columns = {"key": [*images], "jpg": [*images.values()], "caption": captions}
            pq.write_table(pa.table(columns), tmp_path / "source" / f"{name}.parquet")
            continue
        members = [
            member
            for key, image in images.items()
            for member in ((f"{key}.jpg", image), (f"{key}.txt", f"{key} of {name}".encode()))
        ]
        (tmp_path / "source" / f"{name}.tar").write_bytes(hostile.tar_bytes(members))
    samples, errors = read(export(tmp_path / "source", tmp_path, layout))
    assert errors == []
    assert {one.caption: one.image for one in samples} == {
        "1 of a": picture(1), "7 of a": picture(7), "7 of b": picture(107), "9 of b": picture(109)
    }  # fmt: skip
    assert len({one.key for one in samples}) == 4
    assert {str(one.status) for one in samples} == {str(samples[0].status)}


def test_a_table_that_is_gone_is_an_error_of_its_shard(pairs, tmp_path):
    source = LAYOUTS["open_clip"](pairs, tmp_path / "source")
    chosen, shards = select(source, folder=tmp_path)
    out = tmp_path / "out"
    form = out_layout("csv", str(out), shards)
    source.unlink()
    summary = export_shards(chosen, shards, UPath(out), layout=form)
    assert summary.samples == 0
    assert list(summary.errors) == [shards[0].name]


@pytest.mark.parametrize("end", ["\r", "\n", "\r\n"])
def test_a_csv_quotes_every_end_of_a_line(end, pairs, tmp_path):
    caption = f"a cat{end}and a dog"
    source = LAYOUTS["tar"]([("k", pairs[0][1], caption), *pairs[1:3]], tmp_path / "source")
    out = export(source, tmp_path, "csv")
    samples, errors = read(out)
    assert [one.caption for one in samples] == [caption, pairs[1][2], pairs[2][2]]
    assert errors == []
    assert out.joinpath("pairs.csv").read_bytes().count(b"\r\n") == (end == "\r\n")


@pytest.mark.parametrize("layout", ["webdataset", "folder", "csv", "parquet"])
@pytest.mark.parametrize("source", ["tar", "Parquet"])
def test_a_field_that_an_added_column_is_called_like_is_set_aside(source, layout, tmp_path):
    """LAION's own tables have a similarity."""
    (tmp_path / "source").mkdir()
    if source == "tar":
        members = [*hostile.sample("k", picture(1), b"mine"), ("k.json", b'{"similarity": 0.25}')]
        (tmp_path / "source" / "0.tar").write_bytes(hostile.tar_bytes(members))
    else:
        table = {"jpg": [picture(1)], "text": ["mine"], "key": ["k"], "similarity": [0.25]}
        pq.write_table(pa.table(table), tmp_path / "source" / "0.parquet")
    place = tmp_path / "source"
    for out in (tmp_path / "once", tmp_path / "twice"):
        chosen, shards = select(place, folder=tmp_path)
        scores = {"shard": [shards[0].name], "key": ["k"], "row": [0], "similarity": [0.1]}
        pq.write_table(pa.table(scores), tmp_path / "scores.parquet")
        form = out_layout(layout, str(out), shards)
        export_shards(chosen, shards, UPath(out), layout=form, columns=["similarity"],
                      scores=[str(tmp_path / "scores.parquet")])  # fmt: skip
        (sample,), _ = read(out)
        values = [float(sample.metadata[n]) for n in ("similarity", "original_similarity")]
        assert values == [0.1, 0.25]
        place = out


@pytest.mark.parametrize("layout", ["folder", "csv"])
@pytest.mark.parametrize("table", ["parquet", "csv", "jsonl"])
def test_columns_that_differ_in_capitals_alone_are_two(table, layout, pairs, tmp_path):
    """The one in small letters is what it is called, wherever it stands."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "k.jpg").write_bytes(pairs[0][1])
    row = {"TITLE": "no", "title": "a cat", "file_name": "k.jpg", "File_Name": "?", "URL": "u",
           "Url": "v"}  # fmt: skip
    place = tmp_path / "source" / f"metadata.{table}"
    if table == "parquet":
        pq.write_table(pa.table({name: [value] for name, value in row.items()}), place)
    elif table == "csv":
        place.write_text(f"{','.join(row)}\n{','.join(row.values())}\n")
    else:
        place.write_text(json.dumps(row))
    (sample,), _ = read(tmp_path / "source")
    assert (sample.caption, sample.key, sample.status.value) == ("a cat", "k", "ok")
    out = export(tmp_path / "source", tmp_path, layout)
    (written,) = [path for path in out.iterdir() if path.suffix in (".csv", ".jsonl", ".parquet")]
    if written.suffix == ".csv":
        with written.open(newline="") as file:
            (found,) = csv.DictReader(file)
    elif written.suffix == ".parquet":
        (found,) = pq.read_table(written).to_pylist()
    else:
        found = json.loads(written.read_text())
    assert found.items() >= row.items()


def test_a_name_that_a_csv_reads_without_its_spaces_is_set_aside(pairs, tmp_path):
    (tmp_path / "source").mkdir()
    table = {"jpg": [pairs[0][1]], "text": ["a cat"], "bytes ": ["10 KB"]}
    pq.write_table(pa.table(table), tmp_path / "source" / "0.parquet")
    (sample,), _ = read(export(tmp_path / "source", tmp_path, "csv"))
    assert (sample.caption, sample.status.value) == ("a cat", "ok")
    assert sample.metadata["original_bytes"] == "10 KB"
