"""A share with its 95 % interval; metadata and JSON call it `NAME`, `NAME_low`, `NAME_high`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

_ENDS = ("", "_low", "_high")


class Estimate(NamedTuple):
    """A share with its 95 % interval from `low` to `high`, NaN if unknown."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def is_known(self) -> bool:
        return not math.isnan(self.value)

    @property
    def least(self) -> float:
        """The value, or the lower end if only the interval is known."""
        return self.value if self.is_known else self.low

    @property
    def has_interval(self) -> bool:
        return not (math.isnan(self.low) or math.isnan(self.high))

    def fields(self, name: str) -> dict[str, float]:
        """Value and both ends of the interval as `NAME`, `NAME_low`, `NAME_high`."""
        return {f"{name}{end}": number for end, number in zip(_ENDS, self, strict=True)}

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any], name: str) -> Estimate:
        """Read an estimate from `NAME`, `NAME_low`, `NAME_high`; NaN for an unreadable one."""
        return cls(*(_number(fields.get(f"{name}{end}")) for end in _ENDS))


UNKNOWN = Estimate(math.nan)


def flattened(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Turn fields into a dict for JSON; an estimate becomes three entries.

    Unknown values become None.
    """
    flat: dict[str, Any] = {}
    for name, value in fields:
        if isinstance(value, Estimate):
            numbers = value.fields(name).items()
            flat.update({end: None if math.isnan(number) else number for end, number in numbers})
        else:
            flat[name] = value
    return flat


def read_count(value: Any) -> int:
    """Check a number of pairs read from metadata or JSON. Raises `ValueError` for others."""
    if not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ValueError("not a number of pairs")
    return value


def _number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return number if 0 <= number <= 1 else math.nan
