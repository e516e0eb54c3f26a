"""SigLIP's loss against open_clip's, and its weights against the formula."""

import pytest
import torch
import torch.nn.functional as F
from open_clip.loss import SigLipLoss

from ncclean.training.objectives.base import GlobalBatch
from ncclean.training.objectives.bayes import normalized_weights, sample_log_weights
from ncclean.training.objectives.options import BayesOptions, ObjectiveOptions
from ncclean.training.objectives.registry import make_objective
from ncclean.training.objectives.siglip import siglip_losses

PAIRS, SCALE, BIAS = 9, torch.tensor(12.0), torch.tensor(-7.0)


@pytest.fixture
def embeddings():
    generator = torch.Generator().manual_seed(0)
    return [F.normalize(torch.randn(PAIRS, 8, generator=generator)) for _ in range(2)]


def test_the_mean_is_open_clips_loss(embeddings):
    expected = SigLipLoss()(*embeddings, SCALE, BIAS)
    assert torch.allclose(siglip_losses(*embeddings, SCALE, BIAS).mean(), expected)


def test_some_rows_are_those_of_all(embeddings):
    whole = siglip_losses(*embeddings, SCALE, BIAS)
    rows = slice(3, 7)
    assert torch.allclose(siglip_losses(*embeddings, SCALE, BIAS, rows), whole[rows])


def test_weights_of_the_selection_multiply_pairs(embeddings):
    objective = make_objective("siglip")
    image, text = embeddings
    weights = torch.linspace(0, 2, PAIRS)
    batch = GlobalBatch(weights, torch.zeros(PAIRS, dtype=torch.bool))
    terms = objective.terms({"image": image, "text": text}, SCALE, batch, objective.phases[0])
    expected = (weights * siglip_losses(image, text, SCALE, -10.0)).mean()
    assert torch.allclose(terms["contrastive"], expected)


def test_bayesian_weights_multiply_each_term(embeddings):
    image, text = embeddings
    cosines = image @ text.T
    options = BayesOptions(a_pos=3, a_neg=2)
    generator = torch.Generator().manual_seed(5)
    drawn = [
        normalized_weights(sample_log_weights(s, 3, 2, generator=generator))
        for s in (cosines, cosines.T)
    ]
    signs = 2 * torch.eye(PAIRS) - 1
    questions = F.softplus(-signs * (SCALE * cosines + BIAS))
    expected = ((drawn[0] * questions).sum(1) + (drawn[1] * questions.T).sum(1)) / 2
    found = siglip_losses(image, text, SCALE, BIAS, bayes=options, seed=5)
    assert torch.allclose(found, expected)
    assert not torch.allclose(found, siglip_losses(image, text, SCALE, BIAS))


def test_bayesian_weights_replace_those_of_the_selection(embeddings):
    objective = make_objective("siglip", ObjectiveOptions(siglip_weights="bayes"))
    halves = dict(zip(("image", "text"), embeddings, strict=True))
    weighted, plain = (
        objective.terms(
            halves,
            SCALE,
            GlobalBatch(weights, torch.zeros(PAIRS, dtype=torch.bool)),
            objective.phases[0],
        )["contrastive"]
        for weights in (torch.linspace(0, 2, PAIRS), torch.ones(PAIRS))
    )
    assert weighted == plain


def test_a_model_with_a_bias_trains_its_own():
    model = torch.nn.Module()
    model.logit_bias = torch.nn.Parameter(torch.tensor(-3.0))
    objective = make_objective("siglip", ObjectiveOptions(learning_rate=1e-3))
    assert objective.modules(model) == {}
    assert objective.statistics() == {"bias": -3.0}
    assert "bias" not in objective.phases[0].learning_rates
    other = make_objective("siglip")
    assert float(other.modules(torch.nn.Module())["bias"].value) == -10.0
    assert other.phases[0].learning_rates["bias"] == other.phases[0].learning_rates["scale"]
