"""What a scoring run asks an engine for: a model for images, or the scale of embeddings."""

from __future__ import annotations

import torch

from ncclean.config import ClusterOptions, parse_keys
from ncclean.data.shards import ShardRef
from ncclean.data.sources import are_embeddings
from ncclean.errors import InputError
from ncclean.execution.embedded import embedding_request
from ncclean.execution.engine import EngineRequest, ModelRequest
from ncclean.options import check_unset

from ..score import Score

_CLIP_SCALE = 100.0  # to which nearly every CLIP's training clamps it
_OF_IMAGES = ("model", "precision", "compile", "decode_on", "draft", "max_pixels", "image_root")


def model_request(command: Score) -> ModelRequest:
    """The model that scores."""
    return ModelRequest(
        model=command.model,
        pretrained=command.pretrained,
        precision=command.precision,
        device=command.device,
        compiled=command.compiled,
        space="auto",
    )


def uses_ray(command: Score) -> bool:
    """`auto` takes Ray when an address is given or several GPUs are visible."""
    if command.engine != "auto":
        return command.engine == "ray"
    if command.cluster != ClusterOptions():
        return True
    return command.device == "auto" and torch.cuda.device_count() > 1


def engine_request(command: Score, shards: list[ShardRef]) -> EngineRequest:
    """What opens an engine for shards of images or of embeddings."""
    if not are_embeddings(shards):
        check_unset(
            command,
            ("embedding_keys", "scale"),
            "is for embeddings, and these are images: leave it out",
        )
        for name in ("pool", "canonical"):
            if getattr(command.options, name):
                raise InputError(
                    f"--{name} is for embeddings, which can be read twice: score with --embeddings "
                    f"first, then score the embeddings with --{name}"
                )
        return model_request(command)
    check_unset(command, _OF_IMAGES, "is for images, and these are embeddings: leave it out")
    if "image" in (command.options.signals or ()):
        raise InputError("--signals image is for images, and these are embeddings: leave it out")
    scale: float | ModelRequest = _CLIP_SCALE
    if isinstance(command.scale, str):
        scale = ModelRequest(model=command.scale, pretrained=command.pretrained, space="auto")
    elif command.scale is not None:
        scale = command.scale
    if command.shift == "noise" and not isinstance(scale, ModelRequest):
        raise InputError("--shift noise needs a model: name it with --scale")
    return embedding_request(shards, parse_keys(command.embedding_keys), scale, command.device)
