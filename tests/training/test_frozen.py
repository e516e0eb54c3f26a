"""What a phase freezes stays as it is, and what the towers draw belongs to the step."""

import torch
from open_clip.model import CLIP

from ncclean.data.decode import Preprocessing
from ncclean.models.estimator import Estimator
from ncclean.training.objectives.base import Phase
from ncclean.training.objectives.clip import Clip
from ncclean.training.objectives.options import ObjectiveOptions
from ncclean.training.objectives.registry import make_objective
from ncclean.training.options import TrainOptions
from ncclean.training.trainer import Trainer
from tests.training.batches import TINY, TOKENIZER, FixedBatches, tiny_estimator, train


def residual_estimator() -> Estimator:
    """A ResNet, whose BatchNorm layers keep statistics."""
    torch.manual_seed(0)
    vision = {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8, "head_width": 8}
    model = CLIP(**{**TINY, "vision_cfg": vision})
    preprocessing = Preprocessing((32, 32), (0.5,) * 3, (0.5,) * 3)
    return Estimator(model, TOKENIZER(context_length=16), preprocessing)


def statistics(model):
    names = ("running_mean", "running_var", "num_batches_tracked")
    return {n: v.clone() for n, v in model.state_dict().items() if n.endswith(names)}


def changed(before, after):
    return [name for name in before if not torch.equal(before[name], after[name])]


def test_batch_norm_of_a_frozen_tower_keeps_its_statistics():
    estimator = residual_estimator()
    before = statistics(estimator.model)
    options = ObjectiveOptions(learning_rate=1e-3, prompt_epochs=1, epochs=1)
    objective = make_objective("ncu", options, estimator.tokenize)
    objective.phases = objective.phases[:1]  # HN, which freezes the image tower
    train(None, objective=objective, estimator=estimator)
    assert before
    assert changed(before, statistics(estimator.model)) == []


def test_batch_norm_of_a_tower_that_trains_does_not():
    estimator = residual_estimator()
    before = statistics(estimator.model)
    train(None, estimator=estimator, epochs=1)
    assert changed(before, statistics(estimator.model)) == list(before)


def test_a_frozen_tower_draws_nothing():
    """Patches are dropped where the image tower trains, and only there."""
    estimator = tiny_estimator(patch_dropout=0.5)
    seen = []

    class Watched(Clip):
        def encode(self, model, pixels, tokens, phase):
            with torch.no_grad():
                seen.append(torch.equal(model.encode_image(pixels), model.encode_image(pixels)))
            return super().encode(model, pixels, tokens, phase)

    phases = tuple(
        Phase(name=name, epochs=1, learning_rates={name: 1e-3}) for name in ("text", "image")
    )
    train(None, objective=Watched(phases), estimator=estimator)
    assert seen == [True] * 4 + [False] * 4


def test_a_resumed_run_draws_what_an_uninterrupted_one_does(tmp_path):
    """Of a model that drops patches, broken off in the middle of an epoch."""

    def run(folder, **options):
        return train(folder, estimator=tiny_estimator(patch_dropout=0.5), save_steps=1, **options)

    whole = run(tmp_path / "whole")
    run(tmp_path / "broken", stop_after=3)
    resumed = run(tmp_path / "broken", resume=True)
    assert changed(whole, resumed) == []


def test_steps_draw_apart():
    """The same pairs lose other patches in another step."""
    drawn = []

    class Watched(Clip):
        def encode(self, model, pixels, tokens, phase):
            drawn.append(float(torch.rand(1)))
            return super().encode(model, pixels, tokens, phase)

    phase = Phase(name="p", epochs=1, learning_rates={"image": 1e-3})
    trainer = Trainer(
        tiny_estimator(),
        Watched((phase,)),
        FixedBatches(steps=3, size=16),
        TrainOptions(tensorboard=False),
        None,
    )
    trainer.run()
    assert len(set(drawn)) == 3
