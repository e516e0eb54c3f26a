"""Float64 on devices that lack it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def doubled(values: torch.Tensor) -> torch.Tensor:
    """`values` in float64, on their device or, for Apple's GPUs, which have none, on the CPU."""
    return (values.cpu() if values.device.type == "mps" else values).double()
