"""Corpora that several families measure on: shards, embeddings, photographs and their labels."""

from __future__ import annotations

import functools
import importlib.util
import io
import json
import random
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from ncclean.data.decode import ImageDecoder
from ncclean.data.options import CorpusOptions
from ncclean.data.reader import read_samples
from ncclean.data.samples import Sample
from ncclean.data.shards import resolve_shards
from ncclean.data.synthetic import sample_scene, write_caption, write_corpus
from ncclean.data.synthetic.scene import generator
from ncclean.data.tar_ranges import add_member
from ncclean.models.estimator import Estimator

_WORDS = range(8, 26)
_GRAIN = 2.0  # levels of sensor noise: an enlarged crop is smoother than a photograph
_SIDES = (("img_emb", "npy"), ("text_emb", "npy"), ("metadata", "parquet"))


def once(out: Path, make: Callable[[Path], object]) -> Path:
    """Make a folder that is not there yet; it appears when it is whole."""
    if not out.exists():
        aside = out.with_name(f"{out.name}.tmp")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        make(aside)
        aside.rename(out)
    return out


def rendered(out: Path, **options: Any) -> Path:
    """A folder of rendered shards, without near-duplicates unless `options` ask for them."""
    corpus = CorpusOptions(**{"duplicates": 0.0, **options})
    # One process: others would import torch anew, which takes longer than to render.
    return once(out, lambda folder: write_corpus(folder, corpus, workers=1))


def write_shard(path: Path, samples: Iterable[tuple[str, Mapping[str, bytes]]]) -> None:
    """Write samples, each a key and its members by extension, as one tar."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for key, members in samples:
            for extension, content in members.items():
                add_member(tar, f"{key}.{extension}", content)


def members_of(*shards: Path, strict: bool = False) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Key and members of each sample of tars.

    One that cannot be read on ends without an error, unless `strict`.
    """
    import webdataset  # here: a machine with a GPU may lack it

    handler = webdataset.reraise_exception if strict else webdataset.ignore_and_stop
    for shard in shards:
        for sample in webdataset.WebDataset([str(shard)], shardshuffle=False, handler=handler):
            yield sample["__key__"], {name: sample[name] for name in sample if name[:2] != "__"}


def samples_of(*sources: Path) -> Iterator[Sample]:
    """All samples of shards, in order."""
    for shard in resolve_shards([str(source) for source in sources]):
        yield from read_samples(shard)


def encoded_images(estimator: Estimator, images: Iterable[bytes]) -> torch.Tensor:
    """(N, d) embeddings of images in their files' bytes."""
    decode = ImageDecoder(estimator.preprocessing)
    pixels = torch.stack([decode(data).pixels for data in images])
    return torch.cat([estimator.encode_image(part) for part in pixels.split(250)])


def write_embeddings(
    folder: Path, image: np.ndarray, text: np.ndarray, columns: Mapping[str, Any], number: int = 0
) -> Path:
    """Write (N, d) vectors and the table beside them in clip-retrieval's layout, as float16."""
    table = columns if isinstance(columns, pa.Table) else pa.table(dict(columns))
    for name, _ in _SIDES:
        (folder / name).mkdir(parents=True, exist_ok=True)
    np.save(folder / "img_emb" / f"img_emb_{number:03d}.npy", image.astype(np.float16))
    np.save(folder / "text_emb" / f"text_emb_{number:03d}.npy", text.astype(np.float16))
    pq.write_table(table, folder / "metadata" / f"metadata_{number:03d}.parquet")
    return folder


def link_embeddings(folder: Path, files: int) -> None:
    """Give the first file of each kind further names, up to so many."""
    for number in range(1, files):
        for kind, ending in _SIDES:
            first = folder / kind / f"{kind}_000.{ending}"
            first.with_name(f"{kind}_{number:03d}.{ending}").hardlink_to(first)


def read_embeddings(folder: Path) -> tuple[np.ndarray, np.ndarray, pa.Table]:
    """(N, d) float32 vectors of images and captions, and the table beside them, in one order."""
    tables = sorted((folder / "metadata").glob("*.parquet"))
    image, text = (
        np.concatenate(
            [np.load(folder / side / f"{side}{table.stem[8:]}.npy") for table in tables]
        ).astype(np.float32)
        for side in ("img_emb", "text_emb")
    )
    return image, text, pa.concat_tables([pq.read_table(table) for table in tables])


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length 1 along the last axis."""
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


def jpeg(image: Image.Image, quality: int) -> bytes:
    """An image as the bytes of a JPEG."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def photograph_shards(folder: Path, shards: int, size: int, different: int | None = None) -> Path:
    """A folder of shards of 640 x 480 photographs at quality 90.

    All photographs are different, or so many of them; all captions are.
    """

    def make(out: Path) -> None:
        images = photographs(different or shards * size, (640, 480), quality=90)
        captions = usual_captions(shards * size)
        for shard in range(shards):
            numbers = range(shard * size, (shard + 1) * size)
            write_shard(
                out / f"{shard:05d}.tar",
                (_pair(f"{n:09d}", images[n % len(images)], captions[n]) for n in numbers),
            )

    return once(folder / f"photographs-{shards}-{size}-{different}", make)


def _pair(key: str, image: bytes, caption: str) -> tuple[str, dict[str, bytes]]:
    facts = {"url": f"https://example.org/photographs/{key}.jpg", "caption": caption}
    members = {"jpg": image, "txt": caption.encode(), "json": json.dumps(facts).encode()}
    return key, members


def photographs(count: int, size: tuple[int, int], quality: int) -> list[bytes]:
    """Different JPEGs of `size` (width, height): random crops of real photographs."""
    sources = _sources()
    rng = random.Random(0)
    noise = np.random.default_rng(0)
    images = []
    for index in range(count):
        source = sources[index % len(sources)]
        window = _window(source.size, size[0] / size[1], rng)
        crop = source.resize(size, Image.Resampling.LANCZOS, box=window)
        if window[2] - window[0] < size[0]:
            crop = grained(crop, noise)
        images.append(jpeg(crop, quality))
    return images


def grained(image: Image.Image, noise: np.random.Generator) -> Image.Image:
    """The image with a little noise, the same in all channels."""
    grain = noise.normal(0.0, _GRAIN, (image.height, image.width, 1))
    return Image.fromarray((np.asarray(image) + grain).clip(0, 255).astype(np.uint8))


def usual_captions(count: int) -> list[str]:
    """Captions of 8 to 25 words."""
    rng = generator("benchmark", 0)
    captions: list[str] = []
    while len(captions) < count:
        caption = write_caption(sample_scene(rng), rng).text
        if len(caption.split()) in _WORDS:
            captions.append(caption)
    return captions


@functools.cache
def _sources() -> list[Image.Image]:
    """The photographs of scikit-learn, and matplotlib's portrait where it is installed."""
    from sklearn.datasets import load_sample_images

    images = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    if importlib.util.find_spec("matplotlib") is not None:
        from matplotlib import get_data_path

        portrait = Path(get_data_path()) / "sample_data" / "grace_hopper.jpg"
        images.append(Image.open(portrait).convert("RGB"))
    return images


def _window(
    size: tuple[int, int], aspect: float, rng: random.Random
) -> tuple[float, float, float, float]:
    """A random box of the given aspect ratio with 70 to 100 % of the largest one's side."""
    width = min(size[0], size[1] * aspect) * rng.uniform(0.7, 1.0)
    height = width / aspect
    left, top = rng.uniform(0, size[0] - width), rng.uniform(0, size[1] - height)
    return left, top, left + width, top + height


def image_reader(folder: Path) -> Callable[[str], bytes]:
    """The bytes of an image by its name, from `images.zip` of a folder or from the folder."""
    archive = folder / "images.zip"
    if archive.exists():
        return zipfile.ZipFile(archive).read
    return lambda name: (folder / name).read_bytes()
