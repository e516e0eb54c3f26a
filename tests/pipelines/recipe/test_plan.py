"""What a run would do, and the hours it would take."""

import json

import pytest
from ncclean_pipelines.recipe.plan import plan
from ncclean_pipelines.recipe.run import run

from ncclean.data.synthetic.heldout import write_retrieval_set

from .recipes import made

TEXT = """\
stages:
  corpus:
    command: synth
    pairs: 36000
  score:
    shards: ${corpus}
    model: demo
    pairs_per_second: 100
    engine: ray
    workers: 10
  best:
    command: select
    scores: ${score}
    score: similarity
    keep_fraction: 0.5
  a:
    command: finetune
    method: ncu
    shards: ${corpus}
    selection: ${best}
    model: demo-noisy
    epochs: 3
    prompt_epochs: 1
    pairs_per_second: 10
  b:
    command: score
    shards: ${corpus}
    model: ${a}
"""


def test_pairs_are_handed_on_and_hours_follow_from_stated_speeds(tmp_path):
    stages = {stage.name: stage for stage in plan(made(TEXT, tmp_path / "run"), probe=False)}
    assert {stage.action for stage in stages.values()} == {"run"}
    assert stages["score"].pairs == 36_000
    # 36 shards on 10 workers are 4 rounds of a shard.
    assert stages["score"].hours == pytest.approx(4 * 1000 / 100 / 3600)
    assert stages["score"].basis == "stated speed 100 pairs/s on 10 of 10 workers"
    assert stages["a"].pairs == 18_000
    assert stages["a"].hours == pytest.approx(18_000 * 4 / 10 / 3600)  # four passes
    assert stages["a"].basis == "4 passes, stated speed 10 pairs/s"
    assert stages["b"].hours is None
    assert not (tmp_path / "run").exists()


def test_without_a_stated_speed_the_model_is_tried(tmp_path):
    text = TEXT.replace("    pairs_per_second: 100\n", "").replace("ncu", "clip")
    text = text.replace("    pairs_per_second: 10\n", "").replace("    prompt_epochs: 1\n", "")
    stages = {stage.name: stage for stage in plan(made(text, tmp_path / "run"))}
    assert stages["score"].hours > 0
    assert stages["score"].basis.startswith("a batch here: ")
    assert stages["a"].basis.startswith("3 passes, a forward pass here, times 3: ")
    assert stages["b"].basis == "the model is not made yet: state pairs_per_second"


@pytest.mark.slow
def test_a_speed_of_another_machine_gives_way_to_one_of_this_machine(tmp_path):
    """Not where the work is another machine's."""
    text = TEXT.replace("model: demo-noisy", "model: demo").replace(": 10\n", ": 1000000000\n")
    stages = {stage.name: stage for stage in plan(made(text, tmp_path / "run"))}
    assert stages["score"].basis.startswith("stated speed 100 ")
    assert stages["a"].basis.startswith("4 passes, a forward pass here, times 4.2: ")
    assert stages["a"].hours > 1e-4
    unknown = text.replace("model: demo\n    epochs", "model: hf-hub:none/there\n    epochs")
    stages = {stage.name: stage for stage in plan(made(unknown, tmp_path / "run"))}
    assert stages["a"].basis == "4 passes, stated speed 1,000,000,000 pairs/s"


def test_a_model_that_is_trained_from_random_weights_is_tried_without_any(tmp_path):
    text = """\
stages:
  corpus:
    command: synth
    pairs: 100
  a:
    command: finetune
    method: clip
    shards: ${corpus}
    model: demo-noisy
    init: random
"""
    stages = {stage.name: stage for stage in plan(made(text, tmp_path / "run"))}
    assert stages["a"].basis.startswith("5 passes, a forward pass here, times 3: ")


def test_steps_go_through_a_batch_each(tmp_path):
    text = TEXT.replace(
        "    epochs: 3\n    prompt_epochs: 1\n", "    steps: 100\n    batch_size: 90\n"
    )
    stages = {stage.name: stage for stage in plan(made(text, tmp_path / "run"), probe=False)}
    assert stages["a"].hours == pytest.approx(100 * 90 / 10 / 3600)
    assert stages["a"].basis == "0.5 passes, stated speed 10 pairs/s"


# Models evaluated and compared by stages.

EVALUATIONS = """\
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
    text = EVALUATIONS.format(data=tmp_path / "retrieval")
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
