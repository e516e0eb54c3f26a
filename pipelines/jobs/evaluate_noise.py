"""A score table with ground truth, and what each score and rule finds in it.

A column is read alone, as arrays, to be sorted: 10 million pairs take 0.7 GB.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

from upath import UPath

from ncclean.config import ScoreOptions, parse_keys, parse_scale
from ncclean.data.embeddings.units import resolve_embeddings, vector_keys
from ncclean.data.estimate import estimate_samples
from ncclean.data.shards import ShardRef
from ncclean.data.sources import are_embeddings, resolve_sources
from ncclean.errors import InputError
from ncclean.estimates import Estimate
from ncclean.evaluation.noise_choice import NoiseChoice
from ncclean.evaluation.noise_evaluation import NoiseEvaluation, NoiseTrial
from ncclean.evaluation.noise_figure import save_figure
from ncclean.evaluation.truth_table import TruthTable
from ncclean.options import check_unset
from ncclean.report.run_facts import RunFacts, read_facts
from ncclean.storage.joined import JoinedScores
from ncclean.storage.noisy_copy import write_noisy_copy

from ..evaluate_noise import EvaluateNoise, TrialOptions
from ..progress import Progress
from ..score import Score


def evaluate(command: EvaluateNoise, progress: Progress) -> NoiseEvaluation:
    """Compare every score and rule of a table with the truth in it, and draw it if asked to.

    Raises `InputError` if the table has no truth, or a column or rule that it is asked for.
    """
    if command.inject is None:
        return _evaluate(command, progress)
    with tempfile.TemporaryDirectory(prefix="ncclean-") as folder:
        trial, table = _inject(command, command.inject, Path(folder), progress)
        return _evaluate(dataclasses.replace(command, scores=[table]), progress, trial)


def _inject(
    command: EvaluateNoise, share: float, folder: Path, progress: Progress
) -> tuple[NoiseTrial, str]:
    """Score a sample of the sources as it is and with wrong captions; the second table."""
    options = command.trial
    shards, scale = resolve_sources(command.scores), parse_scale(options.scale)
    donors = resolve_sources(options.donors) if options.donors else []
    if donors and are_embeddings(donors) != are_embeddings(shards):
        raise InputError(
            f"of {shards[0].url} and the donors {donors[0].url} one holds embeddings, the other "
            "images: give both as images, or as embeddings of one model"
        )
    shift: str | float = "auto"
    if not are_embeddings(shards):
        check_unset(
            command,
            ("embedding_keys", "scale"),
            "is for embeddings, and these are images: leave it out",
        )
        if donors:
            wanted = math.ceil(share * options.pairs)
            _, donors = _embedded(donors, wanted, options, folder / "donors", progress)
        facts, shards = _embedded(shards, options.pairs, options, folder / "images", progress)
        scale, shift = facts.scale, "auto" if facts.shift is None else facts.shift
    else:
        check_unset(command, ("model",), "is for images, and these are embeddings: use --scale")
    copy = write_noisy_copy(
        shards,
        vector_keys(shards, parse_keys(options.embedding_keys)),
        UPath(folder),
        share=share,
        pairs=options.pairs,
        seed=options.seed,
        donors=donors,
    )
    rates: dict[str, Estimate] = {}
    out = ""
    for name, source in (("before", copy.given), ("after", copy.noisy)):
        out = str(folder / f"{name}.parquet")
        Score(
            shards=[source], out=out, scale=scale, pretrained=options.pretrained, shift=shift
        ).run()
        rates[name] = read_facts([out]).noise_rate
    noise = "donor" if donors else "ncr"
    return NoiseTrial(noise=noise, pairs=copy.pairs, moved=copy.moved, **rates), out


def _embedded(
    shards: Sequence[ShardRef],
    pairs: int,
    options: TrialOptions,
    folder: Path,
    progress: Progress,
) -> tuple[RunFacts, list[ShardRef]]:
    """Facts of scoring every k-th shard, so that about `pairs` pairs come together; embeddings."""
    step = max(1, estimate_samples(shards) // pairs)
    table, embeddings = folder / "scores.parquet", folder / "embeddings"
    Score(
        shards=[shard.url for shard in shards[::step]],
        out=str(table),
        model=options.model,
        pretrained=options.pretrained,
        device=options.device,
        options=ScoreOptions(embeddings=str(embeddings)),
    ).run(progress)
    return read_facts([str(table)]), resolve_embeddings([str(embeddings)])


def _evaluate(
    command: EvaluateNoise, progress: Progress, trial: NoiseTrial | None = None
) -> NoiseEvaluation:
    progress.say("comparing scores and rules with the truth")
    with JoinedScores.open(command.scores, command.join, command.memory_limit) as pairs:
        choice = NoiseChoice(pairs)
        choice.add_columns(command.column, higher_is_noisier=True)
        choice.add_columns(command.lower_is_noisier, higher_is_noisier=False)
        choice.add_expressions(command.score)
        choice.add_rules(command.rule)
        choice.set_thresholds(command.thresholds)
        count = len(choice.scores)
        evaluation, figures = TruthTable.of(choice).evaluate(
            lambda number: progress.advance(number, count, "scores")
        )
    if not evaluation.scores:
        raise InputError(
            f"{command.scores[0]} has no score to evaluate: name one with --score or --column"
        )
    if command.plot is not None:
        save_figure(evaluation, figures, command.plot)
    return dataclasses.replace(evaluation, trial=trial)
