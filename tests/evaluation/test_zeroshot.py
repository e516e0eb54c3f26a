"""Prompt ensembles and accuracies by hand."""

import pytest
import torch

from ncclean.evaluation import zeroshot
from ncclean.evaluation.zeroshot import class_depth, classifier_weights, zeroshot_accuracy

PROMPTS = {"a cat": [1.0, 0.0], "the cat": [0.0, 1.0], "a dog": [0.6, 0.8], "the dog": [0.6, 0.8]}


def encode(prompts):
    return torch.tensor([PROMPTS[prompt] for prompt in prompts])


@pytest.mark.parametrize("at_a_time", [1, 2, 4096])
def test_weights_are_the_normalised_mean_of_the_prompts(monkeypatch, at_a_time):
    monkeypatch.setattr(zeroshot, "_PROMPTS_AT_A_TIME", at_a_time)
    weights = classifier_weights(encode, ["cat", "dog"], ["a {c}", "the {c}"])
    torch.testing.assert_close(weights, torch.tensor([[0.5**0.5, 0.5**0.5], [0.6, 0.8]]))


def test_accuracy_by_hand():
    weights = torch.eye(6)
    image = torch.tensor(
        [
            [0.9, 0.5, 0.4, 0.3, 0.2, 0.1],  # class 0, right
            [0.5, 0.9, 0.4, 0.3, 0.2, 0.1],  # class 0, second
            [0.9, 0.5, 0.4, 0.3, 0.2, 0.1],  # class 0, right
            [0.9, 0.5, 0.4, 0.3, 0.2, 0.1],  # class 5, last of six
        ]
    )
    labels = torch.tensor([0, 0, 0, 5])
    assert class_depth(image, weights, labels).tolist() == [0, 1, 0, 5]
    accuracy = zeroshot_accuracy(image, weights, labels)
    assert accuracy["acc1"] == 0.5
    assert accuracy["acc5"] == 0.75
    # 2/3 of class 0, none of class 5; classes without images do not count.
    assert accuracy["mean_per_class_recall"] == pytest.approx(1 / 3)


def test_five_classes_or_fewer_are_all_among_the_first_five():
    accuracy = zeroshot_accuracy(torch.eye(3), torch.eye(3).flip(0), torch.arange(3))
    assert accuracy["acc1"] == pytest.approx(1 / 3)
    assert accuracy["acc5"] == 1.0
