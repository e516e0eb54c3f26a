"""The trainer: phases of an objective over the batches of a loader, from top to bottom.

Each phase freezes what does not train, makes an optimiser, and runs the epochs, step by step (see
`batch_step`). A resumed run continues as if it had never stopped.

The numbers of a step are read, reported and logged while the next step computes its gradients,
before these change the weights; at once if a checkpoint is due or the phase ends.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ncclean.data.weighted_loader import TrainBatch
from ncclean.errors import ResumeError
from ncclean.models.estimator import Estimator
from ncclean.training.batch_step import BatchStep, StepNumbers
from ncclean.training.batches import BatchSource
from ncclean.training.objectives.base import Objective, Phase, shared_out
from ncclean.training.optimizers import (
    Adversaries,
    freeze_all_but,
    freeze_text_blocks,
    make_optimizer,
    parameter_groups,
    set_learning_rates,
    set_training_mode,
)
from ncclean.training.options import TrainOptions
from ncclean.training.process_group import Ranks
from ncclean.training.run_files import CheckpointWriter, Position, RunLog, load_checkpoint


@dataclass(frozen=True, kw_only=True)
class StepReport(StepNumbers):
    """The numbers of a training step, its position in the run, and samples per second so far."""

    phase: str
    step: int
    steps: int
    samples_per_second: float

    @property
    def loss(self) -> float:
        return sum(self.terms.values())


@dataclass(frozen=True)
class _Step:
    """A finished step; `facts` are those of its line in the log, if it has one.

    `read` waits for the report. With `is_due`, a checkpoint of the step is written.
    """

    position: Position
    read: Callable[[], StepReport]
    facts: dict[str, Any] | None
    is_due: bool


class Trainer:
    """Trains a model by an objective, with checkpoints and logs in a folder.

    The folder has `checkpoints/`, `results.jsonl` and files for TensorBoard; without one it writes
    nothing. Trains `estimator.model` in place, and `own`, the modules of the objective; `averaged`
    is the model's moving average, if requested. `skipped` counts the samples of all ranks that
    could not be used, by reason; `failed_shards` are those that this rank could not read to their
    end, with the reason.
    """

    def __init__(
        self,
        estimator: Estimator,
        objective: Objective,
        loader: BatchSource,
        options: TrainOptions,
        folder: Path | None,
        ranks: Ranks | None = None,
        on_file: Callable[[Path], None] | None = None,
        on_saved: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_file` receives every file of the run, checkpoints before they are written.

        `on_saved` is called after each checkpoint.
        """
        self._on_file = on_file or (lambda path: None)
        self._on_saved = on_saved
        self._data_wait = 0.0  # seconds since the last line of the log
        self.skipped: dict[str, int] = {}
        self.failed_shards: dict[str, str] = {}
        self.estimator, self.objective, self.loader = estimator, objective, loader
        self.options, self.folder = options, folder
        self._ranks = ranks or Ranks()
        self._model = estimator.model
        with torch.random.fork_rng():
            torch.manual_seed(options.seed)  # the same start on every rank, and in every run
            self.own = objective.modules(self._model)
        for module in self.own.values():
            module.to(estimator.device)
        self._groups = parameter_groups(self._model, self.own)
        self._step = BatchStep(
            estimator,
            objective,
            self._ranks,
            pieces=options.parts,
            clip_norm=options.clip_norm,
            seed=options.seed,
        )
        self.averaged = (
            None
            if options.ema_decay is None
            else AveragedModel(self._model, multi_avg_fn=get_ema_multi_avg_fn(options.ema_decay))
        )
        if options.gradient_checkpointing:
            self._model.set_grad_checkpointing(True)  # type: ignore[operator]
        if options.compiled:
            self._model.get_submodule("visual").compile(dynamic=True)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The objective's training phases, cut to the requested steps."""
        phases = self.objective.phases
        if self.options.steps is None:
            return phases
        return shared_out(phases, self.options.steps, self.loader.steps_per_epoch)

    @property
    def total_steps(self) -> int:
        """The number of training steps of all phases."""
        return sum(self._lengths)

    @property
    def _lengths(self) -> list[int]:
        """Steps of each phase."""
        return [phase.length(self.loader.steps_per_epoch) for phase in self.phases]

    def run(
        self, resume: bool = False, on_step: Callable[[StepReport], None] = lambda report: None
    ) -> Position:
        """Train all remaining phases; return the position at the end.

        `on_step` sees the weights as its step left them. Raises `TrainingError` if a term or the
        gradient is not finite; that step is not taken.
        """
        position, state = self._restore(resume)
        log, writer = None, None
        if self._ranks.is_first and self.folder is not None:
            log = RunLog(self.folder, position.total_steps, self.options.tensorboard)
            writer = CheckpointWriter(
                self.folder / "checkpoints", self.options.keep, self._on_saved
            )
            for path in log.files():
                self._on_file(path)
        self._saved = time.monotonic()
        try:
            for number, phase in enumerate(self.phases):
                if number < position.phase:
                    continue
                freeze_all_but(self._groups, phase)
                freeze_text_blocks(self._model, phase.frozen_text_blocks)
                set_training_mode(self._model, phase)
                optimizer = make_optimizer(
                    self._trained(phase),
                    phase,
                    weight_decay=self.options.weight_decay,
                    betas=self.options.betas,
                    eps=self.options.eps,
                )
                self._step.adversaries = Adversaries.of(
                    self.objective,
                    phase,
                    self._groups,
                    self._ranks,
                    betas=self.options.betas,
                    eps=self.options.eps,
                    clip_norm=self.options.clip_norm,
                )
                if state is not None and number == position.phase and state["optimizer"]:
                    optimizer.load_state_dict(state["optimizer"])
                    if self._step.adversaries is not None:
                        self._step.adversaries.load_state_dict(state["adversaries"])
                for step in self._phase(phase, number, position, optimizer):
                    report, position = step.read(), step.position
                    self.skipped = report.skipped
                    on_step(report)
                    if log is not None and step.facts is not None:
                        _write_line(log, report, step.facts)
                    if writer is not None:
                        writer.raise_if_failed()
                    if step.is_due:
                        if writer is not None:
                            self._save(writer, position, optimizer)
                        self._saved = time.monotonic()
                position = Position(number + 1, position.epoch, 0, position.total_steps)
                state = None  # the optimiser in it was this phase's
            if writer is not None:
                self._save(writer, position, None)
                writer.finish()
        finally:
            if writer is not None:
                writer.close()
            if log is not None:
                log.close()
            self._model.eval()
        return position

    def _phase(
        self, phase: Phase, number: int, start: Position, optimizer: torch.optim.Optimizer
    ) -> Iterator[_Step]:
        """Yield the steps of a phase from `start`, each before the next changes the weights."""
        before, steps = sum(self._lengths[:number]), self._lengths[number]
        started, done = time.monotonic(), 0
        trained = [p for group in self._trained(phase).values() for p in group]
        left = before + steps - start.total_steps
        taken: _Step | None = None
        for position, batch in itertools.islice(self._batches(phase, number, start), left):
            step = position.total_steps - 1
            if self._step.adversaries is not None:
                self._step.adversaries.set_rate(step - before, steps)
            terms = self._step.backward(batch, step, phase, trained)
            self.failed_shards |= {
                unusable.shard: unusable.error
                for unusable in batch.unusable.values()
                if unusable.shard
            }
            if taken is not None:
                yield taken
            set_learning_rates(optimizer, phase.rate(step, before, steps, self.total_steps))
            read = self._step.update(terms, phase, optimizer, trained)
            if self.averaged is not None:
                self.averaged.update_parameters(self._model)
            done += len(batch.captions) * self._ranks.size
            report = partial(self._report, read, phase.name, position.total_steps, started, done)
            taken = _Step(
                position, report, self._facts(position.total_steps), self._is_due(position)
            )
            if taken.is_due:
                yield taken
                taken = None
        if taken is not None:
            yield taken

    def _batches(
        self, phase: Phase, number: int, position: Position
    ) -> Iterator[tuple[Position, TrainBatch]]:
        """The batches of a phase from `position` on, each with the position after its step."""
        first_epoch = sum(earlier.epochs for earlier in self.phases[:number])
        total, asked = position.total_steps, time.monotonic()
        for epoch in range(max(position.epoch, first_epoch), first_epoch + phase.epochs):
            first = position.step if epoch == position.epoch else 0
            for step, batch in enumerate(self.loader.epoch(epoch, first), start=first + 1):
                total += 1
                self._data_wait += time.monotonic() - asked
                yield Position(number, epoch, step, total), batch
                asked = time.monotonic()

    def _report(
        self, read: Callable[[], StepNumbers], phase: str, step: int, started: float, samples: int
    ) -> StepReport:
        """Wait for the numbers of a step, after `samples` samples since `begin`."""
        numbers = read()
        speed = samples / (numbers.ended - started)
        return StepReport(
            **vars(numbers),
            phase=phase,
            step=step,
            steps=self.total_steps,
            samples_per_second=speed,
        )

    def _trained(self, phase: Phase) -> dict[str, list[nn.Parameter]]:
        """The parameters that train in a phase, by group."""
        return {
            name: [p for p in self._groups[name] if p.requires_grad]
            for name in phase.learning_rates
        }

    def _facts(self, step: int) -> dict[str, Any] | None:
        """Return facts of a step for the log, besides its numbers; the next batch changes them.

        None if the step has no line.
        """
        if step % self.options.log_steps and step not in (1, self.total_steps):
            return None
        waited, self._data_wait = self._data_wait, 0.0
        memory = {}
        if self.estimator.device.type == "cuda":
            memory["gpu_memory_peak"] = torch.cuda.max_memory_allocated(self.estimator.device)
        return {"data_wait": round(waited, 3), **memory, **self.objective.statistics()}

    def _is_due(self, position: Position) -> bool:
        """Decide whether to save, by the first rank's clock, as it alone saves."""
        every = self.options.save_steps
        if every is not None and position.total_steps % every == 0:
            return True
        return time.monotonic() - self._saved > 60 * self.options.save_minutes

    def _save(
        self, writer: CheckpointWriter, position: Position, optimizer: torch.optim.Optimizer | None
    ) -> None:
        state: dict[str, Any] = {
            "model": self._model.state_dict(),
            "own": {name: module.state_dict() for name, module in self.own.items()},
            "optimizer": optimizer.state_dict() if optimizer is not None else None,
            "adversaries": self._step.adversaries.state_dict() if self._step.adversaries else None,
            "scaler": self._step.scaler.state_dict(),
            "averaged": self.averaged.state_dict() if self.averaged is not None else None,
            "skipped": self.skipped,
            "failed_shards": self.failed_shards,
        }
        self._on_file(writer.path(position))
        writer.save(position, state)

    def _restore(self, resume: bool) -> tuple[Position, dict[str, Any] | None]:
        if not resume or self.folder is None:
            return Position(), None
        newest = load_checkpoint(self.folder / "checkpoints")
        if newest is None:
            return Position(), None
        position, state = newest
        try:
            self._model.load_state_dict(state["model"])
            for name, module in self.own.items():
                module.load_state_dict(state["own"][name])
            self._step.scaler.load_state_dict(state["scaler"])
            if self.averaged is not None and state["averaged"] is not None:
                self.averaged.load_state_dict(state["averaged"])
            if self._ranks.is_first:  # samples skipped by all count once
                self._step.skipped.update(state.get("skipped", {}))
        except (RuntimeError, KeyError) as error:
            raise ResumeError(
                f"{self.folder} belongs to another model or method: {str(error).splitlines()[0]}"
            ) from error
        self.skipped, self.failed_shards = state.get("skipped", {}), state.get("failed_shards", {})
        return position, state


def _write_line(log: RunLog, report: StepReport, facts: dict[str, Any]) -> None:
    log.write(
        report.step,
        {
            "phase": report.phase,
            "loss": report.loss,
            **{f"loss/{name}": value for name, value in report.terms.items()},
            "scale": report.scale,
            # A step that half precision skipped has no norm.
            "gradient_norm": report.gradient_norm if isfinite(report.gradient_norm) else None,
            "samples_per_second": round(report.samples_per_second, 1),
            "skipped": sum(report.skipped.values()),
            **facts,
        },
    )
