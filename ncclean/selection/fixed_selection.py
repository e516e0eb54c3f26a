"""Apply the decisions of `ncclean explain`, which shift captions back, to a selection.

The view `selected` has the selection, the view `fixes` the decisions, with shard and key. Shifted
captions look wrong, so most policies drop their pairs: those that get the right caption are
selected whatever the policy says, as with `select --decisions`.
"""

from __future__ import annotations

from collections.abc import Collection

import duckdb

from ncclean.data.selection import CAPTION_NUMBER, CAPTION_RANK, MENDED
from ncclean.errors import InputError

# Above the rank of every selected caption.
_LAST_RANK = 30_000


def fixed_selection(columns: Collection[str]) -> str:
    """Return SQL for a selection in which decisions that shift captions back are applied.

    `columns` are the selection's. Pairs whose caption is lost are dropped; pairs that come back
    have weight 1, and their caption ranks after the other captions of its image.
    """
    caption_columns = [name for name in (CAPTION_NUMBER, CAPTION_RANK) if name in columns]
    own = "".join(f", selected.{name}" for name in caption_columns)
    back = "".join(
        f", {CAPTION_NUMBER}" if name == CAPTION_NUMBER else f", {_LAST_RANK} + {CAPTION_NUMBER}"
        for name in caption_columns
    )
    return (
        "SELECT selected.uid, selected.shard, selected.key, selected.weight, selected.split, "
        f"coalesce(fixes.caption, {_mended(columns)}) AS {MENDED}{own} "
        f"FROM selected LEFT JOIN fixes ON {_same_pair(columns)} "
        "WHERE fixes.decision IS DISTINCT FROM 'drop' "
        f"UNION ALL SELECT uid, shard, key, 1, NULL, caption{back} FROM fixes "
        "WHERE decision = 'correct' "
        f"AND NOT EXISTS (SELECT 1 FROM selected WHERE {_same_pair(columns)})"
    )


def check_fixes(
    connection: duckdb.DuckDBPyConnection, columns: Collection[str], selection: str
) -> None:
    """Raise `InputError` if decisions that shift captions back do not fit a selection.

    They are another corpus's, contradict each other on a pair, or the selection already has other
    captions for shifted pairs. img2dataset calls the first shard of every corpus 00000, and its
    first pair 000000000: their uids differ.
    """
    (several,) = connection.execute(
        "SELECT count(*) - count(DISTINCT (shard, key, caption_number)) FROM fixes"
    ).fetchall()[0]
    if several:
        raise InputError(
            "the decisions beside --causes are not those of `ncclean explain`: "
            f"{several:,} are about a pair that another one is about"
        )
    foreign = connection.execute(
        "SELECT fixes.shard, fixes.key, selected.uid, fixes.uid FROM selected JOIN fixes "
        f"ON {_same_pair(columns)} WHERE selected.uid <> fixes.uid LIMIT 1"
    ).fetchall()
    if foreign:
        shard, key, uid, other = foreign[0]
        raise InputError(
            f"the causes are of another corpus than {selection}: sample {key} of {shard} has the "
            f"uid {uid} in the selection, and {other} in the decisions beside --causes"
        )
    (others,) = connection.execute(
        f"SELECT count(*) FROM selected JOIN fixes ON {_same_pair(columns)} "
        f"WHERE fixes.caption <> {_mended(columns)}"
    ).fetchall()[0]
    if others:
        raise InputError(
            f"{selection} already has other captions for {others:,} of the shifted pairs, of "
            "--decisions or --drop-parts: instead of --fix shift, give `ncclean select` the "
            "decisions that `ncclean explain` wrote beside the causes"
        )


def _mended(columns: Collection[str]) -> str:
    return f"selected.{MENDED}::VARCHAR" if MENDED in columns else "NULL::VARCHAR"


def _same_pair(columns: Collection[str]) -> str:
    number = f"selected.{CAPTION_NUMBER}" if CAPTION_NUMBER in columns else "0"
    return (
        "selected.shard = fixes.shard AND selected.key = fixes.key "
        f"AND {number} = fixes.caption_number"
    )
