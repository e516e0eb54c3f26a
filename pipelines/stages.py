"""The commands that do one thing each; those that are stages make up recipes.

A new command is a module beside this one, and a line here.
"""

from __future__ import annotations

from .adapt import Adapt
from .annotate import Annotate
from .audit import Audit
from .command import Command
from .evaluate_compare import EvaluateCompare
from .evaluate_disentanglement import EvaluateDisentanglement
from .evaluate_judgements import EvaluateJudgements
from .evaluate_models import EvaluateLinearProbe, EvaluateRetrieval, EvaluateZeroshot
from .evaluate_noise import EvaluateNoise
from .evaluate_similarity import EvaluateSimilarity
from .explain import Explain
from .export import Export
from .finetune import Finetune
from .inject_noise import InjectNoise
from .merge import Merge
from .neighbours import Neighbours
from .query import Query
from .report import Report
from .review import Review
from .score import Score
from .select import Select
from .synth import Synth

# In the order of docs/cli.md.
COMMANDS: tuple[type[Command], ...] = (
    Score,
    Merge,
    Annotate,
    Query,
    Audit,
    Review,
    Explain,
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
    EvaluateJudgements,
)
STAGES = {kind.name: kind for kind in COMMANDS if kind.is_stage}
