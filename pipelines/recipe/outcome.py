"""What a stage did, as its record and the page of the run show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Start(Enum):
    """How a stage begins."""

    NEW = "new"  # this run has not begun it before
    RESUME = "resume"  # it was interrupted, and is still the same
    CHANGED = "changed"  # its options or inputs are others than before
    AGAIN = "again"  # it was asked to run again

    @property
    def replaces(self) -> bool:
        """Whether what is there is of no use."""
        return self in (Start.CHANGED, Start.AGAIN)


@dataclass(frozen=True)
class Outcome:
    """The key `figures` of a stage as they are shown, its `result` as `--json` prints it, the
    paths it `made`, and what could not be done, with reasons."""

    result: dict[str, Any]
    figures: dict[str, str] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    failures: Mapping[str, str] = field(default_factory=dict)
