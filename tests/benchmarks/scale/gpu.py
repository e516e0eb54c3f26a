"""Pairs per second on a GPU: decoders alone, the model alone, and `score` with both.

    python tests/benchmarks scale.gpu [--models ViT-B-32 ViT-L-14] [--json FILE]

Needs torch, torchvision, pyarrow, open_clip and scikit-learn, no network and no Ray. Photographs of
640 x 480 in shards on this disk; weights are random: speed does not depend on them. Decoders alone
are `score` with towers that cost nothing, and model alone is batches from pinned memory with
captions. The arithmetic limit is the device's measured matrix products over the towers' operations
per pair. What each measure gains tells `scale.gpu_gains`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import open_clip
import torch
from measure import Setting
from records import make_record, write_record

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from speed.corpora import photograph_shards
from speed.feed import free_estimator, score

from ncclean.base.config import ScoreOptions
from ncclean.data.decode import Preprocessing
from ncclean.data.shards import resolve_shards
from ncclean.models.devices import LOW_PRECISION, pin, unpin
from ncclean.models.estimator import Estimator
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
    times = []
    for _ in range(3):
        wait(estimator.device)
        begin = time.perf_counter()
        work(max(1, pairs // batch))
        wait(estimator.device)
        times.append(time.perf_counter() - begin)
    if is_pinned:
        unpin(pixels)
    return max(1, pairs // batch) * batch / min(times)


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of a large matrix product."""
    side = 8192 if device.type == "cuda" else 1024
    a = torch.randn(side, side, device=device, dtype=dtype)
    times = []
    for _ in range(8):
        begin = time.perf_counter()
        a @ a
        wait(device)
        times.append(time.perf_counter() - begin)
    return 2 * side**3 / min(times)


def operations(estimator: Estimator) -> float:
    """Multiply-adds times two of one image and one caption, as torch counts them."""
    from torch.utils.flop_counter import FlopCounterMode

    height, width = estimator.image_size
    device = estimator.device
    tokens = estimator.tokenize([_CAPTION])
    if estimator.trims_text:
        tokens = tokens[:, :16]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        estimator.model.encode_image(torch.zeros(1, 3, height, width, device=device))
        from ncclean.models.text_tower import encode_text

        encode_text(estimator.model, tokens.to(device))
    return float(counter.get_total_flops())


def name_of(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=["ViT-B-32", "ViT-L-14"])
    parser.add_argument("--device", default="cuda", help="cpu: to see that the script runs")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--batch-size", type=int, help="default: as `score` chooses it")
    parser.add_argument("--pairs", type=int, default=16_384)
    parser.add_argument("--photographs", type=int, default=256, help="different ones")
    parser.add_argument("--decoders", nargs="+", type=int, default=[os.cpu_count() or 1])
    parser.add_argument("--decode-on", nargs="+", choices=("cpu", "device"), default=["cpu"])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no GPU here: nothing was measured")
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        setting = Setting(quick=False, demo_model="demo", scratch=Path(scratch))
        paths = photograph_shards(setting, _SHARDS, args.pairs // _SHARDS, args.photographs)
        shards = resolve_shards(list(map(str, paths)))
        free = {}
        for decoders in args.decoders:
            options = ScoreOptions(decode_threads=decoders)
            score(free_estimator(), shards[:1], options)  # modules are imported once
            speed, cost = score(free_estimator(), shards, options)
            free[decoders] = speed
            print(f"{decoders} decoders: {speed:,.0f} pairs/s, {1e3 * cost:.3f} ms", flush=True)
        for name in args.models:
            estimator = random_estimator(name, args.precision, args.device, args.compile)
            dtype = LOW_PRECISION.get(estimator.precision, torch.float32)
            with estimator.autocast():  # for tf32
                limit = matrix_rate(estimator.device, dtype) / operations(estimator)
            batch = estimator.fit_batch(args.batch_size)
            alone = model_alone(estimator, batch, args.pairs)
            print(
                f"{name}: {alone:,.0f} pairs/s alone in {batch}, {limit:,.0f} at most", flush=True
            )
            for decode_on in args.decode_on:
                for decoders in args.decoders:
                    options = ScoreOptions(
                        decode_threads=decoders, decode_on=decode_on, batch_size=batch
                    )
                    score(estimator, shards[:1], options)
                    speed, cost = score(estimator, shards, options)
                    rows.append({
                        "model": name, "device": name_of(estimator.device),
                        "precision": estimator.precision, "batch_size": batch,
                        "compiled": args.compile, "decode_on": decode_on, "decoders": decoders,
                        "decoders_alone": free[decoders], "model_alone": alone,
                        "score": speed, "ms_of_main_process": 1e3 * cost, "arithmetic_limit": limit,
                    })  # fmt: skip
                    print({k: round(v, 3) if isinstance(v, float) else v
                           for k, v in rows[-1].items()}, flush=True)  # fmt: skip
                    if args.json:
                        settings = {"pairs": args.pairs, "shards": _SHARDS}
                        write_record(args.json, make_record(rows, settings=settings))


if __name__ == "__main__":
    main()
