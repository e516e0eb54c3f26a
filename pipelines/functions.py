"""The commands as functions of the package, `ncclean.score(...)`, made from the declarations."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from ncclean.base.formats import counted
from ncclean.base.option_values import renamed
from ncclean.base.options import Parameter, Reads, closest, parameters
from ncclean.errors import InputError

from .command import Command, Result, build, help_text
from .progress import Calls, Progress, Report, default_progress
from .registry import COMMANDS

_PAIRS = (Reads.SHARDS, Reads.SOURCE)
_HELD = "Also a datasets.Dataset, a data frame, an Arrow table, or a list of (image, caption)."
# `ncclean.report` is a package already.
_NAMES = {"report": "write_report"}
FUNCTIONS: dict[str, type[Command]] = {
    _NAMES.get(name, name.replace(" ", "_").replace("-", "_")): kind
    for name, kind in COMMANDS.items()
}


def function(name: str) -> Callable[..., Any]:
    """Return the Python function of a command by name. Raises `KeyError` for another name.

    `progress` is an object with `say` and `advance`, or a function called with each `Report`, such
    as `print`; without one, a notebook shows a bar. Raises `InputError` for values that options do
    not take, and Python's `TypeError` for other names.
    """
    if name == "evaluate":
        return evaluate
    kind = FUNCTIONS[name]
    signature = signature_of(kind)

    def call(*args: Any, **options: Any) -> Result[Any]:
        options = renamed(options, parameters(kind))
        for option in options:
            if option not in signature.parameters:
                near = closest(option, signature.parameters)
                raise TypeError(f"{name}() has no option {option!r}{near}")
        arguments = signature.bind(*args, **options).arguments
        with _watched(arguments.pop("progress", None)) as progress:
            files, written = _with_files(kind, arguments, progress)
            result = build(kind, files).run(progress)
        return dataclasses.replace(result, made=(*result.made, *written))

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"{help_text(kind)}\n\n{_options_text(kind)}"
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def _watched(
    progress: Progress | Callable[[Report], object] | None,
) -> contextlib.AbstractContextManager[Progress]:
    if progress is None:
        return default_progress()
    if not isinstance(progress, Progress):
        progress = Calls(progress)
    return contextlib.nullcontext(progress)


def _with_files(
    kind: type[Command], arguments: Mapping[str, Any], progress: Progress
) -> tuple[dict[str, Any], list[str]]:
    """Replace objects that hold pairs by paths of files; return the arguments, and these files."""
    from ncclean.data.objects import is_paths, write_pairs

    files, written = dict(arguments), []
    for name, value in arguments.items():
        if parameters(kind)[name].option.reads in _PAIRS and not is_paths(value):
            file, count = write_pairs(value, *map(arguments.get, ("image_root", "image_key")))
            progress.say(f"{counted(count, 'pair')} written to {file}: other commands take it, too")
            files[name] = [file]
            written.append(file)
    return files, written


def _options_text(kind: type[Command]) -> str:
    """Return the options as `help()` shows them: the meaning of each below its name."""
    listed = (one for one in parameters(kind).values() if one.option.is_listed)
    return "Options:\n" + "\n".join(
        textwrap.fill(_meaning(one), 88, initial_indent=f"  {one.name}: ",
                      subsequent_indent="      ")
        for one in listed
    )  # fmt: skip


def _meaning(parameter: Parameter) -> str:
    text = parameter.option.help.replace("`", "")
    return f"{text} {_HELD}" if parameter.option.reads in _PAIRS else text


def evaluate(task: str, *inputs: Any, **options: Any) -> Result[Any]:
    """Run `ncclean evaluate TASK`, with the arguments of the task's function `evaluate_...`."""
    prefix = "evaluate "
    tasks = sorted(name.removeprefix(prefix) for name in COMMANDS if name.startswith(prefix))
    if task not in tasks:
        raise InputError(f"evaluate takes {', '.join(tasks)}, got {task!r}{closest(task, tasks)}")
    result: Result[Any] = function(f"evaluate_{task.replace('-', '_')}")(*inputs, **options)
    return result


def signature_of(kind: type[Command]) -> inspect.Signature:
    """Return the signature of a command's function.

    Inputs and `out` are by position, other options by name.
    """
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
