"""OSA's domain adaptation: a few steps of CLIP training on pairs that are clean beyond doubt.

The estimator is frozen while it scores; before that it may get to know the domain. Paper, section
"Domain adaptation": a Gaussian mixture with a strict threshold picks the pairs, a warm-up of a
few steps follows. The authors find it unnecessary for CLIP on common domains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from ncclean.data.decode import ImageDecoder
from ncclean.data.shards import ShardRef
from ncclean.data.stream import StreamReader
from ncclean.errors import InputError
from ncclean.models.estimator import Estimator
from ncclean.models.text_tower import encode_text, token_lengths
from ncclean.training.objectives.clip import clip_loss
from ncclean.training.options import AdaptOptions

# Decoded images that wait to be mixed with others, in batches.
_SHUFFLED_BATCHES = 4
_WEIGHT_DECAY = 0.2
_BETAS = (0.9, 0.98)
_LARGEST_SCALE = 100.0


def adapt(
    estimator: Estimator,
    shards: list[ShardRef],
    chosen: dict[str, set[str]],
    options: AdaptOptions,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
    failed: dict[str, str] | None = None,
) -> list[float]:
    """Train the estimator's model on the chosen keys of each shard; returns the loss of each step.

    `estimator.model` is changed in place; to score with it, build an estimator anew. Images are
    seen as the estimator sees them, without augmentation. `failed` is given the shards that break
    off, with the reason. Raises `InputError` if the pairs that can be read are fewer than a batch,
    or the loss is no longer finite.
    """
    model = estimator.model
    optimizer = torch.optim.AdamW(_groups(model), lr=options.learning_rate, betas=_BETAS, eps=1e-8)
    # Gradients of half precision need it; with bf16 and fp32 it does nothing.
    scaler = torch.amp.GradScaler(estimator.device.type, enabled=estimator.precision == "fp16")
    losses: list[float] = []
    model.train()
    try:
        for step, (pixels, captions) in enumerate(
            _batches(estimator, shards, chosen, options, {} if failed is None else failed)
        ):
            for group in optimizer.param_groups:
                group["lr"] = options.learning_rate * _schedule(step, options)
            loss = _loss(estimator, pixels, captions)
            if not torch.isfinite(loss):
                raise InputError(
                    f"the loss is {loss.item()} at step {step + 1}; use a smaller --learning-rate"
                )
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            with torch.no_grad():
                model.logit_scale.clamp_(0, math.log(_LARGEST_SCALE))  # type: ignore[operator]
            losses.append(loss.item())
            on_step(step + 1, losses[-1])
            if len(losses) == options.steps:
                break
    finally:
        model.eval()
    return losses


def _groups(model: torch.nn.Module) -> list[dict[str, object]]:
    """Biases, gains and the scale are not decayed."""
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    return [
        {"params": decayed, "weight_decay": _WEIGHT_DECAY},
        {"params": others, "weight_decay": 0.0},
    ]


def _schedule(step: int, options: AdaptOptions) -> float:
    warm = max(1, round(options.warmup * options.steps))
    if step < warm:
        return (step + 1) / warm
    progress = (step - warm) / max(1, options.steps - warm)
    return 0.5 * (1 + math.cos(math.pi * progress))


def _loss(estimator: Estimator, pixels: torch.Tensor, captions: list[str]) -> torch.Tensor:
    model = estimator.model
    tokens = estimator.tokenize(captions)
    if estimator.trims_text:
        tokens = tokens[:, : int(token_lengths(tokens).max())]
    with estimator.autocast():
        image = model.encode_image(estimator.normalized(pixels))  # type: ignore[operator]
        text = encode_text(model, tokens.to(estimator.device))
    scale = model.logit_scale.exp()  # type: ignore[operator]
    return clip_loss(F.normalize(image.float(), dim=-1), F.normalize(text.float(), dim=-1), scale)


def _batches(
    estimator: Estimator,
    shards: list[ShardRef],
    chosen: dict[str, set[str]],
    options: AdaptOptions,
    failed: dict[str, str],
) -> Iterator[tuple[torch.Tensor, list[str]]]:
    """Shuffled (N, 3, H, W) uint8 images and captions, round after round over the shards."""
    generator = torch.Generator().manual_seed(options.seed)
    held: list[tuple[torch.Tensor, str]] = []
    room = _SHUFFLED_BATCHES * options.batch_size
    while True:
        read = 0
        for pair in _pairs(estimator, shards, chosen, options, generator, failed):
            held.append(pair)
            read += 1
            if len(held) >= room:
                yield _drawn(held, options.batch_size, generator)
        if read < options.batch_size:
            raise InputError(
                f"only {read} of the chosen pairs could be read, fewer than --batch-size "
                f"{options.batch_size}"
            )
        while len(held) >= options.batch_size:
            yield _drawn(held, options.batch_size, generator)


def _drawn(
    held: list[tuple[torch.Tensor, str]], count: int, generator: torch.Generator
) -> tuple[torch.Tensor, list[str]]:
    """Take `count` random ones out of `held`."""
    order = torch.randperm(len(held), generator=generator).tolist()
    taken = [held[index] for index in order[:count]]
    held[:] = [held[index] for index in sorted(order[count:])]
    return torch.stack([pixels for pixels, _ in taken]), [caption for _, caption in taken]


def _pairs(
    estimator: Estimator,
    shards: list[ShardRef],
    chosen: dict[str, set[str]],
    options: AdaptOptions,
    generator: torch.Generator,
    failed: dict[str, str],
) -> Iterator[tuple[torch.Tensor, str]]:
    """The chosen pairs once, the shards in random order."""
    order = torch.randperm(len(shards), generator=generator).tolist()
    reader = StreamReader(
        [shards[index] for index in order if chosen.get(shards[index].name)],
        ImageDecoder(estimator.preprocessing),
        threads=options.decode_threads,
        prefetch=options.batch_size,
        keep=lambda shard, sample: sample.key in chosen[shard.name],
    )
    with reader:
        for stream in reader:
            for decoded in stream:
                if decoded.pixels is not None and decoded.sample.caption is not None:
                    yield decoded.pixels, decoded.sample.caption
            if stream.error is not None:
                failed[stream.shard.name] = str(stream.error)
