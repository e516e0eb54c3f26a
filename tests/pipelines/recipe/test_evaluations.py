"""Models evaluated and compared by stages."""

import json

import pytest
from ncclean_pipelines.recipe.run import run

from ncclean.data.synthetic.heldout import write_retrieval_set

from .recipes import made

TEXT = """\
stages:
  before:
    command: evaluate retrieval
    model: demo-noisy
    data: {data}
  after:
    command: evaluate retrieval
    model: demo
    data: {data}
  gain:
    command: evaluate compare
    a: ${{before}}
    b: ${{after}}
    draws: 100
"""


def test_two_models_are_measured_and_compared(tmp_path):
    write_retrieval_set(tmp_path / "retrieval", 30, 0)
    text = TEXT.format(data=tmp_path / "retrieval")
    summary = run(made(text, tmp_path / "run"))
    (comparison,) = summary.records["gain"].result["comparisons"]
    rsum = comparison["metrics"]["rsum"]
    assert rsum["difference"] == pytest.approx(rsum["b"] - rsum["a"])
    assert json.loads((tmp_path / "run/gain/comparison.json").read_text())["draws"] == 100
    (table,) = summary.tables
    assert table.heads == ("figure", "demo-noisy", "demo")
    assert {row[0]: row[1:] for row in table.rows}["retrieval rsum"] == (
        f"{rsum['a']:.1f}",
        f"{rsum['b']:.1f}",
    )
    # Another model: its results replace those of the first, and what uses them follows.
    again = run(made(text.replace("model: demo-noisy", "model: demo"), tmp_path / "run"))
    assert again.ran == ("before", "gain")
    assert again.records["gain"].figures == {"retrieval": "rsum +0.0"}


def test_tags_are_one_or_as_many_as_models(tmp_path, refused):
    text = (
        "stages:\n  z:\n    command: evaluate zeroshot\n    model: [demo, demo-noisy, ViT-B-32]\n"
        "    pretrained: [a, b]\n    data: /d\n"
    )
    refused(made, text, tmp_path)
