"""The adaptation of an estimator: pairs above the threshold, a few steps, a model folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ncclean.base.progress import SILENT, Progress
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError
from ncclean.models.request import ModelRequest
from ncclean.models.saving import write_model
from ncclean.storage.catalog import connect
from ncclean.storage.run_folder import finished, open_record, written_aside
from ncclean.storage.same_corpus import as_scored
from ncclean.training.adapt import adapt
from ncclean.training.options import AdaptOptions


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


def adapt_model(
    model: ModelRequest,
    scores: Sequence[str],
    shards: list[ShardRef],
    out: str,
    options: AdaptOptions,
    *,
    threshold: float,
    run: dict[str, Any],
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> AdaptSummary:
    """Train on the pairs above a threshold and save the adapted model as a folder.

    An interrupted adaptation starts again: it takes minutes. Raises `InputError` if the table has
    no `clean_posterior`, too few pairs pass, or the folder holds something else, `ResumeError` if
    it holds another adaptation. `run` is the identity of the run.
    """
    folder = Path(out)
    if folder.exists():  # before minutes of training
        with open_record(folder, "adapt", run, overwrite=overwrite) as record:
            done = finished(record)
        if done is not None:
            progress.say(f"{out} holds this adaptation already")
            return AdaptSummary(**done["summary"])
    shards = as_scored(scores, shards)
    keys, scored = _strictly_clean(scores, threshold)
    pairs = sum(map(len, keys.values()))
    if pairs < options.batch_size:
        raise InputError(
            f"{pairs:,} of {scored:,} pairs have a clean_posterior above {threshold:.15g}, "
            f"fewer than --batch-size {options.batch_size}: lower --threshold or --batch-size"
        )
    unknown = set(keys) - {shard.name for shard in shards}
    if unknown:
        raise InputError(f"shard {sorted(unknown)[0]} of the table is not among --shards: give all")
    progress.say(f"loading {model.model}")
    estimator = model.load()
    failed: dict[str, str] = {}
    progress.say(f"adapting to {pairs:,} strictly clean pairs")
    losses = adapt(
        estimator,
        shards,
        keys,
        options,
        lambda step, loss: progress.advance(step, options.steps, "steps", loss=loss),
        failed,
    )
    tenth = max(1, len(losses) // 10)
    summary = AdaptSummary(
        pairs=pairs,
        scored=scored,
        steps=len(losses),
        first_loss=sum(losses[:tenth]) / tenth,
        last_loss=sum(losses[-tenth:]) / tenth,
        out=out,
        failed_shards=failed,
    )
    with open_record(folder, "adapt", run, overwrite=True) as record:
        with written_aside(folder, record.made) as aside:
            write_model(estimator, aside)
        record.append("done", summary=asdict(summary))
    return summary


def _strictly_clean(scores: Sequence[str], threshold: float) -> tuple[dict[str, set[str]], int]:
    """Keys above the threshold by shard, and the number of scored pairs."""
    connection = connect(scores)
    columns = {row[0] for row in connection.execute("DESCRIBE SELECT * FROM scores").fetchall()}
    if "clean_posterior" not in columns:
        raise InputError("the table has no column clean_posterior: score again with this version")
    counted = connection.execute("SELECT count(clean_posterior) FROM scores").fetchall()
    rows = connection.execute(
        "SELECT shard, list(key) FROM scores WHERE status = 'ok' AND clean_posterior > ? "
        "GROUP BY shard",
        [threshold],
    ).fetchall()
    return {shard: set(keys) for shard, keys in rows}, counted[0][0]
