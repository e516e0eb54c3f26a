"""Arrow's values as Python's, where one that Python cannot hold costs only itself."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

_TOO_FAR = "<value out of range"  # as Arrow writes it


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column; times too fine for Python are text, what is no text is bytes.

    Times too far for Python are None, those of a zone that nobody knows are of UTC. Values inside
    lists and structs are treated alike.
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
            return _value(value.cast(pa.timestamp(kind.unit, "UTC")))  # as Arrow holds it
        if kind.unit != "ns":
            return None  # of times too far, Arrow's text is wrong
    try:
        text: str | None = value.cast(pa.string()).as_py()
    except pa.ArrowException:
        return None
    return None if text is None or text.startswith(_TOO_FAR) else text
