"""`ncclean neighbours`."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated

import typer

from .errors import command
from .options import JsonOption, QuietOption, SeedOption
from .stages import make_stage_progress

if TYPE_CHECKING:
    from ncclean_pipelines.neighbours import NeighboursSummary


@command(resume_hint="nothing was written; run the same command again")
def neighbours(
    embeddings: Annotated[
        str,
        typer.Argument(
            metavar="EMBEDDINGS", help="Folder that `ncclean score --embeddings` wrote."
        ),
    ],
    out: Annotated[str, typer.Option("--out", "-o", help="Parquet file to write.")],
    image_threshold: Annotated[
        float | None,
        typer.Option(
            help="Cosine from which images are near-duplicates "
            "(default: 0.80 whitened, 0.96 otherwise)."
        ),
    ] = None,
    text_threshold: Annotated[
        float | None,
        typer.Option(
            help="Cosine from which captions are near-duplicates "
            "(default: 0.90 whitened, 0.98 otherwise)."
        ),
    ] = None,
    whiten: Annotated[
        bool | None,
        typer.Option(
            "--whiten/--no-whiten",
            help="Whiten embeddings to find near-duplicates (default: from ten pairs per "
            "dimension on).",
        ),
    ] = None,
    linkage: Annotated[
        str,
        typer.Option(
            help="`representative`: members reach the threshold with the group's first; "
            "`components`: with any member, groups chain."
        ),
    ] = "representative",
    k: Annotated[int, typer.Option("--k", help="Neighbours to search.", min=1, max=1000)] = 30,
    index: Annotated[
        str, typer.Option(help="`flat` (exact), `ivf`, `hnsw`; auto is flat below 100,000 pairs.")
    ] = "auto",
    recall: Annotated[
        float, typer.Option(help="Recall that an approximate search is tuned to, on a sample.")
    ] = 0.95,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT.")] = False,
    seed: SeedOption = 0,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Find near-duplicates and false negatives over the whole corpus.

    One row per pair: the groups of near-duplicates by image, by caption and by both, how many
    other captions and images fit better, whether image and caption are mutual nearest
    neighbours, and LEMoN's disagreement with the neighbours. Joins the score table by uid.

    Example: `ncclean neighbours embeddings/ --out neighbours.parquet`
    """
    from ncclean_pipelines.neighbours import NeighboursRequest
    from ncclean_pipelines.neighbours import neighbours as run

    request = NeighboursRequest(
        embeddings=embeddings,
        out=out,
        image_threshold=image_threshold,
        text_threshold=text_threshold,
        whiten=whiten,
        linkage=linkage,
        k=k,
        index=index,
        recall=recall,
        seed=seed,
        overwrite=overwrite,
    )
    summary = run(request, make_stage_progress(quiet))
    if json_:
        values = summary.to_json().items()
        typer.echo(json.dumps({name: None if _is_nan(v) else v for name, v in values}))
    elif not quiet:
        _print_summary(summary, recall)


def _print_summary(summary: NeighboursSummary, wanted: float) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("pairs", f"{summary.pairs:,}")
    for name, groups, duplicates in (
        ("images", summary.image_groups, summary.image_duplicates),
        ("captions", summary.text_groups, summary.text_duplicates),
        ("pairs, by both", summary.pair_groups, summary.pair_duplicates),
    ):
        table.add_row(f"near-duplicate {name}", f"{duplicates:,} beside the {groups:,} first ones")
    share = summary.mutual_nearest / summary.pairs
    table.add_row("mutual nearest", f"{summary.mutual_nearest:,} ({share:.1%})")
    recalls = {
        "image": summary.image_recall,
        "text": summary.text_recall,
        "image to text": summary.image_to_text_recall,
        "text to image": summary.text_to_image_recall,
    }
    table.add_row("image index", summary.index_image)
    table.add_row("text index", summary.index_text)
    table.add_row("recall", ", ".join(f"{name} {value:.1%}" for name, value in recalls.items()))
    if summary.repeated_uids:
        table.add_row("repeated uids", f"{summary.repeated_uids:,}: join by uid, shard and key")
    table.add_row("time", f"{summary.seconds:,.1f} s")
    table.add_row("written to", summary.out)
    console = Console(highlight=False)
    console.print(table)
    for name, value in recalls.items():
        if value < wanted:
            console.print(
                f"the recall of {name} stays below {wanted:.0%}: try --index hnsw, or flat",
                style="yellow",
                soft_wrap=True,
            )


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
