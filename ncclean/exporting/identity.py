"""The identity of an export, and the files that an export with that identity may write."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from upath import UPath

from ncclean.exporting.card import card_digest, written_card
from ncclean.exporting.journal import lists_in, names_in
from ncclean.exporting.out_layout import TARS, Targets
from ncclean.exporting.plan import ExportTask
from ncclean.exporting.task import ExportOptions
from ncclean.storage.column_names import JoinedFile
from ncclean.storage.differences import differences
from ncclean.storage.file_digests import content_digest

SIZES = "sizes.json"
SCORES = "_scores.parquet"  # joined, for the workers of a cluster
_DERIVED = ("written_shards", "digits", "groups", "card")
_LABELS = {
    "selection": "the selection",
    "fixes": "the decisions of --fix",
    "repeats": "the factor of --repeat",
}
_CONTENTS = {
    "selection": "the selection has",
    "fixes": "the decisions of --fix have",
    "scores": "--scores has",
    "join": "--join has",
}


def export_identity(
    options: ExportOptions, join: Sequence[str], tasks: list[ExportTask], samples_per_shard: int
) -> dict[str, Any]:
    """Return the options and inputs of an export, and the number of its shards."""
    segments, layout = [segment for task in tasks for segment in task.segments], options.layout
    groups = Counter(task.group for task in tasks)
    keys = [one.shard.image_key for one in segments if one.shard.image_key is not None]
    return {
        "selection": options.selection,
        **({"fixes": options.fixes} if options.fixes else {}),
        "samples_per_shard": samples_per_shard,
        "scores": list(options.scores),
        "columns": list(options.columns),
        **({"join": list(join)} if join else {}),  # absent from records older than joins
        "repeats": options.repeats,
        **({"caption_key": options.caption_key} if options.caption_key else {}),
        **({"image_key": keys[0]} if keys else {}),
        **({"layout": layout.to_json()} if layout.name != TARS.name else {}),
        **({"groups": groups} if any(groups) else {}),
        **({"card": card} if (card := card_digest(layout)) is not None else {}),
        "input": _digest([
            (s.shard.name, s.shard.size, s.shard.version, s.first, s.count) for s in segments
        ]),
        "contents": _contents(options, join),
        "written_shards": len(tasks),
        "digits": options.digits,
    }  # fmt: skip


def _contents(options: ExportOptions, join: Sequence[str]) -> dict[str, str]:
    """Digest the exported tables: a corrected caption, or values in another order, change no size.

    Nor do they change the footers, which would be read sooner.
    """
    joined = [JoinedFile.parse(one).path for one in join]
    return {
        "selection": content_digest([options.selection]),
        **({"fixes": content_digest([options.fixes])} if options.fixes else {}),
        **({"scores": content_digest(options.scores)} if options.scores else {}),
        **({"join": content_digest(joined)} if joined else {}),
    }


def compare_exports(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differences between the identities of two exports, without implied ones.

    A layout is described by its name, a file with a digest by its noun only.
    """
    left_out = {*_DERIVED, "input", "layout", "contents"}
    earlier, later = (
        {name: value for name, value in identity.items() if name not in left_out}
        for identity in (before, now)
    )
    layouts = [identity.get("layout") or TARS.to_json() for identity in (before, now)]
    earlier["layout"], later["layout"] = (layout["name"] for layout in layouts)
    clauses = differences(earlier, later, _LABELS)
    if layouts[0] != layouts[1] and earlier["layout"] == later["layout"]:
        clauses.append("the tables of the output are others")
    old, new = (identity.get("contents", {}) for identity in (before, now))
    clauses += [
        f"{noun} other content"
        for name, noun in _CONTENTS.items()
        if old.get(name) != new.get(name) and earlier.get(name) == later.get(name)
    ]
    # Its digest includes the numbers of selected samples.
    if not clauses and before["input"] != now["input"]:
        clauses.append("the input shards have other content")
    return clauses


def files_of(out: UPath, identity: Mapping[str, Any]) -> Iterator[UPath]:
    """Return every file that an export with this identity may write, except its record."""
    targets = Targets.of_json(out, identity)
    yield from targets.data()
    for number in range(identity["written_shards"]):
        yield targets.stats(number)
    yield from targets.tables
    if targets.layout.name == TARS.name:
        yield targets.out / SIZES
    elif targets.has_images:
        for names in lists_in(targets.work):
            yield from (targets.out / name for name in names_in(names, targets.layout))
            yield names
    yield from written_card(targets, identity.get("card"))
    yield targets.work / SCORES


def _digest(values: object) -> str:
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=16).hexdigest()
