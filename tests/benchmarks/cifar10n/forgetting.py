"""What forgetting without negative texts is worth to a model that has learnt people's errors.

    python tests/benchmarks cifar10n.forgetting --data FOLDER --out runs/cifar10n-forgetting
        [--record docs/records/cifar10n-forgetting.json]

FOLDER is as `corpora.py` says. A small CLIP learns the `worse` labels from random weights, as in
`study.py`, and arms of `repair.arms` go on from it with the same steps: `negative="none"` beside
what it is to be compared with, above all the same pairs left out. The images are decoded once. What
lies in --out is not made again; an hour and a half of one core, two thirds of it the training.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from records import make_record, write_record
from repair.arms import CLIP_ON_ALL, FORGETTING, ORACLE, Arm, Setting
from repair.corpora import MemoryLoader, Pairs, decoded
from repair.objectives import objective_of, shared_out

from cifar10n.corpora import parts, write_corpus
from cifar10n.estimator import parser, train
from cifar10n.repair import LABEL, HeldOut, gain, loaded
from ncclean.data.weighted_loader import WeightedLoader
from ncclean.models.estimator import Estimator
from ncclean.training.objectives.options import NcuOptions, ObjectiveOptions
from ncclean.training.options import TrainOptions
from ncclean.training.trainer import Trainer

_ARMS = (
    CLIP_ON_ALL,
    "ncu, a fifth for the prompt, forget 0 %",
    "ncu, a fifth for the prompt, forget 40 %",
    "rematched, forget 0 %",
    "rematched, forget 40 %",
    "left out, 40 %",
    ORACLE,
)
_SETTING = Setting(steps=50)


def compared(
    patient: str, pairs: Pairs, held_out: HeldOut, repeats: int
) -> Iterator[dict[str, Any]]:
    """A row for each arm of `_ARMS` and seed; gains are over `clip` on all with the same seed."""
    arms = {arm.name: arm for arm in FORGETTING}
    for seed in range(repeats):
        baseline: np.ndarray | None = None
        for name in _ARMS:
            chosen = pairs
            if arms[name].pairs == "clean":
                chosen = pairs.rows((pairs.is_noisy == 0).nonzero()[:, 0])
            correct = held_out.correct(_treated(arms[name], patient, chosen, seed))
            if baseline is None:
                baseline = correct
            yield {
                "arm": name,
                "seed": seed,
                "pairs": len(chosen),
                "noisy_share": chosen.noisy_share,
                **gain(correct, baseline),
            }


def _treated(arm: Arm, patient: str, pairs: Pairs, seed: int) -> Estimator:
    """The patient after the arm's steps."""
    estimator = loaded(patient)
    forget = {} if arm.method == "clip" else {"forget_percent": arm.forget}
    ncu = NcuOptions(**{**arm.ncu, **forget})
    options = ObjectiveOptions(learning_rate=_SETTING.learning_rate, ncu=ncu)
    objective = objective_of(arm, options, estimator)
    first_share = _SETTING.first_share if arm.first_share is None else arm.first_share
    objective.phases = shared_out(  # type: ignore[misc]
        objective.phases, _SETTING.steps, first_share, len(pairs) // _SETTING.batch_size
    )
    loader = cast(WeightedLoader, MemoryLoader(pairs, _SETTING.batch_size, seed))
    training = replace(TrainOptions(tensorboard=False, save_minutes=1e6), seed=seed)
    with tempfile.TemporaryDirectory() as scratch:
        Trainer(estimator, objective, loader, training, Path(scratch)).run()
    return Estimator(
        estimator.model, estimator.tokenizer, estimator.preprocessing, precision="fp32"
    )


def main() -> None:
    arguments = _parse()
    out, seed = arguments.out, arguments.seed
    out.mkdir(parents=True, exist_ok=True)
    _, learnt, held_out = parts(arguments.data, seed)
    write_corpus(learnt, LABEL, arguments.data, out / LABEL, seed)
    patient = train(out / LABEL, arguments.patient_passes, out / "patient", seed)
    estimator = loaded(patient)
    pairs = decoded(sorted((out / LABEL).glob("*.tar")), estimator.preprocessing)
    photographs = HeldOut(arguments.data, held_out)
    before = photographs.correct(estimator)
    rows = []
    for row in compared(patient, pairs, photographs, arguments.repeats):
        print(json.dumps(row), flush=True)
        rows.append(row)
    if arguments.record is not None:
        settings = {
            **{name: getattr(arguments, name) for name in ("patient_passes", "repeats")},
            **asdict(_SETTING),
            "pairs": len(pairs),
            "held_out": len(held_out),
        }
        seeds = list(range(arguments.repeats))
        accuracy = float(before.mean())
        write_record(
            arguments.record,
            make_record(rows, settings=settings, seeds=seeds, patient_accuracy=accuracy),
        )


def _parse() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--patient-passes", type=int, default=5, help="of the patient's training")
    options.add_argument("--repeats", type=int, default=1, help="of each arm, with other seeds")
    return options.parse_args()


if __name__ == "__main__":
    main()
