"""The solver against hand-computed plans, POT, and linear programming for what is infeasible."""

import itertools

import numpy as np
import ot
import pytest
import torch
from scipy.optimize import linprog

from ncclean.errors import InfeasibleError, NccleanError
from ncclean.training import transport
from ncclean.training.transport import masked_sinkhorn


def forget_problem(n: int, forgotten: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Eq. 8's mask with the first rows forgotten, and the uniform marginals."""
    forget = torch.arange(n) < forgotten
    mask = torch.cat([~torch.diag(forget), forget[:, None]], dim=1)
    return mask, torch.full((n,), 1 / n), torch.full((n + 1,), 1 / (n + 1))


def random_problem(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Float64 cost, mask with about a third forbidden, marginals of a plan that keeps to it."""
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, dtype=torch.float64, generator=generator)

    n, m = (int(size) for size in torch.randint(2, 12, (2,), generator=generator))
    mask = rand(n, m) > 0.35
    mask[torch.arange(n), torch.randint(m, (n,), generator=generator)] = True
    mask[torch.randint(n, (m,), generator=generator), torch.arange(m)] = True
    feasible = mask * (rand(n, m) + 0.1)
    feasible /= feasible.sum()
    return rand(n, m), mask, feasible.sum(1), feasible.sum(0)


@pytest.mark.parametrize("seed", range(3))
def test_two_pairs_one_forgotten_by_hand(seed):
    """Only one plan meets mask and marginals, so the cost does not matter."""
    torch.manual_seed(seed)
    plan = masked_sinkhorn(torch.rand(2, 3), *forget_problem(2, 1))
    expected = torch.tensor([[0, 1 / 6, 1 / 3], [1 / 3, 1 / 6, 0]])
    assert torch.allclose(plan, expected, atol=1e-4)


def test_three_pairs_one_forgotten_by_hand():
    plan = masked_sinkhorn(torch.ones(3, 4), *forget_problem(3, 1))
    retained = [1 / 8, 5 / 48, 5 / 48, 0]
    expected = torch.tensor([[0, 1 / 24, 1 / 24, 1 / 4], retained, retained])
    assert torch.allclose(plan, expected, atol=1e-4)


@pytest.mark.parametrize("seed", range(50))
def test_agrees_with_pot(seed):
    cost, mask, rows, columns = random_problem(seed)
    epsilon = [0.03, 0.1, 1.0][seed % 3]
    forbidden = np.where(mask.numpy(), cost.numpy(), np.inf)
    # Divided by their sum in numpy: POT compares the masses exactly.
    expected = ot.sinkhorn(
        rows.numpy() / rows.numpy().sum(), columns.numpy() / columns.numpy().sum(), forbidden,
        epsilon, method="sinkhorn_log", numItermax=200_000, stopThr=1e-10,
    )  # fmt: skip
    options = {"epsilon": epsilon, "max_iterations": 20_000, "tolerance": 1e-9}
    plan = masked_sinkhorn(cost, mask, rows, columns, **options)
    assert np.abs(plan.numpy() - expected).max() < 1e-7
    options |= {"max_iterations": 5_000, "tolerance": 1e-6}
    single = masked_sinkhorn(cost.float(), mask, rows.float(), columns.float(), **options)
    assert np.abs(single.numpy() - expected).max() < 1e-5
    assert (single[~mask] == 0).all()


@pytest.mark.parametrize(("n", "forgotten"), [(n, k) for n in range(2, 7) for k in range(1, n + 1)])
def test_any_non_empty_forget_set_is_feasible(n, forgotten):
    mask, rows, columns = forget_problem(n, forgotten)
    torch.manual_seed(n)
    plan = masked_sinkhorn(torch.rand(n, n + 1), mask, rows, columns, max_iterations=1000)
    assert torch.allclose(plan.sum(0), columns, atol=1e-6)
    assert (plan.sum(1) - rows).abs().sum() <= 1.01e-4
    assert (plan[~mask] == 0).all()
    assert (plan[mask] > 0).all()


def test_a_full_batch_converges_within_the_default_iterations():
    """N = 512, cosines as a CLIP model gives them, 10 % forgotten."""
    torch.manual_seed(0)
    mask, rows, columns = forget_problem(512, 51)
    cosines = torch.cat([0.1 + 0.05 * torch.randn(512, 512), torch.full((512, 1), -0.1)], dim=1)
    cosines.diagonal()[51:] += 0.2
    cost = 1 - cosines
    plan = masked_sinkhorn(cost / cost.max(), mask, rows, columns)
    assert (plan.sum(1) - rows).abs().sum() < 1e-4
    assert torch.allclose(plan.sum(0), columns, atol=1e-7)


def test_a_problem_does_not_depend_on_its_batch():
    torch.manual_seed(0)
    cost = torch.rand(2, 3, 5, 6)
    mask, rows, columns = forget_problem(5, 2)
    cost[0, 1] *= 0.01  # converges at once
    batched = masked_sinkhorn(cost, mask, rows, columns)
    assert batched.shape == cost.shape
    for first, second in itertools.product(range(2), range(3)):
        alone = masked_sinkhorn(cost[first, second], mask, rows, columns)
        assert torch.allclose(batched[first, second], alone, atol=1e-7)


def test_small_epsilon_does_not_underflow():
    """exp(-1 / 0.001) is 0 in float32 and in float64."""
    cost = torch.tensor([[1.0, 0.9], [0.8, 1.0]])
    half = torch.full((2,), 0.5)
    plan = masked_sinkhorn(cost, torch.ones(2, 2), half, half, epsilon=0.001)
    assert torch.allclose(plan, torch.tensor([[0.0, 0.5], [0.5, 0.0]]), atol=1e-5)


def test_precision_masked_costs_and_gradients():
    mask, rows, columns = forget_problem(3, 1)
    cost = torch.rand(3, 4)
    plan = masked_sinkhorn(cost.half(), mask, rows, columns)
    assert plan.dtype == torch.float32
    assert masked_sinkhorn(cost.double(), mask, rows, columns).dtype == torch.float64
    unread = cost.masked_fill(~mask, torch.nan)
    expected = masked_sinkhorn(cost, mask, rows, columns)
    assert torch.equal(masked_sinkhorn(unread, mask, rows, columns), expected)
    assert torch.equal(masked_sinkhorn(cost, mask.float(), rows, columns), expected)
    assert not masked_sinkhorn(cost.requires_grad_(), mask, rows, columns).requires_grad


def test_rows_and_columns_without_mass_need_no_room():
    mask = torch.tensor([[True, True, False], [False, False, False]])
    rows, columns = torch.tensor([1.0, 0.0]), torch.tensor([0.25, 0.75, 0.0])
    plan = masked_sinkhorn(torch.rand(2, 3), mask, rows, columns)
    assert torch.allclose(plan, torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.0, 0.0]]), atol=1e-4)


def test_infeasible_rows_and_columns_are_named(refused):
    cost, third, half = torch.rand(2, 3), torch.full((3,), 1 / 3), torch.full((2,), 0.5)
    refused(masked_sinkhorn, cost, torch.tensor([[1, 1, 1], [0, 0, 0]]), half, third)
    refused(masked_sinkhorn, cost, torch.tensor([[1, 1, 0], [1, 1, 0]]), half, third)
    refused(masked_sinkhorn, cost, torch.tensor([[1, 0, 0], [1, 1, 1]]), half, third)
    mask = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 0, 1], [1, 0, 1]])
    columns = torch.tensor([0.2, 0.6, 0.2])
    refused(masked_sinkhorn, torch.rand(4, 3), mask, torch.full((4,), 0.25), columns)
    refused(masked_sinkhorn, cost, torch.ones(2, 3), half, third * 0.9)
    mask = torch.tensor([[[1, 1, 1], [1, 1, 1]], [[0, 0, 0], [1, 1, 1]]])
    refused(masked_sinkhorn, torch.rand(2, 2, 3), mask, half, third)
    assert issubclass(InfeasibleError, NccleanError)
    assert issubclass(InfeasibleError, ValueError)


def test_rows_that_hold_too_much_together_are_named(refused):
    """Rows 1 and 3 hold a half, their only columns 0 and 1 two fifths; each alone would fit."""
    mask = torch.ones(4, 5)
    mask[1, 2:] = mask[3, 2:] = 0
    refused(masked_sinkhorn, torch.rand(4, 5), mask, torch.full((4,), 0.25), torch.full((5,), 0.2))


def test_exactly_the_infeasible_are_reported():
    """200 random sparse masks with random marginals, judged by linear programming."""
    rng = np.random.default_rng(0)
    found = missed = 0
    for _ in range(200):
        n, m = rng.integers(2, 7, 2)
        mask = rng.random((n, m)) < 0.55
        rows, columns = rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(m))
        sums = np.vstack([np.kron(np.eye(n), np.ones((1, m))), np.kron(np.ones((1, n)), np.eye(m))])
        bounds = [(0, None if free else 0) for free in mask.ravel()]
        is_feasible = linprog(
            np.zeros(n * m), A_eq=sums, b_eq=np.concatenate([rows, columns]), bounds=bounds
        ).success
        problem = [torch.from_numpy(x) for x in (rng.random((n, m)), mask, rows, columns)]
        try:
            masked_sinkhorn(*problem)
            missed += not is_feasible
        except InfeasibleError:
            assert not is_feasible
            found += 1
    assert found > 50
    assert missed == 0


def test_options_are_checked():
    arguments = (torch.rand(2, 3), *forget_problem(2, 1))
    with pytest.raises(ValueError, match="epsilon"):
        masked_sinkhorn(*arguments, epsilon=0.0)
    with pytest.raises(ValueError, match="max_iterations"):
        masked_sinkhorn(*arguments, max_iterations=0)
    with pytest.raises(ValueError, match="negative"):
        masked_sinkhorn(arguments[0], arguments[1], torch.tensor([1.5, -0.5]), arguments[3])


def test_a_plan_that_did_not_converge_is_logged(caplog, monkeypatch):
    """Not every one of them: a run has thousands."""
    monkeypatch.setattr(transport, "_unconverged", itertools.count(1))
    cost, mask = torch.rand(8, 8, generator=torch.Generator().manual_seed(0)), torch.ones(8, 8)
    even = torch.full((8,), 1 / 8)
    masked_sinkhorn(cost, mask, even, even, epsilon=1.0)
    assert caplog.messages == []
    with caplog.at_level("WARNING"):
        for _ in range(9):
            masked_sinkhorn(cost, mask, even, even, epsilon=0.001, max_iterations=1)
    assert len(caplog.messages) == 4  # the first, second, fourth and eighth
    assert "transport did not converge in 1 iterations" in caplog.messages[0]
