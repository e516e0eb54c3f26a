import math

import pytest
import torch

from ncclean.training.objectives.base import GlobalBatch, whole_model
from ncclean.training.objectives.bayes import Bayes, BayesOptions
from ncclean.training.objectives.clip import clip_loss
from ncclean.training.objectives.decl import Decl, draw_log_u, loss_of_sums
from ncclean.training.run_files import read_results
from tests.training.batches import train
from tests.training.objectives.samples import embeddings, extremes

PHASES = whole_model(1e-3, 1)
SCALE = torch.tensor(10.0)


def batch(pairs: int = 6, seed: int = 0, keys: bool = True) -> GlobalBatch:
    return GlobalBatch(
        torch.ones(pairs), torch.zeros(pairs, dtype=torch.bool),
        torch.arange(pairs) if keys else None,
        (torch.arange(pairs) % 2).to(torch.int8), seed,
    )  # fmt: skip


def loss_of(objective, image, text, facts):
    return sum(objective.terms({"image": image, "text": text}, SCALE, facts, PHASES[0]).values())


@pytest.mark.parametrize("make", [lambda: Bayes(PHASES, BayesOptions()), lambda: Decl(PHASES)])
def test_draws_depend_on_the_seed_of_the_step_alone(make):
    image, text = embeddings(2)
    torch.manual_seed(1)
    first = loss_of(make(), image, text, batch())
    torch.manual_seed(2)
    assert loss_of(make(), image, text, batch()) == first
    assert loss_of(make(), image, text, batch(seed=1)) != first


def test_concentrated_priors_give_the_clip_loss():
    """Shapes and rates of a million fix every weight at 1."""
    image, text = embeddings(2)
    options = BayesOptions(a_pos=1e6, a_neg=1e6, b_pos=1e6, b_neg=1e6)
    found = loss_of(Bayes(PHASES, options), image, text, batch())
    assert found.item() == pytest.approx(clip_loss(image, text, SCALE).item(), abs=0.02)


def test_memory_is_of_both_directions_and_changes_the_next_draw(refused):
    image, text = embeddings(2)
    with_memory = Bayes(PHASES, BayesOptions(mode="proper_prior", moving_average=0.9))
    without = Bayes(PHASES, BayesOptions(mode="proper_prior"))
    assert without.modules(torch.nn.Identity()) == {}
    (memory,) = with_memory.modules(torch.nn.Identity()).values()
    facts = batch()
    assert loss_of(with_memory, image, text, facts) == loss_of(without, image, text, facts)
    kept = memory.recall(facts.keys)
    assert torch.isfinite(kept).all()
    assert (kept[:, 0] != kept[:, 1]).all()
    assert loss_of(with_memory, image, text, facts) != loss_of(without, image, text, facts)
    refused(loss_of, with_memory, image, text, batch(keys=False))


def test_statistics_of_the_weights():
    image, text = embeddings(2, pairs=40)
    objective = Bayes(PHASES, BayesOptions())
    assert objective.statistics() == {}
    noisy = batch(40)
    with torch.no_grad():
        text[1::2] = -image[1::2]  # the noisy pairs are dissimilar, so their w_pos is larger
        text[::2] = image[::2]
    loss_of(objective, image, text, noisy)
    found = objective.statistics()
    assert found["w_pos/q05"] < found["w_pos/q50"] < found["w_pos/q95"]
    assert found["w_neg/q05"] < found["w_neg/q50"] < found["w_neg/q95"]
    assert found["w_pos/clean_correlation"] < -0.5
    unknown = GlobalBatch(noisy.weights, noisy.is_forget, is_noisy=torch.full((40,), -1))
    loss_of(objective, image, text, unknown)
    assert "w_pos/clean_correlation" not in objective.statistics()


@pytest.mark.parametrize("method", ["bayes", "decl"])
def test_trains_logs_and_resumes_with_its_memory(tmp_path, method):
    """Broken off in the second epoch, where every pair has a remembered u."""
    settings = {"bayes": BayesOptions(moving_average=0.8)}
    options = {"method": method, "settings": settings, "save_steps": 2}
    whole = train(tmp_path / "whole", **options)
    train(tmp_path / "broken", stop_after=7, **options)
    resumed = train(tmp_path / "broken", resume=True, **options)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    last = read_results(tmp_path / "broken")[-1]
    assert last["loss/image_to_text"] + last["loss/text_to_image"] == pytest.approx(last["loss"])
    assert ("w_pos/clean_correlation" in last) == (method == "bayes")


def test_decl_averages_with_what_it_remembers():
    """A pair's u of both directions lies between the remembered one and the draw of the step."""
    image, text = embeddings(2)
    objective, fresh = Decl(PHASES, 0.9), Decl(PHASES, 0.9)
    memories = [one.modules(torch.nn.Identity())["pair_memory"] for one in (objective, fresh)]
    first, second = batch(), batch(seed=1)
    loss_of(objective, image, text, first)
    before = memories[0].recall(first.keys).exp()
    loss_of(objective, image, text, second)
    loss_of(fresh, image, text, second)
    after, drawn = (memory.recall(first.keys).exp() for memory in memories)
    assert torch.allclose(after, 0.9 * before + 0.1 * drawn, rtol=1e-4)


@pytest.mark.parametrize(
    ("made", "low"),
    [
        (Bayes(PHASES, BayesOptions(mode="proper_prior", moving_average=1 - 1e-6)), -6.0),
        (Decl(PHASES, moving_average=1 - 1e-6), -16.0),
    ],
)
def test_each_direction_remembers_its_own_u(made, low):
    """A memory that is kept nearly whole comes back as it was, in both columns."""
    image, text = embeddings(2)
    facts = batch()
    (memory,) = made.modules(torch.nn.Identity()).values()
    before = low + torch.arange(12.0).view(2, 6).T / 4
    memory.remember(facts.keys, before)
    loss_of(made, image, text, facts)
    assert torch.allclose(memory.recall(facts.keys), before, atol=0.1)


def test_blocks_of_rows_draw_numbers_of_their_own():
    """All pairs are alike: the same numbers would give both blocks the same u."""
    same = torch.nn.functional.normalize(torch.ones(6, 4), dim=1)
    objective = Bayes(PHASES, BayesOptions())
    blocks = [objective._weighed(same, same, SCALE, 0, None, slice(n, n + 3)) for n in (0, 3)]
    assert not torch.allclose(blocks[0][1], blocks[1][1])


def log_sum(logits):
    return logits.logsumexp(dim=1)


def loss_of_logits(logits, log_u):
    return loss_of_sums(logits.diagonal(), log_sum(logits), log_u)


def test_draws_have_the_rate_of_the_sum():
    logits = torch.tensor([[2.0, 3.0]]).log().repeat(40_000, 1)
    u = draw_log_u(log_sum(logits), generator=torch.Generator().manual_seed(0)).exp()
    assert u.mean().item() == pytest.approx(0.2, abs=4 * 0.2 / 200)
    assert u.var().item() == pytest.approx(0.04, rel=0.05)


def test_memory_and_its_bound():
    logits = torch.zeros(3, 2)
    remembered = torch.tensor([float("nan"), math.log(0.5), 90.0])
    drawn = draw_log_u(log_sum(logits), generator=torch.Generator().manual_seed(1)).exp()
    kept = draw_log_u(
        log_sum(logits), remembered, moving_average=0.75, generator=torch.Generator().manual_seed(1)
    ).exp()
    assert torch.allclose(kept[0], drawn[0])
    assert torch.allclose(kept[1], 0.75 * 0.5 + 0.25 * drawn[1])
    assert kept[2].item() == pytest.approx(25)  # u sum_j s_ij is at most 50


def test_smooth_and_finite():
    logits = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    log_u = draw_log_u(log_sum(logits.detach())).double()
    assert torch.autograd.gradcheck(lambda x: loss_of_logits(x, log_u), (logits,))
    image, text = extremes(2)
    logits = 100 * image @ text.T
    stale = torch.full((4,), 200.0)
    loss = loss_of_logits(logits, draw_log_u(log_sum(logits.detach()), stale))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(image.grad).all()
