"""Read and parse small, possibly untrusted text files within limits.

A file may be a pipe that nobody writes to, a link to an endless device, or a few lines that stand
for gigabytes. Each is an `InputError` that names it.
"""

from __future__ import annotations

import json
import os
from typing import Any

import yaml

from ncclean.base import stores
from ncclean.base.regular_files import open_file
from ncclean.base.store_errors import explain
from ncclean.errors import InputError

LARGEST_TEXT = 32 << 20  # Python holds some twenty bytes for each byte of nested JSON
# Levels of nesting. Python's own stack ends at a thousand calls, and each level may take several.
_DEEPEST = 100
_LONGEST_YAML = 1 << 20  # characters, which take seconds to parse
_MOST_NODES = 200_000  # of a YAML document, counting repeats by aliases


def read_text(path: str | os.PathLike[str], largest: int = LARGEST_TEXT) -> str:
    """Read a text file or object, UTF-8 with or without a byte order mark.

    Raises `InputError` if it cannot be read, is not a regular file or not UTF-8, or has more than
    `largest` bytes.
    """
    return to_text(read_bytes(path, largest), path)


def read_bytes(path: str | os.PathLike[str], largest: int) -> bytes:
    """Read a file or object of at most `largest` bytes. Raises `InputError` as `read_text` does."""
    name = os.fspath(path)
    try:
        if stores.is_url(name):
            system, place = stores.filesystem(name)
            data: bytes = stores.ask("read", name, system.cat_file, place, start=0, end=largest + 1)
        else:
            with open_file(name) as file:
                data = file.read(largest + 1)
    except FileNotFoundError:
        raise InputError(f"{name} does not exist") from None
    except OSError as error:
        raise InputError(explain(name, error, "read")) from error
    if len(data) > largest:
        raise InputError(f"{name} has more than {largest:,} bytes: too many for what it should be")
    return data


def to_text(data: bytes, path: object) -> str:
    """Decode UTF-8 with or without a byte order mark. Raises `InputError` for other bytes."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: {error.reason}") from None


def parse_json(text: str | bytes, where: object) -> Any:
    """Parse JSON. Raises `InputError`, beginning with `where`, for other text."""
    try:
        return json.loads(text)
    except RecursionError:
        raise InputError(f"{where} is nested too deeply to be read") from None
    except ValueError as error:
        raise InputError(f"{where} is not JSON: {error}") from None


def compose_yaml(text: str, where: object) -> yaml.Node | None:
    """Parse YAML into nodes, None for an empty text.

    Raises `InputError`, beginning with `where`, for texts that are too long or too deeply nested,
    or whose aliases repeat too much, and for invalid YAML, with the line.
    """
    if len(text) > _LONGEST_YAML:
        raise InputError(f"{where} has more than {_LONGEST_YAML:,} characters: too many for YAML")
    try:
        node = yaml.compose(text, yaml.SafeLoader)
    except RecursionError:
        raise InputError(f"{where} is nested too deeply to be read") from None
    except yaml.YAMLError as error:
        raise _not_yaml(where, error) from error
    if node is not None:
        _check_nodes(node, where)
    return node


class WrittenFloat(float):
    """A YAML number as `written`: inside a text, version 1.10 is not 1.1."""

    written: str


class _Loader(yaml.SafeLoader):
    """Refuses numbers that YAML reads differently from people: 010 is 8 in YAML 1.1, 1:30 is 90."""

    def number(self, node: yaml.ScalarNode) -> Any:
        """A number. Raises `InputError` for one with a leading 0, or of base 60."""
        is_float = node.tag == "tag:yaml.org,2002:float"
        # First, as it refuses non-scalars: a tag may precede anything.
        value = self.construct_yaml_float(node) if is_float else self.construct_yaml_int(node)
        digits = node.value.lstrip("+-")
        is_octal = not is_float and digits[0] == "0" and digits[1:].replace("_", "").isdigit()
        if ":" in digits or is_octal:
            raise InputError(
                f"line {node.start_mark.line + 1}: {node.value} is the number {value} in YAML: "
                f"write {value}, or '{node.value}' with its quotes for a text"
            )
        if is_float:
            value = WrittenFloat(value)
            value.written = node.value
        return value


for _tag in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _Loader.number)


def load_yaml(text: str, where: object) -> Any:
    """Parse YAML into values, within bounds of nesting and size.

    Raises `InputError` as `compose_yaml` does, and for numbers that YAML reads as others, such as
    010.
    """
    node = compose_yaml(text, where)
    try:
        return None if node is None else _Loader("").construct_document(node)
    except InputError as error:
        raise InputError(f"{where}, {error}") from None
    # Such as an unknown tag, the 99th of a month, or `!!int ''`.
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, IndexError) as error:
        raise _not_yaml(where, error) from error


def _not_yaml(where: object, error: Exception) -> InputError:
    mark = getattr(error, "problem_mark", None)
    line = f", line {mark.line + 1}" if mark else ""
    return InputError(f"{where}{line}: not YAML: {getattr(error, 'problem', error)}")


def _check_nodes(root: yaml.Node, where: object) -> None:
    """Count the nodes as if aliases were written out."""
    waiting, count = [(root, 1)], 0
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if depth > _DEEPEST:  # which an alias of something around it reaches, too
            raise InputError(f"{where} is nested too deeply to be read")
        if count > _MOST_NODES:
            raise InputError(f"{where} repeats itself by aliases more than {_MOST_NODES:,} times")
        if isinstance(node, yaml.MappingNode):
            waiting += [(inner, depth + 1) for pair in node.value for inner in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += [(inner, depth + 1) for inner in node.value]
