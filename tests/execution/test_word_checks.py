"""Which known near misses are drawn and counted, by an estimator of a few words."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
import torch

from ncclean.base.config import ScoreOptions
from ncclean.data.word_classes import WordClasses
from ncclean.execution import word_checks
from ncclean.execution.column_source import EncoderFacts
from ncclean.execution.corpus_facts import CorpusFacts
from ncclean.execution.encoded_shard import EncodedShard
from ncclean.execution.word_checks import WordChecks
from ncclean.scoring.columns import BlockScores
from ncclean.scoring.null import Histogram
from ncclean.scoring.stats import Distributions

CLASSES = WordClasses.of_lines(["[shape]", "circle", "square", "ring", "disc"])
# Of a circle, a disc is nothing else, a ring is .6 away and a square 1.2.
ANGLES = {"circle": 0.0, "disc": 0.0, "ring": 0.609, "square": 1.287}


@pytest.fixture(autouse=True)
def every_class(monkeypatch, request):
    """Captions of one word cannot say that images tell it from others, which is not the point."""
    if "told" not in request.node.name:
        monkeypatch.setattr(word_checks, "may_be_told_apart", lambda *_: True)


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


@pytest.mark.parametrize("are_told", [True, False])
def test_only_classes_told_apart_are_tried(are_told):
    """Half the captions are of circles, half of squares; the images say which, or are all alike."""
    estimator, words = Angles(), ["circle", "square"] * 50
    angles = torch.tensor([ANGLES[word] if are_told else 0.3 for word in words])
    image = torch.stack([angles.cos(), angles.sin()], dim=1)
    captions = [f"a {word}" for word in words]
    shard = EncodedShard(
        name="00000",
        facts={"text": pa.array(captions)},
        ok=np.ones(100, dtype=bool),
        image=image,
        text=estimator.encode_text(captions),
        metadata=pa.table({}),
    )
    scores = BlockScores(100, {}, Distributions(mismatched=Histogram()))
    encoder = EncoderFacts(dim=2, estimator=estimator, batch_size=64)
    values = WordChecks(CLASSES, 1, 0).of_shard(shard, encoder, scores)
    assert values["word_margin"].null_count == (0 if are_told else 100)


def test_words_of_the_corpus_need_no_list():
    """The classes are those that were gathered before."""
    estimator = Angles()
    captions = ["a circle", "a square", "a dog"]
    text = torch.eye(2)[[0, 1, 0]]
    facts = {"text": pa.array(captions)}
    shard = EncodedShard(
        name="0", facts=facts, ok=np.ones(3, dtype=bool), image=text, text=text,
        metadata=pa.table({}),
    )  # fmt: skip
    corpus = CorpusFacts(word_classes=CLASSES)
    encoder = EncoderFacts(dim=2, estimator=estimator, batch_size=64, corpus=corpus)
    scores = BlockScores(3, {}, Distributions(mismatched=Histogram()))
    checks = WordChecks.of(ScoreOptions(words=True, word_classes="corpus"))
    assert checks.of_shard(shard, encoder, scores)["word_margin"].is_valid().to_pylist() == [
        True, True, False,
    ]  # fmt: skip
