"""Calibrate a corpus: fit to summed histograms, and fill the calibrated columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from ncclean.base.config import CalibratedOn, CalibrateOn, WeightFunction
from ncclean.base.estimates import UNKNOWN, Estimate
from ncclean.errors import InputError
from ncclean.scoring.caption_parts import ForeignParts, with_column, with_part_probabilities
from ncclean.scoring.clip_loss import binned
from ncclean.scoring.mixture import LossMixture, pair_losses
from ncclean.scoring.near_miss import NearMisses, counted_share
from ncclean.scoring.null import GroupRate, NullModel
from ncclean.scoring.osa import cleanliness_weight
from ncclean.scoring.recalibration import Audited
from ncclean.scoring.score_choice import better_score
from ncclean.scoring.stats import Distributions

# A group with fewer pairs, or fewer known mismatches, uses the null of all.
_FEWEST_PAIRS, _FEWEST_MISMATCHES = 2_000, 1_000


@dataclass(frozen=True)
class Calibration:
    """Models that turn a corpus's scores into probabilities; None for one that cannot be fitted.

    `shift` is OSA's boundary, from `shift_source`. `null` describes mismatched pairs in the score
    named by `calibrated_on`; `groups` holds separate nulls of large groups of `--calibrate-by`, and
    `group_rates` the noise rate of every group. `mixture` is fitted to losses, which are minus
    `scale` (the estimator's logit scale) times `neg_clip_loss`. `near_misses` belongs to `--words`,
    `foreign_parts` to `--caption-parts`. `audited` corrects all noise probabilities by people's
    judgements.
    """

    shift: float
    shift_source: str
    null: NullModel | None
    mixture: LossMixture | None
    scale: float
    osa_function: WeightFunction = "high_degree"
    calibrated_on: CalibratedOn = "similarity"
    groups: Mapping[str | None, NullModel] = field(default_factory=dict)
    group_rates: Sequence[GroupRate] = ()
    near_misses: NearMisses | None = None
    foreign_parts: ForeignParts | None = None
    audited: Audited | None = None

    @property
    def noise_rate(self) -> Estimate:
        """The corpus's estimated share of mismatched pairs, or the share measured by an audit.

        With groups, the mean of their rates, weighted by their numbers of pairs.
        """
        if self.audited is not None:
            return self.audited.noise_rate
        if self.null is None:
            return UNKNOWN
        parts = [
            (group.pairs, *group.noise_rate)
            for group in self.group_rates
            if group.noise_rate.is_known
        ]
        if not self.groups or not parts:
            return self.null.noise_rate
        pairs, rates, lows, highs = (
            np.array(column, dtype=float) for column in zip(*parts, strict=True)
        )
        shares = pairs / pairs.sum()
        rate = float(shares @ rates)
        # The groups' errors are independent.
        below, above = (
            float(np.sqrt(np.square(shares * (ends - rates)).sum())) for ends in (lows, highs)
        )
        return Estimate(rate, max(rate - below, 0.0), min(rate + above, 1.0))

    @classmethod
    def fit(
        cls,
        distributions: Distributions,
        *,
        shift: float,
        shift_source: str,
        scale: float,
        osa_function: WeightFunction = "high_degree",
        calibrate_on: CalibrateOn = "auto",
    ) -> Calibration:
        """Fit the shift, null and mixture of a calibration to the histograms of a whole corpus.

        `calibrate_on` names the score from which `noise_probability` is computed; `auto` chooses by
        `ncclean.scoring.score_choice.better_score`. Raises `InputError` for a score whose known
        mismatches were not counted.
        """
        score, null = fit_null(distributions, calibrate_on)
        groups, rates = _groups(distributions.score(score), null)
        losses = distributions.losses
        return cls(
            shift=shift,
            shift_source=shift_source,
            osa_function=osa_function,
            calibrated_on=score,
            null=null,
            mixture=LossMixture.fit_histogram(losses) if losses.size > 1 else None,
            scale=scale,
            groups=groups,
            group_rates=rates,
            near_misses=_near_misses(distributions),
            foreign_parts=ForeignParts.fit(distributions),
        )


def _near_misses(distributions: Distributions) -> NearMisses | None:
    """Fit the near misses of `--words`, if there are enough; the cosine finds the matched pairs."""
    scores = distributions.score("near_miss_score")
    if not scores.matched.size or not distributions.mismatched.size:
        return None
    null = NullModel.fit(distributions.matched, distributions.mismatched)
    return NearMisses.fit(scores, counted_share(distributions, null.noise_rate.value))


def fit_null(
    distributions: Distributions, asked: CalibrateOn
) -> tuple[CalibratedOn, NullModel | None]:
    """Choose the score to calibrate on and fit its `NullModel`, None without known mismatches.

    `asked` is `similarity`, `neg_clip_loss` or `auto`. Raises `InputError` for `neg_clip_loss` if
    its known mismatches were not counted.
    """
    scores: list[CalibratedOn] = ["similarity", "neg_clip_loss"] if asked == "auto" else [asked]
    nulls: dict[CalibratedOn, NullModel] = {}
    for score in scores:
        of_score = distributions.score(score)
        matched, mismatched = of_score.matched, of_score.mismatched
        if matched.size and mismatched.size:
            means = of_score.image_means, of_score.caption_means
            # Captions on other topics have lower cosines than the corpus's own. By `neg_clip_loss`,
            # all captions of another image of the corpus are lower, and the rate is right.
            is_cosine = score == "similarity"
            nulls[score] = NullModel.fit(matched, mismatched, means, may_be_lower=is_cosine)
    if not nulls:
        if asked == "neg_clip_loss" and distributions.mismatched.size:
            raise InputError(
                "--calibrate-on neg_clip_loss: the run is of an older version, which did not count "
                "its known mismatches; score again"
            )
        return scores[0], None
    if len(nulls) == 1:
        return next(iter(nulls.items()))
    best = better_score(distributions, nulls["similarity"], nulls["neg_clip_loss"])
    return best, nulls[best]


def _groups(
    distributions: Distributions, pooled: NullModel | None
) -> tuple[dict[str | None, NullModel], list[GroupRate]]:
    """Return the nulls of the groups that are large enough, and the noise of every group.

    Pairs without a label are the last group, unless there is no other.
    """
    nulls: dict[str | None, NullModel] = {}
    rates: list[GroupRate] = []
    if set(distributions.groups) <= {None}:
        return nulls, rates
    for name in sorted(distributions.groups, key=lambda label: (label is None, label or "")):
        group = distributions.groups[name]
        pairs = group.matched.size
        if not pairs:
            continue
        has_own_null = pairs >= _FEWEST_PAIRS and group.mismatched.size >= _FEWEST_MISMATCHES
        model = None
        if has_own_null:
            means = group.image_means, group.caption_means
            model = nulls[name] = NullModel.fit(group.matched, group.mismatched, means)
        elif pooled is not None:
            model = NullModel.fit(group.matched, distributions.mismatched)
        rate = model.noise_rate if model is not None else UNKNOWN
        rates.append(GroupRate(name, pairs, rate, own_null=has_own_null))
    return nulls, rates


def fill_calibrated(table: pa.Table, calibration: Calibration) -> pa.Table:
    """Fill the columns of a score table that need the calibration of the whole corpus.

    These are OSA's weight, the noise probability and p-value, the mixture's posterior, and the
    probabilities of near misses and caption parts if the table has their scores.
    """
    similarity, mask = _scored(table, "similarity")
    weight = cleanliness_weight(similarity, calibration.shift, calibration.osa_function)
    values: dict[str, torch.Tensor | None] = {
        "osa_weight": weight,
        "osa_noisy": weight == 0,
        "noise_probability": None,
        "null_p_value": None,
        "clean_posterior": None,
    }
    masks: dict[str, np.ndarray] = {}
    if calibration.null is not None:
        values["noise_probability"], values["null_p_value"] = noise_columns(table, calibration)
    if calibration.mixture is not None:
        losses = pair_losses(_scored(table, "neg_clip_loss")[0], calibration.scale)
        values["clean_posterior"] = calibration.mixture.clean_posterior(losses)
    near_misses = calibration.near_misses
    if "near_miss_score" in table.column_names:
        values["near_miss_probability"] = None
        if near_misses and not near_misses.cannot_tell:
            near_miss_scores, is_missing = _scored(table, "near_miss_score")
            values["near_miss_probability"] = near_misses.null.noise_probability(near_miss_scores)
            masks["near_miss_probability"] = is_missing
    for name, filled in values.items():
        kind = table.schema.field(name).type
        array = (
            pa.nulls(len(table), kind)
            if filled is None
            else pa.array(filled.numpy(), kind, mask=masks.get(name, mask))
        )
        table = with_column(table, name, array)
    if "part_log_odds" in table.column_names:
        table = with_part_probabilities(table, calibration.foreign_parts)
    return table


def noise_columns(table: pa.Table, calibration: Calibration) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (N,) noise probabilities and p-values of a table's rows; arbitrary for unscored rows.

    Reads the column of the score that was calibrated on and, with groups, `calibration_group`. The
    calibration must have a null.
    """
    assert calibration.null is not None
    score, _ = _scored(table, calibration.calibrated_on)
    if calibration.calibrated_on != "similarity":
        score = binned(score)
    probability = calibration.null.noise_probability(score)
    p_value = calibration.null.p_value(score)
    for group, null in calibration.groups.items():
        labels = table.column("calibration_group")
        of_group = (
            pc.is_null(labels) if group is None else pc.fill_null(pc.equal(labels, group), False)
        )
        rows = torch.from_numpy(np.flatnonzero(of_group.to_numpy()))
        probability[rows] = null.noise_probability(score[rows])
        p_value[rows] = null.p_value(score[rows])
    if calibration.audited is not None:
        moved = calibration.audited.recalibration(probability.numpy())
        probability = torch.from_numpy(moved).float()
    return probability, p_value


def _scored(table: pa.Table, name: str) -> tuple[torch.Tensor, np.ndarray]:
    """Return a column as a tensor with 0 for null, and a mask of its nulls."""
    column = table.column(name).combine_chunks()
    return torch.from_numpy(column.fill_null(0.0).to_numpy().copy()), np.asarray(column.is_null())
