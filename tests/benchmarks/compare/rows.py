"""What `compare.study` counts: what rules keep, which copies are found, what a command took."""

from __future__ import annotations

import re
from collections.abc import Iterable

from process import Finished
from records import Row

from compare.corpus import COPIES, Truth

_PROGRESS = re.compile(r"[^\n]*\r")


def kept_row(tool: str, rule: str, kept: Iterable[str], truth: Truth) -> Row:
    """What a rule keeps of the matched and of the mismatched pairs; copies are left out."""
    pairs = {key: facts for key, facts in truth.items() if "copy" not in facts}
    noisy = {key for key, facts in pairs.items() if facts["is_noisy"]}
    kept = set(kept) & pairs.keys()
    return {
        "kind": "kept",
        "tool": tool,
        "rule": rule,
        "pairs": len(pairs),
        "noisy": len(noisy),
        "kept": len(kept),
        "kept_noisy": len(kept & noisy),
    }


def duplicates_row(tool: str, rule: str, flagged: set[str], truth: Truth) -> Row:
    """How many of the known copies are flagged, and how many images that have no copy."""
    copies = {key: facts["copy"] for key, facts in truth.items() if "copy" in facts}
    sources = {facts["copy_of"] for facts in truth.values() if "copy" in facts}
    alone = truth.keys() - copies.keys() - sources
    of_kind = {kind: {key for key in copies if copies[key] == kind} for kind in COPIES}
    return {
        "kind": "duplicates",
        "tool": tool,
        "rule": rule,
        "copies": {kind: [len(keys & flagged), len(keys)] for kind, keys in of_kind.items()},
        "alone": len(alone),
        "alone_flagged": len(flagged & alone),
    }


def cost_of(finished: Finished) -> Row:
    """What a command took. Raises `RuntimeError` for one that failed."""
    if finished.exit:
        raise RuntimeError(f"a peer ended with {finished.exit}:\n{finished.output[-2000:]}")
    return {name: getattr(finished, name) for name in ("seconds", "processor_seconds", "peak_mib")}


def last_line(output: str) -> str:
    """The last line that a command printed, without progress bars and paths."""
    lines = [line.strip() for line in _PROGRESS.sub("", output).splitlines() if line.strip()]
    return re.sub(r"/\S*/", "", lines[-1])[:300] if lines else ""
