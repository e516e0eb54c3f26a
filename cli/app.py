"""The `ncclean` command: parses options, shows progress and results; no logic of its own."""

from __future__ import annotations

import os
import sys

import typer

from .adapt import adapt
from .demo import demo
from .errors import set_up_logging
from .evaluate import evaluate
from .export import export
from .finetune import finetune
from .inject_noise import inject_noise
from .neighbours import neighbours
from .options import DebugOption
from .query import query
from .report import report
from .run import run
from .score import score
from .select import select
from .synth import synth

app = typer.Typer(
    name="ncclean",
    help="Find the mismatched pairs of an image-text corpus, and repair what they did to a model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
# One line each: longer first sentences of the docstrings would be cut off.
for function, summary in (
    (run, "Run a recipe, from raw shards to a repaired model."),
    (score, "Score every pair of webdataset shards into Parquet."),
    (query, "Ask DuckDB about score tables."),
    (select, "Decide which pairs to keep, and with what weight."),
    (export, "Write the selected samples as shards, byte for byte."),
    (neighbours, "Find near-duplicates and false negatives."),
    (adapt, "Warm an estimator up on strictly clean pairs."),
    (finetune, "Train or repair a CLIP model on selected pairs."),
    (report, "Show a score table as one HTML file."),
    (synth, "Render a corpus with known noise, and held-out sets."),
    (inject_noise, "Write shards with known noise."),
):
    app.command(short_help=summary)(function)
app.add_typer(evaluate)
app.command(short_help="See all of it work on a rendered corpus.")(demo)


def _version(value: bool) -> None:
    if value:
        from ncclean import __version__

        typer.echo(f"ncclean {__version__}")
        raise typer.Exit()


@app.callback()
def common(
    debug: DebugOption = False,
    version: bool = typer.Option(
        False, "--version", help="Print the version.", callback=_version, is_eager=True
    ),
) -> None:
    set_up_logging(debug)


def main() -> None:
    # Decoding threads and the model share the cores. OpenMP's workers wait for one another by
    # spinning, for so long that on a busy machine they take most of the time from those they
    # wait for (measured: 3 to 12 times slower). Read when torch is loaded, hence here.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    arguments = sys.argv[1:]
    if "--debug" in arguments:  # wherever it was written
        arguments.remove("--debug")
        sys.argv[1:] = ["--debug", *arguments]
    app()
