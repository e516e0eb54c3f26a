"""The loop: resuming, pieces, ranks and checks change nothing but what they are for."""

import contextlib
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from open_clip.model import CLIP
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from ncclean.models.text_tower import encode_text, token_lengths
from ncclean.training import trainer
from ncclean.training.batch_step import BatchStep
from ncclean.training.objectives import disncl
from ncclean.training.objectives.base import Objective, Phase, shared_out, whole_model
from ncclean.training.objectives.clip import Clip, clip_loss
from ncclean.training.objectives.options import BayesOptions, DisnclOptions
from ncclean.training.options import TrainOptions
from ncclean.training.run_files import load_checkpoint, read_results
from ncclean.training.trainer import Trainer
from tests.training.batches import (
    CUT_SHORT,
    LINEAR,
    FixedBatches,
    start_joined_ranks,
    tiny_estimator,
    train,
    train_as_rank,
)

_TIMES = ("samples_per_second", "data_wait")


def largest_difference(a, b):
    return max((a[name].float() - b[name].float()).abs().max().item() for name in a)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return train(folder), read_results(folder)


def test_training_lowers_the_loss_and_logs_every_step(uninterrupted):
    _, results = uninterrupted
    assert [record["step"] for record in results] == list(range(1, 9))
    assert all(math.isfinite(record["loss"]) for record in results)
    assert results[-1]["phase"] == "train"


def test_ncu_trains_its_groups_phase_by_phase(tmp_path):
    """HN leaves the image tower untouched, UL the prompt; resuming in UL changes nothing."""
    start = tiny_estimator().model.state_dict()
    options = {"method": "ncu", "epochs": 1, "save_steps": 4}
    after_hn = train(tmp_path / "hn", stop_after=4, **options)
    assert all(torch.equal(after_hn[n], start[n]) for n in start if n.startswith("visual."))
    assert not torch.equal(after_hn["text_projection"], start["text_projection"])
    whole = train(tmp_path / "whole", **options)
    assert not torch.equal(whole["visual.proj"], start["visual.proj"])
    prompts = [
        torch.load(path, weights_only=True)["own"]["prompt"]["context"]
        for path in sorted((tmp_path / "whole" / "checkpoints").iterdir())
    ]
    assert len(prompts) == 2
    assert torch.equal(prompts[0], prompts[1])
    names = {record["phase"] for record in read_results(tmp_path / "whole")}
    assert names == {"HN", "UL"}
    train(tmp_path / "broken", stop_after=6, **options)
    resumed = train(tmp_path / "broken", resume=True, **options)
    assert largest_difference(whole, resumed) == 0


@pytest.mark.parametrize("stop", [3, 4, 6])
def test_a_resumed_run_ends_like_an_uninterrupted_one(uninterrupted, tmp_path, stop):
    """Broken off between two checkpoints, at the end of an epoch, and in the second one."""
    weights, results = uninterrupted
    train(tmp_path, stop_after=stop, save_steps=2)
    position, _ = load_checkpoint(tmp_path / "checkpoints")
    assert position.total_steps == (stop - 1) // 2 * 2
    resumed = train(tmp_path, resume=True, save_steps=2)
    assert largest_difference(weights, resumed) == 0
    again = read_results(tmp_path)
    assert [r["step"] for r in again] == [r["step"] for r in results]
    assert [r["loss"] for r in again] == [r["loss"] for r in results]
    # One row of each step could not be shown, and one more of three steps out of four.
    assert [r["skipped"] for r in again] == [1, 3, 5, 7, 8, 10, 12, 14]
    _, state = load_checkpoint(tmp_path / "checkpoints")
    assert state["skipped"] == {"image_corrupt": 8, "shard_error": 6}
    assert state["failed_shards"] == {CUT_SHORT.shard: CUT_SHORT.error}


def phases_of_steps(*steps):
    """Phases that end within an epoch of four steps."""
    rates = {"image": 1e-3, "text": 1e-3}
    return tuple(
        Phase(name=f"phase {number}", epochs=2, steps=count, learning_rates=rates)
        for number, count in enumerate(steps)
    )


def test_a_phase_ends_after_its_steps(tmp_path):
    """In the middle of an epoch; the next one starts with an epoch of its own."""
    options = {"objective": Clip(phases_of_steps(6, 3)), "save_steps": 1}
    whole = train(tmp_path / "whole", **options)
    names = [record["phase"] for record in read_results(tmp_path / "whole")]
    assert names == ["phase 0"] * 6 + ["phase 1"] * 3
    for stop in (5, 6, 8):
        train(tmp_path / str(stop), stop_after=stop, **options)
        resumed = train(tmp_path / str(stop), resume=True, **options)
        assert largest_difference(whole, resumed) == 0


@pytest.mark.parametrize(("steps", "length"), [(None, 8), (3, 3), (8, 8), (9, 8)])
def test_steps_shorten_a_phase_and_never_lengthen_it(steps, length):
    (phase,) = phases_of_steps(steps)
    assert phase.length(steps_per_epoch=4) == length


def test_so_many_steps_whatever_the_number_of_pairs(tmp_path):
    """Phases share the steps as they share the epochs; a run that stopped ends alike."""
    first, second = phases_of_steps(None, None)
    options = {"objective": Clip((first, replace(second, epochs=6))), "steps": 7, "save_steps": 1}
    whole = train(tmp_path / "whole", **options)
    names = [record["phase"] for record in read_results(tmp_path / "whole")]
    assert names == ["phase 0"] * 2 + ["phase 1"] * 5
    train(tmp_path / "again", stop_after=4, **options)
    assert largest_difference(whole, train(tmp_path / "again", resume=True, **options)) == 0


@pytest.mark.parametrize("epochs", [(1,), (1, 1), (2, 8), (1, 3, 5)])
@pytest.mark.parametrize("steps", [1, 2, 125, 1000])
def test_phases_share_the_steps(epochs, steps):
    rates = {"image": 1e-3}
    phases = [Phase(name=str(n), epochs=n, learning_rates=rates) for n in epochs]
    shared = shared_out(phases, steps, steps_per_epoch=4)
    assert sum(phase.length(4) for phase in shared) == steps
    for phase, count in zip(shared, epochs, strict=True):
        assert abs(phase.length(4) - steps * count / sum(epochs)) <= 1
        assert phase.warmup == phases[0].warmup


def test_a_trainer_without_a_folder_leaves_no_trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(None, epochs=1, save_steps=1, resume=True)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def linear(tmp_path_factory):
    """Weights after steps in proportion to the gradient, which have moved by far more than 1e-6."""
    weights = train(tmp_path_factory.mktemp("linear"), **LINEAR)
    start = tiny_estimator().model.state_dict()
    assert largest_difference(weights, start) > 1e-3
    return weights


def test_pieces_of_a_batch_give_the_gradient_of_the_whole(linear, tmp_path):
    assert largest_difference(linear, train(tmp_path, parts=3, **LINEAR)) < 1e-6


def test_gradient_checkpointing_changes_nothing(linear, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(CLIP, "set_grad_checkpointing", lambda self, on: asked.append(on))
    train(tmp_path / "asked", gradient_checkpointing=True, **LINEAR)
    assert asked == [True]
    monkeypatch.undo()
    checkpointed = train(tmp_path, gradient_checkpointing=True, **LINEAR)
    assert largest_difference(linear, checkpointed) < 1e-6


METHODS = ("clip", "osa", "ncu", "bayes")


@pytest.fixture(scope="module")
def weights_of_two_ranks(tmp_path_factory):
    """A folder with the weights of each method: two processes train with one after the other."""
    folder = tmp_path_factory.mktemp("ranks")
    start_joined_ranks(train_as_rank, (str(folder), METHODS))
    return folder


@pytest.fixture
def two_threads():
    """As many as there are processes: products of matrices are then divided, and rounded, alike.

    Rounded differently, steps of NCU end 2e-6 apart, by some processors' arithmetic.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("method", METHODS)
def test_two_processes_train_as_one_with_the_joint_batch(
    weights_of_two_ranks, tmp_path, method, two_threads
):
    expected = train(tmp_path, method=method, **LINEAR)
    found = torch.load(weights_of_two_ranks / f"{method}.pt", weights_only=True)
    assert largest_difference(expected, found) < 1e-6
    alone, together = (read_results(path) for path in (tmp_path, weights_of_two_ranks / method))
    assert [r["skipped"] for r in together] == [r["skipped"] for r in alone]


def test_only_the_groups_of_the_phase_train(tmp_path):
    before = tiny_estimator().model.state_dict()

    class TextOnly(Objective):
        name = "text only"

        def terms(self, embeddings, scale, batch, phase):
            return {"distance": (embeddings["image"] - embeddings["text"]).square().sum()}

    objective = TextOnly((Phase(name="text", epochs=1, learning_rates={"text": 1e-3}),))
    after = train(tmp_path, objective=objective)
    for name, value in before.items():
        frozen = name.startswith("visual.") or name == "logit_scale"
        assert torch.equal(value, after[name]) == frozen or "attn_mask" in name, name


class FailingThird(Objective):
    """The third step has a term that is not finite, of infinite gradient or of none."""

    name = "failing"

    def __init__(self, slope: float) -> None:
        super().__init__(whole_model(1e-3, 2))
        self.calls, self.slope = 0, slope

    def terms(self, embeddings, scale, batch, phase):
        self.calls += 1
        bad = embeddings["text"].sum() * self.slope + math.inf if self.calls == 3 else scale
        return {"fine": embeddings["image"].sum(), "bad one": bad}


@pytest.mark.parametrize("slope", [0.0, math.inf])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_loss_that_is_not_finite_changes_nothing(tmp_path, slope, precision, refused):
    """Though it is noticed when the gradients of the next step are there."""
    stopped = FailingThird(slope)
    before = train(
        tmp_path / "two", objective=stopped, estimator=tiny_estimator(precision), stop_after=2
    )
    estimator, objective = tiny_estimator(precision), FailingThird(slope)
    refused(train, tmp_path / "three", objective=objective, estimator=estimator)
    assert (stopped.calls, objective.calls) == (3, 4)
    assert largest_difference(before, estimator.model.state_dict()) == 0
    assert [record["step"] for record in read_results(tmp_path / "three")] == [1, 2]
    refused(train, tmp_path / "saved", objective=FailingThird(slope), save_steps=1)
    assert load_checkpoint(tmp_path / "saved" / "checkpoints")[0].total_steps == 2


def test_steps_are_those_of_a_plain_loop(tmp_path):
    """Forward, backward, clip, step: whatever is read late, the same to the last bit."""
    estimator, (phase,) = tiny_estimator(), whole_model(1e-3, 2)
    model, batches = estimator.model.train(), FixedBatches(size=16)
    towers = sorted(model.named_parameters(), key=lambda one: not one[0].startswith("visual"))
    # In the order in which their squares are added up: image tower, text tower, scale.
    parameters = [p for name, p in towers if name != "logit_scale"] + [model.logit_scale]
    matrices, others = ([p for p in parameters if (p.ndim >= 2) == wide] for wide in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.2}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-8, fused=True)
    losses = []
    for step in range(8):
        batch = batches._batch(step)
        tokens = estimator.tokenize(batch.captions)
        tokens = tokens[:, : int(token_lengths(tokens).max())]
        optimizer.zero_grad()
        with sdpa_kernel(SDPBackend.MATH):
            image, text = (
                F.normalize(features, dim=1)
                for features in (
                    model.encode_image(estimator.normalized(batch.pixels)),
                    encode_text(model, tokens, normalize=False),
                )
            )
            loss = clip_loss(image, text, model.logit_scale.exp())
            loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * phase.rate(step, 0, 8, 8)
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, math.log(100))
        losses.append(loss.item())
    trained = train(tmp_path, objective=Clip((phase,)))
    assert largest_difference(trained, model.state_dict()) == 0
    assert [record["loss"] for record in read_results(tmp_path)] == losses


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("bayes", {"bayes": BayesOptions(moving_average=0.5)}),
        ("disncl", {"disncl": DisnclOptions(warmup_epochs=1, hidden_dim=16, dim=12)}),
    ],
)
def test_reading_a_step_late_changes_neither_log_nor_checkpoints(tmp_path, method, settings):
    """With a checkpoint after every step each is read before the next one begins."""
    for name, every in (("late", None), ("at once", 1)):
        train(tmp_path / name, method=method, settings=settings, save_steps=every)
    late, at_once = (
        [
            {key: value for key, value in line.items() if key not in _TIMES}
            for line in read_results(tmp_path / name)
        ]
        for name in ("late", "at once")
    )
    assert late == at_once
    assert any("/" in key and "loss" not in key for key in late[0])
    (_, first), (_, second) = (
        load_checkpoint(tmp_path / name / "checkpoints") for name in ("late", "at once")
    )
    assert largest_difference(first["model"], second["model"]) == 0


def test_a_step_is_reported_while_the_next_one_computes(tmp_path):
    """And before a checkpoint of it, and the last one of a phase, with nothing begun."""

    class Counting(Clip):
        calls = 0

        def terms(self, *given):
            self.calls += 1
            return super().terms(*given)

    objective, seen = Counting(phases_of_steps(5)), []
    options = TrainOptions(tensorboard=False, save_steps=3)
    trainer = Trainer(tiny_estimator(), objective, FixedBatches(size=16), options, tmp_path)
    trainer.run(on_step=lambda report: seen.append((report.step, objective.calls)))
    assert seen == [(1, 2), (2, 3), (3, 3), (4, 5), (5, 5)]


class Reads(TorchDispatchMode):
    """Notes the operations for whose result a GPU is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in ("_local_scalar_dense", "nonzero", "is_nonzero"):
            self.found.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("method", ["clip", "osa", "softclip", "cyclip", "rince"])
def test_a_step_waits_for_nothing_from_the_device(method, monkeypatch):
    estimator, reads = tiny_estimator(), Reads()
    estimator.trims_text = False  # the length of the longest text is read, on the processor
    backward, update = BatchStep.backward, BatchStep.update

    def watched(method):
        def call(*given):
            with reads:
                return method(*given)

        return call

    monkeypatch.setattr(BatchStep, "backward", watched(backward))
    monkeypatch.setattr(BatchStep, "update", watched(update))
    train(None, method=method, estimator=estimator, epochs=1)
    assert reads.found == []
    with reads:
        float(torch.ones(()))
    assert len(reads.found) == 1


def test_the_log_has_the_seconds_that_steps_waited_for_their_batches(tmp_path, monkeypatch):
    now = 0.0

    class Slow(FixedBatches):
        def epoch(self, epoch, first_step=0):
            nonlocal now
            for batch in super().epoch(epoch, first_step):
                now += 0.5
                yield batch

    def take(report):
        nonlocal now
        now += 3.0  # which is not spent on waiting for data

    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: now))
    options = TrainOptions(tensorboard=False, log_steps=4)
    Trainer(tiny_estimator(), Clip(whole_model(1e-3, 2)), Slow(size=16), options, tmp_path).run(
        on_step=take
    )
    waits = {line["step"]: line["data_wait"] for line in read_results(tmp_path)}
    assert waits == {1: 0.5, 4: 1.5, 8: 2.0}


def test_checkpoints_are_retained_and_checked(tmp_path, refused):
    train(tmp_path, save_steps=1, keep=3)
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == [f"step_{n:08d}.pt" for n in (6, 7, 8)]
    newest = tmp_path / "checkpoints" / kept[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    refused(train, tmp_path, resume=True)


def test_moving_average(tmp_path):
    estimator = tiny_estimator()
    from ncclean.training.objectives.options import ObjectiveOptions
    from ncclean.training.objectives.registry import make_objective
    from ncclean.training.options import TrainOptions
    from ncclean.training.trainer import Trainer
    from tests.training.batches import FixedBatches

    start = estimator.model.text_projection.detach().clone()
    options = TrainOptions(tensorboard=False, ema_decay=0.5)
    objective = make_objective("clip", ObjectiveOptions(learning_rate=1e-3, epochs=1))
    trainer = Trainer(estimator, objective, FixedBatches(size=16), options, tmp_path)
    trainer.run()
    end, mean = estimator.model.text_projection, trainer.averaged.module.text_projection
    assert 0 < (mean - start).norm() < (end - start).norm()


@pytest.mark.parametrize("options", [{"parts": 0}, {"ema_decay": 1.0}, {"keep": 0}])
def test_options_out_of_range(tmp_path, options, refused):
    refused(train, tmp_path, **options)


def averaged_after(folder, resume=False, stop_after=None):
    """The moving average of the text projection, and its values after each step."""
    estimator = tiny_estimator()
    options = TrainOptions(tensorboard=False, ema_decay=0.5, save_steps=1)
    batches = FixedBatches(size=16)
    objective = Clip(whole_model(1e-3, 1))
    trainer = Trainer(estimator, objective, batches, options, folder)
    projection = estimator.model.text_projection
    values = [projection.detach().clone()]

    def note(report):
        values.append(projection.detach().clone())
        if report.step == stop_after:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        trainer.run(resume, note)
    return trainer.averaged.module.text_projection.detach(), values


def test_the_moving_average_halves_what_is_past_and_goes_on_after_a_stop(tmp_path):
    average, values = averaged_after(tmp_path / "whole")
    expected = values[1]  # torch begins with the model after the first step
    for value in values[2:]:
        expected = (expected + value) / 2
    assert len(values) == 5
    assert torch.allclose(average, expected, atol=1e-7)
    averaged_after(tmp_path / "broken", stop_after=3)
    resumed, _ = averaged_after(tmp_path / "broken", resume=True)
    assert torch.equal(resumed, average)


def test_adversaries_go_on_where_they_stopped(tmp_path, monkeypatch):
    """Their optimiser remembers earlier gradients, on which their next step depends."""
    # A random model takes no pair for clean, and adversaries see clean pairs alone.
    monkeypatch.setattr(disncl, "mutual_match", lambda cosines: cosines.diagonal() > -2)
    sizes = DisnclOptions(warmup_epochs=0, hidden_dim=16, dim=12)
    options = {"method": "disncl", "epochs": 1, "save_steps": 1, "settings": {"disncl": sizes}}

    train(tmp_path / "whole", keep=4, **options)
    train(tmp_path / "broken", stop_after=3, **options)
    train(tmp_path / "broken", resume=True, **options)
    first, whole, resumed = (
        torch.load(tmp_path / run / "checkpoints" / f"step_{step:08d}.pt", weights_only=True)
        for run, step in (("whole", 1), ("whole", 4), ("broken", 4))
    )
    before, after, again = (state["own"]["discriminators"] for state in (first, whole, resumed))
    assert largest_difference(before, after) > 1e-4
    assert largest_difference(after, again) == 0
