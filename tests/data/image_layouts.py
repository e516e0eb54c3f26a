"""The same pairs in every layout of images that is read, and how to read them."""

import csv
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
