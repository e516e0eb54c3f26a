"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the result as one JSON object on stdout.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks and debug messages.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of everything random.", min=0)]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Start again instead of resuming.")
]
RayAddressOption = Annotated[
    str | None, typer.Option(help="`auto`, `HOST:PORT` or `ray://HOST:10001`.")
]
WorkersOption = Annotated[
    int | None, typer.Option(help="Ray workers (default: as many as fit).", min=1)
]
GpusPerWorkerOption = Annotated[
    float | None, typer.Option(help="GPUs of a Ray worker, may be a fraction.", min=0)
]
CpusPerWorkerOption = Annotated[float | None, typer.Option(help="Cores of a Ray worker.", min=0)]
