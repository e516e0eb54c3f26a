"""All commands. A new one is a module beside this one, and a line here."""

from __future__ import annotations

from .adapt import Adapt
from .audit import Audit
from .clean import Clean
from .command import Command
from .demo import Demo
from .evaluate_compare import EvaluateCompare
from .evaluate_disentanglement import EvaluateDisentanglement
from .evaluate_models import EvaluateLinearProbe, EvaluateRetrieval, EvaluateZeroshot
from .evaluate_noise import EvaluateNoise
from .evaluate_similarity import EvaluateSimilarity
from .evaluate_weights import EvaluateWeights
from .export import Export
from .finetune import Finetune
from .inject_noise import InjectNoise
from .merge import Merge
from .neighbours import Neighbours
from .query import Query
from .report import Report
from .run import Run
from .score import Score
from .select import Select
from .synth import Synth

# In the order of docs/cli.md.
COMMANDS: dict[str, type[Command]] = {
    kind.name: kind
    for kind in (
        Clean,
        Run,
        Score,
        Merge,
        Query,
        Audit,
        Select,
        Export,
        Neighbours,
        Adapt,
        Finetune,
        Report,
        Synth,
        InjectNoise,
        EvaluateNoise,
        EvaluateZeroshot,
        EvaluateRetrieval,
        EvaluateLinearProbe,
        EvaluateCompare,
        EvaluateSimilarity,
        EvaluateDisentanglement,
        EvaluateWeights,
        Demo,
    )
}
STAGES = {name: kind for name, kind in COMMANDS.items() if kind.is_stage}
