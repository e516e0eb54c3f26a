"""Two processes with half the batch each train as one process with all of it does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ncclean.training.objectives.base import GlobalBatch, whole_model
from ncclean.training.objectives.baselines import (
    cyclip_terms,
    gradient_ascent_terms,
    rince_loss,
    softclip_loss,
)
from ncclean.training.objectives.bayes import Bayes, BayesOptions
from ncclean.training.objectives.clip import clip_loss
from ncclean.training.objectives.decl import Decl
from ncclean.training.objectives.disncl import Disncl, control_terms, encoder_terms, warm_up_terms
from ncclean.training.objectives.disncl_losses import Decoders, Discriminators
from ncclean.training.objectives.ncu import forget_split, hardest_negative_terms, unlearning_terms
from ncclean.training.objectives.options import DisnclOptions, NcuOptions
from ncclean.training.objectives.osa import osa_loss
from ncclean.training.optimizers import Adversaries
from ncclean.training.process_group import (
    Ranks,
    average_gradients,
    average_over,
    gather_with_gradients,
)
from tests.training.batches import start_ranks
from tests.training.objectives.samples import invariant_cosines

PAIRS, WORLD = 12, 2
Result = tuple[float, dict[str, torch.Tensor]]


def _hardest_negative(v, t, n, s, weights):
    terms = hardest_negative_terms(v, t, n, s, forget_split(v, t, s, 25), NcuOptions())
    return sum(terms.values())


def _unlearning(v, t, n, s, weights):
    terms = unlearning_terms(v, t, n, s, forget_split(v, t, s, 25), NcuOptions())
    return sum(terms.values())


def _objective(made):
    """The loss of an objective that draws: every rank must draw the same for the joint batch."""

    def loss(v, t, n, s, weights):
        batch = GlobalBatch(weights, weights < 0.04, (1e6 * weights).long(), seed=5)
        terms = made().terms({"image": v, "text": t}, s, batch, PHASES[0])
        return sum(terms.values())

    return loss


def _disncl(v, t, n, s, weights):
    """Halves that are easily told apart; the discriminators are the same on every rank."""
    torch.manual_seed(0)
    options = DisnclOptions()
    made = Discriminators(5, 5, 8).eval()
    parts = {
        "image": v, "text": t, "image_invariant": v + 2 * t, "text_invariant": t + 2 * v,
        "image_exclusive": v.flip(1), "text_exclusive": t.flip(1),
    }  # fmt: skip
    terms = encoder_terms(parts, made, options)
    assert all(value != 0 for value in terms.values())
    return sum(terms.values()) + sum(warm_up_terms(invariant_cosines(parts), options).values()) * s


def _disncl_control(v, t, n, s, weights):
    """The control of DisNCL: the decoders see the halves of all ranks."""
    torch.manual_seed(0)
    parts = {
        "image": v, "text": t, "image_invariant": v + 2 * t, "text_invariant": t + 2 * v,
        "image_exclusive": v.flip(1), "text_exclusive": t.flip(1),
    }  # fmt: skip
    terms = control_terms(parts, Decoders(5, 5, 8), DisnclOptions())
    assert terms["reconstruction"] != 0
    return sum(terms.values())


PHASES = whole_model(1e-3, 1)
OBJECTIVES = {
    "bayes": _objective(lambda: Bayes(PHASES, BayesOptions(moving_average=0.5))),
    "bayes_strict": _objective(lambda: Bayes(PHASES, BayesOptions(mode="strict"))),
    "bayes_proper": _objective(lambda: Bayes(PHASES, BayesOptions(mode="proper_prior"))),
    "disncl": _disncl,
    "disncl_control": _disncl_control,
    "decl": _objective(lambda: Decl(PHASES)),
    "rince": lambda v, t, n, s, weights: rince_loss(v, t, s),
    "clip": lambda v, t, n, s, weights: clip_loss(v, t, s),
    "osa": lambda v, t, n, s, weights: osa_loss(v, t, s, weights),
    "osa_normalized": lambda v, t, n, s, weights: osa_loss(v, t, s, weights, normalize=True),
    "gradient_ascent": lambda v, t, n, s, weights: sum(
        gradient_ascent_terms(v, t, s, weights < 0.04)
    ),
    "softclip": lambda v, t, n, s, weights: softclip_loss(v, t, s),
    "cyclip": lambda v, t, n, s, weights: sum(cyclip_terms(v, t, s, None).values()),
    "ncu_hn": _hardest_negative,
    "ncu_ul": _unlearning,
}


# With several ranks these see only the similarities of their own pairs.
LOCAL = {
    "clip_local": lambda v, t, n, s, weights, rows: clip_loss(v, t, s, rows),
    "osa_local": lambda v, t, n, s, weights, rows: osa_loss(v, t, s, weights, rows=rows),
    "osa_local_normalized": lambda v, t, n, s, weights, rows: osa_loss(
        v, t, s, weights, normalize=True, rows=rows
    ),
}
OBJECTIVES |= {
    "clip_local": OBJECTIVES["clip"],
    "osa_local": OBJECTIVES["osa"],
    "osa_local_normalized": OBJECTIVES["osa_normalized"],
}


class Towers(nn.Module):
    """Linear towers, a prompt that is added to the captions, and a scale."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.image, self.text = nn.Linear(7, 5), nn.Linear(6, 5)
        self.prompt = nn.Parameter(torch.randn(6))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, images: torch.Tensor, texts: torch.Tensor) -> tuple[torch.Tensor, ...]:
        embeddings = self.image(images), self.text(texts), self.text(self.prompt - texts)
        return *(F.normalize(each, dim=1) for each in embeddings), self.scale.exp()


def train_step(name: str, rank: int = 0, world: int = 1) -> Result:
    """Loss and gradients of this rank's share of one batch."""
    generator = torch.Generator().manual_seed(1)
    rows = slice(rank * PAIRS // world, (rank + 1) * PAIRS // world)
    images = torch.randn(PAIRS, 7, generator=generator)[rows]
    texts = torch.randn(PAIRS, 6, generator=generator)[rows]
    weights = 0.1 * torch.rand(PAIRS, generator=generator)[rows]
    towers = Towers()
    *embeddings, scale = towers(images, texts)
    *gathered, weights = gather_with_gradients(
        {**dict(zip("vtn", embeddings, strict=True)), "weights": weights}
    ).values()
    facts = (*gathered, scale, weights)
    loss = LOCAL[name](*facts, rows) if world > 1 and name in LOCAL else OBJECTIVES[name](*facts)
    loss.backward()
    ranks = Ranks(rank, world)
    average_gradients(towers.parameters(), ranks)
    gradients = {
        key: parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        for key, parameter in towers.named_parameters()
    }
    return average_over(ranks, loss).item(), gradients


def play_steps(rank: int = 0, world: int = 1) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Three times: discriminators step, then heads. All weights after it; the encoder's losses."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(2)
    rows = slice(rank * PAIRS // world, (rank + 1) * PAIRS // world)
    features = 3 * torch.randn(PAIRS, 5, generator=generator)[rows]
    ranks = Ranks(rank, world)
    objective = Disncl(DisnclOptions(warmup_epochs=0, hidden_dim=8, dim=6, freeze_towers=True))
    (phase,) = objective.phases
    modules = objective.modules(FeatureModel())
    # The same head for the same features, so that pairs pass the filter.
    modules["heads"].text_invariant.load_state_dict(modules["heads"].image_invariant.state_dict())
    parts = {name: list(module.parameters()) for name, module in modules.items()}
    adversaries = Adversaries.of(
        objective, phase, parts, ranks, betas=(0.9, 0.98), eps=1e-8, clip_norm=1.0
    )
    assert adversaries is not None
    heads = torch.optim.SGD(parts["heads"], 1e-2)
    facts = GlobalBatch(torch.ones(PAIRS), torch.zeros(PAIRS) > 0, torch.arange(PAIRS), seed=0)
    losses = []
    for step in range(3):
        adversaries.set_rate(step + 1, 4)
        heads.zero_grad()
        encoded = objective.encode_features(features, features.clone(), phase)
        gathered = gather_with_gradients(encoded)
        adversaries.step(gathered, facts)
        terms = objective.terms(gathered, torch.tensor(1.0), facts, phase)
        loss = sum(terms.values())
        loss.backward()
        average_gradients(parts["heads"], ranks)
        heads.step()
        losses.append(average_over(ranks, loss).item())
    return {
        f"{name}.{key}": value
        for name, module in modules.items()
        for key, value in module.state_dict().items()
    }, losses


class FeatureModel(nn.Module):
    """As much of a CLIP as tells Disncl that features have five elements."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(5))

    def encode_text(self, tokens: torch.Tensor, normalize: bool = False) -> torch.Tensor:
        return self.weight[None]


def packed_as_one_by_one(rank: int) -> None:
    """What travels together is what would come alone, with the same gradients, in two exchanges."""
    torch.manual_seed(rank)
    sent = {
        "image": torch.randn(3, 5, requires_grad=True),
        "keys": torch.randint(-(2**62), 2**62, (3,)),
        "text": torch.randn(3, 4, 2, requires_grad=True),
        "weights": torch.rand(3),
        "marks": torch.tensor([rank == 0, True, False]),
        "truth": torch.tensor([-1, 0, 1], dtype=torch.int8),
        "half": torch.randn(3, 2).bfloat16().requires_grad_(),
    }
    exchanges = []
    with pytest.MonkeyPatch.context() as patch:
        gather = dist.all_gather
        patch.setattr(dist, "all_gather", lambda *given: exchanges.append(gather(*given)))
        whole = gather_with_gradients(sent)
    assert len(exchanges) == 2
    assert set(whole) == set(sent)
    for name, tensor in sent.items():
        shares = [torch.empty_like(tensor) for _ in range(WORLD)]
        dist.all_gather_object(shares, tensor.detach())
        assert whole[name].dtype == tensor.dtype, name
        assert torch.equal(whole[name], torch.cat(shares)), name
    # Each rank's loss weighs all rows by a factor of its own.
    (whole["image"].sum() * (rank + 1) + whole["half"].float().sum() * 3).backward()
    assert torch.equal(sent["image"].grad, torch.full((3, 5), 3.0))
    assert torch.equal(sent["half"].grad, torch.full((3, 2), 6.0).bfloat16())
    assert not sent["text"].grad.any()


def means_of_gradients(rank: int) -> None:
    """Each gradient becomes its mean over the ranks, in its own precision; none stays none."""
    kinds = (torch.float32, torch.float64, torch.bfloat16, torch.float32)
    parameters = [nn.Parameter(torch.ones(2, 3, dtype=kind)) for kind in kinds]
    for number, parameter in enumerate(parameters[:3]):
        parameter.grad = torch.full_like(parameter, 2 * rank + number)
    average_gradients(parameters, Ranks(rank, WORLD))
    for number, parameter in enumerate(parameters[:3]):
        assert torch.equal(parameter.grad, torch.full_like(parameter, WORLD - 1 + number))
    assert parameters[3].grad is None


def run_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD
    )
    try:
        found = {name: train_step(name, rank, WORLD) for name in OBJECTIVES}
        packed_as_one_by_one(rank)
        means_of_gradients(rank)
        torch.save(found, f"{folder}/{rank}.pt")
        torch.save(play_steps(rank, WORLD), f"{folder}/played-{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    start_ranks(run_rank, (str(folder),), WORLD)
    return folder


@pytest.fixture(scope="module")
def by_rank(ranks_folder: Path) -> list[dict[str, Result]]:
    return [torch.load(ranks_folder / f"{rank}.pt") for rank in range(WORLD)]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_world_size_does_not_matter(name, by_rank):
    loss, gradients = train_step(name)
    for ranks in by_rank:
        found_loss, found = ranks[name]
        assert found_loss == pytest.approx(loss, abs=1e-5)
        for key, gradient in gradients.items():
            assert torch.allclose(found[key], gradient, atol=1e-5), key
    assert gradients["image.weight"].abs().max() > 1e-3
    assert (gradients["prompt"].abs().max() > 1e-3) == name.startswith("ncu")


def test_the_game_does_not_depend_on_the_world_size(ranks_folder):
    """Discriminators and heads of DisNCL stay the same on all ranks, and as in one process."""
    weights, losses = play_steps()
    assert len(set(losses)) == len(losses)  # each step changed something
    for rank in range(WORLD):
        found, found_losses = torch.load(ranks_folder / f"played-{rank}.pt")
        assert found_losses == pytest.approx(losses, abs=1e-4)
        for name, value in weights.items():
            assert torch.allclose(found[name], value, atol=1e-4), name


def test_one_process_is_left_alone():
    tensor = torch.randn(3, 2, requires_grad=True)
    assert gather_with_gradients({"image": tensor})["image"] is tensor
