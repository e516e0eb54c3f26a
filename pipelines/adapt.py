"""The adapt stage: an estimator warmed up on the strictly clean pairs of a scored corpus."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncclean.data.shards import resolve_shards
from ncclean.errors import InputError
from ncclean.execution.engine import ModelRequest
from ncclean.models.checkpoint import resolve
from ncclean.models.saving import save_model
from ncclean.storage.catalog import connect
from ncclean.storage.same_corpus import check_same_corpus
from ncclean.training.adapt import AdaptOptions
from ncclean.training.adapt import adapt as train


@dataclass(frozen=True, kw_only=True)
class AdaptRequest:
    """An adaptation as a user asks for it.

    `threshold` is what `clean_posterior` must exceed: .95 for classification, .8 for image
    retrieval, .9 for image-text matching in the OSA paper.
    """

    scores: Sequence[str]
    shards: Sequence[str]
    out: str
    model: str = "ViT-B-32"
    pretrained: str | None = "laion2b_s34b_b79k"
    precision: str = "auto"
    device: str = "auto"
    threshold: float = 0.9
    options: AdaptOptions = dataclasses.field(default_factory=AdaptOptions)

    def __post_init__(self) -> None:
        if not 0 <= self.threshold < 1:
            raise InputError(f"--threshold lies in [0, 1), got {self.threshold:g}")
        if "://" in self.out:
            raise InputError(f"--out of adapt is a local folder, got {self.out}")


@dataclass(frozen=True)
class AdaptSummary:
    """`pairs` of `scored` passed the threshold; mean loss of the first and last tenth of steps."""

    pairs: int
    scored: int
    steps: int
    first_loss: float
    last_loss: float
    out: str
    failed_shards: dict[str, str] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def adapt(
    request: AdaptRequest, on_step: Callable[[int, float], None] = lambda step, loss: None
) -> AdaptSummary:
    """Train on the pairs above the threshold and save a folder for `--model local-dir:`.

    Raises `InputError` if the table has no `clean_posterior`, too few pairs pass, or the folder
    exists.
    """
    out = Path(request.out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} exists; choose another --out or remove it")
    shards = resolve_shards(request.shards)
    check_same_corpus(request.scores, shards)
    chosen, scored = _strictly_clean(request)
    pairs = sum(map(len, chosen.values()))
    if pairs < request.options.batch_size:
        raise InputError(
            f"{pairs:,} of {scored:,} pairs have a clean_posterior above {request.threshold:g}, "
            f"fewer than --batch-size {request.options.batch_size}; lower one of the two"
        )
    unknown = set(chosen) - {shard.name for shard in shards}
    if unknown:
        raise InputError(f"shard {sorted(unknown)[0]} of the table is not among --shards")
    estimator = ModelRequest(
        model=request.model,
        pretrained=request.pretrained,
        precision=request.precision,
        device=request.device,
    ).load()
    failed: dict[str, str] = {}
    losses = train(estimator, shards, chosen, request.options, on_step, failed)
    source = resolve(request.model, request.pretrained)
    save_model(estimator.model, source, estimator.tokenizer, out)
    tenth = max(1, len(losses) // 10)
    return AdaptSummary(
        pairs=pairs,
        scored=scored,
        steps=len(losses),
        first_loss=sum(losses[:tenth]) / tenth,
        last_loss=sum(losses[-tenth:]) / tenth,
        out=request.out,
        failed_shards=failed,
    )


def _strictly_clean(request: AdaptRequest) -> tuple[dict[str, set[str]], int]:
    """Keys above the threshold by shard, and the number of scored pairs."""
    connection = connect(request.scores)
    columns = {row[0] for row in connection.execute("DESCRIBE SELECT * FROM scores").fetchall()}
    if "clean_posterior" not in columns:
        raise InputError("the table has no column clean_posterior; score again with this version")
    counted = connection.execute("SELECT count(clean_posterior) FROM scores").fetchall()
    rows = connection.execute(
        "SELECT shard, list(key) FROM scores WHERE status = 'ok' AND clean_posterior > ? "
        "GROUP BY shard",
        [request.threshold],
    ).fetchall()
    return {shard: set(keys) for shard, keys in rows}, counted[0][0]
