"""The list of shards of a scoring run, which later commands may change.

A record begins with the first list. A command over another one adds a line with what it changes, so
that a corpus of 100,000 shards can grow by a few each day without a copy of the whole list. Shards
are compared without the secrets of their URLs, which a record does not have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ncclean.data.shards import ShardRef


@dataclass(frozen=True)
class ListChange:
    """The change from a list of shards to another one.

    `refs` are the shards by number that are new or described anew, `new` the names of the new ones,
    `dropped` the numbers of those that leave, by name. `order` is the whole list as ranges of
    numbers, first and one past the last.
    """

    refs: Mapping[int, ShardRef]
    new: Sequence[str]
    dropped: Mapping[str, int]
    order: Sequence[tuple[int, int]]

    def counts(self) -> str:
        """The change of the list in words, such as how many shards are new; empty if none."""
        if not self.new and not self.dropped:
            return ""
        kept = sum(stop - first for first, stop in self.order) - len(self.new)
        dropped = f", {len(self.dropped):,} dropped" if self.dropped else ""
        new = f"{len(self.new):,} new shard{'s' * (len(self.new) != 1)}"
        return f"{new}, {kept:,} kept{dropped}"

    def to_json(self) -> dict[str, Any]:
        return {
            "refs": [{"number": n, **ref.to_json()} for n, ref in self.refs.items()],
            "new": list(self.new),
            "dropped": dict(self.dropped),
            "order": [list(span) for span in self.order],
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ListChange:
        refs = {
            ref["number"]: ShardRef(**{name: ref[name] for name in ref if name != "number"})
            for ref in fields["refs"]
        }
        order = [(first, stop) for first, stop in fields["order"]]
        return cls(refs, fields["new"], fields["dropped"], order)


class ShardList:
    """The shards in the order of the table, each with a number.

    A shard keeps its number whatever comes or goes, and no other shard ever gets it: it names the
    shard's embeddings. `digits` is how wide numbers are written, by the length of the first list;
    longer ones are longer. `left` are dropped shards whose files may still be there.
    """

    def __init__(self, first: Sequence[ShardRef]) -> None:
        self.digits = len(str(max(len(first) - 1, 0)))
        self.left: dict[int, ShardRef] = {}
        self._refs = dict(enumerate(ref.recorded() for ref in first))  # by number, in order
        self._next = len(first)

    @property
    def shards(self) -> list[ShardRef]:
        return list(self._refs.values())

    @property
    def numbers(self) -> dict[str, int]:
        """Number of each shard by name."""
        return {ref.name: number for number, ref in self._refs.items()}

    def refusals(
        self,
        shards: Sequence[ShardRef],
        finished: Mapping[str, tuple[int, str]],
        drop_missing: bool,
    ) -> list[str]:
        """Reasons why the list of shards must not change to `shards`, a clause for each.

        `finished` are the sizes and versions of the shards whose rows are kept.
        """
        numbers, names = self.numbers, {shard.name for shard in shards}
        missing = {s.url: s.name for s in self._refs.values() if s.name not in names}
        clauses = []
        for shard in (shard.recorded() for shard in shards):
            if shard.name not in numbers and shard.url in missing:
                clauses.append(
                    f"shard {missing.pop(shard.url)} is called {shard.name} now, since another "
                    "one has its file name"
                )
            elif finished.get(shard.name, (shard.size, shard.version)) != (
                shard.size,
                shard.version,
            ):
                clauses.append(f"shard {shard.name} has changed since it was scored")
        if missing and not drop_missing:
            first, *others = missing.values()
            more = f", and {len(others):,} more" if others else ""
            clauses.append(
                f"shard {first} is missing now{more} (`score --drop-missing` takes what is missing "
                "out of the table)"
            )
        return clauses

    def change_to(self, shards: Sequence[ShardRef]) -> ListChange | None:
        """The shards to add and remove to change the list to `shards`; None if they are equal."""
        shards = [shard.recorded() for shard in shards]
        if shards == self.shards:
            return None
        numbers = self.numbers
        new = [shard.name for shard in shards if shard.name not in numbers]
        numbers.update({name: self._next + place for place, name in enumerate(new)})
        refs = {numbers[shard.name]: shard for shard in shards}
        return ListChange(
            refs={number: ref for number, ref in refs.items() if self._refs.get(number) != ref},
            new=new,
            dropped={name: number for name, number in numbers.items() if number not in refs},
            order=_ranges(list(refs)),
        )

    def apply(self, change: ListChange) -> None:
        refs = self._refs | dict(change.refs)
        self.left |= {number: refs[number] for number in change.dropped.values()}
        self._refs = {n: refs[n] for first, stop in change.order for n in range(first, stop)}
        self._next = max(self._next, *(number + 1 for number in refs)) if refs else self._next

    def share(self, shards: Sequence[ShardRef]) -> None:
        """Hold these objects, equal to those of the list but for secrets in URLs."""
        self._refs = dict(zip(self._refs, shards, strict=True))


def _ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number:
            spans[-1] = spans[-1][0], number + 1
        else:
            spans.append((number, number + 1))
    return spans
