"""Move a calibration to what an audit measured."""

from __future__ import annotations

import dataclasses

import numpy as np

from ncclean.auditing.audit import Audit
from ncclean.errors import InputError
from ncclean.scoring.calibration import Calibration, noise_columns
from ncclean.scoring.recalibration import Audited, recalibrated

_FEWEST = 30  # answers


def moved(calibration: Calibration, audit: Audit) -> Calibration:
    """Return a calibration whose noise probabilities agree with the answers of an audit.

    The map is fitted to the probabilities that `calibration` gives the judged pairs, so a table
    moved before is moved from its original state. Raises `InputError` for fewer than 30 answers and
    for a table without a null.
    """
    if calibration.null is None or not audit.noise.is_known:
        raise InputError("the table has no noise probabilities to fit to the answers")
    if audit.counted < _FEWEST:
        raise InputError(
            f"{audit.counted} answers are too few to fit a calibration to: {_FEWEST} are needed"
        )
    unmoved = dataclasses.replace(calibration, audited=None)
    before = noise_columns(audit.judged.rows, unmoved)[0].numpy()
    recalibration = recalibrated(before, audit.judged.mismatched, audit.judged.weight)
    drawn, undone = audit.design.bounds, audit.design.bounds
    if audit.audited is not None:
        # The strata are of an already moved table; its map gives their original bounds.
        undone = audit.audited.recalibration.inverse(audit.design.bounds)
        if np.array_equal(np.array(audit.audited.bounds), audit.design.bounds):
            drawn = np.array(audit.audited.drawn_bounds)
    audited = Audited(
        recalibration=recalibration,
        noise_rate=audit.noise,
        answers=audit.counted,
        digest=audit.digest,
        drawn_bounds=tuple(drawn.tolist()),
        bounds=tuple(recalibration(undone).tolist()),
    )
    return dataclasses.replace(calibration, audited=audited)
