"""Images per second on a GPU: decoding alone, the model alone, and both together.

    python tests/benchmarks scale.gpu [--models ViT-B-32 ViT-B-16 ViT-L-14] [--json FILE]

Needs torch, torchvision, pyarrow and open_clip, no network, no Ray, no DuckDB. Weights are
random: speed does not depend on them. The arithmetic limit is the device's measured bf16 matrix
product rate over the towers' operations per pair. What each measure gains tells `scale.gpu_gains`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import open_clip
import torch
from records import make_record, write_record

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from ncclean.data.decode import DecodedImage, ImageDecoder, Preprocessing
from ncclean.data.device_decode import DeviceImageDecoder
from ncclean.models.estimator import Estimator
from ncclean.models.precision import LOW_PRECISION

_CAPTION = "a photo of a red bicycle that leans against a white wall"


Decoder = ImageDecoder | DeviceImageDecoder


def jpegs(count: int, size: tuple[int, int]) -> list[bytes]:
    """`count` JPEGs of smooth random content with some grain, at quality 90."""
    from torchvision.io import encode_jpeg

    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(count):
        coarse = torch.rand(1, 3, size[1] // 16, size[0] // 16, generator=generator)
        smooth = torch.nn.functional.interpolate(coarse, size=(size[1], size[0]), mode="bicubic")
        grain = 0.01 * torch.randn(1, 3, size[1], size[0], generator=generator)
        pixels = ((smooth + grain).clamp(0, 1) * 255).byte()[0]
        made.append(bytes(encode_jpeg(pixels, quality=90).numpy()))
    return made


def random_estimator(name: str, precision: str, device: str, compiled: bool) -> Estimator:
    model = open_clip.create_model(name, pretrained=None, require_pretrained=False)
    config = open_clip.get_model_preprocess_cfg(model)
    size = config["size"]
    side = size if isinstance(size, int) else size[0]
    preprocessing = Preprocessing((side, side), tuple(config["mean"]), tuple(config["std"]))
    tokenizer = open_clip.get_tokenizer(name)
    return Estimator(model, tokenizer, preprocessing, precision=precision, device=device,
                     compiled=compiled)  # fmt: skip


def decoded(
    images: list[bytes], count: int, decoder: Decoder, threads: int
) -> Iterator[torch.Tensor]:
    """`count` decoded images, ahead of the caller by a bounded number.

    By threads, where `score` has processes; by one where the device decodes.
    """
    is_device = isinstance(decoder, DeviceImageDecoder)
    threads, size = (1, 256) if is_device else (threads, 16)

    def chunk(start: int) -> list[torch.Tensor]:
        picked = range(start, min(start + size, count))
        data = [images[index % len(images)] for index in picked]
        if isinstance(decoder, DeviceImageDecoder):
            return list(decoder.decode(dict(enumerate(data)))[0].values())
        found = decoder.decode_many(data)
        return [image.pixels for image in found if isinstance(image, DecodedImage)]

    with ThreadPoolExecutor(threads, "decode", torch.set_num_threads, (1,)) as pool:
        ahead: deque[Future[list[torch.Tensor]]] = deque()
        for start in range(0, count, size):
            ahead.append(pool.submit(chunk, start))
            if len(ahead) > 8 * threads:
                yield from ahead.popleft().result()
        for future in ahead:
            yield from future.result()


def end_to_end(estimator: Estimator, images: Iterator[torch.Tensor], batch: int) -> None:
    """Encode images as they are decoded, two batches in flight, and a caption for each."""
    begun: deque[Callable[[], torch.Tensor]] = deque()
    held: list[torch.Tensor] = []
    captions = 0
    for pixels in images:
        held.append(pixels)
        if len(held) == batch:
            begun.append(estimator.start_image(torch.stack(held)))
            estimator.encode_text([f"{_CAPTION} {captions + i}" for i in range(batch)], batch)
            captions += batch
            held = []
            if len(begun) > 2:
                begun.popleft()()
    for result in begun:
        result()


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


def _rate(count: int, device: torch.device, work: Callable[[], None], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        wait(device)
        times.append(time.perf_counter() - begin)
    return count / min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=["ViT-B-32", "ViT-B-16", "ViT-L-14"])
    parser.add_argument("--device", default="cuda", help="cpu: to see that the script runs")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--batch-size", type=int, help="default: as `score` chooses it")
    parser.add_argument("--pairs", type=int, default=16_384)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--decode-on", choices=("cpu", "device"), default="cpu")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no GPU here: nothing was measured")
    images = jpegs(min(args.pairs, 512), (640, 480))
    results = []
    for name in args.models:
        estimator = random_estimator(name, args.precision, args.device, args.compile)
        device = estimator.device
        batch = min(estimator.fit_batch(args.batch_size), args.pairs)
        decoder: Decoder = ImageDecoder(estimator.preprocessing)
        if args.decode_on == "device":
            decoder = DeviceImageDecoder(estimator.preprocessing, device)
        count = args.pairs // batch * batch
        pixels = torch.stack(list(decoded(images, batch, decoder, args.threads)))

        def model_only(
            estimator: Estimator = estimator,
            pixels: torch.Tensor = pixels,
            batch: int = batch,
            rounds: int = count // batch,
        ) -> None:
            end_to_end(estimator, (image for _ in range(rounds) for image in pixels), batch)

        def decode_only(decoder: Decoder = decoder, count: int = count) -> None:
            for _ in decoded(images, count, decoder, args.threads):
                pass

        def both(
            estimator: Estimator = estimator,
            decoder: Decoder = decoder,
            count: int = count,
            batch: int = batch,
        ) -> None:
            end_to_end(estimator, decoded(images, count, decoder, args.threads), batch)

        model_only(rounds=1)  # warm up
        dtype = LOW_PRECISION.get(estimator.precision, torch.float32)
        with estimator.autocast():  # for tf32
            limit = matrix_rate(device, dtype) / operations(estimator)
        figures = {
            "model": name,
            "device": name_of(device),
            "precision": estimator.precision,
            "batch_size": batch,
            "decode_on": args.decode_on,
            "compiled": args.compile,
            "decode_only": _rate(count, device, decode_only),
            "model_only": _rate(count, device, model_only),
            "end_to_end": _rate(count, device, both),
            "arithmetic_limit": limit,
        }
        slower = min(figures["decode_only"], figures["model_only"])
        figures["end_to_end_over_slower"] = figures["end_to_end"] / slower
        results.append(figures)
        print({k: round(v, 2) if isinstance(v, float) else v for k, v in figures.items()})
    if args.json:
        settings = {"pairs": args.pairs, "threads": args.threads}
        write_record(args.json, make_record(results, settings=settings))


if __name__ == "__main__":
    main()
