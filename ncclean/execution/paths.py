"""Paths that mean the same to a worker, which has a working directory of its own."""

from __future__ import annotations

import dataclasses
import os

from ncclean import stores
from ncclean.execution.engine import ModelRequest


def absolute(path: str) -> str:
    """A path from the root; URLs are left as they are."""
    return path if stores.is_url(path) else os.path.abspath(path)


def absolute_model(request: ModelRequest) -> ModelRequest:
    """The request with the paths of folders and checkpoints from the root."""
    return dataclasses.replace(
        request,
        model=_absolute_name(request.model),
        pretrained=request.pretrained and _absolute_name(request.pretrained),
    )


def _absolute_name(name: str) -> str:
    """What may be the name of a model or of weights as well as a path."""
    prefix = "local-dir:"
    if name.startswith(prefix):
        return prefix + absolute(name.removeprefix(prefix))
    return absolute(name) if os.path.exists(name) else name
