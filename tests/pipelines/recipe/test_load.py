"""Recipes to commands; every mistake is one sentence with the line."""

from pathlib import Path

import pytest
from ncclean_pipelines.recipe.load import load_recipe

from ncclean.base.config import ClusterOptions
from ncclean.recipes.source import RecipeError

from .recipes import made

FOLDER = Path("runs/r")
HEAD = "vars:\n  size: 128\n  data: /data\nstages:\n"


def test_stages_are_wired_by_name():
    recipe = made(
        HEAD
        + """\
  score:
    shards: ["${data}/a.tar", "${data}/b.tar"]
    batch_size: ${size}
    embeddings: true
  neighbours:
    embeddings: ${score.embeddings}
  a:
    command: finetune
    method: ncu
    shards: /s
    learning_rate: 5e-5
    gamma: 0.3
    decode_threads: 3
  b:
    command: score
    shards: ${run}/x.tar
    model: ${a}
    out: /elsewhere/s
""",
        FOLDER,
    )
    score, neighbours, a, b = (recipe.stages[name].command for name in recipe.stages)
    assert score.shards == ["/data/a.tar", "/data/b.tar"]
    assert score.options.batch_size == 128
    assert score.out == "runs/r/score/scores.parquet"
    assert neighbours.embeddings == [score.options.embeddings] == ["runs/r/score/embeddings"]
    assert neighbours.out == "runs/r/neighbours/neighbours.parquet"
    assert (a.objective.learning_rate, a.objective.ncu.gamma) == (5e-5, 0.3)
    assert a.loader.decode_threads == 3
    assert a.out == "runs/r/a"
    assert b.model == "local-dir:runs/r/a"
    assert b.shards == ["runs/r/x.tar"]
    assert b.out == "/elsewhere/s"
    assert recipe.stages["b"].uses == ("a",)
    assert recipe.stages["neighbours"].uses == ("score",)


def test_a_number_within_a_text_is_written_as_it_stands():
    text = """\
vars: {version: 1.10, gamma: 0.30}
for: {scale: [1.50, 2]}
stages:
  a:
    command: finetune
    method: ncu
    shards: /corpus-${version}/x-${scale}
    gamma: ${gamma}
    learning_rate: ${scale}
"""
    recipe = made(text, FOLDER)
    assert list(recipe.stages) == ["a--scale-1_5", "a--scale-2"]
    first, second = (stage.command for stage in recipe.stages.values())
    assert (first.shards, second.shards) == (["/corpus-1.10/x-1.50"], ["/corpus-1.10/x-2"])
    assert (first.objective.ncu.gamma, first.objective.learning_rate) == (0.3, 1.5)


def test_engine_options_are_for_all_score_stages():
    recipe = made(
        "engine: {ray_address: auto, workers: 8}\n"
        "stages:\n  score:\n    shards: x\n  other:\n    command: score\n    shards: x\n"
        "    workers: 2\n",
        FOLDER,
    )
    assert recipe.stages["score"].command.cluster == ClusterOptions(address="auto", workers=8)
    assert recipe.stages["other"].command.cluster.workers == 2


def test_set_wins_over_the_file(tmp_path, refused):
    path = tmp_path / "small.yaml"
    path.write_text("vars:\n  data: /a\nstages:\n  score:\n    shards: ${data}\n")
    recipe = load_recipe(path, FOLDER, ["data=/b", "score.block_size=100"])
    assert recipe.name == "small"
    assert recipe.stages["score"].command.shards == ["/b"]
    assert recipe.stages["score"].command.options.block_size == 100
    refused(load_recipe, path, FOLDER, ["score.block_size=many"])


SCORE = HEAD + "  score:\n    shards: /s\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stages:\n", "line 1: stages: input should be a valid dictionary"),
        ("about: x\n", "line 1: a recipe needs stages"),
        ("stages: {}\n", "line 1: stages: dictionary should have at least 1 item"),
        ("stage:\n  score:\n", "line 1: a recipe has no option 'stage' (did you mean stages?)"),
        ("about: x\nengine:\n  worker: 3\nstages:\n  score: {shards: x}\n",
         "line 3: engine has no option 'worker' (did you mean workers?)"),
        ("stages:\n  Score:\n    shards: x\n", "line 2: 'Score' is not a name"),
        ("vars:\n  a: 1\n  my data: 2\nstages:\n  score: {shards: x}\n",
         "line 3: 'my data' is not a name"),
        ("vars:\n  a:\nstages:\n  score: {shards: x}\n", "line 2: a has no value"),
        ("vars:\n  score: 1\nstages:\n  score: {shards: x}\n", "line 2: 'score' names a stage too"),
        ("vars:\n  a: ${b}\n  b: 1\nstages:\n  score: {shards: x}\n",
         "line 2: there is no variable 'b' before 'a'"),
        ("stages:\n  run:\n    command: score\n    shards: x\n", "line 2: ${run} is the run's"),
        ("stages:\n  mine:\n    shards: x\n", "line 2: no command 'mine'; there are"),
        ("stages:\n  mine:\n    command: scor\n", 
         "line 3: no command 'scor' (did you mean score?)"),
        (SCORE + "    shard: /t\n", "line 7: score has no option 'shard' (did you mean shards?)"),
        (HEAD + "  score:\n    model: demo\n", "line 5: score needs shards"),
        (HEAD + "  score:\n", "line 5: score needs shards"),
        (SCORE + "    batch_size: many\n", "line 7: batch_size: input should be a valid integer"),
        (SCORE + "    batch_size: yes\n", "line 7: batch_size takes a number, got True"),
        (SCORE + "    batch_size: 010\n", "line 7: 010 is the number 8 in YAML: write 8, or '010' "
         "with its quotes"),
        (SCORE + "    forget_percent: 1:30.5\n", "line 7: 1:30.5 is the number 90.5 in YAML"),
        (SCORE + "  n:\n    command: inject-noise\n    shards: x\n    noise: {ncr: on}\n",
         "line 10: noise takes a number, got True"),
        ("repeats: yes\n" + SCORE, "line 1: repeats: input should be a valid integer"),
        ("for:\n  code: [no, de]\nstages:\n  score:\n    shards: x/${code}\n",
         "line 4: ${code} is False in YAML, not a text that can be part of 'x/${code}'"),
        (SCORE + "  s:\n    command: select\n    scores: ${score}\n    best_caption: on\n"
         "  e:\n    command: explain\n    scores: x-${s.best_caption}\n",
         "line 13: ${s.best_caption} is True in YAML"),
        (SCORE + "    batch_size: 0\n", "line 7: --batch-size must be at least 1, got 0"),
        (SCORE + "    precision: fp32\n    shift: much\n", "line 8: --shift takes auto, noise"),
        (SCORE + "    pairs_per_second: 0\n", "line 7: pairs_per_second: input should be greater"),
        (SCORE + "    model: ${modle}\n", "line 7: ${modle} is not a variable or an earlier stage; "
         "there are size, data, run"),
        (SCORE + "    model: ${score}\n", "line 7: the stage 'score' refers to itself"),
        (SCORE + "    model: ${a}\n  a:\n    command: finetune\n",
         "line 7: the stage 'a' comes later: put it before 'score'"),
        (SCORE + "  neighbours:\n    embeddings: ${score.embeddings}\n",
         "line 8: the stage 'score' is given no 'embeddings'; it has shards, out"),
        (SCORE + "  a:\n    command: finetune\n    shards: x\n    method: magic\n",
         "line 10: --method takes"),
        (SCORE + "  a:\n    command: finetune\n    shards: x\n    method: ncu\n    gamma: 3\n",
         "line 11: --gamma must be at most 1, got 3"),
        (SCORE + "  a:\n    command: finetune\n    shards: x\n    forget_by: half\n",
         "line 10: --forget-by takes model, table, got 'half'"),
        (SCORE + "  select:\n    scores: ${score}\n    keep_fraction: 0.3\n",
         "line 9: --keep-fraction needs --score"),
        (SCORE + "  select:\n    scores: ${score}\n    where: 1 1\n",
         "line 9: --where takes one SQL expression"),
        (SCORE + "  n:\n    command: evaluate noise\n    scores: ${score}\n    plot: x.txt\n",
         "line 10:"),
        (SCORE + "  n:\n    command: inject-noise\n    shards: x\n    kind: ncr\n",
         "line 10: there are 1 --kind and 0 --rate"),
        (SCORE + "  export:\n    selection: x\n", "line 7: export needs --shards"),
        (SCORE + "    overwrite: true\n", "line 7: score has no option 'overwrite'"),
        (SCORE + "    dry_run: true\n", "line 7: score has no option 'dry_run'"),
        ("stages:\n  finetune:\n    shards: x\n    method: ncu\n    resume: true\n",
         "line 5: finetune has no option 'resume'"),
        ("stages:\n  finetune:\n    shards: x\n    method: osa\n    gamma: 0.5\n",
         "line 5: --gamma is an option of --method ncu and does nothing "
         "with osa"),
        # The value of the default does nothing either.
        ("stages:\n  finetune:\n    shards: x\n    method: clip\n    prompt_epochs: 2\n",
         "line 5: --prompt-epochs is an option of --method ncu"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_with_the_line(text, message):
    with pytest.raises(RecipeError) as raised:
        made(text, FOLDER)
    assert str(raised.value).startswith(f"r.yaml, {message}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "noise", ["{ncr: 0.2, hard: 0.05}", "ncr=0.2,hard=0.05", "[ncr=0.2, hard=0.05]"]
)
def test_rates_may_be_a_mapping_or_as_on_the_command_line(noise):
    text = f"stages:\n  inject-noise:\n    shards: x\n    noise: {noise}\n"
    assert made(text, FOLDER).stages["inject-noise"].command.rates == {"ncr": 0.2, "hard": 0.05}


WRITERS = "stages:\n  one:\n    {}\n    out: {}\n  two:\n    {}\n    out: {}\n"
SELECT = "command: select\n    scores: /s"
EXPORT = "command: export\n    shards: /s\n    selection: /c"
ADAPT = "command: adapt\n    shards: /s\n    scores: /t"
ZEROSHOT = "command: evaluate zeroshot\n    model: demo\n    data: /d"
RETRIEVAL = "command: evaluate retrieval\n    model: demo\n    data: /d"


@pytest.mark.parametrize(
    ("one", "first", "two", "second"),
    [
        (EXPORT, "/here", EXPORT, "/here"),
        (EXPORT, "/here", ADAPT, "/here/"),
        (ZEROSHOT, "/here", ADAPT, "/here"),
        (ADAPT, "/here", ZEROSHOT, "/here"),
        (ZEROSHOT, "/here/r.json", RETRIEVAL, "/here/r.json"),
        (SELECT, "/here/s.parquet", SELECT, "/here/s.parquet"),
        (EXPORT, "${run}/x", EXPORT, "runs/r/x"),
        (EXPORT, "/here/x", EXPORT, "/here/./y/../x"),
    ],
)
def test_two_stages_that_write_to_one_place_are_refused_with_the_line(one, first, two, second):
    text = WRITERS.format(one, first, two, second)
    line = text.count("\n")  # the last one
    with pytest.raises(RecipeError) as raised:
        made(text, FOLDER)
    assert str(raised.value).startswith(
        f"r.yaml, line {line}: the stages 'one' and 'two' both write to "
    )


def test_a_stage_must_not_write_where_another_does_by_default(refused):
    text = f"stages:\n  one:\n    {EXPORT}\n  two:\n    {EXPORT}\n    out: ${{run}}/one\n"
    refused(made, text, FOLDER)


def test_evaluations_may_share_a_folder():
    recipe = made(WRITERS.format(ZEROSHOT, "/here", RETRIEVAL, "/here"), FOLDER)
    assert [stage.out for stage in recipe.stages.values()] == ["/here", "/here"]


COLUMNS = HEAD + "  score:\n    shards: /s\n    columns: [os:getcwd]\n"


def load(tmp_path, text, *changes):
    (tmp_path / "r.yaml").write_text(text)
    return load_recipe(tmp_path / "r.yaml", FOLDER, changes)


def test_a_recipe_names_no_function_by_itself(tmp_path, refused):
    """It may be anybody's, and what it names would be imported and called."""
    refused(load, tmp_path, COLUMNS)
    recipe = load(tmp_path, COLUMNS, "score.columns=[mine:simple]")
    assert list(recipe.stages["score"].values["columns"]) == ["mine:simple"]
    by_variable = COLUMNS.replace("[os:getcwd]", "${size}")
    refused(load, tmp_path, by_variable)
    recipe = load(tmp_path, by_variable, "size=mine:simple")
    assert list(recipe.stages["score"].values["columns"]) == ["mine:simple"]


@pytest.mark.parametrize("value", ["${a%d}${a%d}", '["${a%d}", "${a%d}"]'])
def test_variables_that_double_each_other_do_not_fill_the_memory(tmp_path, value, refused):
    lines = ["vars:", "  a0: xxxxxxxxxx"]
    lines += [f"  a{n}: {value % (n - 1, n - 1)}" for n in range(1, 60)]
    refused(load, tmp_path, "\n".join(lines) + "\nstages:\n  score: {shards: /s}\n")


@pytest.mark.parametrize("text", ["[" * 20_000, "a: &a [*a]", "? [a]\n: b", "stages: 2020-13-45"])
def test_yaml_that_is_no_recipe(tmp_path, text, refused):
    refused(load, tmp_path, text)


@pytest.mark.parametrize("folder", [FOLDER, Path("/data/runs/r")])
@pytest.mark.parametrize(
    "place",
    ["../../x", "x", "runs/other", "${run}/../x", "${run}/a/../../r2/x", "${v}/x", "~/x", "."],
)
def test_a_relative_place_outside_of_the_run_is_refused_with_the_line(folder, place):
    for option in (
        f"{EXPORT}\n    out: {place}",
        f"command: report\n    scores: s\n    figures: {place}",
    ):
        with pytest.raises(RecipeError, match="outside of the run's folder") as raised:
            made(f"vars:\n  v: ../o\nstages:\n  one:\n    {option}\n", folder)
        line = 4 + option.count("\n") + 1
        assert str(raised.value).startswith(f"r.yaml, line {line}: ")


def test_absolute_places_are_meant_and_named():
    text = (
        f"vars:\n  v: /big\nstages:\n  one:\n    {EXPORT}\n    out: ${{v}}/x\n"
        f"  two:\n    {EXPORT}\n    out: ${{one}}/y\n  three:\n    {EXPORT}\n    out: s3://b/x\n"
        f"  four:\n    {EXPORT}\n    out: ${{run}}/a/../b\n"
    )
    stages = made(text, FOLDER).stages
    assert [stage.elsewhere for stage in stages.values()] == [
        ("/big/x",), ("/big/x/y",), ("s3://b/x",), ()
    ]  # fmt: skip


def test_a_place_that_a_link_leads_out_of_the_run_is_named(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "inner").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "run" / "link").symlink_to(tmp_path / "other")
    (tmp_path / "run" / "own").symlink_to(tmp_path / "run" / "inner")
    text = (
        f"stages:\n  one:\n    {EXPORT}\n    out: ${{run}}/link/x\n"
        f"  two:\n    {EXPORT}\n    out: ${{run}}/own/x\n"
    )
    one, two = made(text, tmp_path / "run").stages.values()
    assert (one.elsewhere, two.elsewhere) == ((str(tmp_path / "other" / "x"),), ())
