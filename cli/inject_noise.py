"""`ncclean inject-noise`."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from .errors import SOME_FAILED, command
from .options import JsonOption, OverwriteOption, QuietOption, SeedOption
from .progress import make_progress

if TYPE_CHECKING:
    from ncclean_pipelines.inject_noise import NoiseSummary


@command(resume_hint="run the same command again to resume; finished shards are kept")
def inject_noise(
    out: Annotated[str, typer.Option("--out", "-o", help="Folder of the new shards.")],
    shards: Annotated[
        list[str],
        typer.Argument(
            metavar="SHARDS",
            help="Shards, folders, globs, brace ranges `{0000..0099}.tar`, `@list.txt` or URLs.",
        ),
    ],
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="`ncr`, `decl`, `per_batch`, `hard` or `junk`; repeatable, each with its --rate."
        ),
    ] = None,
    rate: Annotated[
        list[float] | None,
        typer.Option(help="Share of the scorable pairs for the --kind of the same place."),
    ] = None,
    noise: Annotated[
        list[str] | None,
        typer.Option(help="Kinds with their rates in one: `ncr=0.2,hard=0.05`."),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(help="Pairs that `per_batch` permutes among themselves.", min=2)
    ] = 128,
    caption_key: Annotated[
        str | None,
        typer.Option(
            help="Extension or json field of the caption (default: `.txt`, `.caption`, json)."
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Processes (default: one per core, fewer for small inputs).", min=1),
    ] = None,
    overwrite: OverwriteOption = False,
    seed: SeedOption = 0,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write shards with known noise, to measure how well it is found.

    Permutes captions (`ncr`, `per_batch`) or images (`decl`), changes one word of captions
    (`hard`) or replaces them by boilerplate (`junk`). The shards keep their names and order, their
    members are copied byte for byte but for what the noise changes. The truth is in each sample's
    json: `is_noisy` and `noise_kind`. Interrupted runs resume.

    Example: `ncclean inject-noise shards/ --out noisy/ --kind ncr --rate 0.2`
    """
    from ncclean_pipelines.inject_noise import NoiseRequest
    from ncclean_pipelines.inject_noise import inject_noise as run

    from ncclean.data.noise import parse_rates

    request = NoiseRequest(
        shards=shards,
        out=out,
        rates=parse_rates(kind or [], rate or [], noise or []),
        seed=seed,
        batch_size=batch_size,
        caption_key=caption_key,
        workers=workers,
        overwrite=overwrite,
    )
    summary = run(request, make_progress(quiet, "write"))
    if json_:
        typer.echo(json.dumps(dataclasses.asdict(summary)))
    elif not quiet:
        _print(summary)
    if summary.shards_failed:
        raise typer.Exit(SOME_FAILED)


def _print(summary: NoiseSummary) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table("kind", "drawn", "noisy", "left in place", "same content", title=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for kind, drawn in summary.planned.items():
        stayed = summary.left_in_place.get(kind, 0)
        cells = (drawn, summary.noisy[kind], stayed, summary.unchanged[kind])
        table.add_row(kind, *(f"{cell:,}" for cell in cells))
    console.print(table)
    noisy = sum(summary.noisy.values()) + summary.already_noisy
    share = f" ({noisy / summary.pairs:.1%})" if summary.pairs else ""
    console.print(f"{noisy:,} of {summary.pairs:,} scorable pairs are noisy{share}")
    if summary.already_noisy:
        console.print(f"{summary.already_noisy:,} of them were in the input")
    for kind, missing in summary.shortage.items():
        console.print(
            f"{missing:,} pairs too few for {kind}: no word of the other captions can be changed",
            style="yellow",
        )
    if summary.json_replaced:
        console.print(f"{summary.json_replaced:,} jsons could not be parsed and were replaced")
    speed = f" ({summary.samples_per_second:,.0f}/s)" if summary.samples_per_second else ""
    console.print(
        f"{summary.samples:,} samples in {summary.shards:,} shards "
        f"({summary.shards_failed:,} failed) in {summary.out}{speed}"
    )
    for shard, reason in summary.failed_shards.items():
        console.print(f"failed: {shard}: {reason}", style="red", soft_wrap=True)
