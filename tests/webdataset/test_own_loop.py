"""The loops of docs/own-loop.md run, and weigh the loss as `finetune --method osa` does."""

import json
import re
import shlex
import shutil

import open_clip
import pyarrow.parquet as pq
import pytest
import torch

import ncclean
from ncclean.data.synthetic import CorpusOptions, write_corpus
from ncclean.training.objectives.osa import osa_loss
from tests.test_docs import DOCS

PAGE = (DOCS / "own-loop.md").read_text("utf-8")
TINY = {
    "embed_dim": 32,
    "vision_cfg": {
        "image_size": 32, "layers": 1, "width": 32, "patch_size": 16, "head_width": 16
    },
    "text_cfg": {
        "context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with `shards/`, and the selection of the page's commands."""
    folder = tmp_path_factory.mktemp("own-loop")
    write_corpus(folder / "shards", CorpusOptions(pairs=140, shard_size=35, noise={"ncr": 0.3}), 1)
    (folder / "open_clip-tiny.json").write_text(json.dumps(TINY))
    ncclean.score(str(folder / "shards"), str(folder / "scores.parquet"), model="demo", shift=0.1)
    ncclean.select(
        str(folder / "scores.parquet"), str(folder / "clean.parquet"), weights="osa_weight"
    )
    return folder


@pytest.fixture
def in_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    config = folder / "open_clip-tiny.json"
    open_clip.add_model_config(config)
    return folder


def block(about, language="python"):
    """The block of the page that holds a text, with model and images replaced by small ones."""
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)
    text = next(one for one in blocks if about in one)
    text = text.replace(".transforms()", ".transforms(crop_size=32, resize_size=32)")
    return text.replace("ViT-B-32", "open_clip-tiny").replace(', "openai"', "")


def test_the_loop_of_webdataset(in_folder):
    names = {}
    exec(block("wds.WebLoader"), names)
    with torch.no_grad():
        image, text, scale = names["model"](names["images"], names["texts"])
        logits = scale * image @ text.T
        cross_entropy = torch.nn.functional.cross_entropy
        losses = cross_entropy(logits, names["labels"], reduction="none")
        losses = (losses + cross_entropy(logits.T, names["labels"], reduction="none")) / 2
        weights = torch.as_tensor(names["weights"], dtype=logits.dtype)
        assert torch.allclose((weights * losses).mean(), osa_loss(image, text, scale, weights))
    assert 0 < weights.mean() < 1


def test_the_loop_of_pytorch(in_folder):
    names = {}
    exec(block("class Towers"), names)
    image = torch.nn.functional.normalize(torch.randn(4, 8))
    text = torch.nn.functional.normalize(torch.randn(4, 8))
    scores = (image @ text.T).tolist()
    others = [[j for j in range(4) if j != i] for i in range(4)]
    expected = [
        max(0.0, *(0.2 + scores[i][j] - scores[i][i] for j in others[i]))
        + max(0.0, *(0.2 + scores[j][i] - scores[i][i] for j in others[i]))
        for i in range(4)
    ]
    weights = torch.tensor([0.0, 0.5, 1.0, 1.0])
    mean = sum(w * loss for w, loss in zip(weights.tolist(), expected, strict=True)) / 4
    assert names["hinge"](image, text, weights).item() == pytest.approx(mean, rel=1e-5)


def test_the_rows_of_datasets(in_folder):
    pytest.importorskip("datasets")
    ncclean.select("scores.parquet", "all.parquet", where="status = 'ok'")
    ncclean.export("all.parquet", "photos", shards="shards/", layout="parquet", workers=1)
    ncclean.score("photos/", "photos.parquet", model="demo", shift=0.1)
    ncclean.select("photos.parquet", "clean.parquet", weights="osa_weight", overwrite=True)
    names = {}
    exec(block("load_dataset"), names)
    selected = pq.read_table("clean.parquet")
    assert names["pairs"]["weight"] == pytest.approx(selected["weight"].to_pylist())


def test_open_clip_trains_on_the_export(in_folder):
    from open_clip_train.main import main

    shutil.rmtree("kept", ignore_errors=True)
    ncclean.select("scores.parquet", "kept.parquet", method="noise-probability", overwrite=True)
    ncclean.export("kept.parquet", "kept", shards="shards/", workers=1)
    command = block("open_clip_train", "bash").partition("python -m open_clip_train.main")[2]
    words = shlex.split(command.replace("--pretrained openai", "").replace("\\\n", " "))
    main([*words, "--device", "cpu", "--logs", "logs", "--name", "run"])
    assert list((in_folder / "logs/run/checkpoints").glob("*.pt"))
