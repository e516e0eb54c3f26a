"""The identity of a stage: while it is unchanged, so is the result."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import ncclean
from ncclean.base.options import parameters
from ncclean.base.url_secrets import values_without_secrets
from ncclean.errors import InputError
from ncclean.storage.inputs import stamps

from .check import inputs_of
from .load import Stage


def stage_identity(stage: Stage, upstream: Mapping[str, str]) -> dict[str, Any]:
    """Return a stage's options, digests of its inputs, and the runs of stages it uses.

    `upstream` identifies the runs of earlier stages (`StageRecord.run_id`): one that ran again
    makes those that use it run again. Options that change no result are excluded, and paths in the
    folder of the run count as written, so that a run can be moved.
    """
    declared = parameters(type(stage.command))
    inputs: dict[str, list[Any]] = {}
    for option, reads, value in inputs_of(stage):
        inputs.setdefault(option, []).extend(stamps(reads, value))
    for option, reads, value in inputs_of(stage, in_run=True):
        with contextlib.suppress(InputError):  # a stage that has not run yet may write it
            inputs.setdefault(option, []).extend(
                (os.path.basename(path), *version) for path, *version in stamps(reads, value)
            )
    return {
        "command": stage.command.name,
        "version": ncclean.__version__,
        "options": {
            name: values_without_secrets(value)
            for name, value in sorted(stage.symbolic.items())
            if not declared[name].option.is_idle
        },
        "inputs": {name: _digest(sorted(files)) for name, files in inputs.items()},
        "upstream": {name: upstream[name] for name in sorted(stage.uses)},
    }


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()[:16]
