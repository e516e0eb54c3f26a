"""Corpora to measure on: photographs with captions of usual length, and rendered scenes."""

from __future__ import annotations

import importlib.util
import io
import json
import random
import tarfile
from pathlib import Path

import numpy as np
from measure import Setting
from PIL import Image
from sklearn.datasets import load_sample_images

from ncclean.data.synthetic import CorpusOptions, sample_scene, write_caption, write_corpus
from ncclean.data.synthetic.scene import generator
from ncclean.data.tar_members import add_member

_WORDS = range(8, 26)
_NOISE = 2.0  # levels of sensor noise: an enlarged crop is smoother than a photograph


def demo_corpus(setting: Setting) -> list[Path]:
    """The rendered scenes that the demo model is measured on."""
    return rendered_shards(setting, setting.choose(full=8000, quick=2000), shard_size=1000)


def rendered_shards(setting: Setting, pairs: int, shard_size: int) -> list[Path]:
    """Shards of rendered scenes, written once per run."""
    folder = setting.scratch / f"rendered-{pairs}-{shard_size}"
    if not folder.exists():
        options = CorpusOptions(pairs=pairs, noise={"ncr": 0.2}, shard_size=shard_size)
        write_corpus(folder, options, workers=1)
    return sorted(folder.glob("*.tar"))


def photograph_corpus(setting: Setting) -> list[Path]:
    """Two shards of 640 x 480 photographs at quality 90, written once per run.

    Two are as few as the plain loop can share between its workers; batches end with a shard, and
    small ones would not be what large shards give.
    """
    return photograph_shards(setting, 2, setting.choose(full=256, quick=64))


def photograph_shards(
    setting: Setting, count: int, size: int, different: int | None = None
) -> list[Path]:
    """So many shards of 640 x 480 photographs at quality 90, written once per run.

    All are different, or so many of them; captions all are.
    """
    folder = setting.scratch / f"photographs-{count}-{size}-{different}"
    if not folder.exists():
        folder.mkdir()
        images = photographs(different or count * size, (640, 480), quality=90)
        captions = usual_captions(count * size)
        for shard in range(count):
            with tarfile.open(folder / f"{shard:05d}.tar", "w") as tar:
                for index in range(shard * size, (shard + 1) * size):
                    _add_pair(tar, f"{index:09d}", images[index % len(images)], captions[index])
    return sorted(folder.glob("*.tar"))


def photographs(count: int, size: tuple[int, int], quality: int) -> list[bytes]:
    """`count` different JPEGs of `size` (width, height): random crops of real photographs."""
    sources = _sources()
    rng = random.Random(0)
    noise = np.random.default_rng(0)
    images = []
    for index in range(count):
        source = sources[index % len(sources)]
        window = _window(source.size, size[0] / size[1], rng)
        crop = source.resize(size, Image.Resampling.LANCZOS, box=window)
        if window[2] - window[0] < size[0]:
            grain = noise.normal(0.0, _NOISE, (size[1], size[0], 1))
            crop = Image.fromarray((np.asarray(crop) + grain).clip(0, 255).astype(np.uint8))
        buffer = io.BytesIO()
        crop.save(buffer, "JPEG", quality=quality)
        images.append(buffer.getvalue())
    return images


def usual_captions(count: int) -> list[str]:
    """`count` captions of 8 to 25 words."""
    rng = generator("benchmark", 0)
    captions: list[str] = []
    while len(captions) < count:
        caption = write_caption(sample_scene(rng), rng).text
        if len(caption.split()) in _WORDS:
            captions.append(caption)
    return captions


def _sources() -> list[Image.Image]:
    """The photographs of scikit-learn, and matplotlib's portrait where it is installed."""
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


def _add_pair(tar: tarfile.TarFile, key: str, image: bytes, caption: str) -> None:
    record = {"url": f"https://example.org/photographs/{key}.jpg", "caption": caption}
    add_member(tar, f"{key}.jpg", image)
    add_member(tar, f"{key}.txt", caption.encode())
    add_member(tar, f"{key}.json", json.dumps(record).encode())
