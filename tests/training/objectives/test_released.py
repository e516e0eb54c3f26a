"""NCU and OSA as their authors released them, against a plain rendering of what the code does."""

import math

import numpy as np
import pytest
import torch

from ncclean.training.objectives.base import Phase
from ncclean.training.objectives.ncu import forget_split, hardest_negative_terms, unlearning_terms
from ncclean.training.objectives.options import NcuOptions, ObjectiveOptions
from ncclean.training.objectives.osa import released_weights
from ncclean.training.objectives.registry import make_objective
from ncclean.training.options import TrainOptions
from ncclean.training.trainer import Trainer
from tests.training.batches import FixedBatches, tiny_estimator

RELEASED = NcuOptions(variant="released")
TRAINING = TrainOptions(tensorboard=False)


def unit(n, d, rng):
    vectors = rng.standard_normal((n, d))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def log_sum(values):
    largest = values.max(axis=1, keepdims=True)
    return np.log(np.exp(values - largest).sum(axis=1, keepdims=True)) + largest


def sinkhorn(p, q, cost, mask, epsilon=0.03):
    """Potentials in units of the cost, until those of the rows move by less than 1e-4 in all."""
    u, v = np.zeros(len(p)), np.zeros(len(q))

    def scaled():
        return np.where(mask, (-cost + u[:, None] + v[None, :]) / epsilon, -1e6)

    for _ in range(100):
        before = u
        u = epsilon * (np.log(p) - log_sum(scaled())[:, 0]) + u
        v = epsilon * (np.log(q) - log_sum(scaled().T)[:, 0]) + v
        if np.abs(u - before).sum() < 1e-4:
            break
    return np.exp(scaled())


def divergence(targets, logits):
    log_probability = logits - log_sum(logits)
    positive = targets > 0
    logs = np.log(np.where(positive, targets, 1.0))
    return (targets * logs - targets * log_probability).sum() / len(targets)


def released_realignment(image, text, negative, scale, forget, gamma=0.7):
    n = len(image)
    similarity = np.concatenate([image @ text.T, (image * negative).sum(1, keepdims=True)], axis=1)
    cost = 1 - similarity
    mask = np.ones((n, n + 1), dtype=bool)
    mask[:, -1] = forget
    mask[np.arange(n), np.arange(n)] = ~forget
    identity = np.zeros((n, n + 1))
    identity[np.arange(n), np.arange(n)] = ~forget
    identity[:, -1] = forget
    rows, columns = np.full(n, 1 / n), np.full(n + 1, 1 / (n + 1))
    loss = 0.0
    for sides in (
        (rows, columns, cost / cost.max(), mask, identity, scale * similarity),
        (columns, rows, cost.T / cost.max(), mask.T, identity.T, scale * similarity.T),
    ):
        plan = sinkhorn(*sides[:4])
        target = gamma * plan / plan.sum(axis=1, keepdims=True) + (1 - gamma) * sides[4]
        loss += divergence(target, sides[5]) / 2
    return loss


@pytest.mark.parametrize(
    ("n", "d", "scale", "percent"),
    [(12, 5, 14.3, 25.0), (32, 16, 30.0, 10.0), (40, 24, 60.0, 40.0)],
)
def test_losses_of_the_released_code(n, d, scale, percent):
    rng = np.random.default_rng(n)
    image = unit(n, d, rng)
    text = image + 2 * unit(n, d, rng)
    text /= np.linalg.norm(text, axis=1, keepdims=True)
    negative = unit(n, d, rng) - 0.5 * text
    negative /= np.linalg.norm(negative, axis=1, keepdims=True)
    sides = [torch.from_numpy(side).float() for side in (image, text, negative)]
    logits = scale * image @ text.T
    confidence = np.exp(np.diag(logits) - log_sum(logits)[:, 0])
    forget = np.zeros(n, dtype=bool)
    forget[np.argsort(confidence, kind="stable")[: int(n * percent / 100)]] = True
    chosen = forget_split(sides[0], sides[1], scale, percent, "released")
    assert chosen.tolist() == forget.tolist()
    terms = unlearning_terms(*sides, scale, chosen, RELEASED)
    expected = released_realignment(image, text, negative, scale, forget)
    assert float(terms["realignment"]) == pytest.approx(expected, rel=1e-5)
    cosine = (text * negative).sum(axis=1)
    separation = (np.maximum(cosine + 0.2, 0) + np.maximum(-0.7 - cosine, 0)).mean()
    assert float(terms["separation"]) == pytest.approx(separation, rel=1e-5)
    t, opposite = text[~forget], negative[~forget]
    relation = ((t @ t.T - opposite @ opposite.T) ** 2).sum() / len(t)
    terms = hardest_negative_terms(*sides, scale, chosen, RELEASED)
    assert float(terms["relation"]) == pytest.approx(10 * relation, rel=1e-5)


def test_the_confidence_is_that_of_the_images_alone():
    """Image 1 is sure of its caption among captions, caption 1 is not sure of its image."""
    image = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    text = torch.tensor([[0.96, 0.28], [0.8, 0.6], [0.6, 0.8]])
    logits = 10 * image @ text.T
    by_image = logits.softmax(dim=1).diagonal()
    both = (by_image + logits.softmax(dim=0).diagonal()) / 2
    assert by_image.argmin() != both.argmin()
    for variant, confidence in (("released", by_image), ("published", both)):
        chosen = forget_split(image, text, 10.0, 34, variant)
        assert chosen.nonzero().item() == confidence.argmin()


def test_weights_are_relative_to_the_largest_of_the_batch():
    weights = released_weights(torch.tensor([10.0, 6.0, 5.0, 2.0]), 2.0)
    expected = [0.0, 0.25 * 0.75, (3 / 8) ** 2 * (1 - (3 / 8) ** 2), 0.0]
    assert weights.tolist() == pytest.approx(expected)
    assert released_weights(torch.tensor([1.0, 0.5]), 2.0).tolist() == [0.0, 0.0]


def test_one_cosine_over_both_phases_after_a_hundred_steps():
    first, second = make_objective("ncu", ObjectiveOptions(ncu=RELEASED)).phases
    rates = [first.rate(step, 0, 300, 1200) for step in range(300)]
    rates += [second.rate(step, 300, 900, 1200) for step in range(300, 1200)]
    cosine = [0.5 * (1 + math.cos(math.pi * step / 1100)) for step in range(1100)]
    assert rates == pytest.approx([*((step + 1) / 100 for step in range(100)), *cosine])
    assert (first.frozen_text_blocks, second.frozen_text_blocks) == (0, 5)


def test_the_frozen_blocks_stay_and_the_others_train():
    estimator = tiny_estimator()
    phase = Phase(
        name="p",
        epochs=1,
        learning_rates=dict.fromkeys(("image", "text", "scale"), 1e-2),
        frozen_text_blocks=1,
    )
    objective = make_objective("clip")
    objective.phases = (phase,)
    before = {name: value.clone() for name, value in estimator.model.state_dict().items()}
    Trainer(estimator, objective, FixedBatches(size=16), TRAINING, None).run()
    moved = {n for n, value in estimator.model.state_dict().items() if not value.equal(before[n])}
    blocks = {name.split("resblocks.")[1].split(".")[0] for name in moved if "resblocks" in name
              and not name.startswith("visual")}  # fmt: skip
    assert blocks == set()  # it has one
    assert not moved & {"token_embedding.weight", "positional_embedding"}
    assert "text_projection" in moved


def test_the_estimator_of_osa_stays_the_start():
    """Its logits are those of the model before training, whatever became of the model."""
    estimator = tiny_estimator()
    objective = make_objective("osa", ObjectiveOptions(ncu=RELEASED, learning_rate=1e-2, epochs=1))
    trainer = Trainer(estimator, objective, FixedBatches(size=16), TRAINING, None)
    start = trainer.own["start"]
    pixels = torch.randn(4, 3, *estimator.image_size)
    tokens = estimator.tokenize(["a", "b", "c", "d"])
    before = start.logits(pixels, tokens)
    trainer.run()
    assert torch.equal(start.logits(pixels, tokens), before)
    with torch.no_grad():
        moved = estimator.model.encode_image(pixels)
    assert not torch.allclose(moved, start.model.encode_image(pixels), atol=1e-4)
    assert not any(parameter.requires_grad for parameter in start.parameters())


@pytest.mark.parametrize(
    "option",
    [
        {"relation": "distance"},
        {"unlearn": "false_negatives"},
        {"last_column": "forget_share"},
        {"negative": "none"},
    ],
)
def test_what_the_released_code_does_not_have_is_refused(option, refused):
    refused(NcuOptions, variant="released", **option)
