"""Sources of images beside tars: what each row becomes, wherever and however broken it lies."""

import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ncclean.base import stores
from ncclean.data.fetch import ImageFetcher
from ncclean.data.images import files
from ncclean.data.images.files import ImageRoot
from ncclean.data.images.layout import ImageLayout
from ncclean.data.reader import read_samples
from ncclean.data.samples import SkipReason
from ncclean.data.sources import resolve_pairs, resolve_sources
from tests import object_store
from tests.data.image_layouts import LAYOUTS, read, statuses, write_files, write_imagefolder
from tests.hostile import JPEG
from tests.http_server import served

PAIRS = [(f"{number:05d}", b"image %d" % number, f"caption {number}") for number in range(40)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_pairs(layout, tmp_path):
    samples, errors = read(LAYOUTS[layout](PAIRS, tmp_path / "source"))
    assert errors == []
    assert [sample.key.rpartition("/")[2] for sample in samples] == [key for key, *_ in PAIRS]
    assert [(sample.image, sample.caption) for sample in samples] == [pair[1:] for pair in PAIRS]
    assert [sample.row for sample in samples] == list(range(len(PAIRS)))


def test_a_row_that_repeats_key_and_picture_is_a_duplicate(tmp_path):
    """Another picture under the same key is another sample: a table may be made of several."""
    rows = [{"key": "7", "image": b"one"}, {"key": "8", "image": b"two"}]
    rows = [{**one, "caption": "a cat"} for one in (*rows, rows[0], {**rows[0], "image": b"three"})]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    samples, _ = read(tmp_path / "t.parquet")
    repeats = [sample.status is SkipReason.DUPLICATE_KEY for sample in samples]
    assert repeats == [False, False, True, False]
    assert len({sample.key for sample in samples}) == 3


def test_rows_of_an_embedded_image_are_its_captions_and_none_is_lost(tmp_path):
    """Hugging Face writes the names of files without their folders: other images may have one."""
    rows = [("a", b"one", "x"), ("a", b"one", "y"), ("a", b"two", "z"), ("b", b"b", "b"),
            ("a", b"one", "w")]  # fmt: skip
    pairs = [
        {"image": {"bytes": image, "path": f"{name}.jpg"}, "text": text}
        for name, image, text in rows
    ]
    pq.write_table(pa.Table.from_pylist(pairs), tmp_path / "t.parquet")
    samples, _ = read(tmp_path / "t.parquet")
    assert [
        (sample.key, sample.image, [caption.text for caption in sample.captions])
        for sample in samples
    ] == [
        ("a", b"one", ["x", "y"]), ("000000001", b"two", ["z"]), ("b", b"b", ["b"]),
        ("000000003", b"one", ["w"]),
    ]  # fmt: skip
    assert {sample.status for sample in samples} == {SkipReason.OK}


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_metadata_of_an_imagefolder(tmp_path, ending):
    for split in ("train", "test"):
        write_imagefolder(PAIRS, tmp_path / split, ending)
    shards = resolve_sources([str(tmp_path)])
    assert [shard.name for shard in shards] == ["test/c", "train/c"]
    samples, errors = read(tmp_path)
    assert len(samples) == 80
    assert not errors


@pytest.mark.parametrize(
    "layout", ["files", "Hugging Face", "imagefolder", "open_clip", "Karpathy"]
)
def test_large_sources_are_cut_into_units(tmp_path, layout, monkeypatch):
    monkeypatch.setattr(ImageLayout, "unit_rows", 16)
    source = LAYOUTS[layout](PAIRS, tmp_path / "source")
    shards = resolve_sources([str(source)])
    assert [shard.rows[1] - shard.rows[0] for shard in shards] == [16, 16, 8]
    assert len({shard.part_name for shard in shards}) == 3
    samples, _ = read(source)
    assert [sample.image for sample in samples] == [image for _, image, _ in PAIRS]
    record = json.loads(json.dumps([shard.to_json() for shard in shards]))
    assert [type(shard)(**fields) for shard, fields in zip(shards, record, strict=True)] == shards


def test_a_file_more_changes_one_unit(tmp_path, monkeypatch):
    monkeypatch.setattr(ImageLayout, "unit_rows", 16)
    source = LAYOUTS["files"](PAIRS, tmp_path / "source")
    before = resolve_sources([str(source)])
    (source / "c" / "00039.txt").write_text("another caption")
    after = resolve_sources([str(source)])
    assert before[:2] == after[:2]
    assert before[2].version != after[2].version


def test_a_file_of_any_ending_beside_an_image_changes_its_unit_alone(tmp_path, monkeypatch):
    """Captions of `--caption-key alt` that were edited passed as those that were scored."""
    monkeypatch.setattr(ImageLayout, "unit_rows", 2)
    write_files(PAIRS[:4], tmp_path)
    (tmp_path / "c/00001.alt").write_text("a dog")
    before = resolve_sources([str(tmp_path)])
    (tmp_path / "c/00001.alt").write_text("another dog")
    (tmp_path / "c/notes.alt").write_text("of no image")
    after = resolve_sources([str(tmp_path)])
    assert [one.version == now.version for one, now in zip(before, after, strict=True)] == [0, 1]
    assert [one.size for one in before] == [one.size for one in after]


def test_a_struct_of_bytes_and_path_is_an_image_whatever_its_name(tmp_path, refused):
    source = LAYOUTS["Hugging Face"](PAIRS, tmp_path / "source") / "c.parquet"
    table = pq.read_table(source)
    urls = pa.array(["https://host/x"] * len(table))
    pq.write_table(table.rename_columns(["Picture", "text"]).append_column("file", urls), source)
    samples, errors = read(source)
    assert errors == []
    assert [(sample.image, sample.caption) for sample in samples] == [pair[1:] for pair in PAIRS]
    assert [sample.key for sample in samples] == [key for key, *_ in PAIRS]
    pq.write_table(table.select(["text"]), source)
    refused(resolve_sources, [str(source)])


def test_a_broken_file_does_not_hide_what_the_others_are(tmp_path):
    folder = LAYOUTS["Hugging Face"](PAIRS, tmp_path / "source")
    (folder / "a.parquet").write_bytes(b"no Parquet")
    shards = resolve_sources([str(folder)])
    assert [shard.name for shard in shards] == ["a", "c"]
    samples, errors = read(folder)
    assert len(samples) == len(PAIRS)
    assert len(errors) == 1


@pytest.mark.parametrize("other", ["b.jsonl", "a.csv.gz", "b.parquet", "metadata.parquet"])
def test_tables_of_several_kinds_in_a_folder_are_refused(other, tmp_path, refused):
    """They may state the same pairs; to read one of them would drop the others' silently."""
    rows = pa.table({"file_name": ["1.jpg", "2.jpg"], "caption": ["one", "two"]})
    first = tmp_path / ("metadata.csv" if other.startswith("metadata") else "a.csv")
    rows.to_pandas().to_csv(first, index=False)
    if other.endswith("parquet"):
        pq.write_table(rows, tmp_path / other)
    elif other.endswith("jsonl"):
        rows.to_pandas().to_json(tmp_path / other, orient="records", lines=True)
    else:
        rows.to_pandas().to_csv(tmp_path / other, index=False)
    refused(resolve_sources, [str(tmp_path)])
    pq.write_table(pa.table({"uid": ["1"], "note": ["no image"]}), tmp_path / "other.parquet")
    assert [shard.url for shard in resolve_sources([str(first)])] == [str(first)]
    (tmp_path / other).unlink()
    assert [shard.url for shard in resolve_sources([str(tmp_path)])] == [str(first)]


def test_embeddings_with_paths_are_embeddings(tmp_path, refused):
    vectors = pa.array([[1.0, 0.0]], pa.list_(pa.float32()))
    pq.write_table(
        pa.table({"image_path": ["a"], "image_emb": vectors, "text_emb": vectors}),
        tmp_path / "e.parquet",
    )
    assert resolve_sources([str(tmp_path)])[0].layout == "vectors"
    refused(resolve_pairs, [str(tmp_path)])


HOSTILE = {
    "../outside.jpg": "is not below",
    "/etc/hostname": "is not below",
    "link.jpg": "is not below",
    "loop.jpg": "symbolic links",
    "gone.jpg": "No such file",
    "dangling.jpg": "No such file",
    "pipe.jpg": "is not a file",
    "folder.jpg": "is not a file",
    "nul\0.jpg": "null byte",
    "a" * 300 + ".jpg": "too long",
    "https://example.org/a.jpg": "download it first",
    "": "",
}


@pytest.fixture
def hostile(tmp_path):
    (tmp_path / "outside.jpg").write_bytes(b"secret")
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "link.jpg").symlink_to(tmp_path / "outside.jpg")
    (folder / "loop.jpg").symlink_to("loop.jpg")
    (folder / "dangling.jpg").symlink_to("nothing.jpg")
    (folder / "inside.jpg").symlink_to("good.jpg")
    (folder / "folder.jpg").mkdir()
    os.mkfifo(folder / "pipe.jpg")
    (folder / "good.jpg").write_bytes(b"good")
    return folder


def test_paths_that_lead_elsewhere_are_statuses(hostile):
    names = [*HOSTILE, "good.jpg", "inside.jpg", str(hostile / "good.jpg")]
    rows = [{"file_name": name, "text": "a caption"} for name in names]
    (hostile / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    samples, errors = read(hostile)
    assert errors == []
    assert [sample.image for sample in samples] == [None] * len(HOSTILE) + [b"good"] * 3
    for sample, what in zip(samples, HOSTILE.values(), strict=False):
        assert sample.status is SkipReason.IMAGE_MISSING
        assert what in (sample.error or "")


def test_files_of_a_parquet_repository_lie_in_folders_too(tmp_path):
    names = ["train.parquet", "more/test/0.parquet", ".hidden/lists.parquet"]
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        table = pa.table({"image": [b"image"], "file": ["a.jpg"], "text": [str(number)]})
        pq.write_table(table, tmp_path / name)
    (tmp_path / "more" / "a.jpg").write_bytes(b"of no row")
    samples, _ = read(tmp_path)
    assert sorted(sample.caption for sample in samples) == ["0", "1"]


def test_loose_files_of_all_kinds(hostile):
    for name in ("good", "link", "pipe", "lone"):
        (hostile / f"{name}.txt").write_text(f"caption of {name}")
    samples, errors = read(hostile)
    assert errors == []
    found = {sample.key: sample.status.value for sample in samples}
    assert found == {
        "dangling": "image_missing",
        "good": "ok",
        "inside": "caption_missing",
        "link": "image_missing",
        "lone": "image_missing",
        "loop": "image_missing",
        "pipe": "image_missing",
    }


def test_sources_in_a_store(tmp_path):
    import fsspec

    store = fsspec.filesystem("memory")
    try:
        store.pipe({"/b/i/x.jpg": b"x", "/b/i/y.jpg": b"y", "/b/secret.jpg": b"s"})
        lines = [{"file_name": name, "text": "t"} for name in ("x.jpg", "y.jpg", "z.jpg")]
        lines += [{"file_name": "../secret.jpg", "text": "t"}]
        store.pipe("/b/i/metadata.jsonl", "\n".join(map(json.dumps, lines)).encode())
        samples, errors = read("memory://b/i")
        assert errors == []
        assert [sample.image for sample in samples] == [b"x", b"y", None, None]
        assert "no such object" in samples[2].error
        assert "is not below" in samples[3].error
        store.rm("/b/i/metadata.jsonl")
        store.pipe("/b/i/x.txt", b"a caption")
        samples, _ = read("memory://b/i")
        assert statuses(samples) == ["ok", "caption_missing"]
    finally:
        store.rm("/b", recursive=True)


@pytest.mark.parametrize("layout", ["table", "classes", "files"])
def test_names_of_files_are_quoted_in_urls(tmp_path, layout):
    """In a URL, `#` begins a fragment, `?` a query, and `%20` is a space."""
    names = ["cat", "cat#1", "a b", "a%20b", "q", "q?x=1", "50%", "c+d", "é"]
    for number, name in enumerate(names):
        folder = tmp_path / (name if layout == "classes" else ".")
        folder.mkdir(exist_ok=True)
        (folder / name).with_suffix(".jpg").write_bytes(JPEG + bytes([number]))
        if layout == "files":
            (folder / f"{name}.txt").write_text(name)
    if layout == "table":
        pq.write_table(
            pa.table({"file_name": [f"{name}.jpg" for name in names], "caption": names}),
            tmp_path / "metadata.parquet",
        )
    options = {"class_template": "a {}"} if layout == "classes" else {}
    with served(tmp_path) as url:
        samples, there = (read(str(one), **options)[0] for one in (tmp_path, url))
    facts = {(one.key, one.caption, one.image) for one in samples}
    assert len(facts) == len(names)
    assert {(one.key, one.caption, one.image) for one in there} == facts


def test_a_path_that_is_percent_encoded_is_found_over_http(tmp_path):
    (tmp_path / "a b.jpg").write_bytes(JPEG)
    with served(tmp_path) as url:
        root = ImageRoot(url)
        assert root.read("a%20b.jpg") == JPEG
    assert root.other_names == {"percent signs": 1}


def test_a_table_that_is_no_utf8_is_named_beside_images_without_captions(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"image")
    (tmp_path / "t.csv").write_bytes("file_name,text\na.jpg,fine\n".encode("utf-16"))
    _, errors = read(tmp_path)
    assert len(errors) == 1
    assert "t.csv is UTF-16: iconv -f UTF-16 -t UTF-8" in errors[0]
    (tmp_path / "a.txt").write_text("its own caption")
    samples, errors = read(tmp_path)
    assert (statuses(samples), errors) == (["ok"], [])


def test_a_folder_is_listed_once_when_it_is_planned(tmp_path, monkeypatch):
    LAYOUTS["files"](PAIRS, tmp_path / "source")
    listed = []
    list_local = stores._list_local
    monkeypatch.setattr(
        stores, "_list_local", lambda f, *rest: listed.append(f) or list_local(f, *rest)
    )
    monkeypatch.setattr(ImageLayout, "unit_rows", 16)
    assert len(resolve_sources([str(tmp_path / "source")])) == 3
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("layout", ["files", "imagefolder", "open_clip"])
def test_only_the_files_that_are_wanted_are_read(layout, tmp_path, monkeypatch):
    source = LAYOUTS[layout](PAIRS, tmp_path / "source")
    (shard,) = resolve_sources([str(source)])
    keys = {sample.key for sample in read_samples(shard)}
    wanted = {key for key in keys if key.endswith(("00007", "00021"))}
    opened = []
    read_local = ImageRoot._read_local
    monkeypatch.setattr(
        ImageRoot, "_read_local", lambda root, path: opened.append(path) or read_local(root, path)
    )
    there = {sample.key: sample.place for sample in read_samples(shard) if sample.key in wanted}
    opened.clear()
    found = [one for one in read_samples(shard, wanted=wanted) if one.key in wanted]
    assert [(one.image, one.caption) for one in found] == [PAIRS[7][1:], PAIRS[21][1:]]
    assert len(opened) == (6 if layout == "files" else 2)
    opened.clear()
    assert dict(ImageFetcher().fetch(shard, there)).keys() == wanted
    assert len(opened) == 2


def test_an_object_that_its_store_refuses_costs_its_own_row_alone(monkeypatch):
    """S3 answers 403 for what is not there where listing is not allowed, and 400 for a version."""
    monkeypatch.setattr(stores, "PATIENCE_SECONDS", 1.0)
    names = ["0.jpg", "x.jpg?versionId=1", "forbidden.jpg", "gone.jpg", "k" * 1100 + ".jpg"]
    names += ["folder", "empty.jpg", "large.jpg", "", "we ird#%41.jpg", "9.jpg"]
    with object_store.s3(forbids=lambda method, path: "forbidden" in path) as store:
        system = object_store.filesystem()
        for name in ("0.jpg", "9.jpg", "we ird#%41.jpg", "folder/inside.jpg"):
            system.pipe_file(f"corpus/d/{name}", JPEG)
        system.pipe_file("corpus/d/empty.jpg", b"")
        monkeypatch.setattr(files, "LARGEST_FILE", 2 * len(JPEG))
        system.pipe_file("corpus/d/large.jpg", JPEG * 3)
        rows = "".join(f'"{name}",caption\n' for name in names)
        system.pipe_file("corpus/d/t.csv", f"file_name,text\n{rows}".encode())
        samples, errors = read("s3://corpus/d/t.csv")
        assert store.requests
    assert errors == []
    assert dict(zip(names, statuses(samples), strict=True)) == {
        **dict.fromkeys(names, "image_missing"),
        "0.jpg": "ok",
        "9.jpg": "ok",
        "we ird#%41.jpg": "ok",
        "empty.jpg": "image_corrupt",
        "large.jpg": "image_too_large",
    }
    assert "refuses these credentials" in samples[2].error


def test_the_folder_at_hand_has_its_own_name(tmp_path, monkeypatch):
    write_files(PAIRS, tmp_path / "photos")
    monkeypatch.chdir(tmp_path / "photos" / "c")
    assert [shard.name for shard in resolve_sources(["."])] == ["c"]
    (tmp_path / "photos" / "one.jpg").write_bytes(b"of the folder above")
    assert [shard.name for shard in resolve_sources([".."])] == ["photos", "c"]
