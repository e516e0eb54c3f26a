"""The commands as functions of the package: `ncclean.score(...)`, made from the declarations."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ncclean.base.options import Parameter, parameters
from ncclean.errors import InputError

from .command import Command, Result, build, help_text
from .progress import SILENT, Calls, Progress
from .registry import COMMANDS

# `ncclean.report` is a package already.
_NAMES = {"report": "write_report"}
FUNCTIONS: dict[str, type[Command]] = {
    _NAMES.get(name, name.replace(" ", "_").replace("-", "_")): kind
    for name, kind in COMMANDS.items()
}


def function(name: str) -> Callable[..., Any]:
    """The Python function of a command by name. Raises `KeyError` for another name.

    `progress` is an object with `say` and `advance`, or a function that is called with a `Report`
    each time, such as `print`. Raises `InputError` for options that the command does not take.
    """
    if name == "evaluate":
        return evaluate
    kind = FUNCTIONS[name]
    signature = signature_of(kind)

    def call(*args: Any, **options: Any) -> Result[Any]:
        arguments = signature.bind(*args, **options).arguments
        progress = arguments.pop("progress", None)
        if progress is None:
            progress = SILENT
        elif not isinstance(progress, Progress):
            progress = Calls(progress)
        return build(kind, arguments).run(progress)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = help_text(kind)
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def evaluate(task: str, *inputs: Any, **options: Any) -> Result[Any]:
    """Run `ncclean evaluate TASK`, with the arguments of the task's function `evaluate_...`."""
    prefix = "evaluate "
    tasks = sorted(name.removeprefix(prefix) for name in COMMANDS if name.startswith(prefix))
    if task not in tasks:
        raise InputError(f"evaluate takes {', '.join(tasks)}, got {task!r}")
    result: Result[Any] = function(f"evaluate_{task.replace('-', '_')}")(*inputs, **options)
    return result


def signature_of(kind: type[Command]) -> inspect.Signature:
    """Signature of a command's function: inputs and `out` by position, other options by name."""
    positional, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    needed, optional, others = [], [], []
    for parameter in parameters(kind).values():
        if parameter.is_required:
            needed.append(_argument(parameter, positional))
        elif parameter.option.argument or parameter.name == "out":
            optional.append(_argument(parameter, positional))
        else:
            others.append(_argument(parameter, keyword))
    progress = inspect.Parameter("progress", keyword, default=None)
    return inspect.Signature([*needed, *optional, *others, progress])


def _argument(parameter: Parameter, kind: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if parameter.is_required else parameter.default
    return inspect.Parameter(parameter.name, kind, default=default, annotation=parameter.takes)
