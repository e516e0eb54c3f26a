"""`ncclean annotate`: write columns of a score table into the Lance data set that was scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from ncclean.base.options import Option, Reads

from .command import Command, Result
from .progress import SILENT, Progress
from .shared_options import Scores

if TYPE_CHECKING:
    from ncclean.storage.lance_scores import AnnotatedRows


@dataclass(frozen=True, kw_only=True)
class Annotate(Command):
    """Write columns of a score table into the Lance data set whose pairs it scores.

    The columns are named ncclean_NAME and replace those of an earlier call. Rows are matched by
    uid, those without one by position. Earlier versions of the data set stay.

    Example: `ncclean annotate scores.parquet --dataset pairs.lance`
    """

    name = "annotate"
    summary = "Write scores into a Lance data set."
    is_stage = False

    scores: Scores
    dataset: Annotated[str, Option("Lance data set.", metavar="PATH", reads=Reads.SOURCE)]
    columns: Annotated[
        Sequence[str],
        Option(
            "Column to write (default: `status`, `similarity`, `neg_clip_loss`, "
            "`noise_probability`).",
            metavar="NAME",
        ),
    ] = ()

    def run(self, progress: Progress = SILENT) -> Result[AnnotatedRows]:
        """Write the columns; see `ncclean.storage.lance_scores`."""
        from ncclean.storage.lance_scores import write_lance_scores

        written = write_lance_scores(self.scores, self.dataset, self.columns, progress)
        values = {
            "rows": written.rows,
            "scored": written.scored,
            "columns": list(written.columns),
            "version": written.version,
        }
        line = (
            f"{written.scored:,} of {written.rows:,} rows have scores now: "
            f"{', '.join(written.columns)}, in version {written.version} of {self.dataset}"
        )
        return Result(self.name, written, values, shown=[line])
