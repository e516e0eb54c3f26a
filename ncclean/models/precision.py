"""The device and the precision a model computes in."""

from __future__ import annotations

import torch

from ncclean.errors import InputError, ModelError

PRECISIONS = ("auto", "fp32", "bf16", "fp16")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_device(device: str) -> torch.device:
    """`auto` is the first GPU, else Apple's, else the CPU. Raises `ModelError` if it is absent."""
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].split(". ")[0]
        raise ModelError(f"device {device!r} is not available here: {reason}") from error
    return chosen


def resolve_precision(precision: str, device: torch.device) -> str:
    """`auto` is bf16 where the device computes in it, else fp16 on GPUs and fp32 elsewhere."""
    if precision not in PRECISIONS:
        raise InputError(f"unknown precision {precision!r}; use one of {', '.join(PRECISIONS)}")
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    if device.type == "cpu":
        checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        native = any(getattr(torch.cpu, check, lambda: False)() for check in checks)
        return "bf16" if native else "fp32"
    return "fp32"
