"""Every bundled recipe from its first stage to its page, on rendered stand-ins for its data."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.recipe.bundled import bundled_recipes, find_recipe
from ncclean_pipelines.recipe.load import load_recipe, resolve
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
ROUNDING = 1e-3
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


def test_the_datacomp_pack_keeps_what_its_papers_rules_keep(tmp_path):
    """Against both rules in plain NumPy, with the whole pool as the batch of negCLIPLoss."""
    folder, draw = tmp_path / "pool", np.random.default_rng(0)
    image = draw.normal(size=(500, 64)).astype(np.float16)
    text = (image + draw.normal(size=image.shape) * draw.uniform(3, 9, (500, 1))).astype(np.float16)
    targets = draw.normal(size=(40, 64)).astype(np.float16)
    uids = np.array([f"{number:032x}" for number in draw.permutation(500)])
    folder.mkdir()
    np.savez(folder / "00000000.npz", l14_img=image, l14_txt=text)
    table = pa.table({"uid": uids, "text": [f"caption {number}" for number in range(500)]})
    pq.write_table(table, folder / "00000000.parquet")
    np.save(tmp_path / "targets.npy", targets)
    values = {"source": folder, "targets": tmp_path / "targets.npy", "size": 200}
    settings = [f"{name}={value}" for name, value in values.items()]
    done = run(load_recipe(find_recipe("datacomp_pack"), tmp_path / "run", settings))
    assert done.failures == {}

    image, text = (side / np.linalg.norm(side, axis=1, keepdims=True)
                   for side in (image.astype(float), text.astype(float)))  # fmt: skip
    logits = 100 * image @ text.T
    rivals = np.log(np.exp(logits).sum(0)) + np.log(np.exp(logits).sum(1))
    loss = logits.diagonal() / 100 - rivals / 200
    near = (image @ (targets / np.linalg.norm(targets, axis=1, keepdims=True)).T).max(1)
    kept, drawn = (np.load(tmp_path / "run" / f"{name}.npy") for name in ("subset", "drawn"))
    assert kept.dtype == drawn.dtype == np.dtype("u8,u8")
    names = {f"{high:016x}{low:016x}" for high, low in kept.tolist()}
    is_kept = np.isin(uids, list(names))
    assert is_kept.sum() == len(kept) == int(0.667 * int(0.3 * len(uids)))
    # Vectors are compared in lower precision: a pair that is near a limit may be on either side.
    lowest = np.sort(loss)[-int(0.3 * len(uids))]
    assert (loss[is_kept] > lowest - ROUNDING).all()
    aligned = loss > lowest + ROUNDING
    assert near[aligned & ~is_kept].max() < near[is_kept].min() + ROUNDING
    assert len(drawn) == 200
    assert set(drawn.tolist()) <= set(kept.tolist())
    assert drawn.tolist() == sorted(drawn.tolist())
