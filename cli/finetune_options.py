"""Options of single methods of `ncclean finetune`."""

from __future__ import annotations

from typing import Annotated

import typer

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
