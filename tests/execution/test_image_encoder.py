"""One shard from its stream to its rows: whose image it is, and how long it took."""

import json
import time

import numpy as np
import pytest
import torch

from ncclean.base.config import ScoreOptions
from ncclean.data.shards import resolve_shards
from ncclean.models.estimator import Estimator
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
