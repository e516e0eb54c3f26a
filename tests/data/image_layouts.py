"""The same pairs in every layout of images that is read, and how to read them."""

import base64
import csv
import gzip
import io
import json
import tarfile

import lance
import pyarrow as pa
import pyarrow.parquet as pq

from ncclean.data.options import SourceOptions
from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_sources
from ncclean.errors import ShardError


def write_tar(pairs, folder):
    folder.mkdir(parents=True)
    with tarfile.open(folder / "c.tar", "w") as tar:
        for key, image, caption in pairs:
            for extension, data in (("jpg", image), ("txt", caption.encode())):
                member = tarfile.TarInfo(f"{key}.{extension}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return folder


def write_files(pairs, folder):
    """img2dataset's files output: images with their captions beside them, in numbered folders."""
    inner = folder / "c"
    inner.mkdir(parents=True)
    for key, image, caption in pairs:
        (inner / f"{key}.jpg").write_bytes(image)
        (inner / f"{key}.txt").write_text(caption)
        (inner / f"{key}.json").write_text(json.dumps({"url": f"https://example.org/{key}"}))
    (folder / "c_stats.json").write_text("{}")
    return folder


def write_hugging_face(pairs, folder):
    folder.mkdir(parents=True)
    table = pa.table(
        {
            "image": [{"bytes": image, "path": f"{key}.jpg"} for key, image, _ in pairs],
            "text": [caption for *_, caption in pairs],
        }
    )
    pq.write_table(table, folder / "c.parquet", row_group_size=16)
    return folder


def write_lance(pairs, folder):
    columns = dict(zip(("key", "image", "caption"), zip(*pairs, strict=True), strict=True))
    table = pa.table({name: list(values) for name, values in columns.items()})
    lance.write_dataset(table, folder / "c.lance", max_rows_per_file=16)
    return folder / "c.lance"


def write_img2dataset(pairs, folder):
    folder.mkdir(parents=True)
    columns = dict(zip(("key", "jpg", "caption"), zip(*pairs, strict=True), strict=True))
    pq.write_table(pa.table({name: list(values) for name, values in columns.items()}),
                   folder / "c.parquet")  # fmt: skip
    return folder


def write_recaptioned(pairs, folder):
    """Parquet with an alternative text and a synthetic caption of each image."""
    folder.mkdir(parents=True)
    table = pa.table(
        {
            "key": [key for key, *_ in pairs],
            "jpg": [image for _, image, _ in pairs],
            "caption": [caption for *_, caption in pairs],
            "recaption": [f"a picture of {caption}" for *_, caption in pairs],
        }
    )
    pq.write_table(table, folder / "c.parquet", row_group_size=64)
    return folder


def write_imagefolder(pairs, folder, ending="jsonl"):
    place = folder / "c"
    place.mkdir(parents=True)
    rows = [{"file_name": f"{key}.jpg", "text": caption} for key, _, caption in pairs]
    for key, image, _ in pairs:
        (place / f"{key}.jpg").write_bytes(image)
    metadata = place / f"metadata.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), metadata)
    elif ending == "csv":
        write_csv(metadata, rows)
    else:
        metadata.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def write_open_clip(pairs, folder):
    """The file that open_clip trains from: paths and titles, separated by tabs."""
    (folder / "images").mkdir(parents=True)
    for key, image, _ in pairs:
        (folder / "images" / f"{key}.jpg").write_bytes(image)
    rows = [{"filepath": f"images/{key}.jpg", "title": caption} for key, _, caption in pairs]
    write_csv(folder / "c.csv", rows, delimiter="\t")
    return folder / "c.csv"


def write_karpathy(pairs, folder):
    """COCO's and Flickr's captions with Karpathy's splits."""
    (folder / "images").mkdir(parents=True)
    images = []
    for number, (key, image, caption) in enumerate(pairs):
        (folder / "images" / f"{key}.jpg").write_bytes(image)
        images.append(
            {
                "filepath": "images",
                "filename": f"{key}.jpg",
                "imgid": number,
                "split": ("train", "val", "restval", "test")[number % 4],
                "sentids": [number],
                "sentences": [{"tokens": caption.split(), "raw": caption, "imgid": number}],
            }
        )
    (folder / "c.json").write_text(json.dumps({"images": images, "dataset": "c"}))
    return folder / "c.json"


def write_pictures(pairs, folder):
    folder.mkdir(parents=True)
    for key, image, _ in pairs:
        (folder / f"{key}.jpg").write_bytes(image)


def write_coco(pairs, folder):
    """COCO's own captions, in the folders that its archives unpack to."""
    write_pictures(pairs, folder / "train2017")
    (folder / "annotations").mkdir()
    images = [
        {"id": n, "file_name": f"{key}.jpg", "height": 1} for n, (key, *_) in enumerate(pairs)
    ]
    captions = [
        {"image_id": number, "id": 1000 + number, "caption": caption}
        for number, (*_, caption) in reversed(list(enumerate(pairs)))
    ]
    whole = {"info": {"year": 2017}, "licenses": [{"id": 1}], "images": images}
    place = folder / "annotations" / "captions_train2017.json"
    place.write_text(json.dumps({**whole, "annotations": captions}))
    return folder


def write_llava(pairs, folder):
    write_pictures(pairs, folder / "images")
    entries = [
        {"id": key, "image": f"images/{key}.jpg", "caption": caption} for key, _, caption in pairs
    ]
    (folder / "chat.json").write_text(json.dumps(entries))
    return folder / "chat.json"


def write_redcaps(pairs, folder):
    write_pictures(pairs, folder / "images" / "birds")
    (folder / "annotations").mkdir()
    entries = [
        {"image_id": key, "subreddit": "birds", "raw_caption": caption.upper(), "caption": caption}
        for key, _, caption in pairs
    ]
    place = folder / "annotations" / "birds_2017.json"
    place.write_text(json.dumps({"info": {"year": 2021}, "annotations": entries}))
    return place


def write_arrow(pairs, folder):
    """What `save_to_disk` of Hugging Face's datasets writes of one with two splits."""
    for split, some in (("train", pairs[: len(pairs) // 2]), ("test", pairs[len(pairs) // 2 :])):
        place = folder / split
        place.mkdir(parents=True)
        images = [{"bytes": image, "path": f"{key}.jpg"} for key, image, _ in some]
        table = pa.table({"image": images, "text": [caption for *_, caption in some]})
        with pa.ipc.new_stream(place / "data-00000-of-00001.arrow", table.schema) as stream:
            stream.write_table(table, max_chunksize=7)
        (place / "state.json").write_text(
            '{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}'
        )
        (place / "dataset_info.json").write_text("{}")
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    return folder


def write_packed_lines(pairs, folder):
    write_pictures(pairs, folder)
    lines = [json.dumps({"image": f"{key}.jpg", "caption": text}) + "\n" for key, _, text in pairs]
    (folder / "t.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode()))
    return folder


def write_kaggle(pairs, folder):
    """Kaggle's Flickr8k: a csv called captions.txt beside the folder of images."""
    write_pictures(pairs, folder / "Images")
    rows = [{"image": f"{key}.jpg", "caption": caption} for key, _, caption in pairs]
    write_csv(folder / "captions.txt", rows)
    return folder


def write_texts_of_files(pairs, folder):
    """Captions named after the whole name of their image."""
    write_pictures(pairs, folder)
    for key, _, caption in pairs:
        (folder / f"{key}.jpg.txt").write_text(caption)
    return folder


def write_several_images(pairs, folder):
    """An imagefolder with two images in a row."""
    write_pictures(pairs, folder)
    rows = [
        {"image_file_name": f"{key}.jpg", "target_file_name": f"{pairs[0][0]}.jpg", "text": caption}
        for key, _, caption in pairs
    ]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def write_base64(pairs, folder):
    folder.mkdir(parents=True)
    rows = [
        {"image": base64.b64encode(image).decode(), "caption": caption}
        for _, image, caption in pairs
    ]
    write_csv(folder / "t.tsv", rows, delimiter="\t")
    return folder


def write_byte_lists(pairs, folder):
    """Pictures as lists of bytes in a struct."""
    folder.mkdir(parents=True)
    kind = pa.struct({"bytes": pa.list_(pa.uint8()), "path": pa.string()})
    images = [{"bytes": list(image), "path": f"{key}.jpg"} for key, image, _ in pairs]
    table = pa.table({"image": pa.array(images, kind), "text": [text for *_, text in pairs]})
    pq.write_table(table, folder / "c.parquet", row_group_size=16)
    return folder


def write_hive(pairs, folder):
    """Parquet in folders that name a value."""
    for lang, some in (("en", pairs[: len(pairs) // 2]), ("de", pairs[len(pairs) // 2 :])):
        place = folder / f"lang={lang}"
        place.mkdir(parents=True)
        columns = {"image": [one[1] for one in some], "caption": [one[2] for one in some]}
        pq.write_table(pa.table(columns), place / "part-0.parquet")
    return folder


def write_csv(path, rows, **options):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), **options)
        writer.writeheader()
        writer.writerows(rows)


LAYOUTS = {
    "tar": write_tar,
    "files": write_files,
    "Hugging Face": write_hugging_face,
    "Lance": write_lance,
    "img2dataset": write_img2dataset,
    "imagefolder": write_imagefolder,
    "open_clip": write_open_clip,
    "Karpathy": write_karpathy,
}

# Layouts of data sets that people bring as they are.
PEOPLES = {
    "COCO": write_coco,
    "LLaVA": write_llava,
    "RedCaps": write_redcaps,
    "Arrow": write_arrow,
    "jsonl.gz": write_packed_lines,
    "Kaggle": write_kaggle,
    "a.jpg.txt": write_texts_of_files,
    "_file_name": write_several_images,
    "base64": write_base64,
    "lists of bytes": write_byte_lists,
    "hive": write_hive,
}


def read(*sources, caption_key=None, **options):
    """Samples of all units, and the errors of the units; `options` are `SourceOptions`."""
    samples, errors = [], []
    named = [str(source) for source in sources]
    for shard in resolve_sources(named, options=SourceOptions(**options)):
        reader = read_samples(shard, caption_key)
        try:
            for sample in reader:
                samples.append(sample)
        except ShardError as error:
            errors.append(str(error))
    return samples, errors


def statuses(samples):
    return [sample.status.value for sample in samples]
