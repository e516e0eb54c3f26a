"""`ncclean report`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from .errors import SOME_FAILED, command
from .options import JsonOption, QuietOption
from .progress import make_progress

if TYPE_CHECKING:
    from ncclean_pipelines.report import ReportResult


@command()
def report(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Score files, folders, globs or URLs.")
    ],
    out: Annotated[str, typer.Option("--out", "-o", help="The HTML file; may be a URL.")],
    shards: Annotated[
        list[str] | None,
        typer.Option(
            "--shards",
            help="The scored shards, for pictures: a folder, `'quoted glob'`, brace range, "
            "`@list.txt` or URL; may be given several times.",
        ),
    ] = None,
    title: Annotated[
        str | None, typer.Option(help="Title of the page (default: name of the table).")
    ] = None,
    pairs: Annotated[
        int, typer.Option(help="Pairs to show of each group: worst, borderline, best, failed.")
    ] = 24,
    figures: Annotated[
        str | None, typer.Option(metavar="DIR", help="Also write the plots as PDF, PNG and SVG.")
    ] = None,
    memory_limit: Annotated[
        str | None, typer.Option(help="Memory for DuckDB, e.g. `4GB` (default: most of it).")
    ] = None,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Show what a score table says about a corpus, in one HTML file.

    The distributions of the cosines, the noise rate, a threshold to move, the worst, borderline
    and best pairs, the shards, the failures and the overlap of the rules. The file is
    self-contained, smaller than 5 MB, and opens from disk without a network.

    Example: `ncclean report scores.parquet --shards shards/ --out report.html`
    """
    from ncclean_pipelines.report import ReportRequest
    from ncclean_pipelines.report import report as run

    request = ReportRequest(
        paths=paths,
        out=out,
        shards=shards or [],
        title=title,
        pairs=pairs,
        figures=figures,
        memory_limit=memory_limit,
    )
    result = run(request, make_progress(quiet))
    if json_:
        typer.echo(json.dumps(result.to_json()))
    elif not quiet:
        _print_result(result)
    if result.failed_shards:
        raise typer.Exit(SOME_FAILED)


def _print_result(result: ReportResult) -> None:
    from ncclean.report import formats

    counts, facts = result.numbers.counts, result.numbers.facts
    typer.echo(f"{counts.ok:,} of {counts.rows:,} pairs scored")
    if facts.noise_rate is not None:
        interval = ""
        if facts.noise_rate_low is not None and facts.noise_rate_high is not None:
            interval = f" (95 % interval {facts.noise_rate_low:.1%} to {facts.noise_rate_high:.1%})"
        typer.echo(f"noise rate {facts.noise_rate:.1%}{interval}")
    for sentence in result.numbers.missing:
        typer.echo(f"note: {sentence}")
    pictures = result.thumbnails.count if result.thumbnails is not None else 0
    typer.echo(f"{len(result.pairs):,} pairs shown, {pictures:,} with a picture")
    if result.thumbnails is not None and result.thumbnails.missing_shards:
        missing = result.thumbnails.missing_shards
        typer.echo(f"note: {len(missing):,} shards are not among --shards (first: {missing[0]})")
    typer.echo(f"written to {result.out} ({formats.size(result.bytes)})")
    for path in result.figures:
        typer.echo(f"written to {path}")
    for shard, reason in result.failed_shards.items():
        typer.echo(f"failed: {shard}: {reason}")
