"""Small recipes for tests."""

import re
from pathlib import Path

from ncclean_pipelines.recipe.load import Recipe, resolve

from ncclean.recipes.source import parse

# Everything from a corpus to a model, in seconds: parts of it are run by several tests.
WHOLE = """\
about: From a corpus to a model.
vars:
  shards: {shards}
stages:
  score:
    shards: ${{shards}}
    model: demo
    precision: fp32
    shift: 0.2
    batch_size: 64
  noise:
    command: evaluate noise
    scores: ${{score}}
  clean:
    command: select
    scores: ${{score}}
    method: noise-probability
  kept:
    command: export
    selection: ${{clean}}
    shards: ${{shards}}
    samples_per_shard: 60
    workers: 1
  repaired:
    command: finetune
    method: clip
    shards: ${{shards}}
    selection: ${{clean}}
    model: demo-noisy
    precision: fp32
    batch_size: 40
    epochs: 2
    learning_rate: 1e-4
    save_steps: 1
    tensorboard: false
  report:
    scores: ${{score}}
    pairs: 2
"""


def whole(shards: Path, only: int | None = None) -> str:
    """The recipe for these shards, or its first stages."""
    text = WHOLE.format(shards=shards)
    if only is None:
        return text
    head, *stages = re.split(r"\n  (?=\w+:\n)", text)
    return "\n  ".join([head, *stages[:only]]) + "\n"


def made(text: str, folder: Path) -> Recipe:
    """The recipe of a text."""
    return resolve(parse(text, "r.yaml"), "r", folder)
