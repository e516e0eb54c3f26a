"""`ncclean merge`: merge scoring runs over parts of a corpus into one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from ncclean.base.config import parse_shift
from ncclean.base.options import Option, Reads

from .command import Command, Result
from .progress import SILENT, Progress
from .score import score_result
from .shared_options import CalibrateOnOption, OsaFunction, Overwrite, ScoresOut, Shift

if TYPE_CHECKING:
    from ncclean.storage.summary import ScoreSummary


@dataclass(frozen=True, kw_only=True)
class Merge(Command):
    """Merge score tables, as if one run had scored all their shards.

    Each of RUNS is the --out of a finished `ncclean score`, with its working folder. They have the
    same model, options and version, and no shard in common. All pairs are calibrated again. `score`
    can add shards to the result.

    Example: `ncclean merge pieces/0 pieces/1 pieces/2 --out scores.parquet`
    """

    name = "merge"
    summary = "Merge score tables into one."
    resume_hint = "run the same command again to go on; shards that were taken over are kept"
    has_record = True

    runs: Annotated[
        Sequence[str],
        Option("Outputs of `ncclean score`.", argument=True, metavar="RUNS", reads=Reads.TABLE),
    ]
    out: ScoresOut
    shift: Shift = "auto"
    osa_function: OsaFunction = "high_degree"
    calibrate_on: CalibrateOnOption = "auto"
    overwrite: Overwrite = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "shift", parse_shift(self.shift))

    def run(self, progress: Progress = SILENT) -> Result[ScoreSummary]:
        """Merge the scoring runs; see `ncclean.storage.merge`."""
        from ncclean.storage.merge import merge

        merged = merge(
            self.runs,
            self.out,
            shift=self.shift,
            osa_function=self.osa_function,
            calibrate_on=self.calibrate_on,
            overwrite=self.overwrite,
            progress=progress,
        )
        return score_result(self, merged)
