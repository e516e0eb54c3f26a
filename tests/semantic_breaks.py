"""Breaks the code in ways that a person would, and records which breaks the tests notice.

    python tests/semantic_breaks.py --only training
    python tests/semantic_breaks.py --record docs/records/breaks.json

`semantic_breaks.yaml` has the breaks: a wrong axis, the other side of a pair, a stale state, an
option ignored. Each is made in a copy of the tree, where tests run until one fails: first the one
that has caught it before, by the record; then the files named after the module, or importing it
where there is none; and those that the break names. A break whose text is no longer there is
counted apart: mend its entry. A record keeps the verdict of the first run of each break.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

TESTS = Path(__file__).parent
sys.path[:0] = [str(TESTS), str(TESTS / "benchmarks")]

from broken_tree import ROOT, begin_tests, copy_tree, first_failure, load_libraries  # noqa: E402
from records import CODE_VERSION, make_record, write_record  # noqa: E402

BREAKS = TESTS / "semantic_breaks.yaml"
_USAGE_ERROR = 4  # of pytest: a test that has another name now
SETS = ("planted", "reviewed", "later", "unseen")
CAUGHT, MISSED, SLOW, GONE = "caught", "not noticed", "too slow", "no longer applies"


@dataclass(frozen=True)
class Break:
    """One mistake: `new` in place of `old` in a file. `set` says who chose it."""

    set: str
    file: str
    old: str
    new: str
    means: str
    tests: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What it is told apart by when its text is mended, or the code has moved."""
        return self.means

    @property
    def applies(self) -> bool:
        """Whether the text is there, once."""
        path = ROOT / self.file
        return path.is_file() and path.read_text("utf-8").count(self.old) == 1

    def test_files(self) -> list[str]:
        """Those named after the module, else those that import it; and those that it names."""
        module = self.file.removesuffix(".py").replace("/", ".")
        for folder in ("cli", "pipelines"):
            module = module.replace(f"{folder}.", f"ncclean_{folder}.", 1)
        path = Path(self.file)
        own = [one for one in _tests() if one.name == f"test_{path.name}"]
        found = [one for one in own if one.parent.name in path.parts]
        found = found or [one for one, text in _tests().items() if f"{module} import" in text]
        names = dict.fromkeys([*(str(one.relative_to(ROOT)) for one in found), *self.tests])
        if not names:
            raise ValueError(f"{BREAKS.name}: no test is of {self.file}; name some")
        return list(names)


@functools.cache
def _tests() -> dict[Path, str]:
    return {path: path.read_text("utf-8") for path in sorted(TESTS.rglob("test_*.py"))}


@dataclass
class Outcome:
    """What the tests of a commit said about a break; `by` is the one that failed.

    `first` is the verdict of the first run, which later ones keep.
    """

    verdict: str
    first: str
    by: str = ""
    seconds: float = 0.0
    commit: str | None = CODE_VERSION["commit"]


def read_breaks() -> list[Break]:
    """All breaks, in the order of the file."""
    entries = yaml.safe_load(BREAKS.read_text("utf-8"))
    return [Break(**{**entry, "tests": tuple(entry.get("tests", ()))}) for entry in entries]


def earlier_outcomes(record: Path | None) -> dict[str, dict[str, Any]]:
    """The rows of an earlier record by the name of the break."""
    if record is None or not record.exists():
        return {}
    rows = json.loads(record.read_text("utf-8"))["rows"]
    return {row["means"]: row for row in rows}


def try_break(one: Break, tree: Path, before: str, seconds: float) -> Outcome:
    """Run the tests on one break, first the one that caught it `before`."""
    files = one.test_files()
    attempts: list[Sequence[str]] = [["-m", "not slow", *files]]
    if before and (ROOT / before.partition("::")[0]).exists():
        attempts.insert(0, [before])
    place = tree / one.file
    text = place.read_text("utf-8")
    begin = time.monotonic()
    verdict = Outcome(MISSED, MISSED)
    for words in attempts:
        place.write_text(text.replace(one.old, one.new), "utf-8")
        code = _run(tree, words, seconds)
        failure = first_failure(tree)
        place.write_text(text, "utf-8")
        if code is None:
            verdict = Outcome(SLOW, SLOW)
        elif failure and code != _USAGE_ERROR:
            by = failure.partition(" ")[2].partition(" - ")[0]
            if _run(tree, [by], seconds) == 0:  # not one that fails by itself
                verdict = Outcome(CAUGHT, CAUGHT, by)
                break
    verdict.seconds = round(time.monotonic() - begin, 1)
    return verdict


def _run(tree: Path, words: Sequence[str], seconds: float) -> int | None:
    """The exit code of pytest, None if it took longer."""
    child, end = begin_tests(tree, words), time.monotonic() + seconds
    status = None
    while status is None and time.monotonic() < end:
        done, waited = os.waitpid(child, os.WNOHANG)
        status = waited if done else None
        time.sleep(0.1)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if status is None:
        os.waitpid(child, 0)
        return None
    return os.waitstatus_to_exitcode(status)


def try_all(
    chosen: Iterable[Break], before: dict[str, dict[str, Any]], seconds: float
) -> Iterator[dict[str, Any]]:
    """A row for each break, one at a time."""
    load_libraries()
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        copy_tree(tree)
        for one in chosen:
            earlier = before.get(one.name, {})
            if one.applies:
                outcome = try_break(one, tree, earlier.get("by", ""), seconds)
            else:
                outcome = Outcome(GONE, GONE)
            outcome.first = earlier.get("first", outcome.first)
            print(
                f"{outcome.verdict.upper()} {one.file}: {one.means}\n"
                f"    {outcome.by} ({outcome.seconds:.0f} s)",
                flush=True,
            )
            yield {**asdict(one), **asdict(outcome)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="part of the paths to break")
    parser.add_argument("--set", choices=SETS, help="breaks of one origin")
    parser.add_argument("--missed", action="store_true", help="those that the record has as missed")
    parser.add_argument("--seconds", type=float, default=300.0, help="for the tests of one break")
    parser.add_argument("--record", type=Path, help="a record to begin or to go on with")
    arguments = parser.parse_args()
    before = earlier_outcomes(arguments.record)
    everything = read_breaks()

    def is_chosen(one: Break) -> bool:
        row = before.get(one.name, {})
        is_wanted = not arguments.missed or row.get("verdict") != CAUGHT
        return is_wanted and arguments.only in one.file and arguments.set in (None, one.set)

    rows = []
    for row in try_all(filter(is_chosen, everything), before, arguments.seconds):
        rows.append(row)
        before[row["means"]] = row
        if arguments.record is not None:  # a run takes long, and may be broken off
            joined = [before[one.name] for one in everything if one.name in before]
            write_record(arguments.record, make_record(joined))
    for name in dict.fromkeys(row["set"] for row in rows):
        print(f"{name}: {dict(Counter(row['verdict'] for row in rows if row['set'] == name))}")


if __name__ == "__main__":
    main()
