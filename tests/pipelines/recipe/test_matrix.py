"""Repeated stages: what they are called, what they use, and what their page says."""

import re
from statistics import mean, stdev

import pytest
from ncclean_pipelines.recipe.load import resolve
from ncclean_pipelines.recipe.plan import budget, plan
from ncclean_pipelines.recipe.run import run
from ncclean_pipelines.run import Run

from ncclean.data.synthetic.heldout import write_heldout
from ncclean.recipes.source import RecipeError, parse

from .recipes import made

TEXT = """\
about: Rates and seeds.
for:
  rate: [0.2, 0.4]
  seed: [0, 1]
vars:
  benchmark: {benchmark}
stages:
  corpus:
    command: synth
    pairs: 120
    noise: 0
    held_out: 0
  noisy:
    command: inject-noise
    shards: ${{corpus}}
    noise: ncr=${{rate}}
    seed: ${{seed}}
    workers: 1
  clip:
    command: finetune
    method: clip
    shards: ${{noisy}}
    model: demo-noisy
    precision: fp32
    batch_size: 40
    steps: 2
    learning_rate: 1e-3
    seed: ${{seed}}
    tensorboard: false
    pairs_per_second: 40
  retrieval:
    command: evaluate retrieval
    model: [demo-noisy, "${{clip}}"]
    data: ${{benchmark}}
"""


def text(benchmark="/data/b"):
    return TEXT.format(benchmark=benchmark)


def refused(changed, folder):
    with pytest.raises(RecipeError) as caught:
        made(changed, folder)
    return str(caught.value)


def test_a_stage_is_repeated_for_what_it_depends_on(tmp_path):
    recipe = made(text(), tmp_path)
    assert list(recipe.stages) == [
        "corpus",
        "noisy--rate-0_2--seed-0", "clip--rate-0_2--seed-0", "retrieval--rate-0_2--seed-0",
        "noisy--rate-0_2--seed-1", "clip--rate-0_2--seed-1", "retrieval--rate-0_2--seed-1",
        "noisy--rate-0_4--seed-0", "clip--rate-0_4--seed-0", "retrieval--rate-0_4--seed-0",
        "noisy--rate-0_4--seed-1", "clip--rate-0_4--seed-1", "retrieval--rate-0_4--seed-1",
    ]  # fmt: skip
    clip = recipe.stages["clip--rate-0_4--seed-1"]
    assert clip.uses == ("noisy--rate-0_4--seed-1",)
    assert (clip.base, clip.cell) == ("clip", {"rate": 0.4, "seed": 1})
    assert clip.command.seed == 1
    noisy = recipe.stages["noisy--rate-0_4--seed-1"]
    assert noisy.values["noise"] == ["ncr=0.4"]
    assert noisy.uses == ("corpus",)
    assert (recipe.stages["corpus"].base, recipe.stages["corpus"].cell) == ("corpus", {})


def test_repeats_count_from_zero(tmp_path):
    changed = text().replace("for:\n  rate: [0.2, 0.4]\n  seed: [0, 1]\n", "repeats: 3\n")
    changed = changed.replace("${rate}", "0.2").replace("${seed}", "${repeat}")
    names = list(made(changed, tmp_path).stages)
    assert [name for name in names if name.startswith("clip")] == [
        "clip--repeat-0", "clip--repeat-1", "clip--repeat-2"
    ]  # fmt: skip


def test_values_can_be_set(tmp_path, refused):
    source = parse(text(), "r.yaml")
    for change in ("rate=[0.6]", "clip.steps=7"):
        source.change(change)
    recipe = resolve(source, "r", tmp_path)
    assert [stage.cell["rate"] for stage in recipe.stages.values() if stage.cell] == [0.6] * 6
    assert recipe.stages["clip--rate-0_6--seed-1"].command.training.steps == 7
    source = parse(text(), "r.yaml")
    source.change("clip.stepz=7")
    refused(resolve, source, "r", tmp_path)


def test_mistakes_are_named_with_their_lines(tmp_path):
    assert refused(text().replace("rate: [0.2, 0.4]", "rate: []"), tmp_path).startswith(
        "r.yaml, line 3:"
    )
    assert "rate has the value 0.2 more than once" in refused(
        text().replace("[0.2, 0.4]", "[0.2, 0.2]"), tmp_path
    )
    assert "takes numbers and texts, got [1]" in refused(
        text().replace("[0.2, 0.4]", "[0.2, [1]]"), tmp_path
    )
    assert "no stage refers to ${arm}" in refused(
        text().replace("  seed: [0, 1]", "  seed: [0, 1]\n  arm: [a]"), tmp_path
    )
    assert "names a variable or a stage too" in refused(
        text().replace("  rate:", "  noisy: [1]\n  rate:"), tmp_path
    )
    assert "stages, the limit is 2,000" in refused(
        text().replace("[0, 1]", str(list(range(600)))), tmp_path
    )
    assert refused(text().replace("steps: 2", "stepz: 2"), tmp_path) == (
        "r.yaml, line 26: finetune has no option 'stepz' (did you mean steps?)"
    )
    assert "did you mean for?" in refused(text().replace("for:", "fork:"), tmp_path)


def test_from_means_the_stage_in_every_cell(tmp_path, refused):
    recipe = made(text(), tmp_path)
    assert recipe.forced_from(None) == frozenset()
    again = recipe.forced_from("clip")
    assert {recipe.stages[name].base for name in again} == {"clip", "retrieval"}
    assert len(again) == 8
    assert len(recipe.forced_from("clip--rate-0_4--seed-1")) == 2
    refused(recipe.forced_from, "clap")


def test_the_budget_counts_before_anything_runs(tmp_path):
    recipe = made(text(tmp_path), tmp_path / "run")
    line = budget(recipe, plan(recipe, probe=False))
    assert line == (
        "13 of 13 stages to run: 1 synth, 4 inject-noise, 4 finetune, 4 evaluate retrieval; "
        "8 steps of training; about 0.0 hours where a speed is stated"
    )
    changed = text(tmp_path).replace("steps: 2", "epochs: 3")
    recipe = made(changed, tmp_path / "run")
    assert "; 12 epochs of training; " in budget(recipe, plan(recipe, probe=False))


@pytest.mark.slow
def test_means_and_deviations_of_a_run_that_is_resumed(tmp_path):
    write_heldout(tmp_path / "heldout", 20, seed=3)
    path = tmp_path / "r.yaml"
    path.write_text(text(tmp_path / "heldout"))
    said = []

    class Listener:
        def say(self, line):
            said.append(line)

        def advance(self, *_, **facts):
            pass

    command = Run(recipe=str(path), out=str(tmp_path / "run"), set=["rate=[0.2]"])
    summary = command.run(Listener()).summary
    assert said[0].startswith("7 of 7 stages to run: ")
    (table,) = summary.tables
    assert table.title == "retrieval: mean and standard deviation, percent"
    assert table.heads[:4] == ("rate", "model", "runs", "image R@1")
    rows = {row[1]: row for row in table.rows}
    assert set(rows) == {"demo-noisy", "clip"}
    values = [
        result["metrics"]["rsum"]
        for record in summary.records.values()
        if record.command == "evaluate retrieval"
        for result in record.result["results"]
        if result["model"] != "demo-noisy"
    ]
    assert rows["clip"][:3] == ("0.2", "clip", "2")
    assert rows["clip"][-1] == f"{mean(values):.1f} ± {stdev(values):.1f}"
    assert re.search(r" ± 0\.0$", rows["demo-noisy"][-1])  # the same model, twice
    page = (tmp_path / "run" / "index.html").read_text()
    assert rows["clip"][-1] in page
    # More values add stages; those that are there stay.
    more = Run(recipe=str(path), out=str(tmp_path / "run"), set=["rate=[0.2, 0.4]"])
    summary = more.run().summary
    assert len(summary.ran) == 6
    assert all("rate-0_4" in name for name in summary.ran)
    assert [row[:2] for row in summary.tables[0].rows] == [
        ("0.2", "demo-noisy"), ("0.2", "clip"), ("0.4", "demo-noisy"), ("0.4", "clip")
    ]  # fmt: skip
    assert run(made(text(tmp_path / "heldout"), tmp_path / "run")).ran == ()
