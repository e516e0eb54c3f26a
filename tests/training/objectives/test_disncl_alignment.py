import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ncclean.training.objectives.disncl import Disncl, control_terms
from ncclean.training.objectives.disncl_losses import (
    PAIRS,
    Decoders,
    Discriminator,
    Discriminators,
    adversarial_bound,
    all_negatives_loss,
    jsd_bound,
    ranking_loss,
    soft_alignment_loss,
    soft_margin,
    unexplained_share,
)
from ncclean.training.objectives.options import DisnclOptions
from ncclean.training.run_files import read_results
from tests.training.batches import train

H = torch.tensor([[1.0, 0.0], [0.5, 1.0]])
FIRST = torch.tensor([True, False])


def log_softmax(*values: float) -> list[float]:
    total = math.log(sum(map(math.exp, values)))
    return [value - total for value in values]


def test_soft_margin_by_hand():
    found = soft_margin(torch.tensor([1.0, 0.5, 0.3, 0.0, -0.4, 1.2], requires_grad=True))
    expected = [0.2, 0.04805, 0.02212, 0.0, 0.0, 0.2]
    assert found.tolist() == pytest.approx(expected, abs=5e-6)
    assert not found.requires_grad


def test_ranking_loss_by_hand():
    """Hardest negatives: rows .4, .7, .6; columns .7, .6, .3. Pair 2's margin is its own, .1."""
    similarity = torch.tensor([[0.9, 0.4, 0.3], [0.7, 0.5, 0.2], [0.1, 0.6, 0.55]])
    margin = torch.tensor([0.3, 0.2, 0.1])
    first = 0.3 - 0.9 + 0.7  # the row is satisfied: .3 - .9 + .4 < 0
    third = 0.1 - 0.55 + 0.6
    clean = torch.tensor([True, False, True])
    assert ranking_loss(similarity, clean, margin).item() == pytest.approx((first + third) / 2)
    second = (0.2 - 0.5 + 0.7) + (0.2 - 0.5 + 0.6)
    everyone = torch.ones(3, dtype=torch.bool)
    assert ranking_loss(similarity, everyone, margin).item() == pytest.approx(
        (first + second + third) / 3
    )


def test_all_negatives_by_hand():
    """Margin .6: rows [.6 - 1 + 0]+ and [.6 - 1 + .5]+, the columns the same; 4 terms, 2 pairs."""
    assert all_negatives_loss(H, 0.6).item() == pytest.approx((0.1 + 0.1) / 2)
    assert all_negatives_loss(torch.ones(1, 1), 0.6) == 0


def test_soft_alignment_by_hand():
    """Pair 0: image to text .50203; text to image with p = softmax(1, .5) and its target."""
    i2t, t2i = log_softmax(1.0, 0.0), log_softmax(1.0, 0.5)

    def direction(log_p, opposite, swap=False):
        target = [0.5 * (j == 0) + 0.5 * math.exp(opposite[j]) for j in range(2)]
        if swap:
            return -sum(math.exp(p) * math.log(y) for p, y in zip(log_p, target, strict=True))
        return -sum(y * p for p, y in zip(log_p, target, strict=True))

    assert direction(i2t, t2i) == pytest.approx(0.50203, abs=5e-6)
    assert direction(i2t, t2i, swap=True) == pytest.approx(0.60133, abs=1e-4)
    loss = soft_alignment_loss(H, FIRST, temperature=1.0)
    assert loss.item() == pytest.approx(direction(i2t, t2i) + direction(t2i, i2t), abs=1e-6)
    loss = soft_alignment_loss(H, FIRST, temperature=1.0, reverse=True)
    expected = direction(i2t, t2i, swap=True) + direction(t2i, i2t, swap=True)
    assert loss.item() == pytest.approx(expected, abs=1e-6)


def test_beta3_of_one_is_cross_entropy_and_noisy_candidates_can_be_masked():
    target = torch.arange(2)
    both = torch.nn.functional.cross_entropy(H, target) + torch.nn.functional.cross_entropy(
        H.T, target
    )
    everyone = torch.ones(2, dtype=torch.bool)
    assert torch.allclose(soft_alignment_loss(H, everyone, temperature=1.0, beta3=1.0), both)
    # Pair 1 is the only other candidate of pair 0.
    assert soft_alignment_loss(H, FIRST, mask_noisy=True).item() == pytest.approx(0, abs=1e-6)
    assert soft_alignment_loss(H, FIRST).item() > 1e-6


def test_targets_are_detached():
    """The gradient of -sum y log p with y held: (p - y) / temperature for each direction."""
    similarity = H.clone().double().requires_grad_()
    (gradient,) = torch.autograd.grad(
        soft_alignment_loss(similarity, FIRST, temperature=1.0), similarity
    )
    i2t, t2i = similarity.detach().softmax(dim=1)[0], similarity.detach().T.softmax(dim=1)[0]
    onehot = torch.tensor([1.0, 0.0], dtype=torch.float64)
    expected = torch.zeros(2, 2, dtype=torch.float64)
    expected[0] += i2t - (onehot + t2i) / 2
    expected[:, 0] += t2i - (onehot + i2t) / 2
    assert torch.allclose(gradient, expected)


LOSSES = {
    "ranking": lambda h, clean: ranking_loss(h, clean, soft_margin(h.diagonal())),
    "soft": soft_alignment_loss,
    "reverse": lambda h, clean: soft_alignment_loss(h, clean, reverse=True),
    "masked": lambda h, clean: soft_alignment_loss(h, clean, mask_noisy=True),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_no_clean_pair_gives_an_attached_zero(loss):
    similarity = torch.rand(4, 4, requires_grad=True)
    found = loss(similarity, torch.zeros(4, dtype=torch.bool))
    found.backward()
    assert found == 0
    assert (similarity.grad == 0).all()


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_extremes_stay_finite(loss):
    similarity = torch.ones(4, 4) - 2 * torch.eye(4)
    similarity.requires_grad_()
    for clean in (torch.ones(4, dtype=torch.bool), torch.arange(4) < 1):
        found = loss(similarity, clean)
        (gradient,) = torch.autograd.grad(found, similarity)
        assert torch.isfinite(found)
        assert torch.isfinite(gradient).all()
    assert torch.isfinite(loss(torch.ones(1, 1), torch.ones(1, dtype=torch.bool)))


def test_smooth_where_it_should_be():
    """Targets and margins are held, so the function checked holds them too."""
    similarity = torch.rand(4, 4, dtype=torch.float64, requires_grad=True)
    clean = torch.tensor([True, False, True, True])
    assert torch.autograd.gradcheck(
        lambda h: ranking_loss(h, clean, torch.full((4,), 0.3, dtype=torch.float64)), (similarity,)
    )
    for masked in (False, True):  # with beta3 1 the target is constant
        assert torch.autograd.gradcheck(
            lambda h, masked=masked: soft_alignment_loss(h, clean, 0.2, 1.0, mask_noisy=masked),
            (similarity,),
        )


def test_bound_by_hand():
    zero = torch.zeros(5)
    assert jsd_bound(zero, zero).item() == pytest.approx(-1.38629, abs=5e-6)
    found = jsd_bound(torch.tensor([1.0, 3.0]), torch.tensor([-2.0]))
    expected = -(math.log1p(math.exp(-1)) + math.log1p(math.exp(-3))) / 2 - math.log1p(math.exp(-2))
    assert found.item() == pytest.approx(expected, abs=1e-6)
    none = torch.zeros(0, requires_grad=True)
    assert jsd_bound(none, none) == 0
    assert jsd_bound(none, none).requires_grad


def test_what_the_encoder_sees_of_an_adversary():
    joint, shuffled = torch.tensor([-400.0]), torch.tensor([0.0])
    assert adversarial_bound(joint, shuffled, bounded=False).item() == pytest.approx(
        -400 - math.log(2)
    )
    assert adversarial_bound(joint, shuffled, bounded=True) == 0
    assert adversarial_bound(torch.tensor([2.0]), shuffled, True).item() == pytest.approx(
        math.log1p(math.exp(2))
    )


def test_smooth_and_finite():
    joint, shuffled = (torch.randn(4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(jsd_bound, (joint, shuffled))
    assert torch.isfinite(jsd_bound(torch.tensor([-1e4, 1e4]), torch.tensor([1e4, -1e4])))


def test_rolled_first_layer_is_the_whole_one_on_rolled_pairs():
    torch.manual_seed(0)
    discriminator = Discriminator(3, 4).eval()
    first, second = torch.randn(6, 3), torch.randn(6, 4)

    def plainly(a, b):
        hidden = F.leaky_relu(discriminator.input(torch.cat([a, b], dim=1)), 0.2)
        return discriminator.output(F.leaky_relu(discriminator.hidden(hidden), 0.2))[:, 0]

    joint, shuffled = discriminator(first, second)
    assert torch.allclose(joint, plainly(first, second), atol=1e-6)
    assert torch.allclose(shuffled, plainly(first, second.roll(1, dims=0)), atol=1e-6)


def test_a_discriminator_tells_dependence_from_independence():
    """The bound rises well above -2 ln 2 on dependent pairs, and not on independent ones."""
    bounds = []
    for dependent in (True, False):
        torch.manual_seed(0)
        discriminator = Discriminator(4, 4, 32)
        optimizer = torch.optim.Adam(discriminator.parameters(), 3e-3)
        for _ in range(150):
            first = torch.randn(256, 4)
            second = first + 0.2 * torch.randn(256, 4) if dependent else torch.randn(256, 4)
            bound = jsd_bound(*discriminator(first, second))
            optimizer.zero_grad()
            (-bound).backward()
            optimizer.step()
        bounds.append(bound.item())
    assert bounds[0] > -1.0
    assert bounds[1] == pytest.approx(-2 * math.log(2), abs=0.05)


def test_eight_separate_ones_that_see_directions_only():
    discriminators = Discriminators(5, 7, 16).eval()
    assert len(discriminators) == 8
    assert len({id(p) for p in discriminators.parameters()}) == 8 * 6
    generator = torch.Generator().manual_seed(0)
    widths = {"image": 5, "text": 5}
    parts = {
        name: torch.randn(3, widths.get(name, 7), generator=generator)
        for name in {part for pair in PAIRS.values() for part in pair}
    }
    longer = {name: 100 * part for name, part in parts.items()}
    for name in PAIRS:
        for a, b in zip(
            discriminators.logits(name, parts), discriminators.logits(name, longer), strict=True
        ):
            assert torch.allclose(a, b, atol=1e-5)


def parts(pairs: int = 6, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    names = [f"{side}{half}" for side in ("image", "text") for half in ("", "_invariant")]
    names += ["image_exclusive", "text_exclusive"]
    made = {name: torch.randn(pairs, 5, generator=generator, dtype=dtype) for name in names}
    made["text_invariant"] = made["image_invariant"] + 0.05 * made["text_invariant"]
    return {name: part.requires_grad_() for name, part in made.items()}


def decoders(form: str = "directions") -> Decoders:
    torch.manual_seed(0)
    return Decoders(5, 5, 8, form=form)


@pytest.mark.parametrize("form", ["directions", "raw"])
def test_a_decoder_that_gives_the_mean_leaves_all_unexplained(form):
    made = decoders(form)
    for decoder in made.values():
        nn.init.zeros_(decoder[-1].weight)
        nn.init.zeros_(decoder[-1].bias)
    given = parts()
    assert unexplained_share(made, given).item() == pytest.approx(2, abs=1e-5)
    longer = {name: 7 * part for name, part in given.items()}
    assert unexplained_share(made, longer).item() == pytest.approx(2, abs=1e-5)


def test_the_halves_and_the_decoders_learn_and_the_features_do_not():
    given, made = parts(), decoders()
    unexplained_share(made, given).backward()
    assert given["image"].grad is None
    assert given["text"].grad is None
    for half in ("image_invariant", "image_exclusive", "text_invariant", "text_exclusive"):
        assert given[half].grad.abs().max() > 0
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in made.parameters())


def test_lengths_of_halves_do_not_matter_unless_they_are_seen():
    given = parts()
    longer = {name: 3 * part if "_" in name else part for name, part in given.items()}
    for form, same in (("directions", True), ("raw", False)):
        made = decoders(form)
        before, after = unexplained_share(made, given), unexplained_share(made, longer)
        assert torch.allclose(before, after, atol=1e-5) == same


def test_gradients():
    given, made = parts(3, torch.float64), decoders().double()
    names = ("image_invariant", "image_exclusive", "text_invariant", "text_exclusive")

    def loss(*halves):
        return unexplained_share(made, {**given, **dict(zip(names, halves, strict=True))})

    assert torch.autograd.gradcheck(loss, tuple(given[name] for name in names))


def test_few_clean_pairs():
    """No pair, one, or equal ones: finite, and attached to the graph."""
    given = parts()
    for chosen in (given["image"][:0], given["image"][:1], given["image"][:1].expand(4, 5)):
        few = {name: part[: len(chosen)] for name, part in given.items()} | {"image": chosen}
        share = unexplained_share(decoders(), few)
        assert torch.isfinite(share)
        share.backward()
    mismatched = {**given, "text_invariant": -given["image_invariant"]}
    terms = control_terms(mismatched, decoders(), DisnclOptions())
    assert set(terms) == {"align", "soft", "reconstruction"}
    assert all(term == 0 for term in terms.values())


def test_decoders_train_in_phase_two_at_the_heads_rate():
    objective = Disncl(DisnclOptions(disentangle="reconstruction"), learning_rate=3e-4)
    first, second = objective.phases
    assert "decoders" not in first.learning_rates
    assert second.learning_rates["decoders"] == second.learning_rates["heads"] == 3e-4


def test_the_control_trains_resumes_and_saves_no_decoders(tmp_path):
    disncl = DisnclOptions(dim=16, hidden_dim=8, warmup_epochs=1, disentangle="reconstruction")
    options = {"method": "disncl", "settings": {"disncl": disncl}, "save_steps": 2}
    whole = train(tmp_path / "whole", **options)
    train(tmp_path / "broken", stop_after=7, **options)
    resumed = train(tmp_path / "broken", resume=True, **options)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    own = [
        torch.load(max((tmp_path / run / "checkpoints").iterdir()), weights_only=True)["own"]
        for run in ("whole", "broken")
    ]
    assert set(own[0]) == {"heads", "decoders"}
    for name in own[0]:
        assert all(torch.equal(own[0][name][key], own[1][name][key]) for key in own[0][name])
    results = read_results(tmp_path / "whole")
    assert "loss/reconstruction" in results[-1]
    assert not {"loss/invariant", "loss/overlap"} & set(results[-1])


def test_a_dimension_counts_by_its_share_of_the_variance():
    """Features of variance 9 and 1; the decoders know the first dimension and not the second."""
    signs = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    features = signs * torch.tensor([3.0, 1.0]) + 7
    made = Decoders(2, 2, form="raw")
    embeddings = {}
    for side in ("image", "text"):
        made[side] = torch.nn.Linear(4, 2, bias=False)
        with torch.no_grad():
            made[side].weight.zero_()[0, 0] = 1.0
        embeddings |= {
            side: features,
            f"{side}_invariant": signs * torch.tensor([3.0 / 5**0.5, 0.0]),
            f"{side}_exclusive": torch.zeros(4, 2),
        }
    assert unexplained_share(made, embeddings).item() == pytest.approx(2 * 0.1)
