"""Positive, negative and hardest cosines by hand, and as a figure."""

import pytest
import torch
import torch.nn.functional as F

from ncclean.evaluation.figures import draw_similarities
from ncclean.evaluation.similarity import similarities


def test_by_hand():
    image = torch.eye(3)
    text = torch.tensor([[0.9, 0.2, 0.0], [0.7, 0.4, 0.1], [0.1, 0.5, 0.3], [0.2, 0.6, 0.8]])
    similarity = similarities(image, text, torch.tensor([0, 0, 1, 2]), hardest_share=0.6)
    # Own captions of image 0: .9, .7; the others .1, .2. Of 2 or 3 negatives 2 are hardest.
    torch.testing.assert_close(similarity.positive, torch.tensor([0.8, 0.5, 0.8]))
    torch.testing.assert_close(similarity.negative, torch.tensor([0.15, 0.4, 0.4 / 3]))
    torch.testing.assert_close(similarity.hardest, torch.tensor([0.15, 0.5, 0.2]))
    summary = similarity.summary()
    assert summary.images == 3
    assert summary.positive.mean == pytest.approx(0.7)
    assert summary.positive.quantiles["q50"] == pytest.approx(0.8)
    assert summary.above_hardest == pytest.approx(2 / 3)  # image 1 is level with its negatives


def test_the_hardest_twentieth_is_rounded_up():
    image = F.normalize(torch.randn(30, 5, generator=torch.Generator().manual_seed(0)), dim=1)
    similarity = similarities(image, image, torch.arange(30))  # 29 negatives: 2 are hardest
    cosines = (image @ image.T).fill_diagonal_(-2)
    torch.testing.assert_close(similarity.hardest, cosines.topk(2, dim=1).values.mean(dim=1))


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_chunks_do_not_matter(chunk):
    generator = torch.Generator().manual_seed(3)
    image = F.normalize(torch.randn(40, 6, generator=generator), dim=1)
    owner = torch.randint(0, 40, (60,), generator=generator)
    owner = torch.cat([torch.arange(40), owner])
    text = F.normalize(torch.randn(100, 6, generator=generator), dim=1)
    expected, similarity = (similarities(image, text, owner, chunk=c) for c in (512, chunk))
    for name in ("positive", "negative", "hardest"):
        torch.testing.assert_close(getattr(similarity, name), getattr(expected, name))


@pytest.mark.parametrize("owner", [[0, 0], [1, 1]])
def test_an_image_without_captions_or_without_negatives(owner):
    with pytest.raises(ValueError, match="every image needs"):
        similarities(torch.eye(2), torch.eye(2), torch.tensor(owner))
    with pytest.raises(ValueError, match="every image needs"):
        similarities(torch.eye(1), torch.ones(2, 1), torch.tensor([0, 0]))


def test_figure():
    image = F.normalize(torch.randn(30, 5, generator=torch.Generator().manual_seed(0)), dim=1)
    similarity = similarities(image, image, torch.arange(30))
    figure = draw_similarities([("before", similarity), ("after", similarity)])
    assert [axes.get_title() for axes in figure.axes] == ["before", "after"]
    assert len(figure.axes[0].get_legend().get_texts()) == 3
