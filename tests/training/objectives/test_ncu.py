"""NCU's losses: the numbers worked out by hand, gradients, and the terms of both phases."""

import math

import pytest
import torch

from ncclean.training.objectives.ncu import (
    distance_loss,
    forget_split,
    hardest_negative_terms,
    matching_loss,
    relation_loss,
    separation_loss,
    unlearning_terms,
)
from ncclean.training.objectives.options import NcuOptions
from tests.training.objectives.samples import embeddings, extremes

FORGET = torch.tensor([True, False, False, True, False, False])
NONE = torch.zeros(6, dtype=torch.bool)


def at_cosine(cosine: float) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([[1.0, 0.0]]), torch.tensor([[cosine, math.sqrt(1 - cosine**2)]])


@pytest.mark.parametrize(
    ("cosine", "loss"), [(-1, 0.3), (-0.7, 0), (-0.45, 0), (-0.2, 0), (0, 0.2), (1, 1.2)]
)
def test_separation_by_hand(cosine, loss):
    assert separation_loss(*at_cosine(cosine)).item() == pytest.approx(loss, abs=1e-6)


def test_separation_is_a_mean():
    text = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    negative = torch.tensor([[0.0, 1.0], [-0.6, 0.8]])
    assert separation_loss(text, negative).item() == pytest.approx(0.1, abs=1e-6)
    assert separation_loss(text, negative, -0.5, -0.1).item() == pytest.approx(0.1, abs=1e-6)


def test_relation_by_hand():
    text, negative = torch.eye(2), torch.tensor([[-0.6, -0.8], [-0.8, -0.6]])
    assert relation_loss(text, negative).item() == pytest.approx(0, abs=1e-6)
    assert relation_loss(text, negative, form="intra").item() == pytest.approx(0.9216, abs=1e-6)
    # <t1, n2> = -1 and <t2, n1> = 0: the square of 1, twice, over N = 2.
    skewed = torch.tensor([[-1.0, 0.0], [-1.0, 0.0]])
    assert relation_loss(text, skewed).item() == pytest.approx(1.0, abs=1e-6)
    with pytest.raises(ValueError, match="form"):
        relation_loss(text, negative, form="other")  # type: ignore[arg-type]


def test_distance_by_hand():
    assert distance_loss(*at_cosine(-1)).item() == pytest.approx(0, abs=1e-6)
    assert distance_loss(*at_cosine(1)).item() == pytest.approx(2, abs=1e-6)
    assert distance_loss(*at_cosine(0)).item() == pytest.approx(2 - math.sqrt(2), abs=1e-6)


def test_matching_by_hand():
    zeros = torch.zeros(2, 2)
    assert matching_loss(zeros, zeros, zeros, 7.0).item() == pytest.approx(2.7726, abs=1e-4)
    # <n_i, v_i> = 1 and nothing else: both negative texts match the image they must not match.
    eye = torch.eye(2)
    assert matching_loss(eye, zeros, eye, 1.0).item() == pytest.approx(3.3927, abs=1e-4)
    assert matching_loss(eye, eye, zeros, 1.0).item() == pytest.approx(2.3927, abs=1e-4)


def test_the_right_arrangement_costs_nothing():
    """Captions at their images, negative texts at the other images."""
    eye = torch.eye(2)
    right = 2 * eye - 1
    assert matching_loss(eye, right, -right, 100.0).item() == pytest.approx(0, abs=1e-6)
    assert matching_loss(eye, -right, right, 100.0).item() == pytest.approx(400.0, abs=1e-3)


LOSSES = {
    "separation": lambda v, t, n: separation_loss(t, n),
    "relation": lambda v, t, n: relation_loss(t, n),
    "relation_intra": lambda v, t, n: relation_loss(t, n, "intra"),
    "distance": lambda v, t, n: distance_loss(t, n),
    "matching": lambda v, t, n: matching_loss(v, t, n, 3.0),
}


@pytest.fixture(params=LOSSES)
def loss(request):
    return LOSSES[request.param]


def test_gradients_are_right(loss):
    assert torch.autograd.gradcheck(loss, embeddings(3, dtype=torch.float64))


def test_empty_and_extreme_and_autocast(loss):
    empty = embeddings(3, pairs=0)
    assert loss(*empty).item() == 0
    assert loss(*empty).requires_grad
    for given in (extremes(3), extremes(1) * 3):
        value = loss(*given)
        value.backward()
        assert torch.isfinite(value)
        assert all(each.grad is None or torch.isfinite(each.grad).all() for each in given)
    given = embeddings(3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(loss(*given), loss(*given).float())


def test_split_is_by_the_model():
    """The pairs that choose others are forgotten; 34 % of 6 are 2."""
    image, _ = embeddings(2)
    text = image[torch.tensor([1, 0, 2, 3, 4, 5])]
    assert forget_split(image, text, 50.0, 34).tolist() == [True, True, False, False, False, False]
    assert not forget_split(image, text, 50.0, 34).requires_grad


def test_phase_hn_sees_retained_pairs_only():
    options = NcuOptions()
    image, text, negative = embeddings(3)
    terms = hardest_negative_terms(image, text, negative, 5.0, FORGET, options)
    assert list(terms) == ["separation", "relation", "matching"]
    kept = [each[~FORGET] for each in (image, text, negative)]
    assert torch.allclose(terms["separation"], 10 * separation_loss(*kept[1:]))
    assert torch.allclose(terms["relation"], 10 * relation_loss(*kept[1:]))
    assert torch.allclose(terms["matching"], matching_loss(*kept, 5.0))
    sum(terms.values()).backward()
    assert (negative.grad[FORGET] == 0).all()
    assert (negative.grad[~FORGET] != 0).any()
    everything = hardest_negative_terms(image, text, negative, 5.0, ~NONE, options)
    assert all(term == 0 for term in everything.values())


def test_phase_hn_with_distance_in_place_of_relation():
    image, text, negative = embeddings(3)
    options = NcuOptions(relation="distance", negative_weight=2)
    terms = hardest_negative_terms(image, text, negative, 5.0, NONE, options)
    assert torch.allclose(terms["relation"], 2 * distance_loss(text, negative))
    options = NcuOptions(relation="intra", negative_weight=2)
    terms = hardest_negative_terms(image, text, negative, 5.0, NONE, options)
    assert torch.allclose(terms["relation"], 2 * relation_loss(text, negative, "intra"))


@pytest.mark.parametrize("options", [
    NcuOptions(), NcuOptions(last_column="forget_share"), NcuOptions(gamma=0.0),
    NcuOptions(gamma=1.0), NcuOptions(unlearn="false_negatives"),
    NcuOptions(unlearn="false_positives"),
])  # fmt: skip
@pytest.mark.parametrize("forget", [FORGET, NONE, ~NONE])
def test_phase_ul_is_finite_whatever_is_forgotten(options, forget):
    for given in (embeddings(3), extremes(3, pairs=6), extremes(1, pairs=6) * 3):
        image, text, negative = given
        terms = unlearning_terms(image, text, negative, 100.0, forget, options)
        assert list(terms) == ["realignment", "separation"]
        sum(terms.values()).backward()
        assert all(torch.isfinite(term) for term in terms.values())
        assert all(torch.isfinite(each.grad).all() for each in given)
        assert terms["realignment"] >= -1e-6


@pytest.mark.parametrize("forget", [FORGET, NONE, ~NONE])
def test_phase_ul_without_negative_texts(forget):
    for image, text in (embeddings(2), extremes(2, pairs=6)):
        terms = unlearning_terms(image, text, None, 100.0, forget, NcuOptions(negative="none"))
        assert list(terms) == ["realignment"]
        terms["realignment"].backward()
        assert torch.isfinite(terms["realignment"])
        assert all(torch.isfinite(each.grad).all() for each in (image, text))


def test_phase_ul_turns_forgotten_images_to_their_negative_text():
    """Gradient steps on free embeddings: forgotten images leave their captions, others stay."""
    image, text, negative = embeddings(3, pairs=6, dim=16)
    with torch.no_grad():
        image.copy_(torch.nn.functional.normalize(text + 0.1 * image, dim=1))
    optimizer = torch.optim.SGD([image], lr=3.0)
    for _ in range(40):
        optimizer.zero_grad()
        normal = torch.nn.functional.normalize(image, dim=1)
        terms = unlearning_terms(
            normal, text.detach(), negative.detach(), 10.0, FORGET, NcuOptions()
        )
        terms["realignment"].backward()
        optimizer.step()
    normal = torch.nn.functional.normalize(image.detach(), dim=1)
    to_text, to_negative = (normal * text).sum(1), (normal * negative).sum(1)
    assert (to_negative > to_text)[FORGET].all()
    assert (to_negative < to_text)[~FORGET].all()


def test_options_are_checked(refused):
    for name, value in {
        "relation": "both", "unlearn": "all", "last_column": "free", "split": "mine",
        "negative": "no", "forget_percent": 101, "gamma": -0.1, "alpha": 0.0, "epsilon": 0.0,
        "prompt_length": 0,
    }.items():  # fmt: skip
        refused(NcuOptions, **{name: value})
    for name, value in {"relation": "intra", "last_column": "forget_share"}.items():
        refused(NcuOptions, negative="none", **{name: value})
