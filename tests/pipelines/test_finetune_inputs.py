"""What a run is told reaches the trained model: weights, marks, noise, random weights."""

import dataclasses
import json
from functools import partial

import open_clip
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from ncclean_pipelines.finetune import Finetune
from ncclean_pipelines.score import Score

from ncclean.data.options import LoaderOptions
from ncclean.data.shards import resolve_shards
from ncclean.data.train_batch import with_batch_noise
from ncclean.data.weighted_loader import WeightedLoader
from ncclean.models.estimator import Estimator
from ncclean.training.objectives.baselines import gradient_ascent_terms
from ncclean.training.objectives.clip import pair_losses
from ncclean.training.objectives.options import NcuOptions, ObjectiveOptions
from ncclean.training.options import TrainOptions
from tests.conftest import write_model
from tests.factories import rendered
from tests.training.batches import TINY, FixedBatches

PAIRS = 24
LOADER = LoaderOptions(augment=False, chunk=64, decode_threads=1)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return rendered(
        tmp_path_factory.mktemp("inputs") / "shards", pairs=PAIRS, shard_size=PAIRS, seed=5
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    config = {**TINY, "text_cfg": {**TINY["text_cfg"]}, "vision_cfg": {**TINY["vision_cfg"]}}
    return write_model(tmp_path_factory.mktemp("model") / "tiny", config)


@pytest.fixture(scope="module")
def batch(shards, model):
    """All pairs as one batch; the losses do not depend on their order."""
    preprocessing = Estimator.load(f"local-dir:{model}", None).preprocessing
    options = LoaderOptions(augment=False, shuffle=False, batch_size=PAIRS, decode_threads=1)
    loader = WeightedLoader(resolve_shards([str(shards)]), None, preprocessing, options)
    return next(loader.epoch(0))


@pytest.fixture(scope="module")
def scores(shards, model, tmp_path_factory):
    out = str(tmp_path_factory.mktemp("scores") / "s.parquet")
    Score(
        shards=[str(shards)], out=out, model=f"local-dir:{model}", pretrained=None, shift=-1.0
    ).run()
    return pq.read_table(out)


@pytest.fixture(scope="module")
def selection(scores, batch):
    """Writes a selection of all pairs, in the order of the batch."""
    place = {uid: row for row, uid in enumerate(scores.column("uid").to_pylist())}
    return partial(write_selection, scores.take([place[uid] for uid in batch.uids]))


def write_selection(pairs, path, weights=None, forget=()):
    columns = {
        **{name: pairs.column(name) for name in ("uid", "shard", "key")},
        "weight": pa.array([1.0] * PAIRS if weights is None else weights, pa.float32()),
        "split": ["forget" if place in forget else "retain" for place in range(PAIRS)],
    }
    pq.write_table(pa.table(columns), path)
    return str(path)


def command(shards, model, out, **options):
    objective = options.pop("objective", {})
    given = {"learning_rate": 0.1, "epochs": 1, "warmup": 0.0, **objective}
    return Finetune(
        shards=[str(shards)], out=str(out), model=f"local-dir:{model}", pretrained=None,
        batch_size=PAIRS, precision="fp32", device="cpu", loader=LOADER,
        objective=ObjectiveOptions(**given),
        training=TrainOptions(eps=1.0, weight_decay=0.0, clip_norm=1e6, tensorboard=False),
        **options,
    )  # fmt: skip


def weights_of(folder):
    return open_clip.create_model(f"local-dir:{folder}").state_dict()


def stepped(model, batch, loss):
    """The weights after one step down `loss(image, text, scale)` at rate .1 and eps 1."""
    estimator = Estimator.load(f"local-dir:{model}", None, precision="fp32", device="cpu")
    network = estimator.model
    image, text = (
        torch.nn.functional.normalize(features, dim=1)
        for features in (
            network.encode_image(estimator.normalized(batch.pixels)),
            network.encode_text(estimator.tokenize(batch.captions)),
        )
    )
    loss(image, text, network.logit_scale.exp()).backward()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter -= 0.1 * parameter.grad / (parameter.grad.abs() + 1)
    return network.state_dict()


def assert_same(found, expected):
    for name, value in expected.items():
        assert torch.allclose(found[name], value, atol=2e-5), name


def test_the_weights_of_a_selection_reach_the_model(shards, model, batch, selection, tmp_path):
    weights = torch.linspace(0, 2, PAIRS)
    chosen = selection(tmp_path / "s.parquet", weights.tolist())
    command(shards, model, tmp_path / "run", method="osa", selection=chosen).run()
    found = weights_of(tmp_path / "run")
    expected = stepped(model, batch, lambda v, t, s: (weights * pair_losses(v, t, s)).mean())
    assert_same(found, expected)
    unweighted = stepped(model, batch, lambda v, t, s: pair_losses(v, t, s).mean())
    assert not torch.allclose(found["visual.proj"], unweighted["visual.proj"], atol=1e-4)


def test_the_marks_of_a_selection_reach_the_model(shards, model, batch, selection, tmp_path):
    forget = (1, 4, 9, 16)
    chosen = selection(tmp_path / "s.parquet", forget=forget)
    objective = {"ncu": NcuOptions(split="table")}
    command(
        shards, model, tmp_path / "run", method="gradient_ascent", selection=chosen,
        objective=objective,
    ).run()  # fmt: skip
    marks = torch.zeros(PAIRS, dtype=torch.bool)
    marks[list(forget)] = True
    expected = stepped(model, batch, lambda v, t, s: sum(gradient_ascent_terms(v, t, s, marks)))
    assert_same(weights_of(tmp_path / "run"), expected)


@pytest.mark.parametrize("has_selection", [False, True])
@pytest.mark.parametrize(
    ("method", "split"), [("osa", "model"), ("ncu", "table"), ("gradient_ascent", "table")]
)
def test_nothing_trains_as_another_method_would(
    shards, model, selection, tmp_path, method, split, refused, has_selection
):
    chosen = selection(tmp_path / "s.parquet") if has_selection else None
    objective = {} if method == "osa" else {"ncu": NcuOptions(split=split)}
    run = command(
        shards, model, tmp_path / "run", method=method, selection=chosen, objective=objective
    )
    refused(run.run)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["json", "config", "folder"])
def test_training_from_scratch(shards, model, tmp_path, kind):
    """From a configuration; the seed decides the weights, and the folder is a model as ever."""
    if kind == "json":
        described = tmp_path / "as-nobody-calls-it.json"
        described.write_text(json.dumps(TINY))
        name = str(described)
    else:
        name = str(model / "open_clip_config.json") if kind == "config" else f"local-dir:{model}"
    start = {}
    for run, seed in (("a", 2), ("b", 2), ("c", 3)):
        plain = command(
            shards, model, tmp_path / run, method="clip", init="random", seed=seed,
            objective={"learning_rate": 1e-12},
        )  # fmt: skip
        object.__setattr__(plain, "model", name)
        plain.run()
        start[run] = weights_of(tmp_path / run)
    for weight in ("visual.proj", "token_embedding.weight"):
        assert torch.allclose(start["a"][weight], start["b"][weight], atol=1e-9)
        assert not torch.allclose(start["a"][weight], start["c"][weight], atol=1e-3)
        assert not torch.allclose(start["a"][weight], weights_of(model)[weight], atol=1e-3)


def test_what_describes_no_architecture_is_refused(shards, model, tmp_path, refused):
    for name, content in (
        ("broken.json", "{"),
        ("short.json", '{"embed_dim": 8}'),
        ("ViT-B-32.json", json.dumps(TINY)),
    ):
        (tmp_path / name).write_text(content)
        run = command(shards, model, tmp_path / "run", method="clip", init="random")
        object.__setattr__(run, "model", str(tmp_path / name))
        refused(run.run)


def test_from_scratch_takes_no_weights(shards, model, tmp_path, refused):
    settings = {"method": "clip", "shards": [str(shards)], "out": str(tmp_path), "init": "random"}
    assert Finetune(**settings, model="RN50").pretrained is None
    refused(Finetune, **settings, model="RN50", pretrained="openai")


def test_batch_noise_permutes_a_share_of_the_captions_and_says_which():
    batch = FixedBatches(size=16)._batch(0)
    noisy = with_batch_noise(batch, 0.5, seed=3)
    moved = [a != b for a, b in zip(batch.captions, noisy.captions, strict=True)]
    assert 2 <= sum(moved) <= 6
    assert sorted(noisy.captions) == sorted(batch.captions)
    assert noisy.is_noisy.tolist() == [
        1 if is_moved else int(was) for is_moved, was in zip(moved, batch.is_noisy, strict=True)
    ]
    assert torch.equal(noisy.pixels, batch.pixels)
    frozen = dataclasses.replace(batch, features=(torch.zeros(16, 1), torch.arange(16)[:, None]))
    moved_to = [batch.captions.index(caption) for caption in noisy.captions]
    assert with_batch_noise(frozen, 0.5, seed=3).features[1].flatten().tolist() == moved_to
    assert with_batch_noise(batch, 0.0, seed=3) is batch
    assert with_batch_noise(batch, 0.5, seed=4).captions != noisy.captions


def test_batch_noise_among_captions_of_one_image_or_alike_is_none():
    batch = FixedBatches(size=16)._batch(0)
    truth = torch.arange(len(batch.uids), dtype=torch.int8) % 2
    alike = dataclasses.replace(batch, captions=["a dog"] * len(batch.uids), is_noisy=truth)
    assert with_batch_noise(alike, 1.0, seed=3).is_noisy.tolist() == truth.tolist()
    captions = [f"caption {number}" for number in range(len(batch.uids))]
    of_one = dataclasses.replace(
        batch, captions=captions, uids=["a"] * len(captions), is_noisy=truth
    )
    noisy = with_batch_noise(of_one, 1.0, seed=3)
    assert noisy.captions != captions
    assert noisy.is_noisy.tolist() == [captions.index(text) % 2 for text in noisy.captions]


def test_batch_noise_is_drawn_anew_in_each_epoch(shards, model):
    """And is the same when an epoch is taken up in the middle."""
    preprocessing = Estimator.load(f"local-dir:{model}", None).preprocessing
    options = LoaderOptions(
        augment=False, batch_size=6, batch_noise=0.5, decode_threads=1, chunk=12
    )
    loader = WeightedLoader(resolve_shards([str(shards)]), None, preprocessing, options)

    def spoilt(epoch):
        return {
            uid
            for batch in loader.epoch(epoch)
            for uid, bad in zip(batch.uids, batch.is_noisy.tolist(), strict=True)
            if bad == 1
        }

    first = spoilt(0)
    assert 0 < len(first) <= PAIRS // 2
    assert spoilt(0) == first
    assert spoilt(1) != first
    whole = [batch.captions for batch in loader.epoch(0)]
    assert [batch.captions for batch in loader.epoch(0, first_step=2)] == whole[2:]


def test_osa_has_three_weights_and_no_pair_is_scored_again(shards, model, tmp_path):
    out = str(tmp_path / "s.parquet")
    for function in ("high_degree", "linear", "cosine"):
        Score(
            shards=[str(shards)], out=out, model=f"local-dir:{model}", pretrained=None, shift=-1.0,
            osa_function=function, finalize_only=function != "high_degree",
        ).run()  # fmt: skip
        table = pq.read_table(out)
        x = torch.tensor(table.column("similarity").to_pylist()) + 1.0
        expected = {
            "high_degree": x.clamp(max=2 / 3) ** 2 * (1 - x.clamp(max=2 / 3)),
            "linear": x.clamp(max=1),
            "cosine": (torch.cos(torch.pi * (x.clamp(max=1) - 1)) + 1) / 2,
        }[function]
        assert torch.allclose(torch.tensor(table.column("osa_weight").to_pylist()), expected)
        assert table.schema.metadata[b"osa_function"].decode() == function
