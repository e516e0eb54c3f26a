"""Options of single methods of `ncclean finetune`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ncclean.training.objectives.disncl import DisnclOptions

BayesModeOption = Annotated[
    str,
    typer.Option(
        help="bayes: draw the weights from `paper` (e^cos), `strict` (the logits, as the loss) or "
        "`proper_prior` (e^cos, priors of mean 1)."
    ),
]
MovingAverageOption = Annotated[
    float | None,
    typer.Option(
        help="bayes, decl: share of a pair's u that is kept when it is drawn again (default: "
        "none; decl 0.5).",
        min=0,
        max=1,
    ),
]
FreezeTowersOption = Annotated[
    bool,
    typer.Option(
        "--freeze-towers", help="disncl: train the heads alone, on features computed once."
    ),
]
AlignmentEpochsOption = Annotated[
    int,
    typer.Option(help="disncl: passes of its first phase, which only aligns.", min=0),
]
DisentangleOption = Annotated[
    bool,
    typer.Option("--disentangle/--no-disentangle", help="disncl: with or without L_Dis and L_reg."),
]
DisnclVariantOption = Annotated[
    list[str] | None,
    typer.Option(
        help="disncl: `reverse` (Theorem 3's cross-entropy), `mask-noisy` (noisy candidates leave "
        "the softmax) or `bounded-adversary`. Repeatable."
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other option of the recipe reference, such as `a_neg=20` (bayes). Repeatable.",
    ),
]
_VARIANTS = ("reverse", "mask-noisy", "bounded-adversary")


def disncl_options(
    freeze_towers: bool, warmup_epochs: int, disentangle: bool, variants: list[str] | None
) -> DisnclOptions:
    """What the options say. Raises `InputError` for an unknown variant."""
    from ncclean.errors import InputError
    from ncclean.training.objectives.disncl import DisnclOptions

    chosen = variants or []
    if unknown := [name for name in chosen if name not in _VARIANTS]:
        raise InputError(f"--disncl-variant takes {', '.join(_VARIANTS)}, got {unknown[0]!r}")
    return DisnclOptions(
        freeze_towers=freeze_towers,
        warmup_epochs=warmup_epochs,
        disentangle=disentangle,
        reverse="reverse" in chosen,
        mask_noisy="mask-noisy" in chosen,
        bounded_adversary="bounded-adversary" in chosen,
    )
