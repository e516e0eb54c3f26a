"""Ready SQL: further questions about a table, as `ncclean query` commands."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ReadyQuery:
    """A query for tables that have the columns `needs`."""

    title: str
    sql: str
    needs: tuple[str, ...] = ()


READY_QUERIES = (
    ReadyQuery(
        "The pairs most likely to be mismatched",
        "SELECT shard, key, round(similarity, 3) AS similarity,\n"
        "       round(noise_probability, 3) AS noise_probability, left(text, 80) AS caption\n"
        "FROM scores WHERE status = 'ok'\n"
        "ORDER BY noise_probability DESC, similarity LIMIT 20",
        ("noise_probability", "text"),
    ),
    ReadyQuery(
        "The noise rate of every shard, the noisiest first",
        "SELECT shard, count(*) AS pairs, round(avg(noise_probability), 4) AS noise_rate\n"
        "FROM scores WHERE status = 'ok'\n"
        "GROUP BY shard ORDER BY noise_rate DESC, shard",
        ("noise_probability",),
    ),
    ReadyQuery(
        "What could not be scored",
        "SELECT status, error, count(*) AS pairs\n"
        "FROM scores WHERE status <> 'ok'\n"
        "GROUP BY status, error ORDER BY pairs DESC, status, error LIMIT 50",
    ),
    ReadyQuery(
        "Where two rules disagree",
        "SELECT ncu_split, noise_probability >= 0.5 AS mismatched, count(*) AS pairs,\n"
        "       round(avg(similarity), 3) AS similarity\n"
        "FROM scores WHERE status = 'ok' GROUP BY ALL ORDER BY pairs DESC",
        ("noise_probability", "ncu_split"),
    ),
    ReadyQuery(
        "The half of the corpus with the best in-batch-normalised score: its threshold",
        "SELECT quantile_cont(neg_clip_loss, 0.5) AS threshold\nFROM scores WHERE status = 'ok'",
        ("neg_clip_loss",),
    ),
    ReadyQuery(
        "Captions that occur many times",
        "SELECT left(text, 80) AS caption, count(*) AS pairs,\n"
        "       round(avg(noise_probability), 3) AS noise_probability\n"
        "FROM scores WHERE status = 'ok'\n"
        "GROUP BY text HAVING count(*) > 1 ORDER BY pairs DESC, caption LIMIT 20",
        ("text", "noise_probability"),
    ),
    ReadyQuery(
        "Where the truth is known: noisy pairs found and clean pairs lost at one half",
        "SELECT is_noisy, noise_kind, count(*) AS pairs,\n"
        "       round(avg((noise_probability >= 0.5)::INT), 4) AS share_flagged\n"
        "FROM scores WHERE status = 'ok' GROUP BY ALL ORDER BY is_noisy, pairs DESC",
        ("is_noisy", "noise_kind", "noise_probability"),
    ),
)


def threshold_query(condition: str, calibrated: bool) -> str:
    """SQL that counts the pairs a condition keeps, as the report's threshold does."""
    expected = ", round(sum(noise_probability), 1) AS expected_mismatched" if calibrated else ""
    return f"SELECT count(*) AS kept{expected}\nFROM scores WHERE {condition}"


def ready_queries(columns: Collection[str]) -> tuple[ReadyQuery, ...]:
    """Example queries that the table's columns can answer."""
    return tuple(query for query in READY_QUERIES if set(query.needs) <= set(columns))


def command(sql: str, paths: Sequence[str], join: Sequence[str] = ()) -> str:
    """The shell command that runs a query; its SQL needs no escaping in double quotes."""
    joins = [word for table in join for word in ("--join", table)]
    return f'ncclean query "{sql}" {shlex.join([*paths, *joins])}'
