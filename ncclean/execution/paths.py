"""Paths that a worker, whose working directory is another one, resolves the same way."""

from __future__ import annotations

import os

from ncclean.stores import absolute


def absolute_model(name: str) -> str:
    """The absolute path of a model or of weights, unless it is a name."""
    prefix = "local-dir:"
    if name.startswith(prefix):
        return prefix + absolute(name.removeprefix(prefix))
    return absolute(name) if os.path.exists(name) else name
