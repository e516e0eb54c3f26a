"""Calibrate a scoring run from its manifest, and describe the calibration as metadata."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

from ncclean.base import schema
from ncclean.base.config import CalibrateOn, WeightFunction
from ncclean.base.estimates import flattened
from ncclean.errors import InputError
from ncclean.scoring.calibration import Calibration
from ncclean.scoring.stats import pack_histogram
from ncclean.storage.score_run import RunIdentity, ScoreRun


def calibrate(
    run: ScoreRun,
    shift: str | float,
    osa_function: WeightFunction = "high_degree",
    calibrate_on: CalibrateOn = "auto",
) -> Calibration:
    """Fit the calibration of a scoring run to the summed histograms of all its shards.

    Raises `InputError` if the requested shift needs the estimator and was never estimated, or if
    the run did not count the score's known mismatches.
    """
    value, source = _shift(run, shift)
    return Calibration.fit(
        run.distributions,
        shift=value,
        shift_source=source,
        scale=float(run.identity.model["scale"]),
        osa_function=osa_function,
        calibrate_on=calibrate_on,
    )


def final_metadata(calibration: Calibration, run: ScoreRun) -> dict[str, str]:
    """Return the key-value metadata of the final files of a score table."""
    identity, distributions = run.identity, run.distributions
    near_misses, audited = calibration.near_misses, calibration.audited
    parts = calibration.foreign_parts
    cut, context = run.captions_cut()
    fields: dict[str, object] = {
        **identity.model,
        **{
            name: json.dumps(value) if isinstance(value, dict | list | tuple) else value
            for name, value in identity.options.items()
            if value is not None
        },
        "shift": calibration.shift,
        "shift_source": calibration.shift_source,
        "osa_function": calibration.osa_function,
        **calibration.noise_rate.fields("noise_rate"),
        "calibrated_on": calibration.calibrated_on,
        "separation": math.nan if calibration.null is None else calibration.null.separation,
        # Readers of only the table can draw the null, and refit it.
        "matched_histogram": json.dumps(pack_histogram(distributions.matched)),
        "mismatched_histogram": json.dumps(pack_histogram(distributions.mismatched)),
        **_group_metadata(calibration),
        **(near_misses.rate.fields("near_miss_rate") if near_misses is not None else {}),
        **(parts.rate.fields("part_noise_rate") if parts is not None else {}),
        **({"audited": audited.to_json()} if audited is not None else {}),
        **({"captions_cut": cut, "context_length": context} if context is not None else {}),
        **({"image_key": identity.options.get("image_key") or ""} if identity.has_images else {}),
        **(
            {"caption_key": ""}
            if identity.has_images and not identity.options.get("caption_key")
            else {}
        ),
        **{name: json.dumps(counts) for name, counts in run.further().to_json().items()},
        "ncclean_version": identity.version,
        "schema_version": schema.SCHEMA_VERSION,
    }
    return {name: str(value) for name, value in fields.items()}


def _group_metadata(calibration: Calibration) -> dict[str, str]:
    if not calibration.group_rates:
        return {}
    rates = [asdict(rate, dict_factory=flattened) for rate in calibration.group_rates]
    return {"noise_rates_by_group": json.dumps(rates)}


def asks_for_noise(shift: str | float, identity: RunIdentity) -> bool:
    """Check whether `--shift` requests the mean cosine on noise, which needs a model."""
    return shift == "noise" or (shift == "auto" and identity.has_images)


def _shift(run: ScoreRun, shift: str | float) -> tuple[float, str]:
    """Return the shift to use and where it comes from."""
    mismatched = run.distributions.mismatched
    if isinstance(shift, float):
        return shift, "given"
    asks_model = asks_for_noise(shift, run.identity)
    if not asks_model and mismatched.size:
        return mismatched.mean, "shuffled"
    if run.noise_shift is None and not asks_model:
        return 0.0, "none"  # neither a model nor two pairs
    if run.noise_shift is None:
        raise InputError(
            f"the shift {shift!r} is not known: the run was scored with another --shift. Give that "
            "one, or score again without --finalize-only, which estimates it and keeps what is done"
        )
    # A corpus of one pair has no mismatches to take a shift from; the estimator's is next best.
    return run.noise_shift, "noise"
