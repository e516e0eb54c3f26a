"""Float64 on devices that lack it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def doubled(values: torch.Tensor) -> torch.Tensor:
    """Convert to float64, on the CPU if the device (Apple's GPU) has no float64."""
    return (values.cpu() if values.device.type == "mps" else values).double()
