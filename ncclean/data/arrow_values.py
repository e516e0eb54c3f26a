"""Convert Arrow's values to Python's; a value that Python cannot hold affects only itself."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

_TOO_FAR = "<value out of range"  # Arrow's text for it


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values of an Arrow column as Python objects, with substitutes for some.

    Times too fine for Python become text, invalid text becomes bytes. Times too far for Python
    become None, those of an unknown time zone UTC. Values inside lists and structs are treated
    alike.
    """
    try:
        values: list[Any] = column.to_pylist()
        return values
    except (UnicodeDecodeError, ValueError, OverflowError):
        return [_value(value) for value in column]


def _value(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (UnicodeDecodeError, ValueError, OverflowError):
        pass
    kind = value.type
    if isinstance(value, pa.DictionaryScalar | pa.ExtensionScalar):
        return _value(value.value)
    if isinstance(value, pa.StructScalar):
        return {kind.field(n).name: _value(value[n]) for n in range(kind.num_fields)}
    if isinstance(value, pa.MapScalar):
        keys, items = (python_values(value.values.field(n)) for n in range(2))
        return list(zip(keys, items, strict=True))
    if isinstance(value, pa.ListScalar):
        return python_values(value.values)
    if isinstance(value, pa.StringScalar):
        return value.as_buffer().to_pybytes()
    if pa.types.is_timestamp(kind):
        if kind.tz not in (None, "UTC"):
            return _value(value.cast(pa.timestamp(kind.unit, "UTC")))  # Arrow's text for it
        if kind.unit != "ns":
            return None  # Arrow's text is wrong for times too far
    try:
        text: str | None = value.cast(pa.string()).as_py()
    except pa.ArrowException:
        return None
    return None if text is None or text.startswith(_TOO_FAR) else text
