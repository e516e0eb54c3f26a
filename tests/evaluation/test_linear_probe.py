"""Linear probes on clusters, and the weights of training images out of a score table."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from ncclean.errors import InputError
from ncclean.evaluation import linear_probe
from ncclean.evaluation.linear_probe import (
    ProbeOptions,
    SampleWeights,
    choose_c,
    fit_adamw,
    fit_probe,
    logistic_regression,
)


def table(tmp_path, rows, names=("shard", "key", "status", "osa_weight")):
    path = tmp_path / "s.parquet"
    pq.write_table(
        pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))), path
    )
    return str(path)


ROWS = [
    ("0", "a", "ok", 0.1),
    ("0", "b", "ok", 0.3),
    ("1", "a", "ok", 0.0),
    ("1", "c", "image_corrupt", 9.0),
    ("1", "d", "ok", None),
]


def test_by_shard_and_key(tmp_path):
    keys = ["1/a", "0/b", "0/a", "1/c", "1/d", "2/z"]
    found = SampleWeights((table(tmp_path, ROWS),), "osa_weight").of(keys, list("abacdz"))
    mean = 0.4 / 3
    expected = [0, 0.3 / mean, 0.1 / mean, math.nan, math.nan, math.nan]
    np.testing.assert_allclose(found.numpy(), expected)


def test_by_key_where_the_shards_had_other_names(tmp_path):
    path = table(tmp_path, ROWS[1:])
    found = SampleWeights((path,), "osa_weight + 1").of(["x/b", "x/a"], ["b", "a"])
    np.testing.assert_allclose(found.numpy(), [1.3 / 1.15, 1 / 1.15])
    with pytest.raises(InputError, match="several rows of the image a"):
        SampleWeights((table(tmp_path, ROWS),), "osa_weight").of(["x/a"], ["a"])
    with pytest.raises(InputError, match="2 have the key a"):  # which of them is it?
        SampleWeights((path,), "osa_weight").of(["x/b", "x/a", "y/a"], ["b", "a", "a"])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("osa_weigth", "no column.*osa_weight"),
        ("-osa_weight", "numbers from 0 on, not all of them 0; these lie from -0.3 to -0"),
        ("0 * osa_weight", "not all of them 0"),
        ("1e308 * 1e10 * (1 + osa_weight)", "--weights"),
        ("CAST(NULL AS DOUBLE)", "no training image has a value"),
    ],
)
def test_wrong_weights(tmp_path, weights, message):
    with pytest.raises(InputError, match=message):
        SampleWeights((table(tmp_path, ROWS),), weights).of(["0/a", "0/b", "1/a"], list("aba"))


def test_wrong_tables(tmp_path):
    with pytest.raises(InputError, match="no row of the training images, such as q"):
        SampleWeights((table(tmp_path, ROWS),), "osa_weight").of(["q/q"], ["q"])
    path = table(tmp_path, [(0.5,)], ("osa_weight",))
    with pytest.raises(InputError, match="has no column shard"):
        SampleWeights((path,), "osa_weight").of(["0/a"], ["a"])


def clusters(count, classes, spread, seed):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, 16, generator=torch.Generator().manual_seed(9))
    labels = torch.arange(count) % classes
    points = centres[labels] + spread * torch.randn(count, 16, generator=generator)
    return F.normalize(points, dim=1), labels


def accuracy(probe, image, labels):
    return float((probe.depth(image, labels) == 0).float().mean())


@pytest.mark.parametrize("classes", [2, 5])
def test_lbfgs_separates_what_can_be_separated(classes):
    probe = fit_probe(*clusters(120, classes, 0.3, 0), classes, ProbeOptions())
    assert accuracy(probe, *clusters(60, classes, 0.3, 1)) > 0.95
    assert probe.weights.shape == (classes, 16)


def test_two_classes_are_as_far_apart_as_scikit_learn_says():
    image, labels = clusters(120, 2, 0.9, 0)
    probe = fit_probe(image, labels, 2, ProbeOptions())
    x, y = image.double().numpy(), labels.numpy()
    plain = LogisticRegression(C=probe.regularisation, max_iter=1000).fit(x, y)
    np.testing.assert_allclose(probe.weights[1] - probe.weights[0], plain.coef_[0], rtol=0.02)


def test_of_equally_good_penalties_the_strongest_is_taken():
    image, labels = clusters(150, 3, 0.2, 0)
    assert choose_c(image.double().numpy(), labels.numpy()) == 1e-6


def test_the_fit_and_its_penalty_are_those_of_scikit_learn():
    image, labels = clusters(300, 4, 0.9, 0)
    x, y = image.double().numpy(), labels.numpy()
    probe = fit_probe(image, labels, 4, ProbeOptions())
    plain = LogisticRegression(C=probe.regularisation, max_iter=1000).fit(x, y)
    np.testing.assert_allclose(probe.weights, plain.coef_, atol=1e-4)
    np.testing.assert_allclose(probe.bias, plain.intercept_, atol=1e-4)
    train, held = train_test_split(np.arange(300), test_size=60, random_state=0, stratify=y)

    def accuracy_of(c):
        model = LogisticRegression(C=c, max_iter=1000).fit(x[train], y[train])
        return model.score(x[held], y[held])

    best = max(map(accuracy_of, 10.0 ** np.arange(-6, 6.1, 0.5)))
    assert accuracy_of(probe.regularisation) == pytest.approx(best, abs=1 / 60)


def test_adamw_follows_the_supplement_and_learns():
    image, labels = clusters(200, 4, 0.3, 0)
    options = ProbeOptions(solver="adamw", epochs=60, learning_rate=0.05, batch_size=64)
    probe = fit_probe(image, labels, 4, options)
    assert accuracy(probe, *clusters(100, 4, 0.3, 1)) > 0.95
    again = fit_adamw(image, labels, 4, options)
    assert torch.equal(again.weights, probe.weights)
    defaults = ProbeOptions()
    assert (defaults.epochs, defaults.learning_rate) == (60, 3e-4)
    assert (defaults.batch_size, defaults.weight_decay) == (1024, 0.01)


def test_a_class_that_training_never_saw_is_never_predicted():
    image, labels = clusters(60, 3, 0.3, 0)
    probe = fit_probe(image, labels * 2, 6, ProbeOptions())  # classes 0, 2 and 4 of six
    assert (probe.depth(image, torch.ones_like(labels)) > 2).all()
    assert torch.isfinite(probe.bias).all()


def test_classes_of_one_image_are_not_stratified():
    image, labels = clusters(21, 3, 0.2, 0)
    labels[0] = 3
    assert accuracy(fit_probe(image, labels, 4, ProbeOptions()), image[1:], labels[1:]) > 0.9


def test_wrong_input():
    image, labels = clusters(6, 3, 0.3, 0)
    with pytest.raises(InputError, match="at least two classes"):
        fit_probe(image, torch.zeros(6, dtype=torch.long), 3, ProbeOptions())
    for solver in ("lbfgs", "adamw"):
        with pytest.raises(InputError, match="at least two classes with a weight above 0"):
            fit_probe(image, labels, 3, ProbeOptions(solver=solver), (labels == 1).float())
    with pytest.raises(InputError, match="--solver takes lbfgs, adamw"):
        ProbeOptions(solver="sgd")
    with pytest.raises(InputError, match="--learning-rate must be above 0"):
        ProbeOptions(learning_rate=0)


@pytest.mark.parametrize("solver", ["lbfgs", "adamw"])
def test_weights_count_images(solver):
    """An image of weight 2 is one that is there twice, and one of weight 0 is not there."""
    image, labels = clusters(90, 3, 1.5, 0)
    weights = (torch.arange(90) % 3).float()
    options = ProbeOptions(solver=solver, epochs=400, learning_rate=0.05, batch_size=1000)
    twice = torch.arange(90).repeat_interleave(weights.long())
    if solver == "adamw":
        weighted = fit_probe(image, labels, 3, options, weights)
        plain = fit_probe(image[twice], labels[twice], 3, options)
    else:
        used = weights > 0
        model = (image[used].double().numpy(), labels[used].numpy(), 1.0)
        weighted = logistic_regression(*model, weights[used].numpy())
        again = (image[twice].double().numpy(), labels[twice].numpy(), 1.0)
        plain = logistic_regression(*again, np.ones(len(twice)))
        np.testing.assert_allclose(weighted.coef_, plain.coef_, atol=2e-3)
        return
    torch.testing.assert_close(weighted.weights, plain.weights, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("solver", ["lbfgs", "adamw"])
def test_weights_undo_noisy_labels(solver):
    image, labels = clusters(400, 4, 0.8, 0)
    noisy = torch.rand(400, generator=torch.Generator().manual_seed(1)) < 0.6
    wrong = torch.where(noisy, (labels + 1) % 4, labels)
    options = ProbeOptions(solver=solver, epochs=60, learning_rate=0.05, batch_size=64)
    held_out = clusters(400, 4, 0.8, 1)
    weights = torch.where(noisy, 0.0, 1.0)
    plain, weighted = (
        accuracy(fit_probe(image, wrong, 4, options, w), *held_out)
        for w in (None, weights / weights.mean())
    )
    assert weighted > plain + 0.3


def test_a_class_whose_images_all_weigh_nothing_is_never_predicted():
    image, labels = clusters(60, 3, 0.3, 0)
    probe = fit_probe(image, labels, 3, ProbeOptions(), (labels > 0) * 1.5)
    assert (probe.depth(image, torch.zeros_like(labels)) > 1).all()


def test_labels_that_weigh_nothing_do_not_choose_the_penalty(monkeypatch):
    """A model of a small C is right on class 0, most of the images; class 1 alone weighs."""

    class Model:
        def __init__(self, c):
            self.right = 0 if c < 1 else 1

        def score(self, x, y, weights=None):
            return np.average(y == self.right, weights=weights)

    monkeypatch.setattr(linear_probe, "logistic_regression", lambda x, y, c, w: Model(c))
    labels = np.repeat([0, 1], [70, 30])
    assert linear_probe.choose_c(np.zeros((100, 2)), labels) < 1
    assert linear_probe.choose_c(np.zeros((100, 2)), labels, weights=labels.astype(float)) >= 1
