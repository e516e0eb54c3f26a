"""Compares what refusals say with `sentences.yaml`, where all sentences can be read and changed.

    WRITE_SENTENCES=1 python -m pytest tests/data

writes those of the tests that ran; look at the difference before it is committed. Of an entry,
`…` stands for any text: the words of a library or of the system are not ours to fix.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ncclean.errors import NccleanError

SENTENCES = Path(__file__).with_suffix(".yaml")
ANY = "…"


class Sentences:
    """The refusals of a test, in their order. `base` is the folder of all temporary files."""

    def __init__(self, expected: list[str], base: Path) -> None:
        self._expected = expected
        self._base = re.compile(re.escape(str(base)) + r"/[\w.-]+")
        self.said: list[str] = []

    def refused(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        """Call it, and run the command that it makes: it must fail with the next sentence."""
        with pytest.raises(NccleanError) as caught:
            _run(call, *arguments, **options)
        error = caught.value
        cause = str(error.__cause__ or error.__context__ or "").split("\n")[0].strip()
        text = str(error)
        if len(cause) > 3 and type(error.__cause__).__module__.partition(".")[0] != "ncclean":
            text = text.replace(cause, ANY)
        self.says(f"{type(error).__name__}: {text}")

    def says(self, text: str) -> None:
        """The next text must be this one, but for temporary folders."""
        said = self._base.sub("TMP", text.replace(str(Path(__file__).parents[1]), "ROOT"))
        number = len(self.said)
        expected = self._expected[number] if number < len(self._expected) else ""
        matches = re.fullmatch(re.escape(expected).replace(re.escape(ANY), ".*"), said, re.DOTALL)
        self.said.append(expected if matches else said)
        if not is_writing():
            assert self.said[number] == expected, f"see {SENTENCES.name}"

    def assert_complete(self) -> None:
        """All texts that the file has of the test were said."""
        assert len(self.said) == len(self._expected), f"see {SENTENCES.name}"


def _run(call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    command = call(*arguments, **options)
    if hasattr(command, "run"):
        command.run()


def read() -> dict[str, list[str]]:
    """The sentences by the name of the test."""
    return yaml.load(SENTENCES.read_text("utf-8"), yaml.CSafeLoader)


def write(said: dict[str, list[str]]) -> None:
    """Put the sentences of the tests that ran in place; those of other tests stay."""
    some = {test: texts for test, texts in {**read(), **said}.items() if texts}
    text = yaml.dump(some, Dumper=_Dumper, allow_unicode=True, width=100)
    SENTENCES.write_text(text, "utf-8")


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as they are."""

    def represent_scalar(self, tag: str, value: Any, style: str | None = None) -> yaml.ScalarNode:
        several = isinstance(value, str) and "\n" in value
        return super().represent_scalar(tag, value, "|" if several else style)


def is_writing() -> bool:
    return bool(os.environ.get("WRITE_SENTENCES"))
