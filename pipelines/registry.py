"""All commands, including those that run recipes, in the order of docs/cli.md."""

from __future__ import annotations

from .clean import Clean
from .command import Command
from .demo import Demo
from .run import Run
from .stages import COMMANDS as SINGLE

_ALL: tuple[type[Command], ...] = (Clean, Run, *SINGLE, Demo)
COMMANDS: dict[str, type[Command]] = {kind.name: kind for kind in _ALL}

# People's purposes, and the commands for each, as listed by `ncclean --help`.
PURPOSES: dict[str, tuple[str, ...]] = {
    "All in one": ("clean", "run", "demo"),
    "Score a corpus": ("score", "merge", "annotate", "neighbours"),
    "Look at the scores": ("query", "report", "explain"),
    "Judge pairs": ("audit", "review"),
    "Get the corpus back": ("select", "export"),
    "Train and repair models": ("finetune", "adapt"),
    "Measure": ("evaluate", "synth", "inject-noise"),
}
