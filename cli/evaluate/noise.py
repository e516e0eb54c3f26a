"""`ncclean evaluate noise`."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import command
from ..options import JsonOption, QuietOption

if TYPE_CHECKING:
    from ncclean.evaluation.noise_evaluation import NoiseEvaluation


@command()
def noise(
    scores: Annotated[
        list[str], typer.Argument(metavar="SCORES", help="Score files, folders or globs.")
    ],
    column: Annotated[
        list[str] | None,
        typer.Option(help="Evaluate this column too; higher is noisier. Repeatable."),
    ] = None,
    lower_is_noisier: Annotated[
        list[str] | None,
        typer.Option(help="Evaluate this column too; lower is noisier. Repeatable."),
    ] = None,
    join: Annotated[
        list[str] | None,
        typer.Option(help="Table with more columns, joined by uid, e.g. of `neighbours`."),
    ] = None,
    threshold: Annotated[
        list[str] | None,
        typer.Option(help="Judge a column at another value: `similarity=0.25`. Repeatable."),
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(help="SQL that is true for a pair to flag; evaluated too. Repeatable."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the figure to this `.png`, `.svg` or `.pdf`.")
    ] = None,
    memory_limit: Annotated[
        str | None, typer.Option(help="Bound on DuckDB's memory, for example `4GB`.")
    ] = None,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compare scores and rules with the truth: what was found of each kind of noise.

    The table must come from shards that carry the truth (`is_noisy`, `noise_kind` in the json), as
    `inject-noise` and `synth` write them. A kind of noise is judged against the clean pairs, with
    pairs of other kinds left out.

    Example: `ncclean evaluate noise scores.parquet --plot noise.pdf`
    """
    from ncclean_pipelines.evaluate_noise import (
        NoiseEvaluationRequest,
        evaluate_noise,
        parse_thresholds,
    )

    from ncclean.evaluation.noise_scores import NoiseScore

    if plot is not None:
        from ncclean.evaluation.noise_figure import check_format

        check_format(plot)
    request = NoiseEvaluationRequest(
        scores=scores,
        joined=join or [],
        columns=[
            *(NoiseScore(name, True) for name in column or []),
            *(NoiseScore(name, False) for name in lower_is_noisier or []),
        ],
        rules=rule or [],
        thresholds=parse_thresholds(threshold or []),
        memory_limit=memory_limit,
    )
    found = evaluate_noise(request)
    if plot is not None:
        from ncclean.evaluation.noise_figure import save_figure

        save_figure(found.evaluation, found.figures, plot)
    if json_:
        typer.echo(json.dumps(_without_nan(dataclasses.asdict(found.evaluation))))
    elif not quiet:
        _print(found.evaluation)
        if plot is not None:
            typer.echo(f"figure written to {plot}")


_LEAST_WIDTH = 96


def _without_nan(value: Any) -> Any:
    """NaN and infinity have no JSON."""
    if isinstance(value, dict):
        return {name: _without_nan(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _print(found: NoiseEvaluation) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if console.width < _LEAST_WIDTH:
        console.width = _LEAST_WIDTH  # lines that the terminal breaks, rather than figures cut off
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in found.noisy.items())
    console.print(f"{found.clean:,} clean pairs; noisy: {kinds or 'none'}")
    if found.unscored:
        console.print(f"{found.unscored:,} pairs with a truth have no scores")
    if found.unknown:
        console.print(f"{found.unknown:,} pairs without a truth are left out")

    def table(title: str, *heads: str) -> Table:
        made = Table(
            *heads,
            title=f"\n{title}",
            title_justify="left",
            title_style="bold",
            box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            show_edge=False,
        )
        for each in made.columns:
            each.no_wrap = True
            each.justify = "left" if each is made.columns[0] else "right"
        return made

    for number, kind in enumerate(kind.kind for kind in found.scores[0].kinds):
        noisy = found.scores[0].kinds[number].noisy
        title = "All noise" if number == 0 else kind
        shown = table(
            f"{title} ({noisy:,} pairs) against clean pairs",
            *("score", "AUROC", "AP", "acc.", "prec.", "recall", "F1", "kept", "rank", "best"),
        )
        for score in found.scores:
            one = score.kinds[number]
            report = one.report
            shown.add_row(
                score.column,
                f"{report.auroc:.3f}",
                f"{report.average_precision:.3f}",
                *(_percent(v) for v in (report.accuracy, report.precision, report.recall)),
                *(_percent(v) for v in (report.f1, report.clean_kept)),
                f"{one.mean_noise_rank:,.0f}",
                f"{one.optimal_noise_rank:,.0f}",
            )
        console.print(shown)
        if number == 0:
            console.print(
                "kept: share of the clean pairs that is not flagged; rank: mean rank of the noisy "
                "pairs, best: what it can be at most",
                style="dim",
            )
        if len(found.scores[0].kinds) == 2:
            break  # one kind: the same figures again
    points = table("Operating points of the scores", "score", "flags", "threshold", "best F1 at")
    for score in found.scores:
        points.add_row(
            score.column,
            score.flags,
            score.threshold_source.removeprefix("the ").split(",")[0],
            f"{score.kinds[0].best_threshold:.4g} ({score.kinds[0].best_f1:.1%})",
        )
    console.print(points)
    names = list(found.noisy)
    rules = table(
        "Rules: clean pairs kept, noisy pairs caught",
        *("rule", "clean kept", "all noise", *names, "prec.", "flagged"),
    )
    for rule in found.rules:
        rules.add_row(
            rule.rule,
            _percent(rule.clean_kept),
            *(_percent(rule.noise_caught[name]) for name in ("all", *names)),
            _percent(rule.precision),
            f"{rule.flagged:,}",
        )
    if found.rules:
        console.print(rules)
    _print_calibration(found, table, console)


def _print_calibration(found: NoiseEvaluation, table: Any, console: Any) -> None:
    fit = found.calibration
    if fit is None:
        return
    bins = table("Calibration of noise_probability", "probability", "pairs", "mean", "share noisy")
    for each in fit.bins:
        bins.add_row(
            f"{each.low:.1f} to {each.high:.1f}",
            f"{each.pairs:,}",
            f"{each.predicted:.3f}" if each.pairs else "-",
            f"{each.observed:.3f}" if each.pairs else "-",
        )
    console.print(bins)
    for name, side in (("kept (below 0.5)", fit.kept), ("dropped (0.5 and above)", fit.dropped)):
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in side.by_kind.items())
        console.print(
            f"{name}: {side.pairs:,} pairs, {side.expected:,.1f} expected to be mismatched, "
            f"{side.noisy:,} noisy in truth ({kinds or 'none'})"
        )
    console.print(f"mean calibration error {fit.expected_error:.3f}, Brier score {fit.brier:.3f}")


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{share:.1%}"
