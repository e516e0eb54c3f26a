"""The device and the precision a model computes in."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable
from itertools import chain

import torch
from torch import nn

from ncclean.errors import InputError, ModelError
from ncclean.models.open_clip_internals import keep_fp32_between_layers

logger = logging.getLogger(__name__)

PRECISIONS = ("auto", "fp32", "bf16", "fp16")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Largest difference of an embedding's component between two ways to round to low precision.
_CAST_TOLERANCE = 0.02


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
    """Choose the precision: `auto` is bf16 where native, else fp16 on GPUs and fp32 elsewhere."""
    if precision not in PRECISIONS:
        raise InputError(f"--precision takes {', '.join(PRECISIONS)}, got {precision!r}")
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    if device.type == "cpu":
        checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        native = any(getattr(torch.cpu, check, lambda: False)() for check in checks)
        return "bf16" if native else "fp32"
    return "fp32"


@torch.no_grad()
def in_low_precision(
    model: nn.Module,
    dtype: torch.dtype,
    tokenizer: Callable[[list[str]], torch.Tensor],
    image_size: tuple[int, int],
) -> nn.Module:
    """A model on the CPU with the weights of its matrix products kept in `dtype`.

    They are what autocast makes of them anyway, for every batch anew; and where all is in one
    precision torch takes its faster attention (1.6 times for the bundled estimator). A model
    that objects keeps its weights.
    """
    cast = _cast_matrices(model, dtype)
    pixels = torch.linspace(-1, 1, 3 * math.prod(image_size)).view(1, 3, *image_size)
    try:
        with torch.autocast("cpu", dtype=dtype):
            for name, value in (("encode_image", pixels), ("encode_text", tokenizer(["a cat"]))):
                expected = getattr(model, name)(value, normalize=True).float()
                actual = getattr(cast, name)(value, normalize=True).float()
                if not (actual - expected).abs().max() <= _CAST_TOLERANCE:
                    return model
    except (RuntimeError, TypeError, AttributeError) as error:
        logger.info("weights stay in fp32: %s", error)
        return model
    return cast


def _cast_matrices(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy of the model whose linear, convolution and attention weights are in `dtype`.

    All other tensors are shared with the model: embeddings and normalisations stay exact.
    """
    memo: dict[int, object] = {id(t): t for t in chain(model.parameters(), model.buffers())}
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d, nn.MultiheadAttention)):
            for parameter in module.parameters(recurse=False):
                memo[id(parameter)] = nn.Parameter(parameter.detach().to(dtype))
    cast = copy.deepcopy(model, memo)
    keep_fp32_between_layers(cast)
    return cast
