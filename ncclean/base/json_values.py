"""Values as JSON has them."""

from __future__ import annotations

import base64
import json
import math
from typing import Any


def finite(value: Any) -> Any:
    """Copy a JSON value with None replacing NaN and infinity, which JSON cannot express."""
    if isinstance(value, dict):
        return {name: finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_text(value: Any) -> str:
    """Any value as JSON: bytes as base64, times and decimals as text.

    Invalid characters become question marks.
    """
    text = json.dumps(finite(value), ensure_ascii=False, default=_text)
    return text.encode("utf-8", "replace").decode()


def _text(value: object) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
