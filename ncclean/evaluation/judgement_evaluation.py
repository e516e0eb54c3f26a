"""Scores against people's judgements of captions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ncclean.base.estimates import flattened
from ncclean.base.progress import SILENT, Progress
from ncclean.data.options import SourceOptions
from ncclean.errors import InputError
from ncclean.evaluation.agreement import Agreement, agreement
from ncclean.evaluation.judged_images import embed_judged
from ncclean.evaluation.judged_scores import JudgedScores, scores_of_model
from ncclean.evaluation.judgement_table import Judgements
from ncclean.evaluation.options import EmbeddingOptions
from ncclean.models.request import ModelRequest


@dataclass(frozen=True)
class ScoreAgreement:
    """The agreement of one score of `source`, a model or a score table, with people.

    `reversed` marks a score whose sign was changed, since lower is better.
    """

    source: str
    score: str
    agreement: Agreement
    reversed: bool = False

    def to_json(self) -> dict[str, Any]:
        figures = dataclasses.asdict(self.agreement, dict_factory=flattened)
        return {
            "source": self.source, "score": self.score, "reversed": self.reversed, **figures
        }  # fmt: skip


@dataclass(frozen=True)
class JudgementEvaluation:
    """The agreement of each score. `left_out` counts rows of the judgements, `missing` images or
    pairs of each source without a score; both by reason. `undefined` says why a score was not
    compared.
    """

    rating_columns: tuple[str, ...]
    scores: list[ScoreAgreement]
    left_out: Mapping[str, int]
    missing: Mapping[str, Mapping[str, int]]
    undefined: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        return {
            "rating_columns": list(self.rating_columns),
            "scores": [score.to_json() for score in self.scores],
            "left_out": dict(self.left_out),
            "missing": {name: dict(counts) for name, counts in self.missing.items()},
            "undefined": dict(self.undefined),
        }


@dataclass
class JudgementTrial:
    """Judgements and the scores that have been compared with them so far."""

    judgements: Judgements
    scores: list[ScoreAgreement] = dataclasses.field(default_factory=list)
    missing: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    undefined: dict[str, str] = dataclasses.field(default_factory=dict)
    references: int = 0

    def add_model(
        self,
        model: ModelRequest,
        sources: Sequence[str],
        options: EmbeddingOptions,
        source_options: SourceOptions,
        *,
        prefix: str = "",
        drop_references: bool = False,
        progress: Progress = SILENT,
    ) -> None:
        """Embed what was judged, and compare the model's scores with the ratings.

        `drop_references` leaves out captions that the source has for the image itself, as the
        literature does. Raises `InputError` for images that cannot be read.
        """
        progress.say(f"{model.model}: loading")
        estimator = model.load()
        judgements = self.judgements
        progress.say(f"{model.model}: embedding")
        images = embed_judged(estimator, sources, judgements.image, options, source_options)
        if drop_references:
            if not images.captions:
                raise InputError(
                    f"{sources[0]} has no captions of its images, which --drop-references needs: "
                    "name shards or a table with captions, such as Karpathy's json"
                )
            judgements = _without_references(judgements, images.captions)
            self.references = len(self.judgements.image) - len(judgements.image)
        scores = scores_of_model(
            estimator, images, judgements, prefix=prefix, batch_size=options.batch_size
        )
        self.add(estimator.identity.model, judgements, scores)

    def add(self, source: str, judgements: Judgements, scores: JudgedScores) -> None:
        """Compare scores with the ratings. Raises `InputError` if none of them has an order."""
        count = len(self.scores)
        numbers = {name: number for number, name in enumerate(dict.fromkeys(judgements.image))}
        image = np.array([numbers[name] for name in judgements.image])
        for name, values in scores.values.items():
            there = ~np.isnan(values)
            try:
                figures = agreement(values[there], judgements.ratings[there], image[there])
            except ValueError as error:
                self.undefined[f"{source}, {name}"] = str(error)
                continue
            self.scores.append(ScoreAgreement(source, name, figures, name in scores.reversed))
        if len(self.scores) == count:
            name, reason = next(iter(self.undefined.items()))
            raise InputError(f"{name}: {reason}")
        self.missing[source] = scores.missing

    def result(self) -> JudgementEvaluation:
        left_out = dict(self.judgements.left_out)
        if self.references:
            left_out["reference"] = self.references
        columns = self.judgements.rating_columns
        return JudgementEvaluation(columns, self.scores, left_out, self.missing, self.undefined)


def _without_references(
    judgements: Judgements, captions: Mapping[str, frozenset[str]]
) -> Judgements:
    pairs = zip(judgements.image, judgements.caption, strict=True)
    return judgements.select(
        np.flatnonzero([text not in captions.get(name, ()) for name, text in pairs])
    )
