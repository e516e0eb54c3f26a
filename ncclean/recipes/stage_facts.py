"""Facts about a stage that the tables and the page of its run show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class StageFacts:
    """A stage by its name, the name of its command, and what the recipe says `about` it.

    `model` is the results' name for the model that it makes, None if it makes none. For a repeated
    stage, `base` is its name in the file, and `cell` has its values.
    """

    name: str
    command_name: str
    about: str | None
    base: str
    cell: Mapping[str, Any]
    model: str | None
