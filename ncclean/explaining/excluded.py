"""Exclude causes from a policy: their conditions become part of its `where`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import duckdb

from ncclean.base.schema import SCORES
from ncclean.data import text_signals
from ncclean.errors import InputError
from ncclean.explaining.cause_table import Cause, check_examples, read_causes
from ncclean.explaining.exchanges import Exchanges
from ncclean.explaining.kinds import DERIVED, kinds_of
from ncclean.selection.policy import Policy
from ncclean.storage.column_names import JoinedFile
from ncclean.storage.expressions import one_expression
from ncclean.storage.joined import JoinedScores
from ncclean.storage.sql_tree import is_expression, nodes, parse
from ncclean.storage.tables import say_others

_COLUMNS = frozenset((*SCORES.names, *DERIVED, "language", *text_signals.TYPES))
_PARTS = frozenset(
    ("COLUMN_REF", "CONSTANT", "COMPARISON", "CONJUNCTION", "CAST", "CASE", "OPERATOR", "BETWEEN",
     "FUNCTION", "TYPE")
)  # fmt: skip
# None makes a text longer than its arguments.
_FUNCTIONS = frozenset(
    ("+", "-", "*", "/", "//", "%", "||", "~~", "!~~", "~~*", "!~~*", "->", "->>", "abs",
     "array_extract", "ceil", "coalesce", "contains", "date_part", "date_trunc", "day",
     "element_at", "ends_with", "floor", "greatest", "json_extract", "json_extract_string",
     "least", "left", "len", "length", "list_contains", "list_extract", "lower", "ltrim",
     "map_extract", "month", "nullif", "prefix", "regexp_extract", "regexp_matches", "right",
     "round", "rtrim", "split_part", "starts_with", "strftime", "struct_extract", "substr",
     "substring", "suffix", "trim", "try_strptime", "upper", "year")
)  # fmt: skip


def without_causes(
    policy: Policy,
    path: str,
    scores: Sequence[str],
    numbers: Sequence[int] = (),
    join: Sequence[str] = (),
) -> Policy:
    """Return the policy that also drops the pairs of the causes in the table at `path`.

    `numbers` are those of the causes, all if empty; `join` are the tables joined to `scores`.
    Raises `InputError` for causes of other scores, for a number that no cause has, and for a cause
    whose table is not joined or whose condition is invalid.
    """
    listed = read_causes(path)
    causes = chosen(listed, path, numbers)
    joined = {JoinedFile.parse(table).name for table in join}
    conditions = []
    with JoinedScores.open(scores) as table:
        check_examples(listed, table.connection, path)
        say_others({path: [path]}, scores)
        for cause in causes:
            option = f"{path}: the condition of cause {cause.number}"
            # As DuckDB writes it, without a comment, which would hide what follows it.
            conditions.append(one_expression(cause.condition, option))
            _check_condition(table.connection, cause, option)
            if cause.join is not None and JoinedFile.parse(cause.join).name not in joined:
                raise InputError(f"{path}: cause {cause.number} needs --join {cause.join}")
            if not join:  # else it is checked with the others, after joining
                table.expression(cause.condition, option, is_condition=True)
    if not causes:
        return policy
    any_of = " OR ".join(f"coalesce(({one}), false)" for one in conditions)
    where = f"NOT ({any_of})"
    if policy.where is not None:
        where = f"({policy.where}) AND {where}"
    return dataclasses.replace(policy, where=where)


def _check_condition(connection: duckdb.DuckDBPyConnection, cause: Cause, option: str) -> None:
    """Raise `InputError` for a condition that `explain` does not write.

    A table of causes may be anyone's. For explain's own kinds, the value determines the condition.
    The others, of `--by`, look at one pair, with functions whose values are no longer than the
    pair's own.
    """
    own = {kind.name: kind for kind in (*kinds_of(_COLUMNS), Exchanges().kind)}
    if cause.kind in own:
        try:
            is_ours = own[cause.kind].condition(cause.value) == cause.condition
        except (ValueError, IndexError, KeyError):
            is_ours = False
        wrong = None if is_ours else f"{cause.kind} {cause.value!r} has another one"
    else:
        wrong = _beyond_a_pair(connection, cause.condition)
    if wrong is not None:
        raise InputError(
            f"{option} is not one that `ncclean explain` writes ({wrong}): run it again, or use "
            "the condition as --where if you trust it"
        )


def _beyond_a_pair(connection: duckdb.DuckDBPyConnection, condition: str) -> str | None:
    """Return parts of a condition besides columns, constants, comparisons and simple functions."""
    tree = parse(connection, f"SELECT {condition}")
    if tree is None or not is_expression(tree):
        return "it is not an expression"
    for node in nodes(tree["statements"][0]["node"]["select_list"]):
        kind = node.get("class")
        if kind == "FUNCTION" and str(node["function_name"]).lower() not in _FUNCTIONS:
            return f"it calls {node['function_name']}"
        if kind is not None and kind not in _PARTS:
            return f"it has a {str(kind).lower()}"
    return None


def chosen(causes: Sequence[Cause], path: str, numbers: Sequence[int] = ()) -> list[Cause]:
    """Return the causes with these numbers, each once, or all that are not folded into another.

    Raises `InputError` for a number that no cause of the table at `path` has.
    """
    if not numbers:
        return [cause for cause in causes if cause.is_cause and cause.folded_into is None]
    by_number = {cause.number: cause for cause in causes}
    for number in numbers:
        if number not in by_number:
            raise InputError(f"{path} has no cause {number}; it has 1 to {len(causes)}")
    return [by_number[number] for number in dict.fromkeys(numbers)]
