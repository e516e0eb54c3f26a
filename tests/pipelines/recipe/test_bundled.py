"""The recipes that come with ncclean."""

import re

import pytest
from ncclean_pipelines.recipe.bundled import FOLDER, bundled_recipes, find_recipe
from ncclean_pipelines.recipe.check import check_columns
from ncclean_pipelines.recipe.load import load_recipe
from ncclean_pipelines.recipe.plan import plan

NAMES = list(bundled_recipes())
EMBEDDED = ("clean_embeddings", "datacomp_pack")
SETS = ("benchmark", "imagenet", "flickr30k", "retrieval_set", "shifted", "probe_sets")


@pytest.mark.parametrize("name", NAMES)
def test_a_bundled_recipe_is_valid_whatever_the_data(name, tmp_path):
    recipe = load_recipe(find_recipe(name), tmp_path)
    check_columns(recipe, look=False)
    assert recipe.about


@pytest.mark.parametrize("name", NAMES)
def test_places_of_data_are_variables(name):
    stages = find_recipe(name).read_text().partition("\nstages:")[2]
    assert not re.search(r"(?<!\})/data|s3://", stages)


@pytest.mark.parametrize(
    ("name", "percent", "gamma"),
    [("ncu_cc3m", 10, 0.7), ("ncu_cc12m", 5, 0.7), ("ncu_yfcc15m", 1, 0.3)],
)
def test_ncu_recipes_have_the_settings_of_the_supplement(name, percent, gamma, tmp_path):
    request = load_recipe(find_recipe(name), tmp_path).stages["repaired"].command
    ncu, training = request.objective.ncu, request.training
    assert (ncu.forget_percent, ncu.gamma, ncu.epsilon) == (percent, gamma, 0.03)
    assert (ncu.alpha, ncu.beta, ncu.negative_weight) == (-0.7, -0.2, 10)
    assert (training.betas, training.eps, training.weight_decay) == ((0.9, 0.98), 1e-8, 0.2)
    assert (request.objective.prompt_epochs, request.objective.epochs) == (2, 8)
    assert (request.batch_size, request.objective.learning_rate) == (2048, 5e-5)


def test_an_epoch_of_every_arm_of_the_benchmark_shows_every_caption(tmp_path):
    """Without a selection one caption of each image would do, a fifth of the steps."""
    stages = load_recipe(find_recipe("nc_benchmark"), tmp_path).stages.values()
    arms = [one.command for one in stages if one.command.name == "finetune"]
    assert len(arms) == 90
    assert all(arm.selection is not None for arm in arms)


@pytest.mark.parametrize("name", NAMES)
def test_a_bundled_recipe_can_start_where_its_data_are(name, corpus, scored, tmp_path):
    weights = tmp_path / "weights.pt"
    weights.touch()
    data = {
        "shards": corpus,
        "source": scored / "embeddings" if name in EMBEDDED else corpus,
        "targets": scored / "embeddings",
        "weights": weights,
        **dict.fromkeys(SETS, corpus),
        "out": tmp_path / "out",
    }
    # Names of weights that open_clip knows stay.
    variables = re.findall(r"^  (\w+): (?:/|s3:)", find_recipe(name).read_text(), re.MULTILINE)
    recipe = load_recipe(
        find_recipe(name), tmp_path / "run", [f"{one}={data[one]}" for one in variables]
    )
    assert plan(recipe, probe=False)


def test_the_demo_needs_nothing_from_outside(tmp_path):
    stages = plan(load_recipe(find_recipe("demo"), tmp_path / "run", ["pairs=500"]), probe=False)
    assert stages[0].pairs == 500
    assert {stage.action for stage in stages} == {"run"}


def test_a_name_that_is_none_suggests_one(tmp_path, refused):
    assert find_recipe("demo") == FOLDER / "demo.yaml"
    refused(find_recipe, "ncu_cc3")
    refused(find_recipe, str(tmp_path / "x.yaml"))
