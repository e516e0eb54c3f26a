"""All commands, those that run recipes among them, in the order of docs/cli.md."""

from __future__ import annotations

from .clean import Clean
from .command import Command
from .demo import Demo
from .run import Run
from .stages import COMMANDS as SINGLE

_ALL: tuple[type[Command], ...] = (Clean, Run, *SINGLE, Demo)
COMMANDS: dict[str, type[Command]] = {kind.name: kind for kind in _ALL}
