"""The recipes that come with ncclean."""

import functools
import itertools
import re
import tarfile
from io import BytesIO
from pathlib import Path

import pytest
import yaml
from ncclean_pipelines.recipe.bundled import FOLDER, bundled_recipes, find_recipe
from ncclean_pipelines.recipe.check import check_columns
from ncclean_pipelines.recipe.load import load_recipe, resolve
from ncclean_pipelines.recipe.plan import plan
from ncclean_pipelines.recipe.run import run
from ncclean_pipelines.run import Run

import ncclean
from ncclean.data.synthetic.heldout import write_heldout
from ncclean.recipes.choices import choose
from ncclean.recipes.source import read_source
from tests.factories import rendered

NAMES = list(bundled_recipes())
EMBEDDED = ("clean_embeddings", "datacomp_pack")
PAPERS = ("ncu", "osa", "disncl", "bayes")


def choices(name):
    """Every combination of the choices of a recipe, as --set takes it."""
    content = yaml.safe_load(find_recipe(name).read_text("utf-8")).get("choices", {})
    values = ([f"{choice}={value}" for value in values] for choice, values in content.items())
    return [list(picks) for picks in itertools.product(*values)]


@functools.cache
def loaded(name):
    """The recipe for every combination of its choices; only looked at."""
    folder = Path("nowhere")
    return [(picks, load_recipe(find_recipe(name), folder, picks)) for picks in choices(name)]


@pytest.mark.parametrize("name", NAMES)
def test_a_bundled_recipe_is_valid_whatever_the_data(name):
    for _, recipe in loaded(name):
        check_columns(recipe, look=False)
        assert recipe.about


@pytest.mark.parametrize("name", NAMES)
def test_places_of_data_are_variables(name):
    stages = find_recipe(name).read_text().partition("\nstages:")[2]
    assert not re.search(r"(?<!\})/data|s3://", stages)


@pytest.mark.parametrize("name", PAPERS)
def test_plans_of_the_papers_say_what_they_measure(name):
    """Each evaluation names its table or figure, each choice what came out of the paper's."""
    for picks, recipe in loaded(name):
        assert all(re.search(rf"^{pick}: .", recipe.about, re.MULTILINE) for pick in picks)
        evaluations = [
            stage
            for stage in recipe.stages.values()
            if stage.command_name.startswith("evaluate") and "gain" not in stage.name
        ]
        assert evaluations or "functions" in picks[-1]
        for stage in evaluations:
            assert re.search(r"(Table|Fig\.|Tables) ", stage.about), stage.name


# The tables and figures of each paper; NCU's supplement counts its own tables from 1.
NUMBERED = {
    "ncu": (5, 5), "osa": (12, 4), "disncl": ("I II III IV V", 6), "bayes": (4, 4)
}  # fmt: skip


@pytest.mark.parametrize("name", PAPERS)
def test_the_page_has_every_table_and_figure_of_the_papers(name, tmp_path):
    page = (Path(__file__).parents[3] / "docs/recipes.md").read_text("utf-8")
    entries = page.partition(f"`ncclean run {name}`:\n\n")[2].partition("\n\n")[0]
    numbered = set()
    for entry in entries.replace("\n  ", " ").splitlines():
        kind, (numbers, _, command) = "", entry.partition("**:")
        for word in re.findall(r"Table|Fig\.|[IVX]+|\d+", numbers):
            kind = word if word in ("Table", "Fig.") else kind
            numbered.add((kind, word))
        for picks in re.findall(r"`(--set [^`]*)`", command):
            load_recipe(find_recipe(name), tmp_path, re.findall(r"--set (\S+)", picks))
    tables, figures = NUMBERED[name]
    names = tables.split() if isinstance(tables, str) else range(1, tables + 1)
    expected = {("Table", str(number)) for number in names}
    expected |= {("Fig.", str(number)) for number in range(1, figures + 1)}
    assert {entry for entry in numbered if entry[0] != entry[1]} == expected
    assert set(re.findall(r"`ncclean run (\w+)`", page)) <= set(NAMES)


@pytest.mark.parametrize(
    ("data", "percent", "gamma"),
    [("cc3m", 10, 0.7), ("cc3m_b32", 10, 0.7), ("cc12m", 5, 0.7), ("yfcc15m", 1, 0.3)],
)
def test_ncu_has_the_settings_of_the_supplement(data, percent, gamma, tmp_path):
    stages = load_recipe(find_recipe("ncu"), tmp_path, [f"data={data}"]).stages
    request = stages["ncu"].command
    ncu, training = request.objective.ncu, request.training
    assert (ncu.forget_percent, ncu.gamma, ncu.epsilon) == (percent, gamma, 0.03)
    assert (ncu.alpha, ncu.beta, ncu.negative_weight) == (-0.7, -0.2, 10)
    assert (training.betas, training.eps, training.weight_decay) == ((0.9, 0.98), 1e-8, 0.2)
    assert (request.objective.prompt_epochs, request.objective.epochs) == (2, 8)
    assert (request.batch_size, request.objective.learning_rate) == (2048, 5e-5)
    probe = stages["probe_after"].command
    assert (probe.probe.solver, probe.probe.epochs) == ("adamw", 60)
    assert probe.epochs_by_set == {"imagenet1k": 90}


def test_every_arm_of_the_benchmark_is_what_it_is_called(tmp_path):
    """An epoch shows every caption: without a selection one of each image would do."""
    stages = load_recipe(find_recipe("nc_benchmark"), tmp_path).stages
    arms = [stage.command for stage in stages.values() if stage.command.name == "finetune"]
    assert len(arms) == 99
    assert all(arm.selection is not None for arm in arms)
    for name, variant in (("ncu", "published"), ("ncu_released", "released")):
        ncu = stages[f"{name}--rate-0_2--seed-0"].command.objective.ncu
        assert (ncu.variant, ncu.negative) == (variant, "prompt")


@pytest.mark.parametrize("name", NAMES)
def test_a_bundled_recipe_can_start_where_its_data_are(name, corpus, scored, tmp_path):
    weights = tmp_path / "weights.pt"
    weights.touch()
    for number, picks in enumerate((choices(name)[0], choices(name)[-1])):
        source = read_source(find_recipe(name))
        choose(source, dict(pick.split("=") for pick in picks))
        changes = []
        for variable, value in source.values["vars"].items():
            if isinstance(value, str) and re.match(r"/|s3:", value):
                is_embedded = variable == "targets" or (name in EMBEDDED and variable == "source")
                place = scored / "embeddings" if is_embedded else corpus
                place = {"weights": weights, "out": tmp_path / "out"}.get(variable, place)
                changes.append(f"{variable}={place}")
        folder = tmp_path / f"run{number}"
        assert plan(load_recipe(find_recipe(name), folder, [*picks, *changes]), probe=False)


def test_the_plan_begins_with_what_the_recipe_says(corpus, tmp_path):
    sets = [f"{name}={corpus}" for name in ("shards", "imagenet")]
    lost = [f"{name}=null" for name in ("coco", "flickr30k", "sets", "probe_sets", "validation")]
    planned = Run(
        recipe="ncu", out=str(tmp_path), set=["start=demo", *sets, *lost], dry_run=True
    ).run()
    assert planned.to_json()["about"].splitlines()[1].startswith("data=cc3m: CC3M, ViT-B/16.")
    assert [stage.name for stage in planned.summary] == [
        "ncu", "zeroshot_before", "zeroshot_after", "zeroshot_gain"
    ]  # fmt: skip
    assert planned.summary[1].about == "Table 1, ImageNet"


def test_the_demo_needs_nothing_from_outside(tmp_path):
    stages = plan(load_recipe(find_recipe("demo"), tmp_path / "run", ["pairs=500"]), probe=False)
    assert stages[0].pairs == 500
    assert {stage.action for stage in stages} == {"run"}


def test_a_name_that_is_none_suggests_one(tmp_path, refused):
    assert find_recipe("demo") == FOLDER / "demo.yaml"
    refused(find_recipe, "ncu_cc3m")
    refused(find_recipe, str(tmp_path / "x.yaml"))


# Every bundled recipe from its first stage to its page, on rendered stand-ins for its data.

RUNS = [
    *((name, ()) for name in NAMES),
    ("ncu", ("data=cc12m", "study=comparisons")),
    ("ncu", ("study=portions",)),
    ("osa", ("data=cc120k",)),
    ("osa", ("data=webfg",)),
    ("osa", ("study=functions",)),
    ("disncl", ("data=cc152k", "study=losses")),
    ("disncl", ("study=halves",)),
    ("bayes", ("study=priors",)),
]
RUN_SETS = {
    "benchmark": "retrieval", "flickr30k": "retrieval", "coco": "retrieval",
    "imagenet": "zeroshot-texture", "probe_set": "zeroshot-texture", "validation": "retrieval",
    "sets": "zeroshot-texture", "shifted": "", "probe_sets": "zeroshot-texture",
}  # fmt: skip
SMALL = {
    "finetune": {"steps": 2, "batch_size": 16, "parts": 1, "precision": "fp32",
                 "tensorboard": False, "decode_threads": 1},
    "adapt": {"steps": 1, "batch_size": 4, "threshold": 0, "precision": "fp32"},
    "score": {"precision": "fp32"},
    "synth": {"held_out": 20, "workers": 1},
    "evaluate disentanglement": {"plot": None},
}  # fmt: skip


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    """160 pairs of which a third is mismatched, evaluation sets, and captioned images of one."""
    folder = tmp_path_factory.mktemp("stand-ins")
    rendered(folder / "shards", pairs=160, shard_size=80, noise={"ncr": 0.3}, seed=3)
    write_heldout(folder / "heldout", 40, seed=3)
    labelled = folder / "heldout/zeroshot-texture/train/0.tar"
    with tarfile.open(labelled) as images, tarfile.open(folder / "labelled.tar", "w") as pairs:
        for member in images:
            data = images.extractfile(member).read()
            member.name = member.name.replace(".cls", ".txt")
            pairs.addfile(member, BytesIO(data))
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("rough_shifts")
@pytest.mark.parametrize(("name", "picks"), RUNS)
def test_a_bundled_recipe_runs(name, picks, stand_ins, scored, tmp_path):
    """With two steps of training, one value of each `for`, and on this machine alone."""
    source = read_source(find_recipe(name))
    choose(source, dict(pick.split("=") for pick in picks))
    source.values.pop("engine", None)
    shards = scored / "embeddings" if name in EMBEDDED else stand_ins / "shards"
    weights = str(Path(ncclean.__file__).parent / "models/demo_noisy/open_clip_model.safetensors")
    small = {"model": "demo-noisy", "weights": weights, "out": str(tmp_path / "out"), "pairs": 96,
             "batch_size": 16, "steps": 2, "size": 50, "probe_epochs": []}  # fmt: skip
    if "data=webfg" in picks:
        small["shards"] = str(stand_ins / "labelled.tar")
    variables = source.values.get("vars", {})
    for variable, value in variables.items():
        if value is None:
            continue
        if variable in RUN_SETS:
            variables[variable] = str(stand_ins / "heldout" / RUN_SETS[variable])
        elif variable in small:
            variables[variable] = small[variable]
        elif isinstance(value, str) and re.match(r"/|s3:", value):
            variables[variable] = str(shards)
    for values in source.values.get("for", {}).values():
        del values[:-1]
    for stage, options in source.values["stages"].items():
        if isinstance(options, str):
            continue
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
