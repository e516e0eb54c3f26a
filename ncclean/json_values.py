"""Values as JSON has them."""

from __future__ import annotations

import math
from typing import Any


def finite(value: Any) -> Any:
    """The value with NaN and infinity as None, which JSON has no word for."""
    if isinstance(value, dict):
        return {name: finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
