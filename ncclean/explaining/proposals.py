"""How causes may be mended: captions shifted back, or a word exchanged for another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb

from ncclean.base.progress import Progress
from ncclean.explaining.candidates import Candidate
from ncclean.explaining.exchanged_words import exchanged
from ncclean.explaining.pairs_file import Values
from ncclean.explaining.shifts import Shift, find_shift, is_ordered, right_cosine
from ncclean.explaining.vectors import read_vectors


@dataclass(frozen=True)
class Proposals:
    """Proposals for causes, by number of the candidate: in words, and the shifts."""

    texts: Mapping[int, str]
    shifts: Mapping[int, Shift]


def propose(
    connection: duckdb.DuckDBPyConnection,
    candidates: Sequence[Candidate],
    group_of: Sequence[int],
    causes: Sequence[int],
    values: Values,
    embeddings: Sequence[str],
    keys: tuple[str, str] | None,
    progress: Progress,
) -> Proposals:
    """Find what mends each cause; shifts only where there are `embeddings` and cosines.

    `group_of` is the number of each candidate's group in the view `members`, `causes` are numbers
    of candidates.
    """
    texts: dict[int, str] = {}
    ordered = {}
    for cause in causes:
        candidate = candidates[cause]
        name, kind = values.outcomes[candidate.outcome].name, candidate.kind
        if candidate.rate is not None:
            texts[cause] = f"{kind.label(candidate.value)} stand for each other"
        elif name == "near miss":
            text = exchanged(connection, group_of[cause], values.of(candidate.outcome))
            if text is not None:
                texts[cause] = text
        elif name == "mismatch" and is_ordered(kind.name, kind.is_by):
            ordered[group_of[cause]] = cause
    shifts = {}
    if ordered and embeddings and _has_cosines(connection):
        progress.say("looking for shifted captions")
        first = candidates[next(iter(ordered.values()))]
        right = right_cosine(connection, values.of(first.outcome))
        wanted = (
            "SELECT member, place, shard, key, caption_number FROM members JOIN pairs USING "
            f"(place) WHERE member IN ({', '.join(map(str, ordered))})"
        )
        vectors = read_vectors(connection, wanted, embeddings, keys)
        for group, arrays in vectors.items():
            shift = find_shift(*arrays, right)
            if shift is not None:
                shifts[ordered[group]] = shift
                texts[ordered[group]] = str(shift)
    return Proposals(texts, shifts)


def _has_cosines(connection: duckdb.DuckDBPyConnection) -> bool:
    return "similarity" in {row[0] for row in connection.execute("DESCRIBE pairs").fetchall()}
