"""Every bundled recipe from its first stage to its page, on rendered stand-ins for its data."""

import re

import pytest
from ncclean_pipelines.recipe.bundled import bundled_recipes, find_recipe
from ncclean_pipelines.recipe.load import resolve
from ncclean_pipelines.recipe.run import run

from ncclean.data.synthetic import CorpusOptions, write_corpus
from ncclean.data.synthetic.heldout import write_heldout
from ncclean.recipes.source import read_source

pytestmark = pytest.mark.slow
SETS = {
    "benchmark": "retrieval", "flickr30k": "retrieval", "retrieval_set": "retrieval",
    "imagenet": "zeroshot-texture", "shifted": "", "probe_sets": "",
}  # fmt: skip
EMBEDDED = ("clean_embeddings", "datacomp_pack")
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
    options = CorpusOptions(pairs=160, shard_size=80, noise={"ncr": 0.3}, seed=3)
    write_corpus(folder / "shards", options, 1)
    write_heldout(folder / "heldout", 20, seed=3)
    return folder


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
        if variable in SETS:
            variables[variable] = str(stand_ins / "heldout" / SETS[variable])
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
