import json
import math

import numpy as np
import pytest
import torch

from disentangle.facts import FACTS, scene_facts
from disentangle.figure import projected, save_figure
from disentangle.report import (
    PARTS,
    disentanglement_report,
    explained,
    fitted_recall,
    head_parts,
    probe,
)
from ncclean.data.shards import resolve_shards
from ncclean.data.tar import TarSamples
from ncclean.models.heads import Heads, HeadsConfig

PAIRS = 300


@pytest.fixture(scope="module")
def perfect():
    """Halves made of the facts themselves: shared ones in both, the rest with one side."""
    rng = np.random.default_rng(0)
    values = {fact: rng.integers(3, size=PAIRS) for fact in FACTS}
    codes = {fact: torch.from_numpy(np.eye(3)[v]).float() for fact, v in values.items()}

    def those_of(side):
        joined = torch.cat([codes[fact] for fact, shown in FACTS.items() if shown == side], dim=1)
        return joined + 0.02 * torch.from_numpy(rng.normal(size=joined.shape)).float()

    shared = those_of("shared")
    image, text = those_of("image only"), those_of("text only")
    halves = (torch.cat([shared, image], dim=1), shared, image,
              torch.cat([shared, text], dim=1), shared + 0.01, text)  # fmt: skip
    facts = [{fact: str(v[i]) for fact, v in values.items()} for i in range(PAIRS)]
    return dict(zip(PARTS, halves, strict=True)), facts


@pytest.fixture(scope="module")
def report(perfect):
    parts, facts = perfect
    padded = torch.nn.functional.pad(parts["text_exclusive"], (0, 3))
    return disentanglement_report({**parts, "text_exclusive": padded}, facts)


def test_a_perfect_model_is_recognised(report):
    assert max(report.information.values()) < 0.1
    assert report.retrieval["invariant"] > 0.9
    assert report.retrieval["exclusive"] < 0.05
    assert report.chance == 1 / PAIRS
    assert report.fitted_retrieval < 0.05
    owners = {
        "shared": {"image", "image_invariant", "text", "text_invariant"},
        "image only": {"image", "image_exclusive"},
        "text only": {"text", "text_exclusive"},
    }
    for each in report.facts:
        for part, read in each.read_from.items():
            assert (read > 0.9) == (part in owners[each.shown_by]), (each.fact, part, read)
            if part not in owners[each.shown_by]:
                assert abs(read) < 0.25


def test_a_perfect_model_is_made_of_the_facts_it_should_hold(report):
    shares = report.composition
    assert shares["shared"]["image_invariant"] > 0.9
    assert shares["image only"]["image_exclusive"] > 0.9
    assert shares["text only"]["text_exclusive"] > 0.9
    assert abs(shares["shared"]["image_exclusive"]) < 0.1
    # The image holds four shared facts of three values and four of its own.
    assert shares["shared"]["image"] == pytest.approx(0.5, abs=0.1)
    assert shares["shared"]["image"] + shares["image only"]["image"] > 0.9


def test_explained_variance_does_not_depend_on_how_readable_a_fact_is():
    """Written in a hundredth of the amplitude, a probe reads it as well; it explains nothing."""
    rng = np.random.default_rng(0)
    fact = rng.integers(2, size=(800, 1))
    features = np.column_stack([rng.normal(size=(800, 4)), 0.01 * fact])
    whitened = features / features.std(axis=0)
    assert probe(whitened, fact[:, 0]) > 0.9
    assert abs(explained(features, fact)) < 0.02
    assert explained(np.hstack([fact - 0.5, 0 * fact + 0.5]), fact) > 0.99
    assert math.isnan(explained(np.ones((20, 3)), fact[:20]))


def test_a_leak_is_seen(perfect):
    parts, _ = perfect
    leaking = {**parts, "image_exclusive": parts["image"]}
    leaking["text_exclusive"] = torch.nn.functional.pad(
        parts["text"], (0, parts["image"].shape[1] - parts["text"].shape[1])
    )
    found = disentanglement_report(leaking, [None] * PAIRS)
    assert min(found.information.values()) > 0.5
    assert found.fitted_retrieval > 0.2
    assert found.facts == []


def test_a_map_finds_what_cosines_of_halves_that_were_never_aligned_do_not():
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(400, 6, generator=generator)
    turned = image @ torch.linalg.qr(torch.randn(6, 6, generator=generator)).Q
    assert fitted_recall(image, turned) > 0.95
    assert fitted_recall(image, torch.randn(400, 6, generator=generator)) < 0.05
    assert fitted_recall(torch.zeros(400, 6), turned) < 0.05
    # With as many dimensions as pairs a map fits anything, and tells nothing of other pairs.
    many, others = torch.randn(2, 120, 60, generator=generator)
    assert fitted_recall(many, others) < 0.1


def test_probe_scale():
    """0 is chance whatever the shares of the labels, 1 is perfection."""
    rng = np.random.default_rng(0)
    labels = (rng.random(600) < 0.1).astype(int)
    assert probe(labels[:, None] + 0.0, labels) == 1
    assert abs(probe(rng.normal(size=(600, 3)), labels)) < 0.2
    assert math.isnan(probe(rng.normal(size=(600, 3)), np.zeros(600)))


def test_facts_of_rendered_pairs(corpus):
    shard = resolve_shards([str(corpus)])[0]
    found = [scene_facts(sample.metadata) for sample in TarSamples(shard)]
    known = [each for each in found if each is not None]
    assert len(known) > 160
    assert all(set(each) == set(FACTS) for each in known)
    assert all(len({each[fact] for each in known}) > 1 for fact in FACTS)
    assert scene_facts({"uid": "x"}) is None
    assert scene_facts(json.loads('{"scene": {"groups": []}, "text_only": []}')) is None


def test_parts_come_from_their_heads():
    heads = Heads(HeadsConfig(feature_dim=6, hidden_dim=4, dim=3))
    image, text = torch.randn(5, 6), torch.randn(5, 6)
    parts = head_parts(heads, image, text)
    assert torch.equal(parts["text_exclusive"], heads.text_exclusive(text).detach())
    assert torch.equal(parts["image_invariant"], heads.image_invariant(image).detach())


def test_figure(perfect, report, tmp_path):
    parts, _ = perfect
    same = {name: torch.nn.functional.pad(part, (0, 30))[:, :12] for name, part in parts.items()}
    plane = projected(same, points=40)
    assert [points.shape for points in plane.values()] == [(40, 2)] * 4
    save_figure(report, plane, tmp_path / "f.png")
    assert (tmp_path / "f.png").stat().st_size > 10_000
