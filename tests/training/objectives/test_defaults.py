"""The defaults of the objectives are those of their papers and of docs/objectives.md."""

import dataclasses
import math
import re
from pathlib import Path

import pytest

from ncclean.training.objectives.base import whole_model
from ncclean.training.objectives.options import (
    BayesOptions,
    DisnclOptions,
    NcuOptions,
    ObjectiveOptions,
)
from ncclean.training.options import TrainOptions
from ncclean.training.run_files import read_results
from tests.training.batches import train

DEFAULTS = {
    NcuOptions: {
        "variant": "published",
        "forget_percent": 10.0, "split": "model", "gamma": 0.7, "negative": "prompt",
        "relation": "cross", "unlearn": "both", "last_column": "uniform", "prompt_length": 8,
        "alpha": -0.7, "beta": -0.2, "negative_weight": 10.0, "epsilon": 0.03,
        "max_iterations": 100, "tolerance": 1e-4,
    },
    BayesOptions: {
        "mode": "paper", "moving_average": None, "a_pos": 5.0, "a_neg": 10.0, "b_pos": None,
        "b_neg": None, "a_u": 1.0, "b_u": 0.0, "sweeps": 2,
    },
    DisnclOptions: {
        "freeze_towers": False, "warmup_epochs": 5, "disentangle": "information",
        "hidden_dim": 256, "dim": 512, "gamma": 0.5, "beta1": 0.1, "beta2": 0.1, "beta3": 0.5,
        "alpha": 0.2, "m": 10.0, "temperature": 0.05, "reverse": False, "mask_noisy": False,
        "bounded_adversary": False, "soften": True, "regularize": True,
        "warmup_negatives": "all", "discriminator_input": "directions", "tower_rate": 0.05,
        "discriminator_rate": 10.0, "discriminator_steps": 1,
    },
    TrainOptions: {
        "steps": None, "parts": 1, "weight_decay": 0.2, "ema_decay": None,
        "gradient_checkpointing": False, "compiled": False, "save_steps": None,
        "save_minutes": 10.0, "clip_norm": 1.0, "betas": (0.9, 0.98), "eps": 1e-8,
        "log_steps": 10, "keep": 2, "tensorboard": True, "seed": 0,
    },
}  # fmt: skip


@pytest.mark.parametrize("options", DEFAULTS, ids=lambda kind: kind.__name__)
def test_defaults(options):
    assert dataclasses.asdict(options()) == DEFAULTS[options]


@pytest.mark.parametrize("options", [*DEFAULTS, ObjectiveOptions], ids=lambda kind: kind.__name__)
def test_options_do_not_change(options):
    one = options()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(one, dataclasses.fields(one)[0].name, None)


# The example of docs/objectives.md trains.

PAGE = Path(__file__).resolve().parents[3] / "docs" / "objectives.md"


def test_the_example_of_the_documentation_trains(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    scope: dict[str, object] = {}
    exec(compile(code, str(PAGE), "exec"), scope)
    train(tmp_path, objective=scope["Rotated"](whole_model(1e-3, 1)))
    results = read_results(tmp_path)
    assert len(results) == 4
    for record in results:
        assert math.isfinite(record["loss/centre"])
        assert record["loss"] > record["loss/contrastive"]
