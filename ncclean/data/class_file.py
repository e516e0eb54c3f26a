"""CyCLIP's `classes.py`: the names and prompts of the classes, read from the syntax tree.

The file is Python that CyCLIP evaluates: `{"classes": [...], "templates": [lambda s: f"a {s}."]}`.
It may come from anybody, so nothing of it is run. Literals are allowed, and as a prompt a text with
one place for the name: `lambda s: f"a {s}."`, `lambda s: "a {}.".format(s)` or `"a {}."`. Anything
else is refused.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ncclean.base.text_files import read_text
from ncclean.errors import InputError

NAME = "{c}"  # stands for the name of the class
_LARGEST = 4 << 20
_LITERALS = (ast.Dict, ast.List, ast.Tuple, ast.Set, ast.Constant, ast.expr_context)


@dataclass(frozen=True)
class ClassFile:
    """Names of the classes by label, and prompts with `{c}` for the name."""

    classes: list[str]
    templates: list[str]


def read_class_file(path: str) -> ClassFile:
    """Read a dictionary, or assignments, with `classes` and `templates`; other keys are ignored.

    Raises `InputError`, with the line, for whatever is not a literal or a prompt.
    """
    text = read_text(path, _LARGEST)
    try:
        body = ast.parse(text.strip()).body
        values = dict(_entries(path, body))
        classes = [_text(path, node) for node in _list(path, values, "classes")]
        templates = [_template(path, node) for node in _list(path, values, "templates")]
    except (SyntaxError, ValueError) as error:
        raise InputError(f"{path} is not Python: {error}") from None
    except (RecursionError, MemoryError):
        raise InputError(f"{path} is nested too deeply to be read") from None
    return ClassFile(classes, templates)


def _entries(path: str, body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """The keys of the dictionary, or the names that are assigned, with their values."""
    if len(body) == 1 and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Dict):
        entries = body[0].value
        for key, value in zip(entries.keys, entries.values, strict=True):
            if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                raise _refused(path, key or value, "a key that is not a text")
            yield _checked(path, key.value, value)
        return
    for statement in body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if len(targets) != 1 or not isinstance(targets[0], ast.Name):
            raise _refused(path, statement, "neither a dictionary nor `NAME = VALUE`")
        assert isinstance(statement, ast.Assign)
        yield _checked(path, targets[0].id, statement.value)


def _checked(path: str, name: str, value: ast.expr) -> tuple[str, ast.expr]:
    """A value is a literal, but for the prompts, which are looked at one by one."""
    if name != "templates":
        for node in ast.walk(value):
            if not isinstance(node, _LITERALS):
                raise _refused(path, node, "not a literal")
    return name, value


def _list(path: str, values: dict[str, ast.expr], name: str) -> list[ast.expr]:
    if name not in values:
        raise InputError(f"{path} has no {name!r}: it must hold the classes and templates of a set")
    value = values[name]
    if not isinstance(value, ast.List | ast.Tuple) or not value.elts:
        raise _refused(path, value, f"{name!r} is not a list with something in it")
    return value.elts


def _text(path: str, node: ast.expr) -> str:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        raise _refused(path, node, "not a text")
    return node.value


def _template(path: str, node: ast.expr) -> str:
    """A prompt with `{c}`."""
    body, argument = node, None
    if isinstance(node, ast.Lambda):
        arguments = node.args
        names = [*arguments.posonlyargs, *arguments.args]
        others = (arguments.vararg, arguments.kwarg, *arguments.kwonlyargs, *arguments.defaults)
        if len(names) != 1 or any(other is not None for other in others):
            raise _refused(path, node, "a prompt takes one argument, the name of the class")
        body, argument = node.body, names[0].arg
    if isinstance(body, ast.JoinedStr) and argument is not None:
        pieces = [_piece(path, piece, argument) for piece in body.values]
    elif isinstance(body, ast.Call) and argument is not None:
        pieces = _formatted(path, _format_of(path, body, argument), body)
    else:
        pieces = _formatted(path, _text(path, body), body) if argument is None else []
    if None not in pieces:
        raise _refused(path, node, "a prompt without a place for the name of the class")
    if any(piece is not None and NAME in piece for piece in pieces):
        raise _refused(path, node, f"a prompt with {NAME} as text")
    return "".join(NAME if piece is None else piece for piece in pieces)


def _piece(path: str, node: ast.expr, argument: str) -> str | None:
    """A text of an f-string; None for the name of the class."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if (
        isinstance(node, ast.FormattedValue)
        and isinstance(node.value, ast.Name)
        and node.value.id == argument
        and node.conversion == -1
        and node.format_spec is None
    ):
        return None
    raise _refused(path, node, f"a prompt that holds more than {{{argument}}}")


def _format_of(path: str, call: ast.Call, argument: str) -> str:
    """The text of `"...".format(argument)`."""
    function, arguments = call.func, call.args
    if (
        not isinstance(function, ast.Attribute)
        or function.attr != "format"
        or call.keywords
        or len(arguments) != 1
        or not isinstance(arguments[0], ast.Name)
        or arguments[0].id != argument
    ):
        raise _refused(path, call, f"a call that is not `text.format({argument})`")
    return _text(path, function.value)


def _formatted(path: str, text: str, node: ast.AST) -> list[str | None]:
    """A format string, cut at `{}`, `{0}` or `{c}`; None for the place of the name."""
    from string import Formatter

    pieces: list[str | None] = []
    for literal, field, spec, conversion in Formatter().parse(text):
        pieces.append(literal)
        if field is not None:
            if field not in ("", "0", "c") or spec or conversion:
                raise _refused(path, node, f"a prompt with {{{field}}}")
            pieces.append(None)
    return pieces


def _refused(path: str, node: ast.AST, why: str) -> InputError:
    line = getattr(node, "lineno", 1)
    return InputError(
        f"{path}, line {line}: {why}. It is read, never run: write lists of texts, and prompts as "
        '"a photo of a {}."'
    )
