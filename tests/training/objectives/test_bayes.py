import math

import numpy as np
import pytest
import torch
from scipy.special import digamma, polygamma

from ncclean.training.objectives.base import pair_keys
from ncclean.training.objectives.bayes import (
    BayesOptions,
    PairMemory,
    averaged,
    gibbs_sample,
    normalized_weights,
    sample_log_gamma,
    sample_log_weights,
    weighted_contrastive_loss,
)
from tests.training.objectives.samples import embeddings, extremes

ROWS = 2000


def rows(*similarities: float) -> torch.Tensor:
    """Copies of one row of log similarities, float64; only the first copy has its positive first.

    So of every draw only what is on the diagonal is a positive.
    """
    return torch.tensor(similarities, dtype=torch.float64).log().repeat(len(similarities), 1)


def chains(log_s: torch.Tensor, options: BayesOptions, n: int = ROWS):
    """First row of `n` independent draws: (n, K) log w and (n,) log u."""
    generator = torch.Generator().manual_seed(0)
    drawn = [gibbs_sample(log_s, options, generator) for _ in range(n)]
    return torch.stack([w[0] for w, _ in drawn]), torch.stack([u[0] for _, u in drawn])


def test_auxiliary_variable_against_its_closed_form():
    """s = (2, 3), w = 1: u ~ Gamma(1, rate 5) with mean .2 and variance .04."""
    _, log_u = chains(rows(2, 3), BayesOptions(sweeps=1))
    u = log_u.exp()
    assert u.mean().item() == pytest.approx(0.2, abs=4 * 0.2 / math.sqrt(ROWS))
    assert u.var().item() == pytest.approx(0.04, rel=0.15)


def test_weights_given_u_against_their_closed_forms():
    """u held at .2: w_pos ~ Gamma(6, .4), mean 15; w_neg ~ Gamma(10, .6), mean 16.667."""
    held = torch.full((2,), math.log(0.2), dtype=torch.float64)
    options = BayesOptions(sweeps=1, moving_average=1 - 1e-12)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack(
        [gibbs_sample(rows(2, 3), options, generator, held)[0][0].exp() for _ in range(ROWS)]
    )
    for values, shape, rate in ((drawn[:, 0], 6, 0.4), (drawn[:, 1], 10, 0.6)):
        deviation = math.sqrt(shape) / rate
        bound = 4 * deviation / math.sqrt(ROWS)
        assert values.mean().item() == pytest.approx(shape / rate, abs=bound)
        assert values.std().item() == pytest.approx(deviation, rel=0.1)


def test_proper_priors_given_u():
    """Rates u s + b: with u = .2 and b = a, w_pos ~ Gamma(6, 5.4), w_neg ~ Gamma(10, 10.6)."""
    held = torch.full((2,), math.log(0.2), dtype=torch.float64)
    options = BayesOptions(mode="proper_prior", sweeps=1, moving_average=1 - 1e-12)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack(
        [gibbs_sample(rows(2, 3), options, generator, held)[0][0].exp() for _ in range(ROWS)]
    )
    assert drawn[:, 0].mean().item() == pytest.approx(6 / 5.4, abs=0.03)
    assert drawn[:, 1].mean().item() == pytest.approx(10 / 10.6, abs=0.02)


def test_two_sweeps_take_their_sum_of_weights_from_the_first():
    """The short cut for improper priors draws what the sweep over all weights would.

    With b = 0, log u of sweep 2 is log E2 - log G(A) + log E1 - log sum s for exponential E1, E2:
    mean 2 psi(1) - psi(A) - log 5, A = 6 + 10. A tiny b goes the long way, to the same.
    """
    expected = 2 * digamma(1) - digamma(16) - math.log(5)
    for b in (0.0, 1e-12):
        _, log_u = chains(rows(2, 3), BayesOptions(b_pos=b, b_neg=b))
        assert log_u.mean().item() == pytest.approx(expected, abs=4 * 1.9 / math.sqrt(ROWS))


@pytest.mark.parametrize(("b_pos", "b_neg"), [(5.0, 0.0), (0.0, 5.0)])
def test_two_sweeps_with_one_improper_prior(b_pos, b_neg):
    """No short cut there. Against numpy's own draws: w ~ Gamma(a, u s + b), u ~ Exp(sum w s)."""
    rng = np.random.default_rng(0)
    u = rng.exponential(1 / 5, 100_000)
    w_pos = rng.gamma(6, 1 / (2 * u + b_pos))
    w_neg = rng.gamma(10, 1 / (3 * u + b_neg))
    expected = np.log(rng.exponential(1 / (2 * w_pos + 3 * w_neg)))
    _, log_u = chains(rows(2, 3), BayesOptions(b_pos=b_pos, b_neg=b_neg))
    bound = 4 * expected.std() / math.sqrt(ROWS)
    assert log_u.mean().item() == pytest.approx(expected.mean(), abs=bound)
    assert log_u.std().item() == pytest.approx(expected.std(), rel=0.1)


@pytest.mark.slow
def test_strict_mode_has_one_expected_loss_whatever_the_embeddings():
    """psi(6 + 10 K) - psi(6), 1.86345 at K = 3, and a gradient blind to hardness."""
    assert digamma(36) - digamma(6) == pytest.approx(1.86345, abs=5e-6)
    draws = 2 * ROWS
    generator = torch.Generator().manual_seed(0)
    for seed in range(2):
        logits = 8 * torch.randn(4, 4, generator=torch.Generator().manual_seed(seed))
        logits = logits.double().requires_grad_()
        losses, gradient = [], torch.zeros(4, 4, dtype=torch.float64)
        for _ in range(draws):
            loss = weighted_contrastive_loss(
                logits, sample_log_weights(logits, generator=generator)
            )
            gradient += torch.autograd.grad(loss, logits)[0] / draws
            losses.append(loss.item())
        deviation = torch.tensor(losses).std().item()
        bound = 4 * deviation / math.sqrt(draws)
        assert sum(losses) / draws == pytest.approx(1.86345, abs=bound)
        negatives = 4 * gradient[~torch.eye(4, dtype=torch.bool)]
        assert torch.allclose(negatives, torch.full_like(negatives, 10 / 36), atol=0.01)


def test_other_modes_are_not_blind_to_hardness():
    image, text = embeddings(2, pairs=4)
    logits = 20 * (image @ text.T)
    for mode in ("paper", "proper_prior"):
        log_s = logits.detach() / 20
        losses = [
            weighted_contrastive_loss(
                logits,
                gibbs_sample(log_s, BayesOptions(mode=mode), torch.Generator().manual_seed(seed))[
                    0
                ],
            ).item()
            for seed in range(200)
        ]
        assert abs(sum(losses) / 200 - 1.86345) > 1


def test_loss_by_hand():
    weights = torch.tensor([[3.0, 1.0], [1.0, 3.0]]).log()
    loss = weighted_contrastive_loss(torch.zeros(2, 2), weights)
    assert loss.item() == pytest.approx(math.log(4 / 3), abs=1e-6)
    shifted = weights + torch.tensor([[5.0], [-2.0]])
    assert torch.allclose(weighted_contrastive_loss(torch.zeros(2, 2), shifted), loss)


def test_weights_carry_no_gradient_and_the_loss_is_smooth():
    logits = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    log_w = sample_log_weights(logits, generator=torch.Generator().manual_seed(0))
    assert not log_w.requires_grad
    assert log_w.dtype == torch.float64
    assert torch.autograd.gradcheck(lambda x: weighted_contrastive_loss(x, log_w), (logits,))


@pytest.mark.parametrize("mode", ["paper", "strict", "proper_prior"])
def test_extremes_stay_finite(mode):
    image, text = extremes(2)
    logits = 100 * image @ text.T
    b = (5, 10) if mode == "proper_prior" else (0, 0)
    log_s = logits if mode == "strict" else logits / 100
    log_w = sample_log_weights(log_s, b_pos=b[0], b_neg=b[1])
    loss = weighted_contrastive_loss(logits, log_w)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(image.grad).all()
    small = sample_log_weights(log_s, a_pos=1e-3, a_neg=1e-3, a_u=1e-3)
    assert torch.isfinite(small).all()


def test_half_precision_is_raised():
    loss = weighted_contrastive_loss(torch.eye(2).bfloat16(), torch.zeros(2, 2).bfloat16())
    assert loss.dtype == torch.float32
    assert sample_log_weights(torch.eye(2).bfloat16()).dtype == torch.float32


def test_normalised_weights_have_mean_one_per_row():
    log_w = 30 * torch.randn(3, 5)
    assert torch.allclose(normalized_weights(log_w).mean(dim=1), torch.ones(3))


def test_the_moving_average():
    remembered = torch.tensor([0.0, float("nan")])
    found = averaged(remembered, torch.tensor([3.0, 5.0]).log(), 0.25).exp()
    assert torch.allclose(found, torch.tensor([0.25 + 0.75 * 3, 5.0]))


def test_options_out_of_range(refused):
    refused(BayesOptions, mode="loose")
    refused(BayesOptions, a_neg=0)
    refused(BayesOptions, moving_average=1.0)
    assert BayesOptions(mode="proper_prior", b_neg=2).rates == (5, 2)


@pytest.mark.parametrize("shape", [0.3, 1.0, 6.0, 10.0])
def test_logarithms_have_the_moments_of_their_closed_form(shape):
    """log Gamma(a, rate b) has mean psi(a) - log b and variance psi'(a)."""
    n = 200_000
    rate = torch.full((n,), math.log(4.0), dtype=torch.float64)
    drawn = sample_log_gamma(shape, rate, torch.Generator().manual_seed(0))
    deviation = math.sqrt(polygamma(1, shape))
    assert drawn.mean().item() == pytest.approx(
        digamma(shape) - math.log(4), abs=4 * deviation / math.sqrt(n)
    )
    assert drawn.std().item() == pytest.approx(deviation, rel=0.02)


def test_tiny_shapes_and_huge_rates_do_not_underflow():
    """Half of Gamma(1e-3) lies below e^-690, most of it where float32 is 0."""
    drawn = sample_log_gamma(1e-3, torch.full((10_000,), 500.0), torch.Generator().manual_seed(0))
    assert torch.isfinite(drawn).all()
    assert -1300 < drawn.median() < -1100


def test_keys_are_those_of_the_uids():
    keys = pair_keys(["a", "b", "a"])
    assert keys.dtype == torch.int64
    assert keys[0] == keys[2] != keys[1]


def test_remembers_by_key_and_grows():
    memory = PairMemory(2)
    keys = pair_keys([str(i) for i in range(3000)])
    values = torch.arange(6000.0).view(3000, 2)
    memory.remember(keys[:5], values[:5])
    memory.remember(keys, values)
    assert len(memory) == 3000
    assert torch.equal(memory.recall(keys.flip(0)), values.flip(0))
    assert memory.recall(pair_keys(["unseen"])).isnan().all()
    memory.remember(torch.tensor([7, 7]), torch.tensor([[1.0, 1.0], [2.0, 2.0]]))
    assert memory.recall(torch.tensor([7])).tolist() == [[2.0, 2.0]]


def test_survives_a_checkpoint(tmp_path):
    memory = PairMemory(1)
    memory.remember(torch.tensor([3, -9]), torch.tensor([[0.5], [1.5]]))
    torch.save(memory.state_dict(), tmp_path / "m.pt")
    other = PairMemory(1)
    other.load_state_dict(torch.load(tmp_path / "m.pt", weights_only=True))
    assert other.recall(torch.tensor([-9, 3])).tolist() == [[1.5], [0.5]]
