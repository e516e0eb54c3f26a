"""The recipes that come with ncclean."""

import re

import pytest
from ncclean_pipelines.recipe.bundled import FOLDER, bundled_recipes, find_recipe
from ncclean_pipelines.recipe.check import check_columns
from ncclean_pipelines.recipe.load import load_recipe, resolve
from ncclean_pipelines.recipe.plan import plan
from ncclean_pipelines.recipe.run import run

from ncclean.data.synthetic.heldout import write_heldout
from ncclean.recipes.source import read_source
from tests.factories import rendered

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


# Every bundled recipe from its first stage to its page, on rendered stand-ins for its data.

RUN_SETS = {
    "benchmark": "retrieval", "flickr30k": "retrieval", "retrieval_set": "retrieval",
    "imagenet": "zeroshot-texture", "shifted": "", "probe_sets": "",
}  # fmt: skip
SMALL = {
    "finetune": {"steps": 2, "batch_size": 16, "parts": 1, "precision": "fp32",
                 "tensorboard": False, "decode_threads": 1},
    "adapt": {"steps": 1, "batch_size": 4, "threshold": 0, "precision": "fp32"},
    "score": {"precision": "fp32"},
    "synth": {"held_out": 20, "workers": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    """160 pairs of which a third is mismatched, and evaluation sets."""
    folder = tmp_path_factory.mktemp("stand-ins")
    rendered(folder / "shards", pairs=160, shard_size=80, noise={"ncr": 0.3}, seed=3)
    write_heldout(folder / "heldout", 20, seed=3)
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("rough_shifts")
@pytest.mark.parametrize("name", bundled_recipes())
def test_a_bundled_recipe_runs(name, stand_ins, scored, tmp_path):
    """With two steps of training, one value of each `for`, and on this machine alone."""
    source = read_source(find_recipe(name))
    source.values.pop("engine", None)
    shards = scored / "embeddings" if name in EMBEDDED else stand_ins / "shards"
    small = {"model": "demo-noisy", "weights": "bundled", "out": str(tmp_path / "out"), "pairs": 96,
             "batch_size": 16, "steps": 2, "size": 50}  # fmt: skip
    variables = source.values.get("vars", {})
    for variable, value in variables.items():
        if variable in RUN_SETS:
            variables[variable] = str(stand_ins / "heldout" / RUN_SETS[variable])
        elif variable in small:
            variables[variable] = small[variable]
        elif isinstance(value, str) and re.match(r"/|s3:", value):
            variables[variable] = str(shards)
    for values in source.values.get("for", {}).values():
        del values[:-1]
    for stage, options in source.values["stages"].items():
        command = options.get("command", stage)
        if command == "score" and not str(options.get("model")).startswith("${"):
            options |= {"model": "demo", "pretrained": None}
        options.update(SMALL.get(command, {}))
        if options.get("init") == "random":  # whose architecture the bundled models do not name
            del options["init"]
        if name in EMBEDDED and command == "score":
            del options["model"], options["pretrained"], options["precision"]
    summary = run(resolve(source, name, tmp_path / "run"))
    assert summary.failures == {}
    assert set(summary.ran) == set(summary.records)
    assert all(record.done for record in summary.records.values())
