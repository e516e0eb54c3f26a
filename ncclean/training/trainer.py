"""The trainer: phases of an objective over the batches of a loader, from top to bottom.

For each phase: freeze what does not train, make an optimiser, run the epochs. For each step: encode
the rank's pairs in parts, gather the embeddings of all ranks with gradients, take the objective's
terms in float32, push the gradients back, average them over the ranks, check them, step. What was
resumed goes on as if it had never stopped.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ncclean.data.weighted_loader import LoaderCounts, TrainBatch
from ncclean.errors import ResumeError, TrainingError
from ncclean.models.estimator import Estimator
from ncclean.models.text_tower import token_lengths
from ncclean.training.adversary import Adversaries
from ncclean.training.checkpoint import (
    Progress,
    checkpoint_path,
    load_checkpoint,
    save_checkpoint,
)
from ncclean.training.distributed import gather_with_gradients
from ncclean.training.grad_cache import backward_in_parts
from ncclean.training.objectives.base import (
    Embeddings,
    GlobalBatch,
    LocalObjective,
    Objective,
    Observed,
    OnFeatures,
    Phase,
    Terms,
)
from ncclean.training.objectives.pair_memory import pair_keys
from ncclean.training.options import TrainOptions
from ncclean.training.parts import freeze_all_but, make_optimizer, model_parts, set_learning_rates
from ncclean.training.ranks import Ranks, average_gradients, average_over
from ncclean.training.run_log import RunLog

logger = logging.getLogger(__name__)

_LARGEST_SCALE = 100.0


@dataclass(frozen=True)
class StepReport:
    """A step of the run: its terms, the scale, the norm of the gradient, samples/s so far."""

    phase: str
    step: int
    steps: int
    terms: dict[str, float]
    scale: float
    gradient_norm: float
    samples_per_second: float

    @property
    def loss(self) -> float:
        return sum(self.terms.values())


class BatchSource(Protocol):
    """Where the batches of a rank come from: a loader, or what stands in for one."""

    counts: LoaderCounts
    steps_per_epoch: int

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[TrainBatch]:
        """The batches of an epoch from `first_step` on, the same ones whenever it is asked."""
        ...


class Trainer:
    """One run in a folder: `checkpoints/`, `results.jsonl`, TensorBoard. Without one, no trace.

    Trains `estimator.model` in place; `averaged` is its moving average, if one was asked for.
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
    ) -> None:
        """`on_file` receives every file of the run, checkpoints before they are written."""
        self._on_file = on_file or (lambda path: None)
        self.estimator, self.objective, self.loader = estimator, objective, loader
        self.options, self.folder = options, folder
        self._ranks = ranks or Ranks()
        self._adversaries: Adversaries | None = None
        self._model = estimator.model
        with torch.random.fork_rng():
            torch.manual_seed(options.seed)  # the same start on every rank, and in every run
            self._own = objective.modules(self._model)
        for module in self._own.values():
            module.to(estimator.device)
        self._parts = model_parts(self._model, self._own)
        self._scaler = torch.amp.GradScaler(
            estimator.device.type, enabled=estimator.precision == "fp16"
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
    def total_steps(self) -> int:
        """Steps of all phases."""
        return sum(self._lengths)

    @property
    def _lengths(self) -> list[int]:
        """Steps of each phase."""
        return [phase.length(self.loader.steps_per_epoch) for phase in self.objective.phases]

    def run(
        self, resume: bool = False, on_step: Callable[[StepReport], None] = lambda report: None
    ) -> Progress:
        """Train all phases, or what is left of them. Returns where the run ended.

        Raises `TrainingError`, before the step is taken, if a term or the gradient is not finite.
        """
        progress, state = self._restore(resume)
        torch.manual_seed(self.options.seed + self._ranks.rank)
        log = (
            RunLog(self.folder, progress.total_steps, self.options.tensorboard)
            if self._ranks.is_first and self.folder is not None
            else None
        )
        for path in log.files() if log is not None else ():
            self._on_file(path)
        saved = time.monotonic()
        self._model.train()
        try:
            for number, phase in enumerate(self.objective.phases):
                if number < progress.phase:
                    continue
                freeze_all_but(self._parts, phase)
                optimizer = make_optimizer(
                    self._parts,
                    phase,
                    weight_decay=self.options.weight_decay,
                    betas=self.options.betas,
                    eps=self.options.eps,
                )
                self._adversaries = Adversaries.of(
                    self.objective,
                    phase,
                    self._parts,
                    self._ranks,
                    betas=self.options.betas,
                    eps=self.options.eps,
                    clip_norm=self.options.clip_norm,
                )
                if state is not None and number == progress.phase and state["optimizer"]:
                    optimizer.load_state_dict(state["optimizer"])
                    if self._adversaries is not None:
                        self._adversaries.load_state_dict(state["adversaries"])
                steps = self._phase(phase, number, progress, optimizer)
                for report, progress in steps:
                    on_step(report)
                    if log is not None:
                        self._log(log, report)
                    if self._is_due(progress, saved):
                        self._save(progress, optimizer)
                        saved = time.monotonic()
                progress = Progress(number + 1, progress.epoch, 0, progress.total_steps)
                state = None  # the optimiser in it was this phase's
            self._save(progress, None)
        finally:
            if log is not None:
                log.close()
            self._model.eval()
        return progress

    def _phase(
        self, phase: Phase, number: int, progress: Progress, optimizer: torch.optim.Optimizer
    ) -> Iterator[tuple[StepReport, Progress]]:
        """The steps of a phase from where `progress` stands."""
        before, steps = sum(self._lengths[:number]), self._lengths[number]
        begin, done = time.monotonic(), 0
        first_epoch = sum(earlier.epochs for earlier in self.objective.phases[:number])
        trained = [p for name in phase.learning_rates for p in self._parts[name]]
        for epoch in range(max(progress.epoch, first_epoch), first_epoch + phase.epochs):
            first = progress.step if epoch == progress.epoch else 0
            left = before + steps - progress.total_steps
            batches = itertools.islice(self.loader.epoch(epoch, first), left)
            for step, batch in enumerate(batches, start=first):
                in_phase = progress.total_steps - before
                set_learning_rates(optimizer, in_phase, steps, phase.warmup)
                if self._adversaries is not None:
                    self._adversaries.set_rate(in_phase, steps)
                facts = self._gathered_facts(batch, progress.total_steps)
                terms, norm = self._step(batch, facts, phase, optimizer, trained)
                done += len(batch.captions) * self._ranks.size
                progress = Progress(number, epoch, step + 1, progress.total_steps + 1)
                yield (
                    StepReport(
                        phase=phase.name,
                        step=progress.total_steps,
                        steps=self.total_steps,
                        terms=terms,
                        scale=float(self._scale.detach()),
                        gradient_norm=norm,
                        samples_per_second=done / (time.monotonic() - begin),
                    ),
                    progress,
                )
            progress = Progress(number, epoch + 1, 0, progress.total_steps)

    def _step(
        self,
        batch: TrainBatch,
        facts: GlobalBatch,
        phase: Phase,
        optimizer: torch.optim.Optimizer,
        trained: list[nn.Parameter],
    ) -> tuple[dict[str, float], float]:
        optimizer.zero_grad(set_to_none=True)
        features = batch.features
        tokens = self._tokens(batch.captions) if features is None else torch.empty(0)
        rows = torch.arange(len(batch.captions)).chunk(self.options.parts)
        reported: dict[str, float] = {}

        def encode(part: torch.Tensor) -> Embeddings:
            if features is not None:
                assert isinstance(self.objective, OnFeatures)
                image, text = (each[part].to(self.estimator.device) for each in features)
                return self.objective.encode_features(image, text, phase)
            pixels = self.estimator.normalized(batch.pixels[part])
            with self.estimator.autocast():
                return self.objective.encode(
                    self._model, pixels, tokens[part].to(self.estimator.device), phase
                )

        def terms(local: Embeddings) -> Terms:
            whole = {name: gather_with_gradients(each) for name, each in local.items()}
            if self._adversaries is not None:
                self._adversaries.step(whole, facts)
            found = self._terms(whole, facts, phase)
            reported.update(self._finite(found, phase))
            return found

        with self._attention():
            backward_in_parts(list(rows), encode, terms, self._scaler.scale)
        self._scaler.unscale_(optimizer)
        average_gradients(trained, self._ranks)
        norm = torch.nn.utils.clip_grad_norm_(trained, self.options.clip_norm)
        if not torch.isfinite(norm) and not self._scaler.is_enabled():
            raise TrainingError(
                f"the gradient is not finite in phase {phase.name}; nothing was changed by this "
                "step: use a smaller learning rate, or fp32"
            )
        self._scaler.step(optimizer)
        self._scaler.update()
        with torch.no_grad():
            scale = getattr(self._model, "logit_scale", None)
            if scale is not None:
                scale.clamp_(0, math.log(_LARGEST_SCALE))
        if self.averaged is not None:
            self.averaged.update_parameters(self._model)
        return reported, float(norm)

    def _terms(self, whole: Embeddings, facts: GlobalBatch, phase: Phase) -> Terms:
        """The terms of the whole batch, or this rank's share of them where that is enough."""
        if self._ranks.size > 1 and isinstance(self.objective, LocalObjective):
            pairs = len(facts.weights) // self._ranks.size
            own = slice(self._ranks.rank * pairs, (self._ranks.rank + 1) * pairs)
            return self.objective.local_terms(whole, own, self._scale, facts, phase)
        return self.objective.terms(whole, self._scale, facts, phase)

    def _finite(self, found: Terms, phase: Phase) -> dict[str, float]:
        """The terms as numbers, means over ranks: if one stops, all stop at the same step."""
        means = average_over(self._ranks, torch.stack(list(found.values())).detach())
        values = dict(zip(found, means.tolist(), strict=True))
        for name, value in values.items():
            if not math.isfinite(value):
                raise TrainingError(
                    f"the term {name!r} of {self.objective.name} is {value} in phase "
                    f"{phase.name}; nothing was changed by this step: use a smaller learning "
                    "rate, or fp32"
                )
        return values

    def _attention(self) -> AbstractContextManager[None]:
        """On a CPU the fused backward takes as long as all the rest of a small model."""
        if self.estimator.device.type != "cpu":
            return nullcontext()
        chosen: AbstractContextManager[None] = sdpa_kernel(SDPBackend.MATH)
        return chosen

    @property
    def _scale(self) -> torch.Tensor:
        scale: torch.Tensor = self._model.logit_scale.float().exp()  # type: ignore[operator]
        return scale

    def _tokens(self, captions: list[str]) -> torch.Tensor:
        tokens = self.estimator.tokenize(captions)
        if self.estimator.trims_text:
            tokens = tokens[:, : int(token_lengths(tokens).max())]
        return tokens

    def _gathered_facts(self, batch: TrainBatch, step: int) -> GlobalBatch:
        """What is known of the pairs of all ranks, in the order of their embeddings."""
        device = self.estimator.device
        truth = batch.is_noisy
        if truth is None:
            truth = torch.full((len(batch.uids),), -1, dtype=torch.int8)
        return GlobalBatch(
            weights=gather_with_gradients(batch.weights.to(device)),
            is_forget=gather_with_gradients(batch.is_forget.to(device)),
            keys=gather_with_gradients(pair_keys(batch.uids).to(device)),
            is_noisy=gather_with_gradients(truth.to(device)),
            seed=_step_seed(self.options.seed, step),
        )

    def _log(self, log: RunLog, report: StepReport) -> None:
        if report.step % self.options.log_steps and report.step not in (1, report.steps):
            return
        log.write(
            report.step,
            {
                "phase": report.phase,
                "loss": report.loss,
                **{f"loss/{name}": value for name, value in report.terms.items()},
                "scale": report.scale,
                "gradient_norm": report.gradient_norm,
                "samples_per_second": round(report.samples_per_second, 1),
                "skipped": sum(self.loader.counts.skipped.values()),
                **(self.objective.statistics() if isinstance(self.objective, Observed) else {}),
            },
        )

    def _is_due(self, progress: Progress, saved: float) -> bool:
        every = self.options.save_steps
        if every is not None and progress.total_steps % every == 0:
            return True
        # Ranks have clocks of their own: only a run of one may go by the minutes.
        return self._ranks.size == 1 and time.monotonic() - saved > 60 * self.options.save_minutes

    def _save(self, progress: Progress, optimizer: torch.optim.Optimizer | None) -> None:
        if not self._ranks.is_first or self.folder is None:
            return
        state: dict[str, Any] = {
            "model": self._model.state_dict(),
            "own": {name: module.state_dict() for name, module in self._own.items()},
            "optimizer": optimizer.state_dict() if optimizer is not None else None,
            "adversaries": self._adversaries.state_dict() if self._adversaries else None,
            "scaler": self._scaler.state_dict(),
            "averaged": self.averaged.state_dict() if self.averaged is not None else None,
            "random": torch.get_rng_state(),
        }
        folder = self.folder / "checkpoints"
        self._on_file(checkpoint_path(folder, progress))
        save_checkpoint(folder, progress, state, self.options.keep)

    def _restore(self, resume: bool) -> tuple[Progress, dict[str, Any] | None]:
        if not resume or self.folder is None:
            return Progress(), None
        found = load_checkpoint(self.folder / "checkpoints")
        if found is None:
            return Progress(), None
        progress, state = found
        try:
            self._model.load_state_dict(state["model"])
            for name, module in self._own.items():
                module.load_state_dict(state["own"][name])
            self._scaler.load_state_dict(state["scaler"])
            if self.averaged is not None and state["averaged"] is not None:
                self.averaged.load_state_dict(state["averaged"])
        except (RuntimeError, KeyError) as error:
            raise ResumeError(
                f"{self.folder} was made with another model or method: {str(error).splitlines()[0]}"
            ) from error
        return progress, state


def _step_seed(seed: int, step: int) -> int:
    """A seed of 63 bits for each step of a run; neighbouring steps have unrelated ones."""
    digest = hashlib.blake2b(f"{seed} {step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
