"""Choices, arms, stages that something stands in for, and what is left out."""

import pytest
from ncclean_pipelines.recipe.load import load_recipe, run_name

TEXT = """\
about: Arms on data.
choices:
  data:
    flickr:
      about: Flickr30K.
      shards: /data/flickr
      rate: [0.2, 0.4]
    web:
      shards: /data/web
      noisy: ${shards}
      found: null
  study:
    all: {}
    one: {trained.arms: [osa], benchmark: null, rate: 0.5}
for:
  rate: [0.2]
vars:
  benchmark: /data/b
  epochs: 3
stages:
  noisy:
    command: inject-noise
    shards: ${shards}
    noise: ncr=${rate}
  score:
    shards: ${noisy}
    model: demo
  found:
    command: evaluate noise
    scores: ${score}
  weighted:
    command: select
    scores: ${score}
  trained:
    command: finetune
    shards: ${noisy}
    model: demo
    epochs: ${epochs}
    arms:
      clip: {method: clip}
      osa: {method: osa, selection: "${weighted}", epochs: 2}
  retrieval:
    command: evaluate retrieval
    model: [demo, "${trained}"]
    data: ${benchmark}
  gain:
    command: evaluate compare
    a: ${retrieval}
    b: ${retrieval}
"""


@pytest.fixture
def loaded(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(TEXT)
    return lambda *changes: load_recipe(path, tmp_path / "run", changes)


def values(recipe, stage, option):
    return recipe.stages[stage].values.get(option)


def test_the_first_of_each_choice_is_taken_and_another_can_be_set(loaded):
    recipe = loaded()
    assert recipe.about == "Arms on data.\ndata=flickr: Flickr30K.\nstudy=all"
    assert values(recipe, "noisy--rate-0_4", "shards") == ["/data/flickr"]
    recipe = loaded("shards=/mnt", "data=web")  # the choice comes first, wherever it stands
    assert values(recipe, "score", "shards") == ["/mnt"]


def test_each_choice_has_a_run_of_its_own(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(TEXT)
    assert run_name(path, ["rate=0.2", "study=one"]) == "r-flickr-one"
    path.write_text("stages: {synth: {}}")
    assert run_name(path, ["synth.pairs=3"]) == "r"


def test_arms_are_stages_that_share_options(loaded):
    recipe = loaded("rate=0.2")
    assert list(recipe.stages) == [
        "noisy", "score", "found", "weighted", "clip", "osa", "retrieval", "gain"
    ]  # fmt: skip
    epochs = [values(recipe, arm, "epochs") for arm in ("clip", "osa")]
    assert epochs == [3, 2]
    assert recipe.stages["osa"].uses == ("noisy", "weighted")
    folder = recipe.folder
    assert values(recipe, "retrieval", "model") == [
        "demo", f"local-dir:{folder}/clip", f"local-dir:{folder}/osa"
    ]  # fmt: skip
    recipe = loaded("rate=0.2", "osa.epochs=7", "trained.batch_size=8", "trained.arms=[osa]")
    assert (values(recipe, "osa", "epochs"), values(recipe, "osa", "batch_size")) == (7, 8)
    assert "clip" not in recipe.stages
    assert len(values(recipe, "retrieval", "model")) == 2
    both = loaded("rate=0.2", "study=one", "trained.arms=null")
    assert {"clip", "osa"} < both.stages.keys()


def test_a_text_stands_in_the_place_of_a_stage(loaded):
    recipe = loaded("data=web")
    assert "noisy" not in recipe.stages
    assert values(recipe, "clip", "shards") == ["/data/web"]
    recipe = loaded("rate=0.2", "score=/tables/s.parquet")
    assert values(recipe, "found", "scores") == ["/tables/s.parquet"]


def test_a_single_value_of_for_does_not_repeat_and_a_list_does(loaded):
    assert "score" in loaded("rate=0.3").stages
    again = loaded("study=one", "rate=[0.3, 0.6]")
    assert values(again, "noisy--rate-0_6", "noise") == ["ncr=0.6"]


def test_an_empty_list_is_a_value(tmp_path):
    """Else the default would take its place: no columns are others than four of them."""
    path = tmp_path / "r.yaml"
    path.write_text("stages: {export: {selection: /s.parquet, shards: /shards, columns: []}}")
    recipe = load_recipe(path, tmp_path / "run")
    assert recipe.stages["export"].command.columns == []


def test_what_refers_to_what_is_left_out_is_left_out_too(loaded):
    recipe = loaded("data=web", "study=one")
    assert list(recipe.stages) == ["score", "weighted", "osa"]
    assert "left out" not in recipe.about  # a choice leaves out what it has no use for
    recipe = loaded("rate=0.2", "weighted=null", "benchmark=null")
    assert "null: osa.selection, retrieval, gain" in recipe.about
    assert list(recipe.stages) == ["noisy", "score", "found", "clip", "osa"]
    assert values(recipe, "osa", "selection") is None
    again = loaded("study=one", "benchmark=/mine")  # which the choice leaves out
    assert "retrieval" in again.stages


@pytest.mark.parametrize(
    "change",
    ["data=flikr", "trained.arms=[siglip]", "osa.epoch=3", "rince.epochs=3", "weighted.rates=2"],
)
def test_mistakes_name_what_there_is(loaded, refused, change):
    refused(loaded, change)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("clip: {method: clip}", "clip: {method: clip, epoch: 3}"),
        ("clip: {method: clip}", "clip: all pairs"),
        ("clip: {method: clip}", "score: {method: clip}"),
        ("    b: ${retrieval}", "    b: x-${trained}"),
        ("    web:", "    Web: "),
        ("    all: {}", "    all: 3"),
    ],
)
def test_mistakes_in_the_file_have_their_line(tmp_path, refused, old, new):
    path = tmp_path / "r.yaml"
    path.write_text(TEXT.replace(old, new))
    refused(load_recipe, path, tmp_path)


def test_what_stands_in_for_a_stage_takes_no_options(loaded, refused):
    refused(loaded, "data=web", "noisy.seed=3")
