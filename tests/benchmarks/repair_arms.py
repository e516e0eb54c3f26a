"""The rows of the tables of `repair.py`: which objective, on which pairs, from which model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ncclean.training.objectives.bayes import BayesOptions
from ncclean.training.objectives.disncl import DisnclOptions

PATIENT_NOISE = 0.4


@dataclass(frozen=True, kw_only=True)
class Start:
    """A model that arms go on from: trained on a corpus of `noise`, rendered with `corpus_seed`."""

    name: str
    noise: float
    corpus_seed: int


PATIENT = Start(name="patient", noise=PATIENT_NOISE, corpus_seed=0)
NOVICE = Start(name="novice", noise=0.0, corpus_seed=1)


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One row of a table: an objective with options, on all pairs, on a selection or on none."""

    name: str
    method: str | None = "clip"
    options: dict[str, Any] = field(default_factory=dict)
    ncu: dict[str, Any] = field(default_factory=dict)
    selection: str | None = None  # `clean`, `weights` or `split`
    noise: float = PATIENT_NOISE
    start: Start = PATIENT


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all runs share. NCU has `prompt_epochs` of the epochs for its first phase."""

    pairs: int
    start_samples: int
    epochs: int
    prompt_epochs: int
    batch_size: int
    learning_rate: float


DEFAULTS: dict[str, Any] = {
    "pairs": 16_000,
    "start_samples": 200_000,
    "epochs": 2,
    "prompt_epochs": 1,
    "batch_size": 256,
    "learning_rate": 2e-4,
}

REPAIR = (
    Arm(name="patient", method=None),
    Arm(name="clip, noisy pairs"),
    Arm(name="clip, selected pairs", selection="clean"),
    Arm(name="osa", method="osa", selection="weights"),
    Arm(name="gradient_ascent", method="gradient_ascent"),
    Arm(name="softclip", method="softclip"),
    Arm(name="ncu", method="ncu"),
    Arm(name="ncu, textual prefixes (V1)", method="ncu", ncu={"negative": "prefixes"}),
    Arm(name="ncu, largest distance (V2)", method="ncu", ncu={"relation": "distance"}),
    Arm(name="ncu, false negatives only (V3)", method="ncu", ncu={"unlearn": "false_negatives"}),
    Arm(name="ncu, false positives only (V4)", method="ncu", ncu={"unlearn": "false_positives"}),
    Arm(name="clip, clean pairs (oracle)", noise=0.0),
)
# Beyond the papers: who says what to forget, and how much the last column may take.
VARIANTS = (
    Arm(name="ncu, last column by share", method="ncu", ncu={"last_column": "forget_share"}),
    Arm(name="ncu, split by the score table", method="ncu", ncu={"split": "table"},
        selection="split"),
)  # fmt: skip
_NOISES = (0.0, 0.2, 0.4, 0.6)
_ROBUST: dict[str, dict[str, Any]] = {
    "clip": {"method": "clip"},
    "rince": {"method": "rince"},
    "decl": {"method": "decl"},
    "bayes, paper": {"method": "bayes", "options": {"bayes": BayesOptions(mode="paper")}},
    "bayes, strict": {"method": "bayes", "options": {"bayes": BayesOptions(mode="strict")}},
    "bayes, proper prior": {
        "method": "bayes",
        "options": {"bayes": BayesOptions(mode="proper_prior")},
    },
}
ROBUST = (
    Arm(name="novice", method=None, start=NOVICE),
    *(
        Arm(name=f"{name}, {noise:.0%} noise", noise=noise, start=NOVICE, **fields)
        for noise in _NOISES
        for name, fields in _ROBUST.items()
    ),
)
# Table 4 of the Bayesian paper; 10 is the default.
PRIOR = tuple(
    Arm(
        name=f"bayes, paper, negatives' prior {prior}",
        method="bayes",
        options={"bayes": BayesOptions(mode="paper", a_neg=prior)},
        start=NOVICE,
    )
    for prior in (1, 5, 20)
)
_DISNCL: dict[str, dict[str, Any]] = {
    "alignment": {"disentangle": "none", "soften": False},
    "alignment, L_Dis": {"soften": False, "regularize": False},
    "alignment, L_Dis, L_soft": {"regularize": False},
    "alignment, L_Dis, L_soft, L_reg": {},
}
# Heads on the frozen towers, measured in the invariant space.
DISNCL = tuple(
    Arm(
        name=f"{name}, {noise:.0%} noise",
        method="disncl",
        options={"disncl": DisnclOptions(freeze_towers=True, warmup_epochs=2, **terms)},
        noise=noise,
        start=NOVICE,
    )
    for noise in _NOISES
    for name, terms in _DISNCL.items()
)
TABLES = {
    "repair": REPAIR,
    "variants": VARIANTS,
    "robust": ROBUST,
    "prior": PRIOR,
    "disncl": DISNCL,
}
