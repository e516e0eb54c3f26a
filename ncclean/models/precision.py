"""The device and the precision a model computes in."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import threading
from collections.abc import Iterator
from itertools import chain

import torch
from torch import nn

from ncclean.errors import InputError, ModelError
from ncclean.models.open_clip_internals import keep_fp32_between_layers

logger = logging.getLogger(__name__)

PRECISIONS = ("auto", "fp32", "tf32", "bf16", "fp16")
# What autocast makes of products; fp32 and tf32 leave all tensors in float32.
LOW_PRECISION = {"bf16": torch.bfloat16, "fp16": torch.float16}
# Largest difference of an embedding's component between two ways to round to low precision.
_CAST_TOLERANCE = 0.02
_ONE_AT_A_TIME = threading.RLock()


def resolve_device(device: str) -> torch.device:
    """Choose the device: `auto` is the first GPU, Apple's, or the CPU. Raises `ModelError`."""
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
    """Have CUDA compute float32 products and convolutions in TF32, or exactly, in this block.

    torch by itself takes TF32 for convolutions and not for matrix products. The flags belong to
    the process, so threads enter one after the other.
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
    """The model with the weights of its matrix products kept in `dtype`, where `tokens` are.

    They are what autocast makes of them anyway, for every batch anew; and where all is in one
    precision torch takes its faster attention (1.6 times for the bundled estimator on a CPU). On
    CUDA, kernels of convolutions are channels-last, as tensor cores take them. A model whose
    embeddings in `context` then change by more than rounding keeps its weights.
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
    """A copy of the model whose linear, convolution and attention weights are in `dtype`.

    All other tensors are shared with the model: embeddings and normalisations stay exact.
    """
    memo: dict[int, object] = {id(t): t for t in chain(model.parameters(), model.buffers())}
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d, nn.MultiheadAttention)):
            for parameter in module.parameters(recurse=False):
                weight = parameter.detach().to(dtype)
                if is_channels_last and weight.dim() == 4:
                    weight = weight.contiguous(memory_format=torch.channels_last)
                memo[id(parameter)] = nn.Parameter(weight)
    cast = copy.deepcopy(model, memo)
    keep_fp32_between_layers(cast)
    return cast
