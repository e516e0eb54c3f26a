"""DisNCL's Fig. 4: what the invariant and exclusive halves of embeddings share.

I(V_S; V_X) and I(T_S; T_X) should be near 0, and retrieval with the exclusive halves near chance.
An empty half passes both tests, and halves that were never aligned pass the second whatever they
share, so the exclusive halves are also compared after a linear map.

Mutual information is MINE's lower bound (Belghazi et al., ICML 2018): I(X; Y) >= E_joint[D] - log
E_marginal[e^D] for any D. Half of the rows train D, a quarter chooses the step, and the last
quarter gives the bound: on its own training rows a network finds information in noise. The estimate
is low for few rows, and at most log N.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ncclean.base.progress import Progress
from ncclean.errors import InputError
from ncclean.evaluation.embedding import EmbeddedPairs, embed_dataset
from ncclean.evaluation.options import EmbeddingOptions
from ncclean.evaluation.ranking import recall_at_k
from ncclean.evaluation.similarity import captioned_shards
from ncclean.models.request import ModelRequest

HALVES = ("invariant", "exclusive")
FEWEST = 40
_COMPONENTS = 32
_STEPS, _CHECKED = 400, 10


@dataclass(frozen=True, kw_only=True)
class Disentanglement:
    """How well the invariant and exclusive halves of a model's embeddings separate information.

    Measured on `images` images; `pairs` has the embeddings by half. `image_information` and
    `text_information` are the mutual information of the halves in nats. `recall` is the mean recall
    at 1 of both directions with each half, and `fitted` with the exclusive halves after a linear
    map, of the images that it was not fitted to. `chance` is that of a random guess, for `fitted`
    twice that.
    """

    model: str
    images: int
    image_information: float
    text_information: float
    recall: dict[str, float]
    fitted: float
    chance: float
    pairs: dict[str, EmbeddedPairs]

    def to_json(self) -> dict[str, Any]:
        """Return the measurements as JSON, without the embeddings."""
        names = [field.name for field in dataclasses.fields(self) if field.name != "pairs"]
        return {name: getattr(self, name) for name in names}


def measure_disentanglement(
    models: Sequence[ModelRequest],
    sources: Sequence[str],
    embedding: EmbeddingOptions,
    seed: int,
    progress: Progress,
) -> Iterator[Disentanglement]:
    """Embed the pairs of `sources` in both spaces of one model after the other, and compare them.

    Raises `InputError` if the pairs are too few, and `ModelError` for a model without heads.
    """
    shards = [shard for source in sources for shard in captioned_shards(source)]
    for model in models:
        pairs = {}
        for half in HALVES:
            progress.say(f"{model.model}: embedding in the {half} space")
            estimator = dataclasses.replace(model, space=half).load()
            pairs[half] = embed_dataset(estimator, shards, embedding)
        invariant, exclusive = pairs.values()
        images = len(invariant.keys)
        if images < FEWEST:
            raise InputError(f"only {images} images can be read: at least {FEWEST} are needed")
        progress.say(f"{model.model}: measuring")
        yield Disentanglement(
            model=estimator.identity.model,
            images=images,
            image_information=mutual_information(invariant.image, exclusive.image, seed),
            text_information=mutual_information(
                invariant.text, exclusive.text, seed, invariant.text_to_image
            ),
            recall={half: _recall(p.image, p.text, p.text_to_image) for half, p in pairs.items()},
            fitted=fitted_recall(exclusive, seed),
            chance=1 / images,
            pairs=pairs,
        )


def _recall(image: torch.Tensor, text: torch.Tensor, text_to_image: torch.Tensor) -> float:
    return recall_at_k(image, text, text_to_image, ks=(1,))["rsum"] / 200


def fitted_recall(pairs: EmbeddedPairs, seed: int) -> float:
    """Return the recall at 1 after a ridge regression from images to captions.

    It is the mean of both directions, on half of the images, with the first caption of each; the
    map is fitted to the other half.
    """
    owners = pairs.text_to_image.cpu()
    first = torch.tensor([int((owners == row).nonzero()[0]) for row in range(len(pairs.image))])
    image, text = pairs.image.cpu().double(), pairs.text.cpu()[first].double()
    order = torch.randperm(len(image), generator=torch.Generator().manual_seed(seed))
    train, test = order.tensor_split(2)
    x, y = image[train], text[train]
    centre = x.mean(dim=0)
    gram = (x - centre).T @ (x - centre) + torch.eye(x.shape[1], dtype=x.dtype)
    weights = torch.linalg.solve(gram, (x - centre).T @ (y - y.mean(dim=0)))
    predicted = F.normalize((image[test] - centre) @ weights + y.mean(dim=0), dim=1)
    return _recall(predicted, text[test], torch.arange(len(test)))


def mutual_information(
    x: torch.Tensor, y: torch.Tensor, seed: int, images: torch.Tensor | None = None
) -> float:
    """Return a lower bound on the mutual information of (N, a) and (N, b) rows in nats, at least 0.

    `images` (N,) numbers the image of each row from 0; by default each has a separate one.

    Both are first reduced to their 32 leading principal components, without whitening. Halves that
    are functions of one input share unbounded information in vanishingly small components, and
    whitening would measure only that.
    """
    generator = torch.Generator().manual_seed(seed)
    owners = torch.arange(len(x)) if images is None else images.cpu()
    count = int(owners.max()) + 1
    turn = torch.randperm(count, generator=generator).argsort()[owners]
    turn, order = turn.sort(stable=True)
    cuts = torch.searchsorted(turn, torch.tensor([count // 2, 3 * count // 4]))
    train, choose, judge = torch.arange(len(x)).tensor_split(cuts)
    x, y = (_reduced(rows.cpu()[order], len(train)) for rows in (x, y))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        critic = nn.Sequential(
            nn.Linear(x.shape[1] + y.shape[1], 128), nn.ELU(),
            nn.Linear(128, 128), nn.ELU(),
            nn.Linear(128, 1),
        )  # fmt: skip
    optimizer = torch.optim.Adam(critic.parameters(), 1e-3, weight_decay=1e-4)
    best, chosen = -math.inf, critic
    for step in range(_STEPS):
        loss = -_bound(critic, x[train], y[train], generator)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
        optimizer.step()
        if step % _CHECKED == _CHECKED - 1:
            with torch.no_grad():
                held_out = float(_bound(critic, x[choose], y[choose], generator, turns=8))
            if held_out > best:
                best, chosen = held_out, copy.deepcopy(critic)
    with torch.no_grad():
        return max(0.0, float(_bound(chosen, x[judge], y[judge], generator, turns=32)))


def _bound(
    critic: nn.Module, x: torch.Tensor, y: torch.Tensor, generator: torch.Generator, turns: int = 2
) -> torch.Tensor:
    """The Donsker-Varadhan bound; the marginal from random rotations of y."""
    joint: torch.Tensor = critic(torch.cat([x, y], dim=1)).mean()
    shifts = torch.randint(1, len(y), (turns,), generator=generator).tolist()
    rotated = [torch.cat([x, y.roll(shift, dims=0)], dim=1) for shift in shifts]
    marginal = critic(torch.cat(rotated))[:, 0]
    bound: torch.Tensor = joint - marginal.logsumexp(dim=0) + math.log(len(marginal))
    return bound


def _reduced(rows: torch.Tensor, fitted: int) -> torch.Tensor:
    """The leading principal components of the first `fitted` (N, d) rows, of unit variance in all.

    A half that has collapsed to one point has none, and no information.
    """
    exact = rows.double()
    centred = exact - exact[:fitted].mean(dim=0)
    components = torch.linalg.svd(centred[:fitted], full_matrices=False).Vh[:_COMPONENTS]
    reduced = centred @ components.T
    scaled: torch.Tensor = (reduced / reduced.std().clamp_min(1e-12)).clamp(-10, 10).float()
    return scaled
