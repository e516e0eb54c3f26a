"""Two processes in one run: half precision that overflows on one of them, and who saves when."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from ncclean.training.objectives.base import Objective, whole_model
from ncclean.training.objectives.options import ObjectiveOptions
from ncclean.training.objectives.registry import make_objective
from ncclean.training.options import TrainOptions
from ncclean.training.process_group import Ranks
from ncclean.training.run_files import CheckpointWriter, Position
from ncclean.training.trainer import Trainer
from tests.training.batches import FixedBatches, start_joined_ranks, tiny_estimator


class SteepForTheLast(Objective):
    """Gradients that half precision cannot hold at first, of the pairs of the last rank alone."""

    name = "steep"

    def terms(self, embeddings, scale, batch, phase):
        cosines = (embeddings["image"] * embeddings["text"]).sum(dim=1)
        factors = torch.full_like(cosines, 0.01)
        factors[len(cosines) // 2 :] = 3.0
        return {"steep": (factors * cosines).sum()}


def run_rank(ranks: Ranks, folder: str) -> None:
    overflow(ranks, Path(folder))
    save_by_the_clock(ranks, Path(folder))
    draws(ranks, Path(folder))


def overflow(ranks: Ranks, folder: Path) -> None:
    """Weights and loss scales of this rank after each of ten steps in half precision."""
    estimator = tiny_estimator("fp16")
    objective = SteepForTheLast(whole_model(1e-3, 10))
    batches = FixedBatches(steps=1, ranks=ranks, size=16)
    trainer = Trainer(estimator, objective, batches, TrainOptions(tensorboard=False), None, ranks)
    norms = []
    trainer.run(on_step=lambda report: norms.append(report.gradient_norm))
    state = {name: value.clone() for name, value in estimator.model.state_dict().items()}
    torch.save({"weights": state, "norms": norms}, folder / f"overflow-{ranks.rank}.pt")


def save_by_the_clock(ranks: Ranks, folder: Path) -> None:
    """The steps after which this rank saves, where every step is overdue."""
    saved = []
    save = CheckpointWriter.save

    def noted(writer: CheckpointWriter, position: Position, state: dict[str, Any]) -> None:
        saved.append(position.total_steps)
        save(writer, position, state)

    options = TrainOptions(tensorboard=False, save_minutes=0.0, keep=1)
    objective = make_objective("clip", ObjectiveOptions(learning_rate=1e-3, epochs=1))
    batches = FixedBatches(ranks=ranks, size=16)
    trainer = Trainer(tiny_estimator(), objective, batches, options, folder / "run", ranks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointWriter, "save", noted)
        trainer.run()
    (folder / f"saved-{ranks.rank}.json").write_text(json.dumps(saved))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    start_joined_ranks(run_rank, (str(folder),))
    return folder


def test_an_overflow_on_one_rank_is_skipped_by_all(folder):
    """Else the rank that saw none in its own share takes the step, with what is not a number."""
    first, second = (torch.load(folder / f"overflow-{rank}.pt") for rank in range(2))
    assert not math.isfinite(first["norms"][0])
    assert math.isfinite(first["norms"][-1])
    start = tiny_estimator().model.state_dict()
    for name, value in first["weights"].items():
        assert torch.equal(value, second["weights"][name]), name
        if name != "attn_mask":
            assert torch.isfinite(value).all(), name
    moved = [
        name for name, value in first["weights"].items() if not torch.equal(value, start[name])
    ]
    assert "visual.proj" in moved


def test_the_first_rank_saves_by_its_clock(folder):
    first, second = (json.loads((folder / f"saved-{rank}.json").read_text()) for rank in range(2))
    assert first == [1, 2, 3, 4, 4]  # after each step, and at the end
    assert second == []
    assert [path.name for path in (folder / "run" / "checkpoints").iterdir()] == [
        "step_00000004.pt"
    ]


class Drawing(Objective):
    """Notes what the towers would draw in each step, such as dropout."""

    name = "drawing"

    def __init__(self) -> None:
        super().__init__(whole_model(1e-3, 1))
        self.drawn: list[float] = []

    def encode(self, model, pixels, tokens, phase):
        self.drawn.append(float(torch.rand(())))
        return super().encode(model, pixels, tokens, phase)

    def terms(self, embeddings, scale, batch, phase):
        return {"cosine": (embeddings["image"] * embeddings["text"]).sum()}


def draws(ranks: Ranks, folder: Path) -> None:
    objective = Drawing()
    batches = FixedBatches(ranks=ranks, size=16)
    options = TrainOptions(tensorboard=False)
    Trainer(tiny_estimator(), objective, batches, options, None, ranks).run()
    (folder / f"drawn-{ranks.rank}.json").write_text(json.dumps(objective.drawn))


def test_ranks_and_steps_draw_for_themselves(folder):
    first, second = (json.loads((folder / f"drawn-{rank}.json").read_text()) for rank in range(2))
    assert len(first) == len(second) == 4
    assert len({*first, *second}) == 8
