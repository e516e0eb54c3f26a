"""A policy without the pairs of causes: their conditions become part of its `where`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ncclean.errors import InputError
from ncclean.explaining.cause_table import Cause, check_examples, read_causes
from ncclean.selection.policy import Policy
from ncclean.storage.column_names import JoinedFile
from ncclean.storage.expressions import one_expression
from ncclean.storage.joined import JoinedScores


def without_causes(
    policy: Policy,
    path: str,
    scores: Sequence[str],
    numbers: Sequence[int] = (),
    join: Sequence[str] = (),
) -> Policy:
    """The policy that also drops the pairs of the causes in the table at `path`.

    `numbers` are those of the causes, all if empty; `join` are the tables that are joined to
    `scores`. Raises `InputError` for causes of other scores, for a number that no cause has, and
    for one whose table is not joined or whose condition is not one.
    """
    found = read_causes(path)
    causes = chosen(found, path, numbers)
    joined = {JoinedFile.parse(table).name for table in join}
    conditions = []
    with JoinedScores.open(scores) as table:
        check_examples(found, table.connection, path)
        for cause in causes:
            option = f"{path}: the condition of cause {cause.number}"
            # As DuckDB writes it: without a comment, which would hide what stands behind it.
            conditions.append(one_expression(cause.condition, option))
            if cause.join is not None and JoinedFile.parse(cause.join).name not in joined:
                raise InputError(f"{path}: cause {cause.number} needs --join {cause.join}")
            if not join:  # else it is checked with the others, once they are joined
                table.expression(cause.condition, option, is_condition=True)
    if not causes:
        return policy
    any_of = " OR ".join(f"coalesce(({one}), false)" for one in conditions)
    where = f"NOT ({any_of})"
    if policy.where is not None:
        where = f"({policy.where}) AND {where}"
    return dataclasses.replace(policy, where=where)


def chosen(causes: Sequence[Cause], path: str, numbers: Sequence[int] = ()) -> list[Cause]:
    """The groups with these numbers, or all causes that are not folded into another."""
    if not numbers:
        return [cause for cause in causes if cause.is_cause and cause.folded_into is None]
    by_number = {cause.number: cause for cause in causes}
    for number in numbers:
        if number not in by_number:
            raise InputError(f"{path} has no cause {number}; it has 1 to {len(causes)}")
    return [by_number[number] for number in dict.fromkeys(numbers)]
