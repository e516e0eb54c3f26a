"""The tables of `repair.py`: which arms, on corpora with which noise, from which model.

All arms of a table take the same number of optimiser steps at the same batch size, so an arm on
fewer pairs sees them more often.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ncclean.training.objectives.bayes import BayesOptions
from ncclean.training.objectives.options import DisnclOptions
from repair.forgetting import Forgetting

LEFT_ALONE, CLIP_ON_ALL, ORACLE = "left alone", "clip on all", "oracle"
Start = Literal["noisy", "clean", "bundled"]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One row of a table: an objective with options, on some pairs; without method, no training.

    `pairs`: `all`; `told`, all with the noisy ones marked for NCU to forget; `clean`, those that
    are clean in truth; `repaired`, all with the captions that their images had before the noise;
    `selected`, `weighted` or `split` by the score table of `judge`: the bundled estimator, the
    `start` itself, or `halves` of it, see `repair_halves`. `forget` is the percentage that NCU and
    gradient ascent forget: a number, the share that is noisy in truth, or what the score table of
    `judge` estimates. `first_share` is the first phase's share of the steps where a method has
    two, by default the setting's. `forgetting` takes the place of NCU's way of forgetting. Of the
    differences of `repair.released`, an arm that has `released` has these alone.
    """

    name: str
    method: str | None = "clip"
    pairs: Literal[
        "all", "clean", "repaired", "selected", "weighted", "split", "doubted", "told"
    ] = "all"
    judge: Literal["demo", "itself", "halves"] = "demo"
    forget: float | Literal["truth", "estimate"] = "truth"
    learning_rate: float | None = None
    first_share: float | None = None
    first_phase_alone: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    ncu: dict[str, Any] = field(default_factory=dict)
    forgetting: Forgetting | None = None
    released: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all runs of a table share.

    `first_share` is the first phase's share of the steps, `held_out` the images of each held-out
    set.
    """

    pairs: int = 16_000
    start_samples: int = 200_000
    steps: int = 125
    batch_size: int = 256
    learning_rate: float = 2e-4
    first_share: float = 0.5
    held_out: int = 1000


@dataclass(frozen=True, kw_only=True)
class Table:
    """The rows; the noise of its corpora, each a mapping of kinds to shares; where all start.

    `noisy` starts have learnt the corpus as it is, `clean` ones another corpus without noise.
    `bundled` is `demo-noisy`, which has learnt the noisy corpus 0: seeds begin with `first_seed`.
    """

    arms: tuple[Arm, ...]
    noises: tuple[dict[str, float], ...] = ({"ncr": 0.4},)
    start: Start = "noisy"
    first_seed: int = 0
    setting: Setting = field(default_factory=Setting)


CONTROLS = (
    Arm(name=LEFT_ALONE, method=None),
    Arm(name=CLIP_ON_ALL),
    Arm(name=ORACLE, pairs="clean"),
)
REPAIR = (
    Arm(name=LEFT_ALONE, method=None),
    Arm(name=CLIP_ON_ALL),
    Arm(name="clip, selected", pairs="selected"),
    Arm(name="clip, selected by itself", pairs="selected", judge="itself"),
    Arm(name="osa", method="osa", pairs="weighted"),
    Arm(name="osa, weights by itself", method="osa", pairs="weighted", judge="itself"),
    Arm(name="softclip", method="softclip"),
    Arm(name="gradient_ascent", method="gradient_ascent"),
    Arm(name="gradient_ascent, forget 10 %", method="gradient_ascent", forget=10.0),
    Arm(name="ncu", method="ncu"),
    Arm(name="ncu, forget 10 %", method="ncu", forget=10.0),
    Arm(name="ncu, forget its own estimate", method="ncu", forget="estimate", judge="itself"),
    Arm(name="ncu, learning rate 5e-5", method="ncu", learning_rate=5e-5),
    Arm(name="ncu, first phase alone", method="ncu", first_phase_alone=True),
    Arm(name="ncu, nothing to forget", method="ncu", forget=0.0),
    Arm(name="ncu, textual prefixes (V1)", method="ncu", ncu={"negative": "prefixes"}),
    Arm(name="ncu, largest distance (V2)", method="ncu", ncu={"relation": "distance"}),
    Arm(name="ncu, false negatives only (V3)", method="ncu", ncu={"unlearn": "false_negatives"}),
    Arm(name="ncu, false positives only (V4)", method="ncu", ncu={"unlearn": "false_positives"}),
    Arm(name="clip, captions put right", pairs="repaired"),
    Arm(name=ORACLE, pairs="clean"),
)
# Beyond the papers: who says what to forget, and how much the last column may take.
VARIANTS = (
    *CONTROLS,
    Arm(name="ncu", method="ncu"),
    Arm(name="ncu, last column by share", method="ncu", ncu={"last_column": "forget_share"}),
    Arm(
        name="ncu, last column by share, forget 10 %",
        method="ncu",
        forget=10.0,
        ncu={"last_column": "forget_share"},
    ),
    Arm(name="ncu, split by the score table", method="ncu", pairs="split", ncu={"split": "table"}),
    Arm(
        name="ncu, split by its own score table",
        method="ncu",
        pairs="split",
        judge="itself",
        ncu={"split": "table"},
    ),
    # As the defaults of `finetune` share them out: 2 and 8 epochs.
    Arm(name="ncu, a fifth of the steps for the prompt", method="ncu", first_share=0.2),
)
# Where does forgetting pay? For those who have no estimator but the model itself.
_TABLE: dict[str, Any] = {"split": "table"}


def _rematched(name: str, forget: float = 0.0, **more: Any) -> Arm:
    """Forgotten pairs are matched anew with other captions; no prompt, all steps unlearn."""
    ncu = {"negative": "none", **more.pop("ncu", {})}
    return Arm(name=name, method="ncu", forget=forget, ncu=ncu, **more)


FORGETTING = (
    *CONTROLS,
    Arm(name="osa, weights by itself", method="osa", pairs="weighted", judge="itself"),
    *(
        Arm(
            name=f"ncu, a fifth for the prompt, forget {percent} %",
            method="ncu",
            forget=float(percent),
            first_share=0.2,
        )
        for percent in (0, 10, 40)
    ),
    *(_rematched(f"rematched, forget {percent} %", percent) for percent in (0, 10, 20, 40, 60)),
    *(
        _rematched(f"left out, {percent} %", percent, forgetting=Forgetting(how="left out"))
        for percent in (20, 40)
    ),
    *(
        _rematched(
            f"rematched, averaged teacher, forget {percent} %",
            percent,
            forgetting=Forgetting(teacher=0.95),
        )
        for percent in (20, 40)
    ),
    _rematched("rematched in part", forgetting=Forgetting(how="in part")),
    Arm(name="clip, selected by halves", pairs="selected", judge="halves"),
    Arm(name="osa, weights by halves", method="osa", pairs="weighted", judge="halves"),
    _rematched("rematched, split by halves", pairs="split", judge="halves", ncu=_TABLE),
    # What forgetting is worth to those who know.
    Arm(name="ncu, told the noise", method="ncu", pairs="told", first_share=0.2, ncu=_TABLE),
    _rematched("rematched, told the noise", pairs="told", ncu=_TABLE),
)
_NOISES = ({}, {"ncr": 0.2}, {"ncr": 0.4}, {"ncr": 0.6})
ROBUST = (
    *CONTROLS,
    Arm(name="rince", method="rince"),
    Arm(name="decl", method="decl"),
    *(
        Arm(name=f"bayes, {mode}", method="bayes", options={"bayes": BayesOptions(mode=mode)})
        for mode in ("paper", "strict", "proper_prior")
    ),
)
# Table 4 of the Bayesian paper; 10 is the default.
PRIOR = (
    *CONTROLS,
    *(
        Arm(
            name=f"bayes, paper, a_neg = {a_neg:g}",
            method="bayes",
            options={"bayes": BayesOptions(mode="paper", a_neg=a_neg)},
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
# Heads on the frozen towers, measured in the invariant space.
DISNCL = (
    Arm(name=LEFT_ALONE, method=None),
    *(
        Arm(
            name=name,
            method="disncl",
            options={"disncl": DisnclOptions(freeze_towers=True, **terms)},
        )
        for name, terms in _DISNCL.items()
    ),
)
# One pass over the pairs.
_NOVICE = Setting(start_samples=100_000, batch_size=128)
_NCU_DIFFERENCES = {
    "confidence of the images alone": "confidence",
    "relation within captions": "relation",
    "targets not brought to mass 1 again": "mass",
    "a second plan for captions": "plans",
    "half of both divergences": "half",
    "transport stops by its potentials": "stop",
    "one cosine over both phases": "cosine",
    "100 steps of warm-up": "warm-up",
    "the scale trains in phase HN": "scale",
    "embeddings and one of two text blocks frozen": "frozen",
}
_OSA_DIFFERENCES = {
    "x^2 (1 - x^2), x over the largest of the batch": "weight",
    "noise of token ids below 100": "threshold",
}
_VARIANT = {"variant": "released"}
RELEASED = (
    *CONTROLS,
    Arm(name="ncu, published", method="ncu"),
    *(
        Arm(name=f"ncu: {name}", method="ncu", released=(difference,))
        for name, difference in _NCU_DIFFERENCES.items()
    ),
    Arm(
        name="ncu: all but the warm-up",
        method="ncu",
        released=tuple(name for name in _NCU_DIFFERENCES.values() if name != "warm-up"),
    ),
    Arm(name="ncu, released", method="ncu", ncu=_VARIANT),
    Arm(name="osa, published", method="osa", pairs="weighted", judge="itself"),
    Arm(name="osa: the bundled estimator", method="osa", pairs="weighted"),
    *(
        Arm(name=f"osa: {name}", method="osa", released=(difference,))
        for name, difference in _OSA_DIFFERENCES.items()
    ),
    Arm(name="osa, released", method="osa", ncu=_VARIANT),
)
TABLES = {
    "cost": Table(arms=CONTROLS, noises=_NOISES[1:]),
    "repair": Table(arms=REPAIR),
    "variants": Table(arms=VARIANTS),
    "forgetting": Table(arms=FORGETTING, setting=Setting(steps=62)),  # one pass
    "released": Table(
        arms=RELEASED,
        start="bundled",
        first_seed=1,
        setting=Setting(pairs=4_000, steps=60, batch_size=128, first_share=0.2, held_out=500),
    ),
    "robust": Table(arms=ROBUST, noises=_NOISES, start="clean", setting=_NOVICE),
    "prior": Table(arms=PRIOR, noises=_NOISES[2:3], start="clean", setting=_NOVICE),
    "disncl": Table(
        arms=DISNCL,
        noises=_NOISES,
        start="clean",
        # Two passes of alignment, four of all terms.
        setting=Setting(start_samples=100_000, steps=372, learning_rate=5e-4, first_share=1 / 3),
    ),
}
