"""Sources of images beside tars: what each row becomes, wherever and however broken it lies."""

import json
import os
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ncclean.base import stores
from ncclean.data.fetch import ImageFetcher
from ncclean.data.images import files
from ncclean.data.images.files import ImageRoot
from ncclean.data.images.layout import ImageLayout
from ncclean.data.options import SourceOptions
from ncclean.data.reader import read_samples
from ncclean.data.samples import SkipReason
from ncclean.data.sources import resolve_pairs, resolve_sources
from tests import object_store
from tests.data.image_layouts import (
    LAYOUTS,
    read,
    statuses,
    write_files,
    write_imagefolder,
    write_tar,
)
from tests.hostile import JPEG

PAIRS = [(f"{number:05d}", b"image %d" % number, f"caption {number}") for number in range(40)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_pairs(layout, tmp_path):
    samples, errors = read(LAYOUTS[layout](PAIRS, tmp_path / "source"))
    assert errors == []
    assert [sample.key.rpartition("/")[2] for sample in samples] == [key for key, *_ in PAIRS]
    assert [(sample.image, sample.caption) for sample in samples] == [pair[1:] for pair in PAIRS]
    assert [sample.row for sample in samples] == list(range(len(PAIRS)))


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


def test_another_root_for_the_images_of_a_table(hostile):
    (hostile / "t.csv").write_text("file_name,text\nlink.jpg,a\n../outside.jpg,b\n")
    root = str(hostile.parent)
    samples, _ = read(hostile / "t.csv", image_root=root)
    assert [sample.image for sample in samples] == [b"secret"] * 2  # relative to the table
    [shard] = resolve_sources([str(hostile / "t.csv")], options=SourceOptions(image_root=root))
    reader = read_samples(shard)
    assert len(list(reader)) == 2
    assert reader.further.names == {"folder of the table": 2}
    (hostile / "t.csv").write_text("file_name,text\nsource/link.jpg,a\noutside.jpg,b\n")
    samples, _ = read(hostile / "t.csv", image_root=root)  # and to the root, which is the limit
    assert [sample.image for sample in samples] == [b"secret"] * 2


def test_a_table_outside_of_the_root_reads_nothing_beside_it(tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "images").mkdir()
    (tmp_path / "tables" / "a.jpg").write_bytes(b"beside")
    (tmp_path / "tables" / "t.csv").write_text("file_name,text\na.jpg,a\n")
    [sample] = read(tmp_path / "tables" / "t.csv", image_root=str(tmp_path / "images"))[0]
    assert "No such file" in sample.error


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


def test_the_caption_that_was_asked_for(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"image")
    rows = [{"file_name": "a.jpg", "caption": "alt", "recaption": ["synthetic", "another"]}]
    (tmp_path / "t.jsonl").write_text(json.dumps(rows[0]))
    for key, caption in ((None, "alt"), ("recaption", "synthetic"), ("Recaption", "synthetic")):
        (sample,) = read(tmp_path / "t.jsonl", caption_key=key)[0]
        assert sample.caption == caption
    (sample,) = read(tmp_path / "t.jsonl", caption_key="nothing")[0]
    assert sample.status is SkipReason.CAPTION_MISSING


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


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet"])
def test_what_holds_no_images_is_named(tmp_path, name, refused):
    if name.endswith("parquet"):
        pq.write_table(pa.table({"a": [1]}), tmp_path / name)
    else:
        (tmp_path / name).write_text("a,b\n1,2\n" if name == "t.csv" else '{"a": 1}\n')
    refused(resolve_sources, [str(tmp_path)], "images")


@pytest.mark.parametrize("layout", ["auto", "images"])
def test_pictures_of_a_phone_are_named(tmp_path, layout, refused):
    (tmp_path / "trip" / "one").mkdir(parents=True)
    (tmp_path / "trip" / "one" / "IMG_1.HEIC").write_bytes(b"x")
    (tmp_path / "trip" / "one" / "IMG_1.txt").write_text("a beach")
    refused(resolve_sources, [str(tmp_path / "trip")], layout)


@pytest.mark.parametrize("write", [write_files, write_tar])
def test_a_picture_of_a_phone_among_others_is_a_status(tmp_path, write):
    source = write([("a", b"image", "one"), ("b", b"image", "two")], tmp_path / "s")
    if write is write_files:
        (source / "c" / "b.jpg").rename(source / "c" / "b.HEIC")
    else:
        with tarfile.open(source / "c.tar") as tar, tarfile.open(source / "d.tar", "w") as copy:
            for member in tar:
                content = tar.extractfile(member)
                member.name = member.name.replace("b.jpg", "b.HEIF")
                copy.addfile(member, content)
        (source / "c.tar").unlink()
    samples, _ = read(source)
    assert statuses(samples) == ["ok", "image_corrupt"]
    assert samples[1].error == "HEIC, which is not read: convert it to JPEG or AVIF"


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


def test_a_list_without_a_text_hides_no_other_caption(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"image")
    rows = [{"file_name": "a.jpg", "key": n, "caption": empty, "text": "fine"}
            for n, empty in enumerate(([1, 2], ["", None], [], ""))]  # fmt: skip
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    samples, _ = read(tmp_path / "t.jsonl")
    assert [sample.caption for sample in samples] == ["fine"] * 4


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


def test_a_single_image_is_not_taken_for_a_tar(tmp_path, refused):
    folder = write_files(PAIRS, tmp_path)
    refused(resolve_sources, [str(folder / "c" / "00001.jpg")])


def test_an_image_root_that_is_not_there_is_refused(tmp_path, refused):
    """All images would be missing, one by one."""
    write_imagefolder(PAIRS, tmp_path)
    options = SourceOptions(image_root=str(tmp_path / "imgaes"))
    refused(resolve_pairs, [str(tmp_path)], options)


def test_metadata_whose_columns_are_unknown_is_not_passed_over_in_silence(tmp_path, refused):
    write_imagefolder(PAIRS, tmp_path, "csv")
    metadata = tmp_path / "c" / "metadata.csv"
    metadata.write_text(metadata.read_text().replace("file_name", "Dateiname"))
    refused(resolve_sources, [str(tmp_path)])
    (tmp_path / "c" / "00001.txt").write_text("captions lie beside the images, then")
    assert len(resolve_sources([str(tmp_path)])) == 1


def test_the_folder_at_hand_has_its_own_name(tmp_path, monkeypatch):
    write_files(PAIRS, tmp_path / "photos")
    monkeypatch.chdir(tmp_path / "photos" / "c")
    assert [shard.name for shard in resolve_sources(["."])] == ["c"]
    (tmp_path / "photos" / "one.jpg").write_bytes(b"of the folder above")
    assert [shard.name for shard in resolve_sources([".."])] == ["photos", "c"]


def test_of_two_pictures_in_a_folder_one_is_taken_and_the_other_counted(tmp_path):
    for name in ("001.png", "001.jpg", "001.depth.png", "002.jpg", "002.heic"):
        (tmp_path / name).write_bytes(name.encode())
    for key in ("001", "002"):
        (tmp_path / f"{key}.txt").write_bytes(b"\xef\xbb\xbfa cat")
    shard = resolve_sources([str(tmp_path)])[0]
    reader = read_samples(shard)
    samples = sorted(reader, key=lambda one: one.row)
    assert [(one.key, one.image, one.caption) for one in samples] == [
        ("001", b"001.jpg", "a cat"),
        ("001.depth", None, None),
        ("002", b"002.jpg", "a cat"),
    ]
    assert reader.further.images == {"png": 1, "heic": 1}
    for key, images in (("png", [b"001.png", None, None]), ("depth.png", [b"001.depth.png", None])):
        shard = resolve_sources([str(tmp_path)], options=SourceOptions(image_key=key))[0]
        assert [one.image for one in read_samples(shard)] == images


def parquet_of_pictures(folder, **columns):
    pq.write_table(pa.table({"caption": ["one", "two"], **columns}), folder / "a.parquet")
    return str(folder / "a.parquet")


def of_bytes(*values):
    return [{"bytes": value, "path": None} for value in values]


@pytest.mark.parametrize(
    ("columns", "image_key", "images", "further"),
    [
        ({"depth": of_bytes(b"d", b"e"), "photo": of_bytes(b"p", b"q")}, None,
         [b"d", b"e"], {"photo": 2}),
        ({"depth": of_bytes(b"d", b"e"), "photo": of_bytes(b"p", b"q")}, "Photo",
         [b"p", b"q"], {"depth": 2}),
        ({"jpg": [b"p", b"q"], "mask": [JPEG, b"no picture"]}, None, [b"p", b"q"], {"mask": 1}),
        ({"jpg": [b"p", b"q"], "mask": [b"m", b"n"]}, "mask", [b"m", b"n"], {"jpg": 0}),
        ({"images": [of_bytes(b"p", b"d"), of_bytes(b"q")]}, "images[0]",
         [b"p", b"q"], {"images": 1}),
        ({"images": [of_bytes(b"p", b"d"), of_bytes(b"q")]}, "images[1]",
         [b"d", None], {"images": 1}),
        ({"views": [{"left": x, "right": y} for x, y in ((b"l", b"r"), (b"m", b"s"))]},
         "views.Right", [b"r", b"s"], {}),
        ({"jpg": [b"p", b"q"], "file_name": ["a.jpg", "b.jpg"]}, None, [b"p", b"q"], {}),
    ],
)  # fmt: skip
def test_of_several_columns_of_pictures_one_is_taken_and_the_others_counted(
    tmp_path, columns, image_key, images, further
):
    source = parquet_of_pictures(tmp_path, **columns)
    [shard] = resolve_sources([source], options=SourceOptions(image_key=image_key))
    reader = read_samples(shard)
    samples = list(reader)
    assert [one.image for one in samples] == images
    assert [one.status for one in samples if one.image is None] == ["image_missing"] * (
        None in images
    )
    assert reader.further.images == {name: count for name, count in further.items() if count}


def test_of_two_columns_of_paths_the_other_is_counted_where_it_names_another_file(tmp_path):
    for name in ("a.jpg", "b.png"):
        (tmp_path / name).write_bytes(name.encode())
    rows = ["path,file,filename,caption", "b.png,a.jpg,folder/b.png,one"]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    for key, image, further in ((None, b"b.png", {"file": 1}), ("file", b"a.jpg", None)):
        options = SourceOptions(image_key=key)
        reader = read_samples(resolve_sources([str(tmp_path / "t.csv")], options=options)[0])
        assert [one.image for one in reader] == [image]
        assert reader.further.images == (further or {"path": 1, "filename": 1})


def test_an_image_key_is_refused_where_the_layout_names_the_pictures(tmp_path, refused):
    source = LAYOUTS["Karpathy"](PAIRS, tmp_path / "source")
    refused(resolve_sources, [str(source)], options=SourceOptions(image_key="png"))
    refused(
        resolve_sources,
        [parquet_of_pictures(tmp_path, jpg=[b"p", b"q"])],
        options=SourceOptions(image_key="photo"),
    )
