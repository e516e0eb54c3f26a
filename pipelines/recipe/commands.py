"""The commands that can be stages: their options, what they read and what they make.

The one list of what a recipe knows. The options are those of the requests (`options.flatten`);
what is said here is what a request does not tell: which options name inputs, where the output
goes, which columns it has, and which options change no result.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ncclean import schema
from ncclean.config import parse_shift
from ncclean.data.selection import COLUMNS as SELECTION_COLUMNS

from ..adapt import AdaptRequest
from ..export import ExportRequest
from ..finetune import FinetuneRequest
from ..neighbours import NeighboursRequest
from ..report import ReportRequest
from ..score import ScoreRequest
from ..select import SelectRequest
from ..synth import SynthRequest
from . import evaluations, stages
from .options import Option, build, flatten
from .outcome import Outcome, Start
from .reports import Reports
from .requests import NoiseEvaluationStage, NoiseInjectionStage

LOCAL_MODEL = "local-dir:"
# Decided by the run: whether a stage goes on or starts again.
_START = ("overwrite", "resume")
_SPEED = frozenset(("workers", "decode_threads", "device", "memory_limit"))
_CLUSTER = frozenset(("engine", "ray_address", "gpus_per_worker", "cpus_per_worker"))


class Reads(Enum):
    """What an option that names an input expects there."""

    SHARDS = "shards"
    TABLE = "table"
    MODEL = "model"
    PATH = "path"
    WEIGHTS = "weights"


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command as a stage.

    `out` is the file of the output in the stage's folder, "" for the folder itself; `reads` are
    the options that name inputs; `inside` the options for which `true` stands for a place in the
    stage's folder; `idle` options change no result; `columns` are those of the table it makes;
    `makes_model` says that the output is a model folder. `clear` removes what a start of the stage
    with other options left, where the pipeline could take it for its own.
    """

    name: str
    request: type
    run: Callable[[Any, Start, Reports], Outcome]
    options: Mapping[str, Option]
    out: str
    reads: Mapping[str, Reads]
    inside: Mapping[str, str] = field(default_factory=dict)
    idle: frozenset[str] = _SPEED
    columns: frozenset[str] | None = None
    makes_model: bool = False
    clear: Callable[[Any], None] | None = None

    def build(self, values: Mapping[str, Any]) -> Any:
        """The request. Raises `InputError` for values that it refuses."""
        threads = {"decode_threads": os.cpu_count() or 1}
        machine = {name: value for name, value in threads.items() if name in self.options}
        if "shift" in values:
            values = {**values, "shift": parse_shift(str(values["shift"]))}
        made = build(self.request, self.options, {**machine, **values})
        return made.request() if isinstance(made, NoiseInjectionStage) else made

    def reference(self, out: str) -> str:
        """What the name of a stage stands for in later ones."""
        return f"{LOCAL_MODEL}{out}" if self.makes_model else out


def _score_columns() -> frozenset[str]:
    return frozenset(schema.SCORES.names)


COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        Command(
            name="synth",
            request=SynthRequest,
            run=stages.run_synth,
            options=flatten(SynthRequest, hidden=_START),
            out="",
            reads={},
        ),
        Command(
            name="inject-noise",
            request=NoiseInjectionStage,
            run=stages.run_inject_noise,
            options=flatten(NoiseInjectionStage),
            out="",
            reads={"shards": Reads.SHARDS},
        ),
        Command(
            name="score",
            request=ScoreRequest,
            run=stages.run_score,
            options=flatten(
                ScoreRequest, {"compiled": "compile", "cluster.address": "ray_address"}, _START
            ),
            out="scores.parquet",
            reads={"shards": Reads.SHARDS, "model": Reads.MODEL, "pretrained": Reads.WEIGHTS},
            inside={"embeddings": "embeddings"},
            idle=_SPEED | _CLUSTER | {"batch_size"},
            columns=_score_columns(),
        ),
        Command(
            name="neighbours",
            request=NeighboursRequest,
            run=stages.run_neighbours,
            options=flatten(NeighboursRequest, hidden=_START),
            out="neighbours.parquet",
            reads={"embeddings": Reads.PATH},
            columns=frozenset(column.name for column in schema.NEIGHBOUR_COLUMNS),
        ),
        Command(
            name="adapt",
            request=AdaptRequest,
            run=stages.run_adapt,
            options=flatten(AdaptRequest),
            out="",
            reads={
                "scores": Reads.TABLE,
                "shards": Reads.SHARDS,
                "model": Reads.MODEL,
                "pretrained": Reads.WEIGHTS,
            },
            makes_model=True,
        ),
        Command(
            name="select",
            request=SelectRequest,
            run=stages.run_select,
            options=flatten(SelectRequest),
            out="selection.parquet",
            reads={"scores": Reads.TABLE, "dedup": Reads.TABLE},
            columns=frozenset(SELECTION_COLUMNS),
        ),
        Command(
            name="export",
            request=ExportRequest,
            run=stages.run_export,
            options=flatten(ExportRequest, hidden=_START),
            out="",
            reads={"selection": Reads.TABLE, "shards": Reads.SHARDS, "scores": Reads.TABLE},
            clear=stages.clear_export_stage,
        ),
        Command(
            name="finetune",
            request=FinetuneRequest,
            run=stages.run_finetune,
            options=flatten(
                FinetuneRequest,
                {
                    "loader.threads": "decode_threads",
                    "cluster.address": "ray_address",
                    "training.ema_decay": "ema",
                    "training.compiled": "compile",
                    "objective.bayes.mode": "bayes_mode",
                    "objective.disncl.warmup_epochs": "alignment_epochs",
                },
                (*_START, "loader.batch_size"),
            ),
            out="",
            reads={
                "shards": Reads.SHARDS,
                "selection": Reads.TABLE,
                "model": Reads.MODEL,
                "pretrained": Reads.WEIGHTS,
            },
            idle=_SPEED
            | _CLUSTER
            | {"save_steps", "save_minutes", "keep", "log_steps", "tensorboard"},
            makes_model=True,
            clear=stages.clear_finetune_stage,
        ),
        Command(
            name="evaluate noise",
            request=NoiseEvaluationStage,
            run=stages.run_evaluate_noise,
            options=flatten(NoiseEvaluationStage),
            out="noise.json",
            reads={"scores": Reads.TABLE, "join": Reads.TABLE},
            inside={"plot": "noise.pdf"},
        ),
        *(
            Command(
                name=f"evaluate {name}",
                request=request,
                run=run,
                options=flatten(request),
                out="",
                reads={"model": Reads.MODEL, "pretrained": Reads.WEIGHTS, "data": Reads.PATH},
                idle=_SPEED | {"batch_size"},
            )
            for name, request, run in (
                ("zeroshot", evaluations.ModelEvaluationStage, evaluations.run_zeroshot),
                ("retrieval", evaluations.ModelEvaluationStage, evaluations.run_retrieval),
                ("linear-probe", evaluations.LinearProbeStage, evaluations.run_linear_probe),
            )
        ),
        Command(
            name="evaluate similarity",
            request=evaluations.SimilarityStage,
            run=evaluations.run_similarity,
            options=flatten(evaluations.SimilarityStage),
            out="",
            reads={
                "model": Reads.MODEL,
                "against": Reads.MODEL,
                "pretrained": Reads.WEIGHTS,
                "data": Reads.PATH,
            },
            inside={"plot": "similarity.pdf"},
            idle=_SPEED | {"batch_size"},
        ),
        Command(
            name="evaluate compare",
            request=evaluations.ComparisonStage,
            run=evaluations.run_compare,
            options=flatten(evaluations.ComparisonStage),
            out="comparison.json",
            reads={"a": Reads.PATH, "b": Reads.PATH},
        ),
        Command(
            name="report",
            request=ReportRequest,
            run=stages.run_report,
            options=flatten(ReportRequest, {"paths": "scores"}, ("made",)),
            out="report.html",
            reads={"scores": Reads.TABLE, "shards": Reads.SHARDS},
            inside={"figures": "figures"},
        ),
    )
}
