import math

import pytest
import torch
from torch import nn

from ncclean.models.estimator import Estimator
from ncclean.models.heads import read_heads
from ncclean.training.objectives.base import GlobalBatch
from ncclean.training.objectives.disncl import (
    DISENTANGLING,
    Disncl,
    compression,
    control_terms,
    discriminator_terms,
    encoder_terms,
    feature_dim,
    warm_up_terms,
)
from ncclean.training.objectives.disncl_losses import PAIRS, Discriminators
from ncclean.training.objectives.options import DisnclOptions
from ncclean.training.optimizers import Adversaries
from ncclean.training.process_group import Ranks
from ncclean.training.run_files import read_results
from tests.training.batches import train
from tests.training.objectives.samples import invariant_cosines

NAMES = (
    "image",
    "text",
    *(f"{s}_{h}" for s in ("image", "text") for h in ("invariant", "exclusive")),
)
FACTS = GlobalBatch(torch.ones(6), torch.zeros(6, dtype=torch.bool))
STEP = {"betas": (0.9, 0.98), "eps": 1e-8, "clip_norm": 1.0}


def parts(clean: bool = True, pairs: int = 6, dtype: torch.dtype = torch.float32):
    """Random parts; the pairs match, or none does."""
    generator = torch.Generator().manual_seed(0)
    made = {name: torch.randn(pairs, 5, generator=generator, dtype=torch.float64) for name in NAMES}
    made["text_invariant"] = made["image_invariant"] + 0.05 * made["text_invariant"]
    if not clean:
        made["text_invariant"] = -made["image_invariant"]
    return {name: part.to(dtype).requires_grad_() for name, part in made.items()}


def discriminators() -> Discriminators:
    torch.manual_seed(0)
    return Discriminators(5, 5, 8).eval()


def test_untrained_discriminators_see_nothing():
    """With their last layer at 0 every bound is -2 ln 2; only what is not information differs."""
    made, given = discriminators(), parts()
    for each in made.values():
        nn.init.zeros_(each.output.weight)
        nn.init.zeros_(each.output.bias)
    terms = encoder_terms(given, made, DisnclOptions())
    nothing = 2 * math.log(2)
    assert terms["invariant"].item() == pytest.approx(0.5 * 2 * nothing, abs=1e-5)
    assert terms["exclusive"].item() == pytest.approx(0.5 * 2 * nothing, abs=1e-5)
    assert terms["leaks"].item() == pytest.approx(-0.5 * 1.1 * 2 * nothing, abs=1e-5)
    assert terms["overlap"].item() == pytest.approx(-2 * nothing, abs=1e-5)
    apart = 2 - 2 * invariant_cosines(given).diagonal().mean()
    assert terms["compression"].item() == pytest.approx(0.5 * 0.1 * apart.item(), abs=1e-6)
    for term in discriminator_terms(given, made).values():
        assert term.item() == pytest.approx(nothing, abs=1e-5)


def test_no_clean_pair_gives_zeros_attached_to_the_graph():
    given = parts(clean=False)
    terms = encoder_terms(given, discriminators(), DisnclOptions())
    assert len(terms) == 7
    assert all(term == 0 for term in terms.values())
    sum(terms.values()).backward()
    assert all((part.grad == 0).all() for part in given.values() if part.grad is not None)
    made = discriminators().train()
    terms = discriminator_terms(parts(clean=False), made)
    sum(terms.values()).backward()
    assert all(torch.isfinite(p.grad).all() for p in made.parameters())


def test_only_clean_pairs_count():
    """A pair that fails the filter can carry anything in its exclusive half."""
    given = parts()
    with torch.no_grad():
        given["text_invariant"][2] = -given["image_invariant"][2]
        changed = {name: part.clone() for name, part in given.items()}
        changed["image_exclusive"][2] += 7
        made = discriminators()
        before, after = (encoder_terms(each, made, DisnclOptions()) for each in (given, changed))
        assert all(torch.allclose(before[name], after[name]) for name in before)
        changed["image_exclusive"][3] += 7
        after = encoder_terms(changed, made, DisnclOptions())
    assert not torch.allclose(before["leaks"], after["leaks"])


def test_entangled_control_and_extremes():
    terms = control_terms(parts(), None, DisnclOptions())
    assert set(terms) == {"align", "soft"}
    everything = set(encoder_terms(parts(), discriminators(), DisnclOptions()))
    for option, left_out in (("soften", {"soft"}), ("regularize", {"overlap"})):
        terms = encoder_terms(parts(), discriminators(), DisnclOptions(**{option: False}))
        assert everything - set(terms) == left_out
    given = {name: 1e4 * torch.ones(6, 5) for name in NAMES}
    terms = encoder_terms(given, discriminators(), DisnclOptions())
    assert all(torch.isfinite(term) for term in terms.values())


def test_compression_sees_directions():
    """Unit vectors at right angles are 2 apart; shorter halves are no closer, turned ones are."""
    options = DisnclOptions()
    halves = {
        "image_invariant": torch.tensor([[3.0, 0.0], [0.0, 5.0]]),
        "text_invariant": torch.tensor([[0.0, 2.0], [0.0, 0.1]], requires_grad=True),
    }
    distance = compression(halves, options)
    assert distance.item() == pytest.approx((2 + 0) / 2)
    shorter = {name: 1e-3 * half for name, half in halves.items()}
    assert compression(shorter, options).item() == pytest.approx(distance.item())
    distance.backward()
    gradient, text = halves["text_invariant"].grad, halves["text_invariant"].detach()
    assert gradient[0].norm() > 0.1
    assert (gradient * text).sum(dim=1).abs().max() < 1e-6  # nothing to gain by another length
    assert compression({name: half[:0] for name, half in halves.items()}, options) == 0


def test_raw_is_the_papers():
    """Compression and discriminators see lengths: those of raw features and halves."""
    given = parts()
    shorter = {name: 0.5 * part for name, part in given.items()}
    raw = DisnclOptions(discriminator_input="raw")
    apart = (given["image_invariant"] - given["text_invariant"]).square().sum(dim=1).mean()
    assert compression(given, raw).item() == pytest.approx(apart.item(), rel=1e-5)
    assert compression(shorter, raw).item() == pytest.approx(apart.item() / 4, rel=1e-5)
    torch.manual_seed(0)
    made = Discriminators(5, 5, 8, form="raw").eval()
    for name, (first, second) in PAIRS.items():
        expected = made[name](given[first], given[second])
        assert all(map(torch.equal, made.logits(name, given), expected))
    terms = [encoder_terms(each, discriminators(), DisnclOptions()) for each in (given, shorter)]
    assert all(torch.allclose(terms[0][name], terms[1][name], atol=1e-5) for name in terms[0])
    terms = [encoder_terms(each, made, raw) for each in (given, shorter)]
    same = {name for name in terms[0] if torch.allclose(terms[0][name], terms[1][name])}
    assert same == {"align", "soft"}


def test_the_objective_hands_its_input_on():
    model = Estimator.load("demo-noisy", precision="fp32", device="cpu").model
    for disentangle, name in (("information", "discriminators"), ("reconstruction", "decoders")):
        options = DisnclOptions(disentangle=disentangle, discriminator_input="raw")
        made = Disncl(options).modules(model)
        assert set(made) == {"heads", name}
        assert made[name].form == "raw"
    assert set(Disncl(DisnclOptions(disentangle="none")).modules(model)) == {"heads"}


def test_warm_up_variants():
    similarity = invariant_cosines(parts(clean=False))
    gentle = warm_up_terms(similarity, DisnclOptions())["align"]
    hard = warm_up_terms(similarity, DisnclOptions(warmup_negatives="hardest"))["align"]
    assert 0 < gentle < hard


def test_gradients():
    """Float64 through all terms, with targets (beta3 1) and margins (alpha 0) held constant."""
    torch.manual_seed(0)
    made = Discriminators(5, 5, 4).double().eval()
    options = DisnclOptions(beta3=1.0, alpha=0.0, temperature=0.5)

    def loss(*values):
        terms = encoder_terms(dict(zip(NAMES, values, strict=True)), made, options)
        return tuple(terms.values())

    given = parts(pairs=3, dtype=torch.float64)
    assert torch.autograd.gradcheck(loss, tuple(given[name] for name in NAMES))


@pytest.fixture
def objective():
    made = Disncl(DisnclOptions(dim=16, hidden_dim=8, warmup_epochs=1), epochs=1)
    model = Estimator.load("demo-noisy", precision="fp32", device="cpu").model
    return made, made.modules(model), made.phases[1]


def matched(objective, phase):
    """Features whose invariant halves match, by construction of equal heads."""
    made, modules, _ = objective
    modules["heads"].text_invariant.load_state_dict(modules["heads"].image_invariant.state_dict())
    image = torch.randn(6, 128, generator=torch.Generator().manual_seed(0))
    return made.encode_features(image, image + 0.01, phase)


def state(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(before, module):
    return all(torch.equal(value, module.state_dict()[name]) for name, value in before.items())


def test_discriminator_step_leaves_encoders_alone_and_the_reverse(objective):
    made, modules, phase = objective
    heads, opponents = modules["heads"], modules["discriminators"]
    own = {name: list(module.parameters()) for name, module in modules.items()}
    for parameter in opponents.parameters():
        parameter.requires_grad_(False)  # as the trainer freezes what the phase does not train
    adversaries = Adversaries.of(made, phase, own, Ranks(), **STEP)
    before = state(heads), state(opponents)
    adversaries.set_rate(5, 10)
    adversaries.step(matched(objective, phase), FACTS)
    before = state(heads), before[1]
    assert all(p.grad is None for p in heads.parameters())
    assert not same(before[1], opponents)
    before = state(heads), state(opponents)
    adversaries.step(matched(objective, phase), FACTS)
    assert same(before[0], heads)
    before = state(heads), state(opponents)
    optimizer = torch.optim.SGD(heads.parameters(), 0.1)
    terms = made.terms(matched(objective, phase), torch.tensor(1.0), FACTS, phase)
    sum(terms.values()).backward()
    optimizer.step()
    assert same(before[1], opponents)  # buffers of the spectral norm included
    assert all(p.grad is None for p in opponents.parameters())
    assert not same(before[0], heads)


def test_discriminators_may_take_several_steps_for_each_of_the_heads(objective):
    _, modules, phase = objective
    own = {name: list(module.parameters()) for name, module in modules.items()}
    start, ends = state(modules["discriminators"]), []
    for steps, calls in ((1, 3), (3, 1)):
        modules["discriminators"].load_state_dict(start)
        made = Disncl(DisnclOptions(discriminator_steps=steps))
        made._discriminators = modules["discriminators"]
        adversaries = Adversaries.of(made, phase, own, Ranks(), **STEP)
        adversaries.set_rate(5, 10)
        for _ in range(calls):
            adversaries.step(matched(objective, phase), FACTS)
        ends.append(state(modules["discriminators"]))
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
    assert not same(start, modules["discriminators"])


def test_opponents_are_of_phase_two_alone(objective):
    made, _, phase = objective
    assert made.adversaries(made.phases[0]) == {}
    assert set(made.adversaries(phase)) == {"discriminators"}
    for control in ("reconstruction", "none"):
        made = Disncl(DisnclOptions(disentangle=control))
        assert made.adversaries(made.phases[1]) == {}


def test_frozen_towers_train_heads_alone():
    phases = Disncl(DisnclOptions(freeze_towers=True)).phases
    assert [set(phase.learning_rates) for phase in phases] == [{"heads"}] * 2
    assert set(Disncl(DisnclOptions()).phases[1].learning_rates) == {"heads", "image", "text"}


def test_feature_dim():
    model = Estimator.load("demo-noisy", precision="fp32", device="cpu").model
    assert feature_dim(model) == 128


def test_trains_resumes_and_saves_its_heads(tmp_path):
    """Broken off in phase two: discriminators and their optimiser go on as if nothing had been."""
    settings = {"disncl": DisnclOptions(dim=16, hidden_dim=8, warmup_epochs=1)}
    options = {"method": "disncl", "epochs": 2, "settings": settings, "save_steps": 2}
    whole = train(tmp_path / "whole", **options)
    train(tmp_path / "broken", stop_after=7, **options)
    resumed = train(tmp_path / "broken", resume=True, **options)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    own = [
        torch.load(max((tmp_path / run / "checkpoints").iterdir()), weights_only=True)["own"]
        for run in ("whole", "broken")
    ]
    for name in ("heads", "discriminators"):
        assert all(torch.equal(own[0][name][key], own[1][name][key]) for key in own[0][name])
    results = read_results(tmp_path / "whole")
    assert [record["phase"] for record in results] == ["warm-up"] * 4 + [DISENTANGLING] * 8
    assert "loss/overlap" in results[-1]
    assert 0 <= results[-1]["clean/noisy_share"] <= 1


def test_saving(objective, tmp_path):
    made, modules, _ = objective
    made.save(tmp_path)
    found = read_heads(tmp_path).state_dict()
    assert all(torch.equal(value, found[name]) for name, value in state(modules["heads"]).items())


def test_options_out_of_range(refused):
    refused(DisnclOptions, gamma=2)
    refused(DisnclOptions, warmup_negatives="some")
    refused(DisnclOptions, disentangle=False)  # it was a boolean
    refused(DisnclOptions, m=1)
    assert len(PAIRS) == 8
