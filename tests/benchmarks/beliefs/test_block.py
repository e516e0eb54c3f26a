import pytest
import torch

from beliefs.block import block_beliefs, posterior_mean_weights
from ncclean.scoring.ncu import clean_confidence
from ncclean.training.objectives.options import BayesOptions


def test_beliefs_of_a_block():
    """Nineteen matched pairs and one whose caption is that of another image."""
    image = torch.eye(20)
    text = image.clone()
    text[0] = image[1]
    found = block_beliefs(image, text, 20.0, forget_percent=5)
    assert found["similarity"].tolist() == [0.0] + [1.0] * 19
    expected = clean_confidence(image @ text.T, 20.0)
    assert found["ncu_confidence"] == pytest.approx(expected.numpy())
    assert found["ncu_retain"].tolist() == [0.0] + [1.0] * 19
    assert found["disncl_clean"].tolist() == [0.0] + [1.0] * 19
    assert found["bayes_weight"][0] > 1.5 * found["bayes_weight"][1:].mean()
    again = block_beliefs(image, text, 20.0, forget_percent=5)
    assert (again["bayes_weight"] == found["bayes_weight"]).all()


def test_a_dissimilar_positive_gets_the_larger_weight():
    """So w_pos is no cleanliness score."""
    cosine = torch.tensor([[0.9, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, -0.1]])
    for mode in ("paper", "proper_prior"):
        mean = posterior_mean_weights(
            cosine, BayesOptions(mode=mode), 3000, torch.Generator().manual_seed(0)
        )
        assert mean[0] < mean[1] < mean[2]
