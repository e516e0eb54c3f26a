"""The text of `--help`, which docs/cli.md also shows."""

from __future__ import annotations

import textwrap
from typing import Any

from ncclean_pipelines.command import Command, help_text

from ncclean.base.options import Parameter, parameters

from .parameters import JSON, QUIET, SET, flags_of, typed_as

_TYPE_NAMES = {int: "INT", float: "FLOAT", list[float]: "FLOAT", bool: ""}
_NO_BREAK = "\N{NO-BREAK SPACE}"


def command_help(kind: type[Command], width: int) -> str:
    """The help of one command as plain text."""
    declared = parameters(kind).values()
    places = " ".join(p.option.metavar if _is_needed(p) else f"[{p.option.metavar}]"
                      for p in declared if p.option.argument)  # fmt: skip
    usage = f"Usage: ncclean {kind.name} [OPTIONS] {places}".rstrip()
    arguments = [(label(p), meaning(p)) for p in declared if p.option.argument]
    options = [
        (label(p), meaning(p)) for p in declared if not p.option.argument and p.option.is_listed
    ]
    options += [switch(info) for info in ([SET] if kind.takes_settings else []) + [JSON, QUIET]]
    blocks = [usage, about(kind, width)]
    blocks += [entries("Arguments", arguments, width)] if arguments else []
    return "\n\n".join([*blocks, entries("Options", options, width)])


def about(kind: type[Command], width: int, *, brief: bool = False) -> str:
    """Describe a command; briefly, in one sentence with an example."""
    first, *more, example = help_text(kind).replace("`", "").split("\n\n")
    return "\n\n".join(
        textwrap.fill(" ".join(p.split()), width, initial_indent="  ", subsequent_indent="  ")
        for p in (first, *([] if brief else more), example)
    )


def entries(title: str, labelled: list[tuple[str, str]], width: int) -> str:
    """Lay out labels in one column and their meanings in another, as the lines of `--help`."""
    column = max(len(label) for label, _ in labelled) + 4
    lines = [f"{title}:"]
    for label, meaning in labelled:
        text = textwrap.wrap(
            meaning, max(width - column, 20), break_long_words=False, break_on_hyphens=False
        )
        lines.append(f"  {label}".ljust(column) + text[0])
        lines += [" " * column + line for line in text[1:]]
    return "\n".join(lines).replace(_NO_BREAK, " ")


def switch(info: Any) -> tuple[str, str]:
    """Label and meaning of a flag that only the command line has, such as `--json`."""
    # Typer treats the first name as a default until the option is used.
    names = ", ".join(sorted([info.default, *(info.param_decls or ())], key=len))
    return f"{names} {info.metavar or ''}".rstrip(), info.help.replace("`", "")


def label(parameter: Parameter, *, brief: bool = False) -> str:
    """Return an option's flags and argument, briefly without its type; or an argument's name."""
    if parameter.option.argument:
        return parameter.option.metavar
    names = [name for flag in flags_of(parameter) for name in flag.split("/")]
    separator = " / " if any(name.startswith("--no-") for name in names) else ", "
    kind = "" if brief else _TYPE_NAMES.get(typed_as(parameter), "TEXT")
    text = f"{separator.join(sorted(names, key=len))} {parameter.option.metavar or kind}".rstrip()
    return f"{text}..." if brief and _is_repeatable(parameter) else text


def _is_repeatable(parameter: Parameter) -> bool:
    """Check whether the command line takes it several times, once for each value."""
    option = parameter.option
    return parameter.is_list and not (option.argument or option.commas)


def _is_needed(parameter: Parameter) -> bool:
    """Check whether the command line requires it."""
    return parameter.is_required and parameter.option.typed_default is None


def meaning(parameter: Parameter, *, brief: bool = False) -> str:
    """Return the help of an option, its bounds and default; briefly, only the default.

    Briefly, the methods of `finetune` that read it are also omitted: they are its heading.
    """
    option, facts = parameter.option, []
    text = option.help.replace("`", "")
    if brief:
        text = text.removeprefix(f"{', '.join(option.methods)}: ")
    elif _is_repeatable(parameter):
        text += " Repeatable."
    if brief:
        pass
    elif option.low is not None and option.high is not None:
        facts.append(f"{option.low:g} to {option.high:g}")
    else:
        bounds = (
            ("at least", option.low),
            ("above", option.above),
            ("at most", option.high),
            ("below", option.below),
        )
        facts += [f"{words} {bound:g}" for words, bound in bounds if bound is not None]
    if _is_needed(parameter):
        facts.append("required")
    default = parameter.default
    if option.commas and default:
        default = ", ".join(default)
    default = option.typed_default or default
    # Switches and options without a default say in words what happens without them.
    if option.shows_default and default != "" and isinstance(default, (str, int, float)):
        stated = f"{default}" if brief else f"default: {default}"
        facts += [stated] if not isinstance(default, bool) else []
    # A fact stays on one line, unless it is a list.
    together = (fact if ", " in fact else fact.replace(" ", _NO_BREAK) for fact in facts)
    return text + "".join(f" [{fact}]" for fact in together)
