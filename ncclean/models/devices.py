"""Choose the device and precision for a model, and run towers over cores or feed them on a GPU."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

import torch
from torch import nn

from ncclean.errors import InputError, ModelError
from ncclean.models.open_clip_internals import keep_fp32_between_layers

logger = logging.getLogger(__name__)

PRECISIONS = ("auto", "fp32", "tf32", "bf16", "fp16")
# Autocast's dtypes for products; fp32 and tf32 leave all tensors in float32.
LOW_PRECISION = {"bf16": torch.bfloat16, "fp16": torch.float16}
# Largest difference in an embedding's component between two ways of rounding to low precision.
_CAST_TOLERANCE = 0.02
_ONE_AT_A_TIME = threading.RLock()


def resolve_device(device: str) -> torch.device:
    """Return the device to compute on: `auto` is the first GPU, Apple's, or the CPU.

    Raises `ModelError` for one that is not available.
    """
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].split(". ")[0]
        raise ModelError(f"--device {device} is not available here: {reason}") from error
    return chosen


def resolve_precision(precision: str, device: torch.device) -> str:
    """Choose the precision: `auto` is bf16 where native, else fp16 on GPUs and fp32 elsewhere.

    Raises `InputError` for an unknown one, and for tf32 on a device without it.
    """
    if precision not in PRECISIONS:
        raise InputError(f"--precision takes {', '.join(PRECISIONS)}, got {precision!r}")
    if precision == "tf32" and not _has_tf32(device):
        raise InputError(
            f"--precision tf32 needs an NVIDIA GPU of 2020 or later (Ampere), and {device} is not "
            "one: take fp32 or auto"
        )
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    if device.type == "cpu":
        checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        native = any(getattr(torch.cpu, check, lambda: False)() for check in checks)
        return "bf16" if native else "fp32"
    return "fp32"


def _has_tf32(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


@contextlib.contextmanager
def float32_products(*, tf32: bool) -> Iterator[None]:
    """Make CUDA compute float32 products and convolutions in TF32, or exactly, in this block.

    By default torch uses TF32 for convolutions but not for matrix products. The flags belong to the
    process, so threads enter one after another.
    """
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    with _ONE_AT_A_TIME:
        before = products.allow_tf32, convolutions.allow_tf32
        products.allow_tf32 = convolutions.allow_tf32 = tf32
        try:
            yield
        finally:
            products.allow_tf32, convolutions.allow_tf32 = before


@torch.no_grad()
def for_inference(
    model: nn.Module,
    dtype: torch.dtype,
    context: contextlib.AbstractContextManager[object],
    tokens: torch.Tensor,
    image_size: tuple[int, int],
) -> nn.Module:
    """Return the model with the weights of its matrix products in `dtype`.

    Autocast would convert them for every batch anyway; and in a single precision torch uses its
    faster attention (1.6 times for the bundled estimator on a CPU). On CUDA, convolution kernels
    are channels-last, for tensor cores. A model whose embeddings in `context` then change by more
    than rounding keeps its weights. `tokens` are for that comparison.
    """
    cast = _cast_matrices(model, dtype, is_channels_last=tokens.is_cuda)
    size = math.prod(image_size)
    pixels = torch.linspace(-1, 1, 3 * size, device=tokens.device).view(1, 3, *image_size)
    try:
        with context:
            for name, value in (("encode_image", pixels), ("encode_text", tokens)):
                expected = getattr(model, name)(value, normalize=True).float()
                actual = getattr(cast, name)(value, normalize=True).float()
                if not (actual - expected).abs().max() <= _CAST_TOLERANCE:
                    return model
    except (RuntimeError, TypeError, AttributeError) as error:
        logger.info("weights stay in fp32: %s", error)
        return model
    return cast


def _cast_matrices(model: nn.Module, dtype: torch.dtype, is_channels_last: bool) -> nn.Module:
    """Copy a model with linear, convolution and attention weights in `dtype`.

    All other tensors are shared with the model: embeddings and normalisations stay exact.
    """
    replaced: dict[int, torch.Tensor] = {}
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d, nn.MultiheadAttention)):
            for parameter in module.parameters(recurse=False):
                weight = parameter.detach().to(dtype)
                if is_channels_last and weight.dim() == 4:
                    weight = weight.contiguous(memory_format=torch.channels_last)
                replaced[id(parameter)] = nn.Parameter(weight)
    cast = sharing_tensors(model, replaced)
    keep_fp32_between_layers(cast)
    return cast


T = TypeVar("T")

# Batch sizes to try on a GPU, and the share of the highest speed that a smaller one must reach.
_BATCHES = (64, 128, 256, 512, 1024, 2048)
_AS_GOOD = 0.95
_BUSY_SECONDS = 0.25  # a batch this long does not wait for launches: larger ones gain nothing
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for all GPUs


class Cores:
    """A pool with one thread for each core that torch may use; each computes by itself."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._own = threading.local()
        self.count = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(self.count, "ncclean-encode", torch.set_num_threads, (1,))

    def map(
        self, encode: Callable[[T], torch.Tensor], pieces: Iterable[T]
    ) -> Iterator[torch.Tensor]:
        """Call `encode` on every piece, each on one core; return the results in order."""
        return self._pool.map(encode, pieces)

    @property
    def model(self) -> nn.Module:
        """Return the calling thread's copy of a model, which shares its tensors.

        Shortening the context swaps tensors inside the modules, which threads must not share.
        """
        if not hasattr(self._own, "model"):
            self._own.model = sharing_tensors(self._model)
        copied: nn.Module = self._own.model
        return copied


def sharing_tensors(
    model: nn.Module, replaced: Mapping[int, torch.Tensor] | None = None
) -> nn.Module:
    """Return a copy of a model's modules with the same parameters and buffers.

    `replaced` are replacement tensors by the ids of the originals.
    """
    tensors = chain(model.parameters(), model.buffers())
    memo = {id(tensor): tensor for tensor in tensors} | dict(replaced or {})
    return copy.deepcopy(model, memo)


def fastest_batch(seconds: Callable[[int], float]) -> int:
    """Return the smallest batch size, a power of two, within a twentieth of the highest speed.

    `seconds` measures a batch of the given size, and raises `torch.OutOfMemoryError` if it is too
    large.
    """
    rates: dict[int, float] = {}
    with contextlib.suppress(torch.OutOfMemoryError):
        for size in _BATCHES:
            taken = seconds(size)
            rates[size] = size / taken
            if taken > _BUSY_SECONDS:
                break
    fast = _AS_GOOD * max(rates.values(), default=0.0)
    return next((size for size, rate in rates.items() if rate >= fast), _BATCHES[0])


def pin(memory: torch.Tensor) -> bool:
    """Lock a CPU tensor's memory for CUDA, which then uploads batches from it without copying.

    It may be shared with other processes, which write the batches. Returns whether it is locked:
    false without a GPU, or if the system refuses. `unpin` it before freeing it.
    """
    if not torch.cuda.is_available():
        return False
    status = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, _PORTABLE)
    if int(status) == 0:
        return True
    logger.info("batches are copied before their upload: cudaHostRegister gave %s", status)
    with contextlib.suppress(RuntimeError):  # CUDA repeats the error at the next launch
        torch.zeros(1, device="cuda")
    return False


def unpin(memory: torch.Tensor) -> None:
    """Unlock the memory of a tensor for which `pin` returned True."""
    torch.cuda.check_error(int(torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())))


class Uploads:
    """Uploads batches to a GPU while it computes earlier ones, on a separate stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def encode(
        self, blocks: Sequence[torch.Tensor], encode: Callable[[torch.Tensor], torch.Tensor]
    ) -> Callable[[], torch.Tensor]:
        """Queue upload and encoding of a batch; return a function that waits for the result.

        Blocks in pinned memory are uploaded in place: do not change them until then.
        """
        with torch.cuda.device(self._device):
            compute = torch.cuda.current_stream(self._device)
            if any(block.device.type != "cpu" for block in blocks):  # decoded there
                self._stream.wait_stream(compute)
            with torch.cuda.stream(self._stream):
                uploaded = torch.cat([self._upload(block) for block in blocks])
            compute.wait_stream(self._stream)
            uploaded.record_stream(compute)
            encoded = encode(uploaded)
            done = torch.cuda.Event()
            done.record(compute)

        def result() -> torch.Tensor:
            done.synchronize()
            return encoded

        return result

    def _upload(self, block: torch.Tensor) -> torch.Tensor:
        # torch reuses pinned memory once its upload has finished: with two batches in flight this
        # is double buffering.
        if block.device.type == "cpu" and not block.is_pinned():
            block = block.pin_memory()
        return block.to(self._device, non_blocking=True)
