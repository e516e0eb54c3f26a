"""Columns beside the scores: functions, heads and signals, through resume and merge."""

import json
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from ncclean_pipelines.score import Score
from safetensors.torch import save_file

import ncclean
from ncclean.base.config import ScoreOptions
from ncclean.columns import columns
from ncclean.data.text_signals import TYPES, TextSignals
from ncclean.errors import ResumeError
from ncclean.execution.column_sources import BatchColumns
from ncclean.models.heads import EmbeddingHead
from ncclean.storage.score_run import ScoreRun
from tests.factories import rendered

pytestmark = pytest.mark.usefixtures("rough_shifts")


@columns(words=pa.int32(), brightest=pa.float32(), alike=pa.float64(), noise=pa.string())
def facts(batch):
    assert batch.pixels.dtype == torch.uint8
    assert len(batch.pixels) == len(batch.image) == len(batch.metadata) == len(batch)
    return {
        "words": [len(text.split()) for text in batch.captions],
        "brightest": batch.pixels.flatten(1).max(dim=1).values / 255,
        "alike": (batch.image * batch.text).sum(dim=1).cpu().double().numpy(),
        "noise": pa.array([fields.get("noise_kind") for fields in batch.metadata]),
    }


@columns(version="2", length=pa.int16())
def picky(batch):
    """Fails on every pair with an o in its caption."""
    if any("o" in text for text in batch.captions):
        raise ValueError("an o\nin the caption")
    return {"length": [len(text) for text in batch.captions]}


@columns(fine=pa.int32())
def wrong_names(batch):
    return {"other": [1] * len(batch)}


@columns(short=pa.int32())
def too_few(batch):
    return {"short": [1]}


@columns(similarity=pa.float32())
def taken(batch):
    return {}


@columns(length=pa.int16())
def of_embeddings(batch):
    assert batch.pixels is None
    return {"length": [len(text) for text in batch.captions]}


def undeclared(batch):
    return {}


def score(source, out, **options):
    settings = {"model": "demo", "pretrained": None, "precision": "fp32", "shift": "shuffled"}
    chosen = ScoreOptions(batch_size=32, **options)
    result = Score(shards=[str(source)], out=str(out), options=chosen, **settings).run()
    return result, pq.read_table(out)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """150 rendered pairs in 3 shards, with broken ones in the first."""
    folder = tmp_path_factory.mktemp("columns") / "shards"
    options = {"noise": {"ncr": 0.2}, "broken": 0.04, "seed": 7}
    return rendered(folder, pairs=150, shard_size=50, **options)


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """An MLP on embeddings of the demo model, and what it computes."""
    path = tmp_path_factory.mktemp("head") / "head.safetensors"
    from ncclean.models.estimator import Estimator

    dim = Estimator.load("demo", None, precision="fp32").embed_dim
    rng = torch.Generator().manual_seed(0)
    layers = {
        f"layers.{number}.{name}": torch.randn(*shape, generator=rng)
        for number, (rows, width) in {2: (8, dim), 10: (1, 8)}.items()
        for name, shape in (("weight", (rows, width)), ("bias", (rows,)))
    }
    save_file(layers, path, metadata={"activation": "relu", "output": "sigmoid"})

    def expected(image):
        hidden = (image @ layers["layers.2.weight"].T + layers["layers.2.bias"]).relu()
        return (hidden @ layers["layers.10.weight"].T + layers["layers.10.bias"]).sigmoid()[:, 0]

    return path, expected


ALL = {"columns": [f"{__name__}:facts", f"{__name__}:picky"], "signals": ["language", "image"]}


@pytest.fixture(scope="module")
def scored(corpus, head, tmp_path_factory):
    folder = tmp_path_factory.mktemp("columns")
    result, table = score(
        corpus, folder / "s.parquet", head=[f"beauty={head[0]}"],
        embeddings=str(folder / "embeddings"), **ALL,
    )  # fmt: skip
    return folder, result, table


def ok(table):
    return table.filter(pc.equal(table.column("status"), "ok"))


def test_the_scores_are_those_without(corpus, scored, tmp_path):
    _, plain = score(corpus, tmp_path / "plain.parquet")
    table = scored[2]
    assert table.column_names[: len(plain.column_names)] == plain.column_names
    for name in plain.column_names:
        assert table.column(name).equals(plain.column(name)), name
    types = {field.name: str(field.type) for field in table.schema}
    assert {name: types[name] for name in ("words", "alike", "noise", "length", "beauty")} == {
        "words": "int32", "alike": "double", "noise": "string", "length": "int16",
        "beauty": "float",
    }  # fmt: skip


def test_functions_see_crop_caption_embeddings_and_fields(scored):
    table = ok(scored[2])
    captions = table.column("text").to_pylist()
    assert table.column("words").to_pylist() == [len(text.split()) for text in captions]
    assert np.allclose(table.column("alike"), table.column("similarity"), atol=2e-6)
    assert table.column("noise").equals(table.column("noise_kind"))
    assert 0.3 < np.mean(table.column("brightest")) <= 1
    broken = scored[2].filter(pc.not_equal(scored[2].column("status"), "ok"))
    assert broken.num_rows
    for name in ("words", "blur", "language", "beauty"):
        assert broken.column(name).null_count == len(broken)


def test_batches_in_any_order_are_columns_in_that_of_the_rows():
    class Lengths:
        def of_batch(self, batch, failures):
            return {"length": pa.array([len(caption) for caption in batch])}

    batches = BatchColumns(SimpleNamespace(sources=[Lengths()]))
    for places, captions in (([3, 1], ["aaaa", "aa"]), ([0, 2], ["a", "aaa"])):
        batches.add(places, captions)
    assert batches.in_order()["length"].to_pylist() == [1, 2, 3, 4]


def test_a_function_that_raises_costs_its_column_in_the_row(scored):
    _, result, table = scored
    captions = ok(table).column("text").to_pylist()
    lengths = ok(table).column("length").to_pylist()
    assert lengths == [None if "o" in text else len(text) for text in captions]
    name, failed = f"{__name__}:picky", sum("o" in text for text in captions)
    assert result.summary.column_failures == {name: failed}
    assert result.summary.column_errors == {name: "ValueError: an o in the caption"}
    assert not result.failures
    shown = "\n".join(str(part) for part in result.shown)
    assert f"failed for {failed} pairs" in shown


@pytest.mark.parametrize(
    ("function", "reason"),
    [("wrong_names", "must return a mapping with values for fine"), ("too_few", "")],
)
def test_what_is_no_column(function, reason, corpus, tmp_path):
    source = sorted(corpus.glob("*.tar"))[0]
    result, table = score(source, tmp_path / "s.parquet", columns=[f"{__name__}:{function}"])
    if reason:
        assert table.column("fine").null_count == len(table)
        (error,) = result.summary.column_errors.values()
        assert reason in error
    else:  # right for one pair, wrong for several
        assert ok(table).column("short").to_pylist() == [1] * len(ok(table))


def test_a_head_on_the_embeddings(scored, head):
    folder, _, table = scored
    image = np.concatenate(
        [np.load(path) for path in sorted((folder / "embeddings" / "img_emb").glob("*.npy"))]
    )
    expected = head[1](torch.from_numpy(image).float())
    assert np.allclose(ok(table).column("beauty"), expected.numpy(), atol=5e-3)


def test_signals(scored):
    table = ok(scored[2])
    assert pc.all(pc.equal(pc.utf8_length(table.column("image_hash")), 32)).as_py()
    assert pc.all(pc.equal(pc.utf8_length(table.column("image_dhash")), 16)).as_py()
    assert table.column("language").to_pylist().count("en") > 0.7 * len(table)
    assert pc.min(table.column("blur")).as_py() > 0


def test_embeddings_have_columns_too(scored, head, tmp_path, refused):
    folder, _, table = scored
    options = ScoreOptions(
        columns=[f"{__name__}:of_embeddings"], head=[f"beauty={head[0]}"], signals=["language"]
    )
    out = tmp_path / "e.parquet"
    Score(shards=[str(folder / "embeddings")], out=str(out), options=options).run()
    found = pq.read_table(out)
    texts = ok(table).column("text").to_pylist()
    assert found.column("length").to_pylist() == list(map(len, texts))
    assert found.column("language").equals(ok(table).column("language"))
    assert np.allclose(found.column("beauty"), ok(table).column("beauty"), atol=5e-3)
    refused(
        Score,
        shards=[str(folder / "embeddings")],
        out=str(tmp_path / "i.parquet"),
        options=ScoreOptions(signals=["image"]),
    )


def test_a_pair_without_a_vector_moves_no_column(scored, tmp_path):
    source = shutil.copytree(scored[0] / "embeddings", tmp_path / "e")
    file = sorted((source / "img_emb").glob("*.npy"))[0]
    vectors = np.load(file)
    vectors[1] = np.nan
    np.save(file, vectors)
    options = ScoreOptions(columns=[f"{__name__}:of_embeddings"])
    Score(shards=[str(source)], out=str(tmp_path / "s.parquet"), options=options).run()
    table = pq.read_table(tmp_path / "s.parquet")
    rows = ok(table)
    assert len(rows) == len(table) - 1
    assert rows["length"].to_pylist() == [len(text) for text in rows["text"].to_pylist()]


@pytest.mark.slow
@pytest.mark.parametrize("out", ["s.parquet", "folder"])
def test_pieces_merged_are_the_whole(out, corpus, scored, head, tmp_path):
    shards = sorted(corpus.glob("*.tar"))
    broken = tmp_path / "in" / "broken.tar"
    broken.parent.mkdir()
    broken.write_bytes(b"no tar")
    whole, pieces = [*shards, broken], [[broken], shards]
    settings = {"model": "demo", "pretrained": None, "precision": "fp32", "shift": "shuffled"}
    options = ScoreOptions(batch_size=32, head=[f"beauty={head[0]}"], **ALL)

    def run(sources, place):
        sources = [str(source) for source in sources]
        Score(shards=sources, out=str(place), options=options, **settings).run()
        return str(place)

    parts = [run(piece, tmp_path / f"piece{n}" / out) for n, piece in enumerate(pieces)]
    expected = run(whole, tmp_path / "whole" / out)
    ncclean.merge(parts, str(tmp_path / "merged" / out), shift="shuffled")
    tables = [pq.read_table(place) for place in (expected, tmp_path / "merged" / out)]
    tables = [table.sort_by([("shard", "ascending"), ("row", "ascending")]) for table in tables]
    assert tables[0].drop(["error"]).equals(tables[1].drop(["error"]))
    assert {"words", "length", "beauty", "blur"} <= set(tables[1].column_names)


def test_a_killed_run_goes_on_with_the_same_columns(corpus, scored, head, tmp_path, monkeypatch):
    commit, seen = ScoreRun.commit, []

    def dying(self, shard, *rest):
        commit(self, shard, *rest)
        seen.append(shard.name)
        if len(seen) == 2:
            raise KeyboardInterrupt

    out = tmp_path / "s.parquet"
    options = {"head": [f"beauty={head[0]}"], **ALL}
    with monkeypatch.context() as patched:
        patched.setattr(ScoreRun, "commit", dying)
        with pytest.raises(KeyboardInterrupt):
            score(corpus, out, **options)
    result, table = score(corpus, out, **options)
    assert table.drop(["error"]).equals(scored[2].drop(["error"]))
    assert result.summary.column_failures == scored[1].summary.column_failures


def test_another_version_or_file_is_another_run(corpus, head, tmp_path, refused):
    source = sorted(corpus.glob("*.tar"))[0]
    out = tmp_path / "s.parquet"
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(head[0].read_bytes())
    score(source, out, columns=[f"{__name__}:picky"], head=[f"beauty={copy}"])
    metadata = pq.read_metadata(out).metadata
    assert json.loads(metadata[b"columns"]) == [f"{__name__}:picky 2"]
    score(source, out, columns=[f"{__name__}:picky"], head=[f"beauty={head[0]}"])  # as it was
    save_file({"weight": torch.zeros(1, EmbeddingHead.load(str(copy)).dim)}, copy)
    refused(score, source, out, columns=[f"{__name__}:picky"], head=[f"beauty={copy}"])
    refused(score, source, out, head=[f"beauty={head[0]}"])


@pytest.mark.parametrize(
    "options",
    [
        {"columns": ["json"]},
        {"columns": ["no_such_module:f"]},
        {"columns": ["json:nothing"]},
        {"columns": [f"{__name__}:undeclared"]},
        {"columns": [f"{__name__}:taken"]},
        {"columns": [f"{__name__}:picky", f"{__name__}:of_embeddings"]},
        {"head": ["beauty"]},
        {"head": ["x=nowhere.safetensors"]},
        {"signals": ["language", "smell"]},
        {"signals": ["image"], "decode_on": "device"},
        {"signals": ["image"], "draft": True},
        {"draft": True, "decode_on": "device"},
    ],
)
def test_what_cannot_be_is_said_before_anything_is_scored(options, refused, corpus, tmp_path):
    refused(score, corpus, tmp_path / "s.parquet", **options)
    assert not list(tmp_path.iterdir())


def test_a_module_in_the_working_folder(corpus, tmp_path, monkeypatch):
    """Once it is edited, a run that has values of it is another run."""
    module = tmp_path / "my_columns.py"
    module.write_text(
        "import pyarrow as pa\nfrom ncclean.columns import columns\n\n"
        "@columns(one=pa.int8())\ndef one(batch):\n    return {'one': [1] * len(batch)}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    source, out = sorted(corpus.glob("*.tar"))[0], tmp_path / "s.parquet"
    _, table = score(source, out, columns=["my_columns:one"])
    assert set(ok(table).column("one").to_pylist()) == {1}
    module.write_text(module.read_text().replace("[1]", "[1 + 1]"))
    monkeypatch.delitem(sys.modules, "my_columns")
    with pytest.raises(ResumeError, match="--columns was my_columns:one"):
        score(source, out, columns=["my_columns:one"])


@pytest.mark.parametrize(
    ("tensors", "metadata"),
    [
        ({"a.weight": (3, 4), "b.weight": (1, 3)}, {}),
        ({"a.weight": (3, 4), "b.weight": (1, 2)}, {"activation": "relu"}),
        ({"weight": (2, 4)}, {}),
        ({"weight": (4,)}, {}),
        ({"scale": (4,)}, {}),
        ({"weight": (1, 4), "bias": (2,)}, {}),
        ({"weight": (1, 4)}, {"output": "softmax"}),
        ({"weight": (1, 4)}, {}),
    ],
)
def test_a_file_that_is_no_head(tensors, metadata, refused, corpus, tmp_path):
    path = tmp_path / "h.safetensors"
    save_file({name: torch.zeros(*shape) for name, shape in tensors.items()}, path, metadata)
    refused(score, corpus, tmp_path / "s.parquet", head=[f"h={path}"])


def test_a_linear_head(tmp_path, refused):
    weight = torch.randn(1, 5)
    save_file({"weight": weight, "bias": torch.tensor([2.0])}, tmp_path / "h.safetensors")
    vectors = torch.randn(7, 5)
    found = EmbeddingHead.load(str(tmp_path / "h.safetensors"))(vectors)
    assert torch.allclose(found, (vectors @ weight.T)[:, 0] + 2, atol=1e-6)
    (tmp_path / "broken.safetensors").write_bytes(b"\xff" * 100)
    refused(EmbeddingHead.load, str(tmp_path / "broken.safetensors"))


def test_text_signals_are_those_of_the_corpus(tmp_path):
    """Learnt once, before anything is scored; a run that goes on keeps them."""
    corpus = rendered(tmp_path / "shards", pairs=260, shard_size=200, noise={"ncr": 0.2}, seed=7)
    shards = sorted(corpus.glob("*.tar"))
    out, listed = tmp_path / "s.parquet", tmp_path / "s.parquet.work" / "boilerplate.txt"
    score(shards[0], out, signals=["text"])
    learnt = listed.read_text().splitlines()
    _, table = score(corpus, out, signals=["text"])
    assert listed.read_text().splitlines() == learnt
    scored = ok(table)
    expected = TextSignals(learnt)(scored.column("text").to_pylist())
    for name in TYPES:
        assert scored.column(name).to_pylist() == expected[name].to_pylist(), name
    assert scored.column("text_boilerplate").null_count < len(scored)
