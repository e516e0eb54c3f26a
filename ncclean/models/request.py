"""The model that a run requests, here or on another machine, and the folder for a written one."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from upath import UPath

from ncclean.base.atomic import published
from ncclean.base.config import CLIP_SCALE
from ncclean.base.stores import absolute
from ncclean.errors import InputError, ModelError
from ncclean.models.checkpoint import FOLDER, WEIGHTS_NAME
from ncclean.models.estimator import Estimator
from ncclean.models.model_config import CONFIG_NAME
from ncclean.models.preprocessing import as_config
from ncclean.models.weights import write_tensors


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """A request to load a model: the arguments of `Estimator.load`."""

    model: str
    pretrained: str | None = None
    preprocess: str | None = None
    precision: str = "auto"
    device: str = "auto"
    compiled: bool = False
    space: str | None = None
    random_seed: int | None = None

    def load(self) -> Estimator:
        """Load the requested model. Raises `ModelError` if it cannot be loaded."""
        return Estimator.load(
            self.model,
            self.pretrained,
            preprocess=self.preprocess,
            precision=self.precision,
            device=self.device,
            compiled=self.compiled,
            space=self.space,
            random_seed=self.random_seed,
        )

    def absolute(self) -> ModelRequest:
        """Return the request with absolute paths, for a worker with another working folder."""
        return dataclasses.replace(
            self,
            model=absolute_model(self.model),
            pretrained=self.pretrained and absolute_model(self.pretrained),
        )


def scale_of(scale: str | float | None, model: ModelRequest) -> float | ModelRequest:
    """Return the factor of the cosines of embeddings, or a request for the model that has it.

    `scale` is a number, by default CLIP's, or the name of a model, which is loaded as `model` would
    be. Raises `InputError` for weights without a model.
    """
    if isinstance(scale, str):
        return dataclasses.replace(model, model=scale, precision="auto")
    for name in ("pretrained", "preprocess"):
        if getattr(model, name) is not None:
            raise InputError(
                f"--{name} is for a model, and embeddings are scored without one: name it with "
                "--scale MODEL, or leave the option out"
            )
    return CLIP_SCALE if scale is None else scale


def absolute_model(name: str) -> str:
    """Make the path of a model or of weights absolute; return a name unchanged."""
    if name.startswith(FOLDER):
        return FOLDER + absolute(name.removeprefix(FOLDER))
    return absolute(name) if os.path.exists(name) else name


def write_model(estimator: Estimator, folder: Path, trained: nn.Module | None = None) -> None:
    """Write `open_clip_config.json` and `open_clip_model.safetensors`, each published whole.

    The weights are those of `trained`, if given, instead of the estimator's own. A tokenizer and a
    text tower of Hugging Face are also written, as far as open_clip needs their files. Raises
    `ModelError` for a model without open_clip's description of its architecture.
    """
    model = estimator.model if trained is None else trained
    if not estimator.architecture:
        label = estimator.identity.model
        raise ModelError(f"{label} has no open_clip configuration that could be saved")
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(model, folder / WEIGHTS_NAME)
    tokenizer: Any = estimator.tokenizer
    if hasattr(tokenizer, "save_pretrained"):
        tokenizer.save_pretrained(folder)
    if tower := estimator.architecture["text_cfg"].get("hf_model_name"):
        text: Any = model.text
        text.config.save_pretrained(folder / tower)
    with published(UPath(folder / CONFIG_NAME)) as aside:
        config = {
            "model_cfg": dict(estimator.architecture),
            "preprocess_cfg": as_config(estimator.preprocessing),
        }
        aside.write_text(json.dumps(config, indent=2) + "\n")
