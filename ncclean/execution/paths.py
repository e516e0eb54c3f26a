"""Paths that a worker, whose working directory is another one, resolves the same way."""

from __future__ import annotations

import dataclasses
import os

from ncclean import stores
from ncclean.execution.engine import ModelRequest


def absolute(path: str) -> str:
    """The absolute path; URLs stay as they are."""
    return path if stores.is_url(path) else os.path.abspath(path)


def absolute_model(request: ModelRequest) -> ModelRequest:
    """The request with absolute paths of folders and checkpoints."""
    return dataclasses.replace(
        request,
        model=_absolute_name(request.model),
        pretrained=request.pretrained and _absolute_name(request.pretrained),
    )


def _absolute_name(name: str) -> str:
    """The absolute path, unless it is the name of a model or of weights."""
    prefix = "local-dir:"
    if name.startswith(prefix):
        return prefix + absolute(name.removeprefix(prefix))
    return absolute(name) if os.path.exists(name) else name
