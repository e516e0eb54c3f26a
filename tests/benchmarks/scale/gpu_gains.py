"""What each measure for GPUs gains: pairs per second without it and with it, in turns.

    python tests/benchmarks scale.gpu_gains [--models ViT-B-32 RN50 ViT-L-14] [--json FILE]

Needs what `scale.gpu` needs. A gain is the median of the ratios of `--rounds` rounds. Without a GPU
nothing is measured; `--device cpu` shows that the script runs, and nothing about a GPU.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator
from unittest import mock

import torch
from corpora import photographs
from records import Row, benchmark
from torch import nn

from ncclean.data import device_decode
from ncclean.data.device_decode import DeviceImageDecoder
from ncclean.models import devices as precision
from ncclean.models.devices import pin, unpin
from ncclean.models.estimator import Estimator
from ncclean.models.tokens import TokenCache
from scale.gpu import check_gpu, encode_images, name_of, random_estimator, seconds_of

Work = Callable[[], None]
_CAPTION = "a photo of a red bicycle that leans against a white wall"


class Gains:
    """The measures, each as two ways to encode or decode `pairs` pairs with one model."""

    def __init__(self, model: str, chosen: str, device: str, batch_size: int, pairs: int) -> None:
        self._model, self._precision, self._device = model, chosen, device
        self._plain = self._estimator()
        self._fitted = self._plain.fit_batch(None)
        whole = math.lcm(batch_size, self._fitted)
        self.pairs = -(-pairs // whole) * whole
        size = batch_size, 3, *self._plain.image_size
        self._batch = torch.randint(0, 256, size, dtype=torch.uint8)
        self._captions = [f"{_CAPTION} {number}" for number in range(self.pairs)]

    def measures(self) -> Iterator[tuple[str, Work, Work]]:
        """A name, the work without the measure, and with it."""
        plain, is_gpu = self._plain, self._plain.device.type == "cuda"
        dtype = precision.LOW_PRECISION.get(plain.precision, torch.float32)
        rows = precision._cast_matrices(plain.model, dtype, is_channels_last=False)
        last = precision._cast_matrices(plain.model, dtype, is_channels_last=True)
        yield "weights cast once", self._tower(plain.model), self._tower(rows)
        yield "channels last", self._tower(rows), self._tower(last, torch.channels_last)
        if is_gpu:
            full, tf32 = self._estimator("fp32"), self._estimator("tf32")
            yield "tf32", self._images(full), self._images(tf32)
        several = self._batch.repeat(-(-self._fitted // len(self._batch)), 1, 1, 1)
        several = several[: self._fitted]
        yield f"batches of {self._fitted}", self._images(plain), self._images(plain, several)
        pinned = self._batch.clone()
        if pin(pinned):
            yield "batches in pinned memory", self._images(plain), self._images(plain, pinned)
            unpin(pinned)
        yield "token ids uploaded once", self._texts(plain, uploads=False), self._texts(plain)
        yield "attention without cuDNN", self._attention(True), self._attention(False)
        yield "128 JPEGs a call", self._decoding(16), self._decoding(128)
        compiled = self._estimator(compiled=True)
        compiled.fit_batch(len(self._batch))
        yield "compiled text tower", self._texts(plain), self._texts(compiled)
        yield "compiled image tower", self._images(plain), self._images(compiled)

    def _estimator(self, chosen: str | None = None, compiled: bool = False) -> Estimator:
        return random_estimator(self._model, chosen or self._precision, self._device, compiled)

    def _tower(self, model: nn.Module, layout: torch.memory_format | None = None) -> Work:
        """The image tower alone, on a batch that is on the device."""
        values = self._plain.normalized(self._batch)
        if layout is not None:
            values = values.contiguous(memory_format=layout)

        @torch.no_grad()
        def encode() -> None:
            for _ in range(self.pairs // len(values)):
                with self._plain.autocast():
                    model.encode_image(values)  # type: ignore[operator]

        return encode

    def _images(self, estimator: Estimator, batch: torch.Tensor | None = None) -> Work:
        """Batches from memory."""
        pixels = self._batch if batch is None else batch
        return lambda: encode_images(estimator, [pixels] * (self.pairs // len(pixels)))

    def _texts(self, estimator: Estimator, uploads: bool = True) -> Work:
        tokens = TokenCache(estimator.tokenize).of(self._captions)

        def encode() -> None:
            estimator.encode_tokenized(tokens, len(self._batch))

        def batch_by_batch() -> None:
            with mock.patch.object(Estimator, "_on_device", lambda _, rows: rows):
                encode()

        return encode if uploads else batch_by_batch

    def _attention(self, with_cudnn: bool) -> Work:
        """Texts of ever other numbers, as shards have them."""
        counts = itertools.count(64)
        tokens = self._plain.tokenize(self._captions[:1])[:, :16]

        def encode() -> None:
            torch.backends.cuda.enable_cudnn_sdp(with_cudnn)
            for count in itertools.islice(counts, 4):
                self._plain.encode_tokens(tokens.expand(count, -1))
            torch.backends.cuda.enable_cudnn_sdp(False)

        return encode

    def _decoding(self, most: int) -> Work:
        decoder = DeviceImageDecoder(self._plain.preprocessing, self._plain.device)
        images = dict(enumerate(photographs(64, (640, 480), 90) * 8))

        def decode() -> None:
            with mock.patch.object(device_decode, "_IMAGES_AT_ONCE", most):
                for _ in range(self.pairs // len(images)):
                    decoder.decode(images)

        return decode


def compared(without: Work, with_it: Work, device: torch.device, rounds: int) -> list[float]:
    """Seconds of both, and the median ratio, of works in turns after a warm-up."""
    times = [[seconds_of(work, device) for work in (without, with_it)] for _ in range(rounds + 1)][
        1:
    ]
    plain, other = (min(column) for column in zip(*times, strict=True))
    return [plain, other, statistics.median(before / after for before, after in times)]


def gains(
    models: tuple[str, ...] = ("ViT-B-32", "RN50", "ViT-L-14"), device: str = "cuda",
    precision: str = "auto", batch_size: int = 256, pairs: int = 16_384, rounds: int = 5,
) -> Iterator[Row]:  # fmt: skip
    """A row for each model and measure."""
    check_gpu(device)
    where = torch.device(device)
    for model in models:
        measured = Gains(model, precision, device, batch_size, pairs)
        for name, without, with_it in measured.measures():
            plain, other, gain = compared(without, with_it, where, rounds)
            yield {
                "model": model, "measure": name, "gain": gain,
                "without": measured.pairs / plain, "with": measured.pairs / other,
            }  # fmt: skip
    return {"settings": {
        "batch_size": batch_size, "pairs": pairs, "rounds": rounds, "device": name_of(where)
    }}  # fmt: skip


if __name__ == "__main__":
    benchmark(gains)
