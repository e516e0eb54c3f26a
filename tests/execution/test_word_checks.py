"""Which known near misses are drawn and counted, by an estimator of a few words."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
import torch

from ncclean.data.word_classes import WordClasses
from ncclean.execution.column_source import EncoderFacts
from ncclean.execution.encoded_shard import EncodedShard
from ncclean.execution.word_checks import WordChecks
from ncclean.scoring.columns import BlockScores
from ncclean.scoring.null import Histogram
from ncclean.scoring.stats import Distributions

CLASSES = WordClasses.of_lines(["[shape]", "circle", "square", "ring", "disc"])
# Of a circle, a disc is nothing else, a ring is .6 away and a square 1.2.
ANGLES = {"circle": 0.0, "disc": 0.0, "ring": 0.609, "square": 1.287}


class Angles:
    """Encodes a caption as a direction by its last word, and notes what it has encoded."""

    identity = "angles"

    def __init__(self):
        self.encoded = []

    def encode_text(self, captions, batch_size=256):
        self.encoded = list(captions)
        angles = torch.tensor([ANGLES[caption.split()[-1]] for caption in captions])
        return torch.stack([angles.cos(), angles.sin()], dim=1)


def checked(pairs, seed=0, mismatched=None, fit=None):
    """Circles with that caption; the drawn exchanges by their word, and the distributions."""
    estimator = Angles()
    angles = torch.zeros(pairs) if fit is None else fit
    image = torch.stack([angles.cos(), angles.sin()], dim=1)
    captions = ["a circle"] * pairs
    text = estimator.encode_text(captions)
    shard = EncodedShard(
        name="00000",
        facts={"text": pa.array(captions)},
        ok=np.ones(pairs, dtype=bool),
        image=image,
        text=text,
        metadata=pa.table({}),
    )
    scores = BlockScores(pairs, {}, Distributions(mismatched=mismatched or Histogram()))
    encoder = EncoderFacts(dim=2, estimator=estimator, batch_size=64)
    WordChecks(CLASSES, 1, seed).of_shard(shard, encoder, scores)
    drawn = Counter(caption.split()[-1] for caption in estimator.encoded[1::2])
    return drawn, scores.distributions.scores["near_miss_score"]


def test_words_are_drawn_as_far_apart_as_they_are():
    """None that the estimator cannot tell from the right one, and the nearer ones less often."""
    drawn, _ = checked(3_000)
    assert drawn.keys() == {"ring", "square"}
    assert drawn["square"] / 3_000 == pytest.approx(2 / 3, abs=0.03)


def test_another_seed_draws_others():
    first, other = (checked(200, seed)[0] for seed in (0, 1))
    assert first == checked(200)[0]
    assert first != other


def test_what_looks_mismatched_is_no_near_miss():
    """Counted are the drawn captions whose cosine few known mismatches reach: rings, not squares.

    The images lie between a circle and a ring, so that none of both looks mismatched.
    """
    known = Histogram.of(torch.tensor(np.linspace(-0.2, 0.7, 1000), dtype=torch.float32))
    drawn, distributions = checked(300, mismatched=known, fit=torch.full((300,), 0.3))
    assert distributions.matched.size == 300
    assert 0 < drawn["ring"] < 300
    assert distributions.mismatched.size == drawn["ring"]
