"""Which model is asked for: all that it takes to load it, here or on another machine."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass

from ncclean.base.config import CLIP_SCALE
from ncclean.base.stores import absolute
from ncclean.errors import InputError
from ncclean.models.estimator import Estimator

_FOLDER = "local-dir:"


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """The arguments of `Estimator.load`."""

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
        """The request with absolute paths, for a worker whose working folder is another one."""
        return dataclasses.replace(
            self,
            model=absolute_model(self.model),
            pretrained=self.pretrained and absolute_model(self.pretrained),
        )


def scale_of(scale: str | float | None, model: ModelRequest) -> float | ModelRequest:
    """The logit scale of embeddings: a number, CLIP's by default, or a request for the model named
    `scale`, which is loaded as `model` would be.

    Raises `InputError` for weights without a model.
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
    """Make the path of a model or of weights absolute; a name stays as it is."""
    if name.startswith(_FOLDER):
        return _FOLDER + absolute(name.removeprefix(_FOLDER))
    return absolute(name) if os.path.exists(name) else name
