"""Values as JSON has them."""

from __future__ import annotations

import math
from typing import Any


def finite(value: Any) -> Any:
    """Copy a JSON value with None in place of NaN and infinity, which JSON cannot express."""
    if isinstance(value, dict):
        return {name: finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
