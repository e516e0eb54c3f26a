"""Places of the first right answer, against the full matrix."""

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclean.evaluation import ranking
from ncclean.evaluation.ranking import hit_depth


def test_by_hand():
    query = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    gallery = torch.tensor([[0.9, 0.0], [0.5, 0.2], [0.0, 0.8]])
    # Inner products: (.9, .5, 0), (0, .2, .8), (.9, .7, .8).
    own = torch.tensor([1, 2, 1])
    assert hit_depth(query, gallery, own, torch.arange(3), deepest=3).tolist() == [1, 0, 2]
    assert hit_depth(query, gallery, own, torch.arange(3), deepest=2).tolist() == [1, 0, 2]
    assert hit_depth(query, gallery, own, torch.arange(3), deepest=1).tolist() == [1, 0, 1]


def full_matrix(query, gallery, query_group, gallery_group, deepest):
    """Position of the first right one in the sorted row, one query at a time."""
    depths = []
    for row, group in zip(query @ gallery.T, query_group, strict=True):
        order = row.argsort(descending=True)
        place = (gallery_group[order] == group).nonzero()[:, 0]
        depths.append(min(int(place[0]), deepest) if len(place) else deepest)
    return depths


@settings(max_examples=30, deadline=None)
@given(
    queries=st.integers(1, 40),
    gallery=st.integers(1, 40),
    deepest=st.integers(1, 12),
    chunk=st.integers(1, 50),
    seed=st.integers(0, 1000),
)
def test_chunks_give_what_the_full_matrix_gives(queries, gallery, deepest, chunk, seed):
    generator = torch.Generator().manual_seed(seed)
    q, g = (
        F.normalize(torch.randn(n, 6, generator=generator, dtype=torch.float64), dim=1)
        for n in (queries, gallery)
    )
    groups = [torch.randint(0, 5, (n,), generator=generator) for n in (queries, gallery)]
    depths = hit_depth(q, g, *groups, deepest, chunk)
    assert depths.tolist() == full_matrix(q, g, *groups, deepest)


def test_a_large_gallery_makes_chunks_smaller(monkeypatch):
    monkeypatch.setattr(ranking, "_MOST_SIMILARITIES", 20)
    query = torch.eye(10)
    assert hit_depth(query, query, torch.arange(10), torch.arange(10), 3).tolist() == [0] * 10


def test_equal_embeddings_are_at_chance():
    same = torch.ones(100, 4) / 2
    depth = hit_depth(same, same, torch.arange(100), torch.arange(100), deepest=10)
    assert int((depth < 10).sum()) == 10
