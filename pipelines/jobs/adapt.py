"""The adaptation of an estimator: pairs above the threshold, a few steps, a model folder."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict, dataclass
from pathlib import Path

from ncclean.data.sources import resolve_pairs
from ncclean.errors import InputError
from ncclean.models.checkpoint import resolve
from ncclean.models.request import ModelRequest
from ncclean.models.saving import write_model
from ncclean.storage.catalog import connect
from ncclean.storage.same_corpus import check_same_corpus
from ncclean.training.adapt import adapt as train

from ..adapt import Adapt
from ..progress import Progress
from .outputs import finished, open_record, written_aside

RECORD = "_adapt.jsonl"


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


def adapt(command: Adapt, progress: Progress) -> AdaptSummary:
    """Train on the pairs above the threshold and save a folder for `--model local-dir:`.

    An interrupted adaptation starts again: it takes minutes. Raises `InputError` if the table has
    no `clean_posterior`, too few pairs pass, or the folder holds something else, `ResumeError` if
    it holds another adaptation.
    """
    out = Path(command.out)
    if out.exists():  # before minutes of training
        with open_record(command, out / RECORD, overwrite=command.overwrite) as record:
            done = finished(record)
        if done is not None:
            progress.say(f"{command.out} holds this adaptation already")
            return AdaptSummary(**done["summary"])
    shards = resolve_pairs(command.shards, command.image_root)
    check_same_corpus(command.scores, shards)
    keys, scored = _strictly_clean(command)
    pairs = sum(map(len, keys.values()))
    options = command.options
    if pairs < options.batch_size:
        raise InputError(
            f"{pairs:,} of {scored:,} pairs have a clean_posterior above {command.threshold:g}, "
            f"fewer than --batch-size {options.batch_size}: lower --threshold or --batch-size"
        )
    unknown = set(keys) - {shard.name for shard in shards}
    if unknown:
        raise InputError(f"shard {sorted(unknown)[0]} of the table is not among --shards: give all")
    progress.say(f"loading {command.model}")
    estimator = ModelRequest(
        model=command.model,
        pretrained=command.pretrained,
        precision=command.precision,
        device=command.device,
    ).load()
    failed: dict[str, str] = {}
    progress.say(f"adapting to {pairs:,} strictly clean pairs")
    losses = train(
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
        out=command.out,
        failed_shards=failed,
    )
    with open_record(command, out / RECORD, overwrite=True) as record:
        source = resolve(command.model, command.pretrained)
        with written_aside(out, record) as aside:
            write_model(estimator.model, source, estimator.tokenizer, aside)
        record.append("done", summary=asdict(summary))
    return summary


def _strictly_clean(command: Adapt) -> tuple[dict[str, set[str]], int]:
    """Keys above the threshold by shard, and the number of scored pairs."""
    connection = connect(command.scores)
    columns = {row[0] for row in connection.execute("DESCRIBE SELECT * FROM scores").fetchall()}
    if "clean_posterior" not in columns:
        raise InputError("the table has no column clean_posterior: score again with this version")
    counted = connection.execute("SELECT count(clean_posterior) FROM scores").fetchall()
    rows = connection.execute(
        "SELECT shard, list(key) FROM scores WHERE status = 'ok' AND clean_posterior > ? "
        "GROUP BY shard",
        [command.threshold],
    ).fetchall()
    return {shard: set(keys) for shard, keys in rows}, counted[0][0]
