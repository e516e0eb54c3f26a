"""`ncclean select`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from .errors import command
from .options import JsonOption, QuietOption

if TYPE_CHECKING:
    from ncclean.selection.select import SelectionSummary


@command()
def select(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Score files, folders, globs or URLs.")
    ],
    out: Annotated[str, typer.Option("--out", "-o", help="Selection, a Parquet file.")],
    where: Annotated[
        str | None, typer.Option(help="SQL condition over the columns of the table.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Rule: `osa`, `ncu`, `disncl` or `noise-probability`.")
    ] = None,
    score: Annotated[
        str | None, typer.Option(help="Column for --keep-fraction or --threshold.")
    ] = None,
    keep_fraction: Annotated[
        float | None, typer.Option(help="Keep this share, the best by --score.", min=0, max=1)
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="Worst --score to keep; for `noise-probability` what to stay below."),
    ] = None,
    lowest: Annotated[
        bool,
        typer.Option("--lowest", help="Less of --score is cleaner (known columns: automatic)."),
    ] = False,
    weights: Annotated[
        str | None, typer.Option(help="Column of the weights (default: 1; osa: osa_weight).")
    ] = None,
    dedup: Annotated[
        str | None, typer.Option(help="Table of `ncclean neighbours`: keep one of each group.")
    ] = None,
    dedup_by: Annotated[
        str | None, typer.Option(help="Groups by `image`, `text` or `both` [default: both].")
    ] = None,
    with_forget: Annotated[
        bool, typer.Option("--with-forget", help="Keep NCU's forget set, marked in `split`.")
    ] = False,
    memory_limit: Annotated[
        str | None, typer.Option(help="Memory that DuckDB may take, such as `4GB`.")
    ] = None,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Decide which pairs to keep, and with what weight.

    The filters apply in this order: status, --where, --dedup, --method, --score. Ties are broken
    by uid, so the same table gives the same selection. Prints what was dropped and why, and how
    many mismatched pairs to expect among the kept ones.

    Example: `ncclean select scores.parquet --method noise-probability --out clean.parquet`
    """
    from ncclean_pipelines.select import SelectRequest
    from ncclean_pipelines.select import select as run

    from ncclean.selection.policy import Policy

    policy = Policy(
        where=where,
        method=method,
        score=score,
        keep_fraction=keep_fraction,
        threshold=threshold,
        weights=weights,
        lowest=lowest,
        dedup_by=dedup_by,
        with_forget=with_forget,
    )
    summary = run(
        SelectRequest(scores=paths, out=out, policy=policy, dedup=dedup, memory_limit=memory_limit)
    )
    if json_:
        typer.echo(json.dumps(summary.to_json()))
    elif not quiet:
        _print(summary)


def _print(summary: SelectionSummary) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("pairs", justify="right")
    table.add_column("share", justify="right")
    table.add_column("expected mismatched", justify="right")

    def row(name: str, pairs: int, expected: float | None = None, style: str = "") -> None:
        share = f"{pairs / summary.rows:.1%}" if summary.rows else "-"
        wrong = f"{expected:,.0f}" if expected is not None else ""
        table.add_row(name, f"{pairs:,}", share, wrong, style=style)

    row("kept", summary.kept, summary.expected_mismatched_kept, style="bold")
    if summary.forget:
        row("  in NCU's forget set", summary.forget)
    row("dropped", summary.dropped, summary.expected_mismatched_dropped)
    for reason, count in summary.dropped_by_reason.items():
        row(f"  {reason}", count)
    console = Console(highlight=False)
    console.print(table)
    if summary.weight_sum != summary.kept:
        mean = summary.weight_sum / summary.kept if summary.kept else 0.0
        console.print(f"weights sum to {summary.weight_sum:,.1f}, mean {mean:.4f}")
    if not summary.kept:
        console.print("nothing is kept: the selection is empty", style="red")
    console.print(f"written to {summary.out}", soft_wrap=True)
