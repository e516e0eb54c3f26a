"""One shard from its stream to its rows: whose image it is, and how long it took."""

import json
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from ncclean_pipelines.score import Score
from upath import UPath

from ncclean.base.config import ScoreOptions
from ncclean.data.shards import resolve_shards
from ncclean.execution import shift as module
from ncclean.execution.column_sources import ColumnSources
from ncclean.execution.image_encoder import ImageEncoder
from ncclean.execution.shift import sample_size
from ncclean.models.estimator import Estimator
from ncclean.scoring.null import Histogram
from ncclean.scoring.osa import AllPairsMean
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.score_run import ScoreRun
from tests import hostile
from tests.scored_shard import score_shard

KEYS = "abcdef"


def members():
    """The members of six samples of different images, by key."""
    of_key = {
        key: hostile.sample(key, hostile.encoded(hostile.photo(seed=n)), f"photo {n}".encode())
        for n, key in enumerate(KEYS)
    }
    for key in KEYS:
        fields = json.dumps({"uid": f"uid of {key}", "url": f"http://{key}"}).encode()
        of_key[key].append((f"{key}.json", fields))
    return of_key


def scored(folder, entries, estimator):
    (folder / "0.tar").write_bytes(hostile.tar_bytes(entries))
    return score_shard(resolve_shards([str(folder)]), estimator, ScoreOptions(batch_size=2))


@pytest.fixture
def plain(tmp_path, demo_estimator):
    (tmp_path / "plain").mkdir()
    of_key = members()
    result = scored(
        tmp_path / "plain", [one for key in KEYS for one in of_key[key]], demo_estimator
    )
    return result.table


def test_samples_whose_members_are_interleaved_have_their_own_images(
    tmp_path, demo_estimator, plain
):
    """The samples end in another order than they begin."""
    of_key = members()
    begun = [of_key[key][0] for key in "abc"] + of_key["d"] + of_key["e"]
    ended = [one for key in "cab" for one in of_key[key][1:]]
    table = scored(tmp_path, [*begun, *ended, *of_key["f"]], demo_estimator).table
    assert table["key"].to_pylist() == list(KEYS)
    assert table["uid"].to_pylist() == plain["uid"].to_pylist()
    found, expected = (t["similarity"].to_numpy() for t in (table, plain))
    assert len(np.unique(expected.round(4))) == len(KEYS)
    assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", ["encode_image", "encode_text"])
def test_embeddings_that_are_not_finite_fail_their_shard_with_a_sentence(
    tmp_path, monkeypatch, name, refused
):
    estimator = Estimator.load("demo", precision="fp32", device="cpu")
    weight = "visual.proj" if name == "encode_image" else "text_projection"
    with torch.no_grad():
        dict(estimator.model.named_parameters())[weight].mul_(1e38).clamp_(-3e38, 3e38)
    of_key = members()
    refused(scored, tmp_path, [one for key in KEYS for one in of_key[key]], estimator)


def test_the_time_of_a_shard_is_that_of_its_images_too(tmp_path, demo_estimator, monkeypatch):
    of_key = members()
    start_image = type(demo_estimator).start_image

    def slowly(self, pixels):
        time.sleep(0.2)
        return start_image(self, pixels)

    monkeypatch.setattr(type(demo_estimator), "start_image", slowly)
    result = scored(tmp_path, [one for key in KEYS for one in of_key[key]], demo_estimator)
    assert result.stats.seconds > 3 * 0.2


# Embeddings of several shards in one file: blocks and groups are those of each shard.

PAIRS = 80


@pytest.fixture
def scored_embeddings(tmp_path):
    """A table of two shards, whose rows take turns, with three languages; and its manifest."""
    rng = np.random.default_rng(0)
    image = rng.standard_normal((PAIRS, 16))
    sides = {"img_emb": image, "text_emb": image + rng.standard_normal((PAIRS, 16))}
    for kind, vectors in sides.items():
        (tmp_path / "e" / kind).mkdir(parents=True)
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        np.save(tmp_path / "e" / kind / f"{kind}_0.npy", vectors.astype(np.float16))
    (tmp_path / "e" / "metadata").mkdir()
    table = pa.table({
        "caption": [f"caption {n}" for n in range(PAIRS)],
        "shard": [("s", "t")[n % 2] for n in range(PAIRS)],
        "key": [f"{n:04d}" for n in range(PAIRS)],
        "language": [("de", "en", None)[n % 3] for n in range(PAIRS)],
    })  # fmt: skip
    pq.write_table(table, tmp_path / "e" / "metadata" / "metadata_0.parquet")
    out = str(tmp_path / "s.parquet")
    options = ScoreOptions(calibrate_by="language", block_size=20)
    Score(shards=[str(tmp_path / "e")], out=out, scale=20.0, options=options).run()
    run = ScoreRun.load(ScoreLayout(UPath(out)))
    return pq.read_table(out).to_pandas(), run.distributions


def test_groups_hold_the_cosines_of_their_own_pairs(scored_embeddings):
    import torch

    table, distributions = scored_embeddings
    assert set(distributions.groups) == {"de", "en", None}
    for language, group in distributions.groups.items():
        labels = table.calibration_group
        own = table[labels.isna() if language is None else labels == language]
        assert len(own) > 20
        expected = Histogram.of(torch.tensor(own.similarity.to_numpy()))
        assert np.array_equal(group.matched.counts, expected.counts)


def test_blocks_are_those_of_a_shard(scored_embeddings):
    table, _ = scored_embeddings
    sizes = table.groupby("shard").block.value_counts()
    assert sorted(sizes) == [20] * 4
    assert table.groupby("shard").block.nunique().to_dict() == {"s": 2, "t": 2}


# The shift as the engines estimate it: bounded by the size of the model, kept for the next run.


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [(1_000, 4096), (7_550_000, 2560), (151_000_000, 128), (2_500_000_000, 128)],
)
def test_a_large_model_encodes_no_more_noise_than_the_design_allows(parameters, expected):
    assert sample_size(parameters) == expected


def test_an_encoder_estimates_the_shift_of_a_model_once(demo_estimator, tmp_path, monkeypatch):
    monkeypatch.setenv("NCCLEAN_CACHE", str(tmp_path))
    encoder = ImageEncoder(demo_estimator, ScoreOptions(), ColumnSources(ScoreOptions()))
    first = encoder.estimate_shift(seed=0, tolerance=0.02)
    other = AllPairsMean(mean=7.0, deviation=0.5, image_variance=0.0, text_variance=0.0)
    monkeypatch.setattr(module, "estimate_shift", lambda *args, **kwargs: other)
    assert encoder.estimate_shift(seed=0, tolerance=0.02) == first
    assert encoder.estimate_shift(seed=1, tolerance=0.02) == (7.0, 0.5)
