import pytest
import torch
from torch import nn

from ncclean.training.objectives.disncl import Disncl, control_terms
from ncclean.training.objectives.disncl_losses import Decoders, unexplained_share
from ncclean.training.objectives.options import DisnclOptions
from ncclean.training.run_files import read_results
from tests.training.batches import train


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
