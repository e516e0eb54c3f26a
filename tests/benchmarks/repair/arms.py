"""The tables of `repair.study`: which arms, on corpora with which noise, from which model.

NCU and gradient ascent forget as much as is noisy in truth, unless an arm says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from arms import CLEAN, CLIP_ON_ALL, ORACLE, SELECTED, WEIGHTED, Arm, Training
from torch import Tensor

from ncclean.training.objectives.base import GlobalBatch, LossObjective, Objective, Terms
from ncclean.training.objectives.clip import clip_loss
from ncclean.training.objectives.ncu import forget_split
from ncclean.training.objectives.options import BayesOptions, DisnclOptions

Start = Literal["noisy", "clean", "bundled"]
# The share of the first phase, which learns NCU's prompt: by default half of the steps.
HALF, FIFTH = {"prompt_epochs": 1, "epochs": 1}, {"prompt_epochs": 1, "epochs": 4}


_TRAINING = Training(steps=125, batch_size=256, learning_rate=2e-4, precision="auto")


@dataclass(frozen=True, kw_only=True)
class Table:
    """The arms; the noise of their corpora, each a mapping of kinds to shares; where all start.

    `noisy` starts have learnt the corpus as it is, `clean` ones another corpus without noise.
    `bundled` is `demo-noisy`, which has learnt the noisy corpus 0: seeds begin with `first_seed`.
    """

    arms: tuple[Arm, ...]
    noises: tuple[Mapping[str, float], ...] = ({"ncr": 0.4},)
    start: Start = "noisy"
    first_seed: int = 0
    pairs: int = 16_000
    start_samples: int = 200_000
    held_out: int = 1000  # images of each held-out set
    training: Training = _TRAINING


def _left_out(objective: Objective) -> Objective:
    """The control of forgetting: what NCU would forget is left out of the CLIP loss."""
    percent = objective.options.forget_percent

    def terms(image: Tensor, text: Tensor, scale: Tensor, _: GlobalBatch) -> Terms:
        kept = ~forget_split(image.detach(), text.detach(), scale.detach(), percent)
        return {"contrastive": clip_loss(image[kept], text[kept], scale)}

    return LossObjective("left out", objective.phases, terms)


def _first_phase(objective: Objective) -> Objective:
    objective.phases = objective.phases[:1]
    return objective


def _ncu(name: str, *, epochs: Mapping[str, int] = HALF, **ncu: Any) -> Arm:
    return Arm(name=name, method="ncu", options=epochs, ncu=ncu)


def _rematched(percent: float) -> Arm:
    """Forgotten pairs are matched anew with other captions; no prompt, all steps unlearn."""
    return _ncu(f"rematched, forget {percent:g} %", negative="none", forget_percent=percent)


CONTROLS = (Arm(name=CLIP_ON_ALL), Arm(name=ORACLE, policy=CLEAN))
_BY_ITSELF = Arm(name="osa, weights by itself", method="osa", policy=WEIGHTED, judge="itself")
REPAIR = (
    *CONTROLS,
    Arm(name="clip, selected", policy=SELECTED),
    Arm(name="clip, selected by itself", policy=SELECTED, judge="itself"),
    Arm(name="osa", method="osa", policy=WEIGHTED),
    _BY_ITSELF,
    Arm(name="softclip", method="softclip"),
    Arm(name="gradient_ascent", method="gradient_ascent"),
    _ncu("ncu"),
    replace(_ncu("ncu, first phase alone"), change=_first_phase),
    _ncu("ncu, nothing to forget", forget_percent=0.0),
    _ncu("ncu, textual prefixes (V1)", negative="prefixes"),
    _ncu("ncu, largest distance (V2)", relation="distance"),
    _ncu("ncu, false negatives only (V3)", unlearn="false_negatives"),
    _ncu("ncu, false positives only (V4)", unlearn="false_positives"),
    Arm(name="clip, captions put right", corpus="clean"),
)
# Where does forgetting pay? For those who have no estimator but the model itself.
FORGETTING = (
    *CONTROLS,
    _BY_ITSELF,
    _ncu("ncu, a fifth for the prompt, forget 0 %", epochs=FIFTH, forget_percent=0.0),
    _ncu("ncu, a fifth for the prompt, forget 40 %", epochs=FIFTH, forget_percent=40.0),
    _rematched(0),
    _rematched(40),
    replace(_rematched(40), name="left out, 40 %", change=_left_out),
)
ROBUST = (
    *CONTROLS,
    Arm(name="rince", method="rince"),
    Arm(name="decl", method="decl"),
    Arm(name="bayes, paper", method="bayes"),
)
# Table 4 of the Bayesian paper; 10 is the default.
PRIOR = (
    CONTROLS[0],
    *(
        Arm(
            name=f"bayes, paper, a_neg = {a_neg:g}",
            method="bayes",
            options={"bayes": BayesOptions(a_neg=a_neg)},
        )
        for a_neg in (1.0, 5.0, 10.0, 20.0)
    ),
)
_DISNCL: dict[str, dict[str, Any]] = {
    "disncl: alignment alone": {"disentangle": "none", "soften": False},
    "+ L_Dis": {"soften": False, "regularize": False},
    "+ L_Dis + L_soft": {"regularize": False},
    "+ L_Dis + L_soft + L_reg": {},
}
# Heads on the frozen towers, measured in the invariant space: two passes of alignment, four of all.
DISNCL = tuple(
    Arm(
        name=name,
        method="disncl",
        options={
            "disncl": DisnclOptions(freeze_towers=True, warmup_epochs=1, **terms), "epochs": 2
        },
    )
    for name, terms in _DISNCL.items()
)  # fmt: skip
_RELEASED = {"variant": "released"}
RELEASED = (
    *CONTROLS,
    _ncu("ncu, published", epochs=FIFTH),
    _ncu("ncu, released", epochs=FIFTH, **_RELEASED),
    replace(_BY_ITSELF, name="osa, published"),
    Arm(name="osa, released", method="osa", ncu=_RELEASED),
)
_NOISES = ({}, {"ncr": 0.2}, {"ncr": 0.4}, {"ncr": 0.6})
# From a model that has learnt clean pairs, one pass over others.
_NOVICE: dict[str, Any] = {
    "start": "clean", "start_samples": 100_000,
    "training": replace(_TRAINING, batch_size=128),
}  # fmt: skip
TABLES = {
    "repair": Table(arms=REPAIR),
    "forgetting": Table(arms=FORGETTING, training=replace(_TRAINING, steps=62)),  # one pass
    "released": Table(
        arms=RELEASED,
        start="bundled",
        first_seed=1,
        pairs=4_000,
        held_out=500,
        training=replace(_TRAINING, steps=60, batch_size=128),
    ),
    "robust": Table(arms=ROBUST, noises=_NOISES, **_NOVICE),
    "prior": Table(arms=PRIOR, noises=_NOISES[2:3], **_NOVICE),
    "disncl": Table(
        arms=DISNCL,
        noises=(_NOISES[0], _NOISES[2]),
        start="clean",
        start_samples=100_000,
        training=replace(_TRAINING, steps=372, learning_rate=5e-4),
    ),
}
