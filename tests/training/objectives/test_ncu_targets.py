"""Targets of phase UL: the numbers worked out by hand, and the properties of all of them."""

import itertools

import pytest
import torch

from ncclean.errors import InfeasibleError
from ncclean.training.objectives.ncu_targets import (
    realigned,
    realignment_logits,
    realignment_loss,
    transport_problem,
    unlearning_targets,
)
from ncclean.training.transport import masked_sinkhorn
from tests.training.objectives.samples import embeddings

# Two pairs, the first forgotten: the only plan there is.
PLAN = torch.tensor([[0, 1 / 6, 1 / 3], [1 / 3, 1 / 6, 0]])
FIRST = torch.tensor([True, False])
V2T = torch.tensor([[0, 0.7 / 3, 0.7 * 2 / 3 + 0.3], [0.7 * 2 / 3, 0.7 / 3 + 0.3, 0]])
T2V = torch.tensor([[0, 1], [0.35, 0.65], [1, 0]])


def forget_first(pairs: int, count: int) -> torch.Tensor:
    return torch.arange(pairs) < count


def test_problem():
    image, text, negative = embeddings(3, pairs=3)
    forget = forget_first(3, 1)
    cost, mask, rows, columns = transport_problem(image, text, negative, forget)
    expected = torch.cat([1 - image @ text.T, 1 - (image * negative).sum(1, keepdim=True)], dim=1)
    assert torch.allclose(cost, expected / expected.max())
    assert mask.tolist() == [[False, True, True, True], [True] * 3 + [False], [True] * 3 + [False]]
    assert torch.allclose(rows, torch.full((3,), 1 / 3))
    assert torch.allclose(columns, torch.full((4,), 1 / 4))
    assert not cost.requires_grad


def test_nothing_to_forget_leaves_the_balanced_problem():
    image, text, negative = embeddings(3, pairs=4)
    nothing = forget_first(4, 0)
    for last_column in ("uniform", "forget_share"):
        cost, mask, rows, columns = transport_problem(image, text, negative, nothing, last_column)
        assert cost.shape == mask.shape == (4, 4)
        assert mask.all()
        assert torch.equal(rows, columns)
    v2t, t2v = realigned(image, text, negative, nothing).both()
    assert v2t.shape == t2v.shape == (4, 4)
    assert torch.allclose(v2t.sum(1), torch.ones(4))
    assert torch.allclose(t2v.sum(1), torch.ones(4))


def test_the_forgotten_share_goes_to_the_last_column():
    """Two of eight pairs: all they have goes to their negative texts, and the rest is balanced."""
    image, text, negative = embeddings(3, pairs=8)
    forget = forget_first(8, 2)
    problem = transport_problem(image, text, negative, forget, "forget_share")
    assert problem.column_marginal.tolist() == pytest.approx([0.75 / 8] * 8 + [0.25])
    plan = masked_sinkhorn(*problem, tolerance=1e-6)
    assert torch.allclose(plan[:2, 8], torch.full((2,), 1 / 8))
    assert (plan[:2, :8] == 0).all()
    assert torch.allclose(plan.sum(0), problem.column_marginal, atol=1e-6)
    # The uniform column takes half as much from each of the two.
    uniform = masked_sinkhorn(*transport_problem(image, text, negative, forget))
    assert uniform[:2, 8].sum().item() == pytest.approx(1 / 9, abs=1e-5)


def test_targets_by_hand():
    v2t, t2v = unlearning_targets(PLAN, FIRST)
    assert torch.allclose(v2t, V2T, atol=1e-6)
    assert torch.allclose(t2v, T2V, atol=1e-6)
    assert torch.allclose(v2t, torch.tensor([[0, 0.2333, 0.7667], [0.4667, 0.5333, 0]]), atol=1e-4)


def test_targets_from_embeddings_by_hand():
    """With two pairs no cost matters, so any embeddings give the example."""
    v2t, t2v = realigned(*embeddings(3, pairs=2), FIRST).both()
    assert torch.allclose(v2t, V2T, atol=2e-4)
    assert torch.allclose(t2v, T2V, atol=2e-4)


def test_without_negative_texts_forgotten_pairs_are_matched_anew():
    """Three pairs, alike at all costs: the first image is shared out between the other captions."""
    same = torch.ones(3, 2) / 2**0.5
    forget = forget_first(3, 1)
    problem = transport_problem(same, same, None, forget)
    assert problem.mask.tolist() == [[False, True, True], [True] * 3, [True] * 3]
    v2t, t2v = realigned(same, same, None, forget, tolerance=1e-7).both()
    # Image 0 has captions 1 and 2, half each; caption 0 is left to images 1 and 2, half each; what
    # these have besides, half of theirs, goes to captions 1 and 2 alike.
    plan = torch.tensor([[0, 0.5, 0.5], [0.5, 0.25, 0.25], [0.5, 0.25, 0.25]])
    expected = 0.7 * plan + 0.3 * torch.diag(torch.tensor([0.0, 1, 1]))
    expected[0] = plan[0]  # nothing of its own is kept
    assert torch.allclose(v2t, expected, atol=1e-5)
    assert torch.allclose(t2v, expected, atol=1e-5)


def test_loss_by_hand():
    logits = torch.zeros(2, 3)
    assert realignment_loss(logits, V2T, T2V).item() == pytest.approx(0.4815 + 0.4773, abs=1e-4)
    uniform = torch.full((3, 2), 0.5)
    assert realignment_loss(logits, V2T, uniform).item() == pytest.approx(0.4815, abs=1e-4)


def test_loss_is_zero_at_its_targets_and_right_in_its_gradients():
    torch.manual_seed(0)
    quarters = torch.full((4, 4), 0.25)
    assert realignment_loss(torch.zeros(4, 4), quarters, quarters).abs() < 1e-6
    logits = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    v2t = torch.rand(4, 5, dtype=torch.float64).softmax(1)
    t2v = torch.rand(5, 4, dtype=torch.float64).softmax(1)
    t2v[0] = 0  # a caption with nothing to be aligned with
    assert torch.autograd.gradcheck(lambda x: realignment_loss(x, v2t, t2v), (logits,))


@pytest.mark.parametrize("forgotten", [0, 1, 3, 6])
@pytest.mark.parametrize("last_column", ["uniform", "forget_share"])
def test_targets_are_distributions_that_keep_to_the_mask(forgotten, last_column):
    given = embeddings(3)
    forget = forget_first(6, forgotten)
    mask = transport_problem(*given, forget, last_column).mask
    for unlearn, gamma in itertools.product(("both", "false_positives"), (0.3, 0.7, 1.0)):
        v2t, t2v = realigned(
            *given, forget, gamma=gamma, last_column=last_column, unlearn=unlearn
        ).both()
        assert v2t.shape == mask.shape == t2v.T.shape
        assert torch.allclose(v2t.sum(1), torch.ones(6))
        has_room = t2v.sum(1) > 0
        assert torch.allclose(t2v.sum(1), has_room.float())
        # Without a retained image there is none that a forgotten caption could be given to.
        assert has_room.all() or (forgotten == 6 and last_column == "forget_share")
        assert (v2t[~mask] == 0).all()
        assert (t2v.T[~mask] == 0).all()


def test_transport_has_its_share_in_large_batches():
    """Taken literally Eq. 10 would leave it about 1/N of the target."""
    given = embeddings(3, pairs=64, dim=16)
    v2t, t2v = realigned(*given, forget_first(64, 6)).both()
    retained = v2t[6:]
    off_diagonal = retained.sum(1) - retained[:, 6:64].diagonal()
    assert (off_diagonal > 0.3).all()
    assert (t2v[64, :6] > 0.3 / 6 - 1e-6).all()


def test_only_false_negatives():
    """Nothing is forgotten: the same as an empty forget set."""
    given = embeddings(3)
    found = realigned(*given, forget_first(6, 2), unlearn="false_negatives").both()
    expected = realigned(*given, forget_first(6, 0)).both()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_only_false_positives():
    """Retained pairs have hard targets, forgotten ones the same as otherwise."""
    given, forget = embeddings(3), forget_first(6, 2)
    v2t, t2v = realigned(*given, forget, unlearn="false_positives").both()
    full_v2t, full_t2v = realigned(*given, forget).both()
    assert torch.equal(v2t[2:], torch.eye(6, 7)[2:])
    assert torch.equal(t2v[2:6], torch.eye(6)[2:])
    assert torch.equal(v2t[:2], full_v2t[:2])
    assert torch.equal(t2v[[0, 1, 6]], full_t2v[[0, 1, 6]])


def test_logits():
    image, text, negative = embeddings(3, pairs=3)
    logits = realignment_logits(image, text, negative, 10.0)
    assert torch.allclose(logits[:, :3], 10 * image @ text.T)
    assert torch.allclose(logits[:, 3], 10 * (image * negative).sum(1))
    assert torch.equal(realignment_logits(image, text, None, 10.0), logits[:, :3])


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="the plan must be"):
        unlearning_targets(torch.full((2, 5), 0.1), FIRST)
    with pytest.raises(ValueError, match="gamma"):
        unlearning_targets(PLAN, FIRST, 1.5)
    with pytest.raises(ValueError, match="last_column"):
        transport_problem(*embeddings(3, pairs=2), FIRST, "other")  # type: ignore[arg-type]
    with pytest.raises(InfeasibleError, match="row 0"):
        realigned(*embeddings(3, pairs=1), torch.tensor([True])).both()
    with pytest.raises(InfeasibleError, match="row 0"):
        realigned(*embeddings(2, pairs=1), None, torch.tensor([True])).both()
