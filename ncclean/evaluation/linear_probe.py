"""Linear probes: a linear classifier on frozen image embeddings, optionally weighted.

`fit_lbfgs` is the protocol of CLIP [1]: logistic regression by L-BFGS, its L2 penalty chosen on a
validation split. `fit_adamw` is the schedule in the supplement of NCU [2], which names L-BFGS but
describes AdamW.

[1] Radford et al. 2021, "Learning Transferable Visual Models From Natural Language Supervision",
    appendix A.3.
[2] NCU, supplement, "Linear Probing".
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits
from torch import nn

from ncclean.errors import InputError
from ncclean.evaluation.options import ProbeOptions
from ncclean.evaluation.ranking import class_depth
from ncclean.storage.catalog import first_line
from ncclean.storage.joined import JoinedScores

# CLIP's search: it starts from these values, then halves the step around the best one down to 1/8
# of a decade.
_FIRST_C = tuple(10.0**power for power in (-6, -4, -2, 0, 2, 4, 6))
_LAST_STEP = 1 / 8
_ITERATIONS = 1000
_VALIDATION_SHARE = 0.2
# Smaller products run in one thread: on two cores, several threads took ten times as long to fit
# 500 embeddings.
_ONE_THREAD = 100_000_000
# Finite, so that a zero in a padded matrix product does not make it NaN.
_NEVER = -1e30


@dataclass(frozen=True)
class SampleWeights:
    """Weights of training images from a score table: `column` or SQL over its columns."""

    scores: tuple[str, ...]
    weights: str

    def of(self, keys: Sequence[str], sample_keys: Sequence[str]) -> torch.Tensor:
        """Return (N,) weights of images; see `read_sample_weights`."""
        return torch.from_numpy(read_sample_weights(self.scores, self.weights, keys, sample_keys))


def read_sample_weights(
    scores: Sequence[str], weights: str, keys: Sequence[str], sample_keys: Sequence[str]
) -> np.ndarray:
    """Read (N,) weights of images, with mean 1, from a score table.

    Images are found by `shard/key`, or by the key alone if no row has the `shard/key` of an image:
    they may have been scored as shards of another name. `weights` is a column or SQL. An image
    without a row, scores or a value has NaN. Raises `InputError` for weights that are negative or
    all zero, for several rows of an image or images of a row, and if no image has a row.
    """
    with JoinedScores.open(scores) as table:
        lacking = [name for name in ("shard", "key") if name not in table.names.types]
        if lacking:
            raise InputError(f"{scores[0]} has no column {lacking[0]} to know the images by")
        expression = table.expression(weights, "--weights")
        table.prepare(("shard", "key", "status"), [expression])
        ok = "status = 'ok'" if "status" in table.names.types else "true"
        for key, names in (("shard || '/' || key", keys), ("key", sample_keys)):
            images = pa.table({"image": np.arange(len(names)), "name": names})
            table.connection.register("training_images", images)
            try:
                rows = table.connection.execute(
                    "SELECT image, count(*) AS rows, any_value(weight) AS weight FROM "
                    f"(SELECT {key} AS name, ({expression.sql})::DOUBLE AS weight FROM scores "
                    f"WHERE {ok}) JOIN training_images USING (name) GROUP BY image ORDER BY image"
                ).fetchnumpy()
            except duckdb.Error as error:
                raise InputError(f"--weights {weights}: {first_line(error)}") from error
            if len(rows["image"]):
                break
    image, several = rows["image"], np.flatnonzero(rows["rows"] > 1)
    if not len(image):
        raise InputError(f"{scores[0]} has no row of the training images, such as {sample_keys[0]}")
    called = Counter(names[number] for number in image)
    name, images_called = called.most_common(1)[0]
    if images_called > 1:
        raise InputError(
            f"{scores[0]} has other shards than the training images, of which {images_called} have "
            f"the key {name}: score these images under the names of their shards"
        )
    if len(several):
        name = names[image[several[0]]]
        raise InputError(f"{scores[0]} has several rows of the image {name}: keep one")
    values = np.full(len(keys), np.nan)
    values[image] = np.ma.filled(rows["weight"], np.nan)
    usable = values[~np.isnan(values)]
    if len(usable) and not (np.isfinite(usable).all() and usable.min() >= 0 and usable.max() > 0):
        raise InputError(
            f"--weights {weights}: weights are numbers from 0 on, not all of them 0; these lie "
            f"from {usable.min():g} to {usable.max():g}"
        )
    if not len(usable):
        raise InputError(f"--weights {weights}: no training image has a value")
    scaled: np.ndarray = values / usable.mean()
    return scaled


@dataclass(frozen=True)
class Probe:
    """A linear classifier on embeddings: (C, d) weights and (C,) biases.

    The bias of a class without training images is very low. `regularisation` is scikit-learn's C,
    the inverse of the L2 penalty; None for `adamw`.
    """

    weights: torch.Tensor
    bias: torch.Tensor
    regularisation: float | None = None

    def depth(self, image: torch.Tensor, labels: torch.Tensor, chunk: int = 1024) -> torch.Tensor:
        """Return the (N,) ranks, from 0, of the true classes among the probe's logits."""
        # The bias is the weight of a component that is 1 everywhere.
        weights = torch.cat([self.weights, self.bias[:, None]], dim=1).to(image.device)
        return class_depth(F.pad(image, (0, 1), value=1.0), weights, labels, chunk)


def fit_probe(
    image: torch.Tensor,
    labels: torch.Tensor,
    classes: int,
    options: ProbeOptions,
    weights: torch.Tensor | None = None,
) -> Probe:
    """Train a linear classifier on (N, d) embeddings, (N,) labels and (N,) weights of mean 1.

    Raises `InputError` if the images that weigh anything are of fewer than two classes.
    """
    if len((labels if weights is None else labels[weights > 0]).unique()) < 2:
        weighed = "" if weights is None else " with a weight above 0"
        raise InputError(f"a linear probe needs training images of at least two classes{weighed}")
    if options.solver == "adamw":
        return fit_adamw(image, labels, classes, options, weights)
    return fit_lbfgs(image, labels, classes, options.seed, weights)


def fit_lbfgs(
    image: torch.Tensor,
    labels: torch.Tensor,
    classes: int,
    seed: int = 0,
    weights: torch.Tensor | None = None,
) -> Probe:
    """Fit logistic regression to all training images, its C chosen by `choose_c`."""
    x, y = image.double().cpu().numpy(), labels.cpu().numpy()
    w = np.ones(len(y)) if weights is None else weights.double().cpu().numpy()
    used = w > 0  # a class with only zero weights is not learnt
    x, y, w = x[used], y[used], w[used]
    c = choose_c(x, y, seed, w)
    model = logistic_regression(x, y, c, w)
    rows, bias = model.coef_, model.intercept_
    if len(rows) == 1:  # two classes share a row
        rows, bias = np.concatenate([-rows, rows]) / 2, np.concatenate([-bias, bias]) / 2
    full = torch.zeros(classes, x.shape[1])
    offset = torch.full((classes,), _NEVER)
    seen = torch.from_numpy(model.classes_)
    full[seen], offset[seen] = torch.from_numpy(rows).float(), torch.from_numpy(bias).float()
    return Probe(full, offset, c)


def choose_c(
    x: np.ndarray, y: np.ndarray, seed: int = 0, weights: np.ndarray | None = None
) -> float:
    """Return the C of logistic regression with the best accuracy on a held-out fifth.

    Takes (N, d) embeddings; of equal accuracies, the smallest C counts. Weights count in the fit
    and in the accuracy, whose labels may be equally wrong.

    The fifth is stratified if every class has two images and the fifth can hold one of each.
    """
    held_out = round(_VALIDATION_SHARE * len(y))
    counts = np.unique(y, return_counts=True)[1]
    stratify = y if counts.min() >= 2 and held_out >= len(counts) else None
    if held_out < 1 or len(counts) < 2:
        return 1.0
    w = np.ones(len(y)) if weights is None else weights
    train, validation, train_y, validation_y, train_w, validation_w = train_test_split(
        x, y, w, test_size=held_out, random_state=seed, stratify=stratify
    )
    if len(np.unique(train_y)) < 2:
        return 1.0
    accuracy: dict[float, float] = {}

    def best(candidates: tuple[float, ...]) -> float:
        for c in candidates:
            if c not in accuracy and _FIRST_C[0] <= c <= _FIRST_C[-1]:
                model = logistic_regression(train, train_y, c, train_w)
                accuracy[c] = float(model.score(validation, validation_y, validation_w))
        return max(sorted(accuracy), key=lambda c: accuracy[c])

    c, step = best(_FIRST_C), 1.0
    while step >= _LAST_STEP:
        c = best((c / 10**step, c * 10**step))
        step /= 2
    return c


def fit_adamw(
    image: torch.Tensor,
    labels: torch.Tensor,
    classes: int,
    options: ProbeOptions,
    weights: torch.Tensor | None = None,
) -> Probe:
    """Train a linear classifier from zero with AdamW and a cosine learning rate without warm-up.

    The loss of a batch is the mean of the weighted losses, not divided by the weights' sum.
    """
    generator = torch.Generator().manual_seed(options.seed)
    layer = nn.Linear(image.shape[1], classes, device=image.device)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimizer = torch.optim.AdamW(
        layer.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay
    )
    batches = -(-len(image) // options.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * batches)
    labels = labels.to(image.device)
    w = torch.ones(len(image)) if weights is None else weights.float()
    w = w.to(image.device)
    for _ in range(options.epochs):
        order = torch.randperm(len(image), generator=generator).to(image.device)
        for part in order.split(options.batch_size):
            optimizer.zero_grad(set_to_none=True)
            losses = F.cross_entropy(layer(image[part]), labels[part], reduction="none")
            (w[part] * losses).mean().backward()
            optimizer.step()
            schedule.step()
    return Probe(layer.weight.detach(), layer.bias.detach())


def logistic_regression(
    x: np.ndarray, y: np.ndarray, c: float, weights: np.ndarray
) -> LogisticRegression:
    """Fit logistic regression to (N, d) embeddings, (N,) labels and weights; C is 1 / penalty."""
    threads = 1 if x.size * len(np.unique(y)) <= _ONE_THREAD else None
    with warnings.catch_warnings(), threadpool_limits(threads):
        # With the weakest penalties 1,000 steps do not converge; the accuracy decides anyway.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LogisticRegression(C=c, max_iter=_ITERATIONS).fit(x, y, weights)
