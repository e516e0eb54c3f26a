"""The select stage: a policy over a score table to a selection file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from ncclean import stores
from ncclean.errors import InputError
from ncclean.selection.policy import Policy
from ncclean.selection.select import SelectionSummary
from ncclean.selection.select import select as run
from ncclean.storage.tables import check_apart, table_files


@dataclass(frozen=True, kw_only=True)
class SelectRequest:
    """A selection as a user asks for it; paths may be URLs, see `ncclean.selection`."""

    scores: Sequence[str]
    out: str
    policy: Policy = dataclasses.field(default_factory=Policy)
    dedup: str | None = None
    memory_limit: str | None = None

    def __post_init__(self) -> None:
        if not self.out.endswith(".parquet"):
            raise InputError(f"--out of select is a Parquet file, got {self.out!r}")


def select(request: SelectRequest) -> SelectionSummary:
    """Write the selection; see `ncclean.selection.select.select`.

    Raises `InputError` if it would take the place of a table that it reads.
    """
    dedup = [request.dedup] if request.dedup is not None else []
    check_apart(request.out, table_files([*request.scores, *dedup]))
    return run(
        request.scores,
        stores.location(request.out),
        request.policy,
        dedup=request.dedup,
        memory_limit=request.memory_limit,
    )
