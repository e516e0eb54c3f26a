"""Evidence of disentanglement: information between halves, retrieval, and what each half knows.

DisNCL, section VI-C: I(V_S; V_X) and I(T_S; T_X) should be near 0, and retrieval with the exclusive
halves near chance. An empty half passes both tests, and halves that were never aligned pass the
second whatever they share, so the exclusive halves are also compared after a linear map. For
rendered pairs, whose facts are known, linear probes measure how well each fact can be read from
each half.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from disentangle.facts import FACTS
from disentangle.mine import mutual_information
from ncclean.evaluation.ranking import recall_at_k
from ncclean.models.heads import SPACES, Heads

PARTS = (
    *("image", "image_invariant", "image_exclusive"),
    *("text", "text_invariant", "text_exclusive"),
)


@dataclass(frozen=True)
class FactProbe:
    """The accuracy with which each part predicts a fact: 0 is chance, 1 is always right."""

    fact: str
    shown_by: str
    read_from: dict[str, float]


@dataclass(frozen=True)
class DisentanglementReport:
    """`information` in nats; `retrieval` is the mean recall at 1 of both directions, by space.

    `chance` is the retrieval of a random guess. `fitted_retrieval` is that of the exclusive halves
    after a linear map (see `fitted_recall`), for which chance is twice that. `composition` is the
    share of each part's variance that the facts of each kind explain (see `explained`).
    """

    pairs: int
    information: dict[str, float]
    retrieval: dict[str, float]
    fitted_retrieval: float
    chance: float
    facts: list[FactProbe]
    composition: dict[str, dict[str, float]]


@torch.no_grad()
def head_parts(heads: Heads, image: torch.Tensor, text: torch.Tensor) -> dict[str, torch.Tensor]:
    """(N, d) features before normalisation -> the (N, ...) `PARTS` of each pair."""
    image_invariant, image_exclusive = heads.image(image)
    text_invariant, text_exclusive = heads.text(text)
    values = (image, image_invariant, image_exclusive, text, text_invariant, text_exclusive)
    return dict(zip(PARTS, values, strict=True))


def in_space(invariant: torch.Tensor, exclusive: torch.Tensor, space: str) -> torch.Tensor:
    """Embed (N, dim) halves in a space -> (N, dim) L2-normalised, for `joint` (N, 2 dim).

    A cosine in the joint space is the mean of those in the other two.
    """
    halves = F.normalize(invariant.float(), dim=-1), F.normalize(exclusive.float(), dim=-1)
    if space == "joint":
        return torch.cat(halves, dim=-1) / math.sqrt(2)
    return halves[SPACES.index(space)]


def disentanglement_report(
    parts: Mapping[str, torch.Tensor], facts: Sequence[dict[str, str] | None], seed: int = 0
) -> DisentanglementReport:
    """Measure held-out, matched pairs; an entry of `facts` is None for a pair without facts."""
    pairs = len(parts["image"])
    retrieval = {}
    for space in SPACES:
        image, text = (
            in_space(parts[f"{side}_invariant"], parts[f"{side}_exclusive"], space)
            for side in ("image", "text")
        )
        recalls = recall_at_k(image, text, torch.arange(pairs), ks=(1,))
        retrieval[space] = sum(recalls[f"{d}_R@1"] for d in ("image_to_text", "text_to_image")) / 2
    information = {
        f"{side}_invariant, {side}_exclusive": mutual_information(
            parts[f"{side}_invariant"], parts[f"{side}_exclusive"], seed=seed
        )
        for side in ("image", "text")
    }
    described = [index for index, values in enumerate(facts) if values is not None]
    probes = []
    composition = {}
    if len(described) > 1:
        reduced = {
            name: leading_components(part[described].cpu().numpy()) for name, part in parts.items()
        }
        for fact, side in FACTS.items():
            labels = np.array([(facts[index] or {})[fact] for index in described])
            read = {name: probe(values, labels, seed) for name, values in reduced.items()}
            probes.append(FactProbe(fact, side, read))
        for side in dict.fromkeys(FACTS.values()):
            names = [fact for fact, shown_by in FACTS.items() if shown_by == side]
            values = np.array(
                [[(facts[index] or {})[name] for name in names] for index in described]
            )
            composition[side] = {
                name: explained(part[described].cpu().numpy(), values, seed)
                for name, part in parts.items()
            }
    fitted = fitted_recall(parts["image_exclusive"], parts["text_exclusive"], seed)
    return DisentanglementReport(
        pairs, information, retrieval, fitted, 1 / pairs, probes, composition
    )


def fitted_recall(image: torch.Tensor, text: torch.Tensor, seed: int = 0) -> float:
    """Recall at 1 of (N, a) image and (N, b) caption parts after a linear map between them.

    The mean of both directions, on the half of the pairs that the ridge regression was not fitted
    to. Cosines between halves that were never aligned are at chance whatever the halves share;
    a map finds what they share.
    """
    from sklearn.linear_model import Ridge

    order = np.random.default_rng(seed).permutation(len(image))
    train, test = order[: len(order) // 2], order[len(order) // 2 :]
    first, second = (leading_components(part.cpu().numpy()) for part in (image, text))
    predicted = Ridge(alpha=1.0).fit(first[train], second[train]).predict(first[test])
    recalls = recall_at_k(
        F.normalize(torch.from_numpy(predicted).float(), dim=1),
        F.normalize(torch.from_numpy(second[test]).float(), dim=1),
        torch.arange(len(test)),
        ks=(1,),
    )
    return (recalls["image_to_text_R@1"] + recalls["text_to_image_R@1"]) / 2


def leading_components(features: np.ndarray, components: int = 64) -> np.ndarray:
    """(N, d) -> (N, at most 64) whitened principal components.

    A linear probe of a few hundred pairs can use no more, and is ten times as fast with them.
    """
    from sklearn.decomposition import PCA

    if not np.ptp(features, axis=0).any():  # a half that has collapsed to one point
        return np.zeros((len(features), 1))
    count = min(components, *features.shape)
    return np.asarray(PCA(count, whiten=True, random_state=0).fit_transform(features))


def explained(features: np.ndarray, facts: np.ndarray, seed: int = 0) -> float:
    """Share of the variance of the directions of (N, d) features that (N, k) facts explain.

    The facts enter a linear function fitted to the other half of the pairs, so the share can be
    slightly below 0. A probe finds a fact however little of the embedding it takes up; this share
    tells how much. NaN where all directions are the same.
    """
    from sklearn.linear_model import Ridge
    from sklearn.metrics import r2_score
    from sklearn.preprocessing import OneHotEncoder, normalize

    directions = normalize(features)
    if not np.ptp(directions, axis=0).any():
        return float("nan")
    encoded = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit_transform(facts)
    order = np.random.default_rng(seed).permutation(len(facts))
    train, test = order[: len(order) // 2], order[len(order) // 2 :]
    predicted = Ridge(alpha=1.0).fit(encoded[train], directions[train]).predict(encoded[test])
    return float(r2_score(directions[test], predicted, multioutput="variance_weighted"))


def probe(features: np.ndarray, labels: np.ndarray, seed: int = 0) -> float:
    """Held-out accuracy of a linear classifier of (N,) labels from (N, d) features.

    Balanced accuracy of a logistic regression, trained on the other half and rescaled so that
    chance is 0 and perfection 1; NaN if one of the halves has fewer than two labels.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import recall_score

    order = np.random.default_rng(seed).permutation(len(labels))
    train, test = order[: len(order) // 2], order[len(order) // 2 :]
    test = test[np.isin(labels[test], labels[train])]
    classes = np.unique(labels[test])
    if len(np.unique(labels[train])) < 2 or len(classes) < 2:
        return float("nan")
    model = LogisticRegression(C=0.1, class_weight="balanced", max_iter=200)
    with warnings.catch_warnings():
        # The last digits of a probe do not matter.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(features[train], labels[train])
    predicted = model.predict(features[test])
    accuracy = recall_score(
        labels[test], predicted, labels=classes, average="macro", zero_division=0
    )
    return float((accuracy - 1 / len(classes)) / (1 - 1 / len(classes)))
