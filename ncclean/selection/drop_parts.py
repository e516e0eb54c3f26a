"""SQL of `--drop-parts`: which parts of a caption stay, and the caption without the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ncclean.errors import InputError

if TYPE_CHECKING:
    import duckdb

# Columns of the table.
COLUMNS = ("text", "part_starts", "part_noise_probabilities")
# Whether a caption has several parts, with probabilities.
HAS_PARTS = "(len(part_starts) > 1 AND list_any_value(part_noise_probabilities) IS NOT NULL)"
# The kept parts of a caption joined; null if all are kept.
_MENDED = """CASE WHEN len(kept_parts) < len(part_starts) THEN trim(array_to_string(
    list_transform(kept_parts, lambda part: substring(text, part_starts[part] + 1,
    coalesce(part_starts[part + 1], length(text)) - part_starts[part])), ''),
    chr(9) || chr(10) || chr(13) || ' ') END"""


def part_columns(threshold: float | None, noise: str) -> str:
    """Return SQL of the columns `kept_parts`, `parts`, `caption` and `noise_probability`.

    Parts of a caption with a noise probability of at least `threshold` are dropped; with None
    captions stay whole. `kept_parts` are numbers from 1, and null for whole captions. `noise` is
    SQL of the pair's noise probability; if parts stay, it becomes that of the worst of them.
    """
    if threshold is None:
        return (
            "NULL::BIGINT[] AS kept_parts, NULL::BIGINT AS parts, NULL::VARCHAR AS caption, "
            f"{noise} AS noise_probability"
        )
    # If the model cannot tell, nothing is dropped.
    is_kept = f"coalesce(part_noise_probabilities[part] < {threshold!r}, true)"
    kept = "list_transform(kept_parts, lambda part: part_noise_probabilities[part])"
    return (
        f"list_filter(range(1, len(part_starts) + 1), lambda part: {is_kept}) AS kept_parts, "
        f"len(part_starts) AS parts, {_MENDED} AS caption, "
        f"CASE WHEN {HAS_PARTS} AND len(kept_parts) > 0 THEN list_max({kept}) ELSE {noise} END "
        "AS noise_probability"
    )


def check_parts(connection: duckdb.DuckDBPyConnection) -> None:
    """Raise `InputError` if a table has no captions, or no part of one has a noise probability."""
    several, texts, told = connection.execute(
        "SELECT count(*), count(text), "
        "count(*) FILTER (list_any_value(part_noise_probabilities) IS NOT NULL) "
        "FROM scores WHERE status = 'ok' AND len(part_starts) > 1"
    ).fetchall()[0]
    if several > texts:
        raise InputError(
            "--drop-parts needs the captions, and the table has none: score without --no-text"
        )
    if several and not told:
        raise InputError(
            "--drop-parts: no part of a caption has a noise probability. The estimator cannot "
            "tell right sentences from wrong ones, or there are too few captions with several"
        )


def count_mended(connection: duckdb.DuckDBPyConnection, chain: str) -> dict[str, int]:
    """Count the kept captions that lost parts, the parts that they lost, and the parts of all."""
    mended, dropped, parts = connection.execute(
        "SELECT count(*) FILTER (len(kept_parts) < parts), "
        "coalesce(sum(parts - len(kept_parts)), 0), "
        f"coalesce(sum(parts), 0) FROM ({chain}) WHERE reason IS NULL"
    ).fetchall()[0]
    return {"captions_mended": mended, "parts_dropped": dropped, "parts": parts}
