"""The selection that a training run reads, checked against what its method needs."""

from __future__ import annotations

from ncclean.data.options import Captions
from ncclean.data.selection_reader import SelectionReader
from ncclean.errors import InputError
from ncclean.storage.tables import local_tables
from ncclean.training.objectives.options import ObjectiveOptions


def open_selection(
    path: str | None, method: str, options: ObjectiveOptions, captions: Captions = "all"
) -> SelectionReader | None:
    """Open the selection to train on; None without a path.

    Raises `InputError` if the file is not a selection, or where the method would silently train as
    if it were another one: OSA without weights, a split of the table without a marked pair, the
    best of captions that nobody compared.
    """
    selection = SelectionReader(path, captions, local_tables([path])) if path is not None else None
    if captions == "best" and selection is None:
        raise InputError("--captions best needs a --selection, which says which is best")
    takes_weights = method == "osa" and options.ncu.variant == "published"
    if takes_weights and not (selection and selection.has_weights()):
        reason = (
            "there is no --selection" if selection is None else "those of --selection are all 1"
        )
        raise InputError(
            f"--method osa needs weights, and {reason}: make one with `ncclean select SCORES "
            "--weights osa_weight`, or take them from a frozen copy of the start with --variant "
            "released"
        )
    reads_split = method in ("ncu", "gradient_ascent") and options.ncu.split == "table"
    if reads_split and not (selection and selection.has_forget_set()):
        reason = "there is no --selection" if selection is None else "--selection marks no pair"
        raise InputError(
            f"--split table needs to know which pairs to forget, and {reason}: make one with "
            "`ncclean select SCORES --method ncu --with-forget`"
        )
    return selection
