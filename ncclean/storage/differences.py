"""Describe the differences between two runs in command-line terms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ncclean.errors import ResumeError

_SHOWN = 5
_LONGEST_VALUE = 80


def differences(
    before: Mapping[str, Any], now: Mapping[str, Any], labels: Mapping[str, str] | None = None
) -> list[str]:
    """Return a clause for each difference between two identities of a run, in order.

    Nested mappings are compared field by field. A list of mappings that have a `name`, such as
    the shards, is compared by name: missing, new, changed, in another order. An absent
    field equals None and an empty list.

    `labels` maps a field's dotted name to its wording; a field without one is named as the option
    of its last name (`options.batch_size` is `--batch-size`), and the fields of a labelled mapping
    follow its label (`--noise ncr`).
    """
    return list(_differences("", None, before, now, labels or {}))


def check_same(place: object, clauses: Sequence[str]) -> None:
    """Raise `ResumeError` if the run that made `place` differs from this one.

    `clauses` are those of `differences`.
    """
    if not clauses:
        return
    raise ResumeError(
        f"{place} was made by another run: {spelled_out(clauses)}",
        ". Use --overwrite to start again, or another --out",
    )


def spelled_out(clauses: Sequence[str]) -> str:
    """Return the first few clauses of `differences`, and the number of the others, as text."""
    more = len(clauses) - _SHOWN
    return "; ".join(clauses[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _differences(
    prefix: str,
    owner: str | None,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    labels: Mapping[str, str],
) -> Iterator[str]:
    for name in dict.fromkeys((*now, *before)):
        dotted = prefix + name
        label = labels.get(dotted)
        old, new = before.get(name), now.get(name)
        if _is_mapping(old, new):
            yield from _differences(f"{dotted}.", label, old or {}, new or {}, labels)
        elif _are_named(old) and _are_named(new) and (old or new):
            yield from _of_named(label or name.removesuffix("s"), old or [], new or [])
        elif not _equal(old, new):
            # Keys that are not names are files.
            option = f"--{name.replace('_', '-')}" if name.isidentifier() else name
            label = label or (f"{owner} {name}" if owner else option)
            yield f"{label} was {_text(old)}, is {_text(new)}"


def _of_named(noun: str, old: Sequence[Any], new: Sequence[Any]) -> list[str]:
    earlier = {item["name"]: item for item in old}
    later = {item["name"]: item for item in new}
    clauses = [f"{noun} {name} is missing now" for name in earlier if name not in later]
    clauses += [f"{noun} {name} is new" for name in later if name not in earlier]
    clauses += [
        f"{noun} {name} is another file, or has changed"
        for name, item in later.items()
        if name in earlier and not _equal(item, earlier[name])
    ]
    if not clauses and list(earlier) != list(later):
        clauses.append(f"the {noun}s are in another order")
    return clauses


def _is_mapping(old: object, new: object) -> bool:
    both = [value for value in (old, new) if value is not None]
    return bool(both) and all(isinstance(value, Mapping) for value in both)


def _are_named(value: object) -> bool:
    items = value if isinstance(value, list) else [value]
    return value is None or all(isinstance(item, Mapping) and "name" in item for item in items)


def _equal(old: object, new: object) -> bool:
    if _is_absent(old) or _is_absent(new):
        return _is_absent(old) and _is_absent(new)
    return old == new or (old != old and new != new)  # NaN is NaN


def _is_absent(value: object) -> bool:
    return value is None or value == [] or value == {}


def _text(value: object) -> str:
    if _is_absent(value) or value == "":
        return "not set"
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."
