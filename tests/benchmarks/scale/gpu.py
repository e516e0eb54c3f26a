"""Pairs per second on a GPU: decoders alone, the model alone, and `score` with both.

    python tests/benchmarks scale.gpu [--models ViT-B-32 ViT-L-14] [--json FILE]

Needs torch, torchvision, pyarrow, open_clip and scikit-learn, no network and no Ray. Photographs of
640 x 480 in shards on this disk; weights are random: speed does not depend on them. Decoders alone
are `score` with towers that cost nothing, and model alone is batches from pinned memory with
captions. The arithmetic limit is the device's measured matrix products over the towers' operations
per pair. What each measure gains tells `scale.gpu_gains`.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import open_clip
import torch
from corpora import photograph_shards
from records import Row, benchmark
from speed.feed import free_estimator, score
from torch.utils.flop_counter import FlopCounterMode

from ncclean.base.config import ScoreOptions
from ncclean.data.decode import Preprocessing
from ncclean.data.shards import resolve_shards
from ncclean.models.devices import LOW_PRECISION, pin, unpin
from ncclean.models.estimator import Estimator
from ncclean.models.text_tower import encode_text
from ncclean.models.tokens import TokenCache

_CAPTION = "a photo of a red bicycle that leans against a white wall"
_SHARDS = 8


def random_estimator(name: str, precision: str, device: str, compiled: bool) -> Estimator:
    model = open_clip.create_model(name, pretrained=None, require_pretrained=False)
    config = open_clip.get_model_preprocess_cfg(model)
    size = config["size"]
    side = size if isinstance(size, int) else size[0]
    preprocessing = Preprocessing((side, side), tuple(config["mean"]), tuple(config["std"]))
    tokenizer = open_clip.get_tokenizer(name)
    return Estimator(model, tokenizer, preprocessing, precision=precision, device=device,
                     compiled=compiled)  # fmt: skip


def encode_images(estimator: Estimator, batches: Sequence[torch.Tensor]) -> None:
    """Batches of images from memory, three in flight."""
    begun: deque[Callable[[], torch.Tensor]] = deque()
    for pixels in batches:
        begun.append(estimator.start_image(pixels))
        if len(begun) > 2:
            begun.popleft()()
    for result in begun:
        result()


def model_alone(estimator: Estimator, batch: int, pairs: int) -> float:
    """Pairs per second of both towers."""
    pixels = torch.randint(0, 256, (batch, 3, *estimator.image_size), dtype=torch.uint8)
    is_pinned = pin(pixels)
    captions = [f"{_CAPTION} {number}" for number in range(batch)]
    tokens = TokenCache(estimator.tokenize).of(captions)  # which readers have made

    def work(count: int) -> None:
        encode_images(estimator, [pixels] * count)
        for _ in range(count):
            estimator.encode_tokenized(tokens, batch)

    work(1)
    count = max(1, pairs // batch)
    seconds = min(seconds_of(lambda: work(count), estimator.device) for _ in range(3))
    if is_pinned:
        unpin(pixels)
    return count * batch / seconds


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of a large matrix product."""
    side = 8192 if device.type == "cuda" else 1024
    a = torch.randn(side, side, device=device, dtype=dtype)
    return 2 * side**3 / min(seconds_of(lambda: a @ a, device) for _ in range(8))


def operations(estimator: Estimator) -> float:
    """Multiply-adds times two of one image and one caption, as torch counts them."""
    height, width = estimator.image_size
    device = estimator.device
    tokens = estimator.tokenize([_CAPTION])
    if estimator.trims_text:
        tokens = tokens[:, :16]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        estimator.model.encode_image(torch.zeros(1, 3, height, width, device=device))
        encode_text(estimator.model, tokens.to(device))
    return float(counter.get_total_flops())


def name_of(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def check_gpu(device: str) -> None:
    """End where a GPU is asked for and there is none."""
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no GPU here: nothing was measured")


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Seconds until the device has done some work."""
    is_gpu = device.type == "cuda"
    if is_gpu:
        torch.cuda.synchronize(device)
    begin = time.perf_counter()
    work()
    if is_gpu:
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def speeds(
    models: tuple[str, ...] = ("ViT-B-32", "ViT-L-14"), device: str = "cuda",
    precision: str = "auto", batch_size: int | None = None, pairs: int = 16_384,
    photographs: int = 256, decoders: tuple[int, ...] = (os.cpu_count() or 1,),
    decode_on: tuple[str, ...] = ("cpu",), compile: bool = False,
) -> Iterator[Row]:  # fmt: skip
    """A row for each model and way to decode; `photographs` are different ones.

    `--device cpu` shows that the script runs.
    """
    check_gpu(device)
    with tempfile.TemporaryDirectory() as scratch:
        folder = photograph_shards(Path(scratch), _SHARDS, pairs // _SHARDS, photographs)
        shards = resolve_shards([str(folder)])
        free = {}
        for count in decoders:
            options = ScoreOptions(decode_threads=count)
            score(free_estimator(), shards[:1], options)  # modules are imported once
            free[count], _ = score(free_estimator(), shards, options)
        for name in models:
            estimator = random_estimator(name, precision, device, compile)
            dtype = LOW_PRECISION.get(estimator.precision, torch.float32)
            with estimator.autocast():  # for tf32
                limit = matrix_rate(estimator.device, dtype) / operations(estimator)
            batch = estimator.fit_batch(batch_size)
            alone = model_alone(estimator, batch, pairs)
            for where, count in itertools.product(decode_on, decoders):
                options = ScoreOptions(decode_threads=count, decode_on=where, batch_size=batch)
                score(estimator, shards[:1], options)
                speed, cost = score(estimator, shards, options)
                yield {
                    "model": name, "device": name_of(estimator.device),
                    "precision": estimator.precision, "batch_size": batch, "compiled": compile,
                    "decode_on": where, "decoders": count, "decoders_alone": free[count],
                    "model_alone": alone, "score": speed, "ms_of_main_process": 1e3 * cost,
                    "arithmetic_limit": limit,
                }  # fmt: skip


if __name__ == "__main__":
    benchmark(speeds, shards=_SHARDS)
