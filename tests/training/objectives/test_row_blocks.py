"""Every objective by blocks of rows: the same loss and gradients, no (N, N) matrix of its own."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from ncclean.scoring import ncu as scoring_ncu
from ncclean.training.objectives import ncu
from ncclean.training.objectives import similarity as row_blocks
from ncclean.training.objectives.base import GlobalBatch
from ncclean.training.objectives.bayes import Bayes
from ncclean.training.objectives.disncl import filtered
from ncclean.training.objectives.disncl_losses import Decoders, Discriminators
from ncclean.training.objectives.ncu_targets import realigned, transport_problem
from ncclean.training.objectives.options import (
    BayesOptions,
    DisnclOptions,
    NcuOptions,
    ObjectiveOptions,
)
from ncclean.training.objectives.registry import METHODS, make_objective
from ncclean.training.transport import masked_sinkhorn

PAIRS, DIM = 26, 6
NAMES = (
    "image", "text", "negative",
    "image_invariant", "text_invariant", "image_exclusive", "text_exclusive",
)  # fmt: skip
# Draws of log w that hardly differ from 0, since blocks draw from generators of their own.
CONCENTRATED = BayesOptions(a_pos=1e12, a_neg=1e12, b_pos=1e12, b_neg=1e12)
# As many iterations whatever the rounding; at a tolerance it decides when they stop.
LASTING = {"max_iterations": 60, "tolerance": 1e-12}
CASES = {
    **{name: (name, {}) for name in METHODS if name not in ("bayes", "decl", "disncl", "ncu")},
    "decl": ("decl", {}),
    "osa, normalised": ("osa", {"normalize_weights": True}),
    "bayes": ("bayes", {"bayes": CONCENTRATED}),
    **{
        f"ncu, {name}": ("ncu", {"ncu": NcuOptions(forget_percent=20, **{**LASTING, **options})})
        for name, options in {
            "default": {},
            "intra": {"relation": "intra"},
            "distance": {"relation": "distance"},
            "share": {"last_column": "forget_share"},
            "V3": {"unlearn": "false_negatives"},
            "V4": {"unlearn": "false_positives"},
            "none": {"negative": "none"},
            "table": {"split": "table"},
            "few iterations": {"max_iterations": 3},
        }.items()
    },
    **{
        f"disncl, {name}": ("disncl", {"disncl": DisnclOptions(**options)})
        for name, options in {
            "default": {},
            "hardest": {"warmup_negatives": "hardest", "soften": False},
            "reverse": {"reverse": True, "disentangle": "none"},
            "masked": {"mask_noisy": True, "disentangle": "reconstruction"},
        }.items()
    },
}


def parts(pairs: int = PAIRS, dim: int = DIM) -> dict[str, torch.Tensor]:
    """Embeddings of pairs that resemble one another, and of negative texts that do not."""
    generator = torch.Generator().manual_seed(0)
    topic = torch.randn(pairs, dim, generator=generator)

    def made(share: float) -> torch.Tensor:
        own = torch.randn(pairs, dim, generator=generator)
        return F.normalize(share * topic + own, dim=1).requires_grad_()

    return {name: made(-1.0 if name == "negative" else 1.5) for name in NAMES}


def facts(pairs: int = PAIRS) -> GlobalBatch:
    weights = torch.rand(pairs, generator=torch.Generator().manual_seed(1))
    is_noisy = (torch.arange(pairs) % 3 == 0).to(torch.int8)
    return GlobalBatch(weights, weights < 0.2, torch.arange(pairs), is_noisy, seed=3)


def objective_of(case: str):
    method, options = CASES[case]
    objective = make_objective(method, ObjectiveOptions(**options))
    if method == "disncl":
        torch.manual_seed(0)
        objective._discriminators = objective._decoders = None
        if objective.options.disentangle == "information":
            objective._discriminators = Discriminators(DIM, DIM, 8)
        elif objective.options.disentangle == "reconstruction":
            objective._decoders = Decoders(DIM, DIM, 8)
    return objective


def terms_and_gradients(case: str, phase: int, rows: slice | None = None):
    """Terms, then gradients of embeddings and scale; the memories of u are empty before."""
    objective, given = objective_of(case), parts()
    if "none" in case:
        del given["negative"]
    scale = torch.tensor(20.0, requires_grad=True)
    chosen = objective.phases[phase]
    if rows is None:
        terms = objective.terms(given, scale, facts(), chosen)
    else:
        terms = objective.local_terms(given, rows, scale, facts(), chosen)
    leaves = [*given.values(), scale]
    gradients = torch.autograd.grad(sum(terms.values()), leaves, allow_unused=True)
    return {name: value.item() for name, value in terms.items()}, gradients


def cut(monkeypatch, rows: int = 7) -> None:
    """Blocks of `rows` of the 26 pairs."""
    monkeypatch.setattr(row_blocks, "WHOLE", PAIRS)
    monkeypatch.setattr(row_blocks, "BLOCK", rows * (PAIRS + 1))


def assert_same(found, expected):
    assert found[0] == pytest.approx(expected[0], rel=1e-5, abs=1e-5)
    assert any(gradient is not None for gradient in expected[1])
    for mine, theirs in zip(found[1], expected[1], strict=True):
        assert (mine is None) == (theirs is None)
        if theirs is not None:
            assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_blocks_change_neither_loss_nor_gradients(case, monkeypatch):
    for phase in range(len(objective_of(case).phases)):
        whole = terms_and_gradients(case, phase)
        with monkeypatch.context() as patch:
            cut(patch)
            assert_same(terms_and_gradients(case, phase), whole)


@pytest.mark.parametrize("case", ["clip", "osa", "osa, normalised"])
def test_the_loss_of_a_rank_by_blocks(case, monkeypatch):
    rows = slice(PAIRS // 2, PAIRS)
    whole = terms_and_gradients(case, 0, rows)
    cut(monkeypatch, rows=4)
    assert_same(terms_and_gradients(case, 0, rows), whole)


def test_blocks_cover_the_rows():
    assert row_blocks.row_blocks(8192, 8192) == [slice(None)]
    assert row_blocks.row_blocks(32_768, 32_768, slice(0, 2048)) == [slice(0, 2048)]
    for count, rows in ((32_768, slice(None)), (32_768, slice(4096, 8192)), (9000, slice(None))):
        begin, end, _ = rows.indices(count)
        blocks = row_blocks.row_blocks(count, count, rows)
        assert [row for block in blocks for row in range(count)[block]] == list(range(begin, end))
        assert max(block.stop - block.start for block in blocks) * count <= row_blocks.BLOCK
    assert len(row_blocks.row_blocks(4, 1 << 30)) == 4


def test_draws_of_a_block_are_the_same_when_it_is_computed_again(monkeypatch):
    """Else the gradient would be that of other weights: with those of the forward pass it is."""
    cut(monkeypatch)
    given, scale = parts(), torch.tensor(20.0)
    losses = []
    objective = make_objective("bayes")
    assert isinstance(objective, Bayes)
    step = torch.zeros_like(given["image"])
    step[3, 2] = 1e-2
    for sign in (1, 0, -1):
        moved = {**given, "image": given["image"] + sign * step}
        # The weights are drawn from cosines: with the improper priors of `paper` a moved cosine
        # moves log w by as much, the other way.
        terms = objective.terms(moved, scale, facts(), objective.phases[0])
        losses.append(sum(terms.values()))
    (first,) = torch.autograd.grad(losses[1], given["image"], retain_graph=True)
    (again,) = torch.autograd.grad(losses[1], given["image"])
    assert torch.equal(first, again)
    # d log w = -d cos, so the loss moves by (scale - 1) / scale of its gradient.
    slope = (losses[0] - losses[2]).item() / 2e-2
    assert slope == pytest.approx(19 / 20 * first[3, 2].item(), rel=0.02)


def test_blocks_of_bayes_draw_apart_and_log_the_same_rows(monkeypatch):
    objective, given = make_objective("bayes", ObjectiveOptions()), parts()
    scale = torch.tensor(20.0)
    cut(monkeypatch)
    same = {name: value[:1].expand(PAIRS, -1) for name, value in given.items()}
    objective.terms(same, scale, facts(), objective.phases[0])
    positive, negative, _ = objective._last
    assert len(positive.unique()) == PAIRS
    assert negative.shape == (PAIRS * (PAIRS - 1),)
    monkeypatch.setattr("ncclean.training.objectives.bayes._OBSERVED", 9)
    objective.terms(given, scale, facts(), objective.phases[0])
    assert objective._last[1].shape == (9 * (PAIRS - 1),)
    assert all(value == value for value in objective.statistics().values())


def test_the_transport_by_blocks(monkeypatch):
    given = [parts()[name] for name in ("image", "text", "negative")]
    forget = facts().is_forget
    problem = transport_problem(*given, forget)
    targets = realigned(*given, forget).both()
    plan = masked_sinkhorn(*problem)
    cut(monkeypatch)
    for mine, theirs in zip(transport_problem(*given, forget), problem, strict=True):
        assert torch.allclose(mine.float(), theirs.float(), atol=1e-6)
    assert torch.allclose(masked_sinkhorn(*problem), plan, atol=1e-6)
    for mine, theirs in zip(realigned(*given, forget).both(), targets, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-4)
    # A batch of problems, and a cost that is given away.
    batch = problem.cost.expand(3, -1, -1).clone()
    found = masked_sinkhorn(batch, *problem[1:], overwrite_cost=True)
    assert torch.allclose(found, plan.expand(3, -1, -1), atol=1e-6)
    assert found.data_ptr() == batch.data_ptr()


def test_rows_that_hold_too_much_are_found_by_blocks(monkeypatch, refused):
    mask = torch.ones(4, 5)
    mask[1, 2:] = mask[3, 2:] = 0
    monkeypatch.setattr(row_blocks, "WHOLE", 1)
    monkeypatch.setattr(row_blocks, "BLOCK", 5)
    problem = torch.rand(4, 5), mask, torch.full((4,), 0.25), torch.full((5,), 0.2)
    refused(masked_sinkhorn, *problem)


def test_splits_by_blocks(monkeypatch):
    given = parts()
    image, text = given["image"], given["text"]
    forget = ncu.forget_split(image, text, 20.0, 25)
    own, clean = filtered(given)
    confidence = scoring_ncu.clean_confidence(image @ text.T, 20.0)
    cut(monkeypatch)
    monkeypatch.setattr(scoring_ncu, "_BLOCK", 5 * PAIRS)
    assert torch.equal(ncu.forget_split(image, text, 20.0, 25), forget)
    found = filtered(given)
    assert torch.allclose(found[0], own)
    assert torch.equal(found[1], clean)
    assert clean.any()
    assert not clean.all()
    assert torch.allclose(scoring_ncu.clean_confidence(image @ text.T, 20.0), confidence)


class Allocated(TorchDispatchMode):
    """Bytes of all storages that operations made and that are alive, at most at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = self.largest = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(each, torch.Tensor):
                self._note(each.untyped_storage())
        return made

    def _note(self, storage: torch.UntypedStorage) -> None:
        address, size = storage._cdata, storage.nbytes()
        if address in self._known:
            return
        self._known.add(address)
        self.now += size
        self.peak, self.largest = max(self.peak, self.now), max(self.largest, size)
        weakref.finalize(storage, self._forget, address, size)

    def _forget(self, address: int, size: int) -> None:
        self._known.discard(address)
        self.now -= size


def allocated(case: str, phase: int, pairs: int) -> Allocated:
    """What the loss of `pairs` pairs and its backward pass allocate."""
    objective, given = objective_of(case), parts(pairs)
    scale = torch.tensor(20.0, requires_grad=True)
    gc.collect()
    with Allocated() as counted:
        terms = objective.terms(given, scale, facts(pairs), objective.phases[phase])
        torch.stack(list(terms.values())).sum().backward()
    return counted


BOUNDED = [
    *(name if name in CASES else f"{name}, default" for name in METHODS if name != "ncu"),
    "ncu, few iterations",
]
QUICK = ["cyclip", "decl", "gradient_ascent", "rince", "softclip"]


@pytest.mark.parametrize(
    "case",
    [*QUICK, *(pytest.param(one, marks=pytest.mark.slow) for one in BOUNDED if one not in QUICK)],
)
def test_no_objective_holds_its_matrices(case, monkeypatch):
    """At N = 512 in blocks of 8 rows."""
    pairs, matrix = 512, 4 * 512 * 512
    phases = range(len(objective_of(case).phases))
    whole = [allocated(case, phase, pairs).peak for phase in phases]
    monkeypatch.setattr(row_blocks, "WHOLE", 8 * pairs)
    monkeypatch.setattr(row_blocks, "BLOCK", 8 * pairs)
    for phase in phases:
        counted = allocated(case, phase, pairs)
        # NCU's second phase holds the plan in place of its cost, and the mask of a byte a value.
        held = 1.5 * matrix if "ncu" in case and phase == 1 else 0
        assert counted.peak < held + matrix / 2
        assert counted.largest <= (4 * pairs * (pairs + 1) if held else matrix / 8)
        assert whole[phase] > 4 * matrix
