"""The size of the house by room, in statements, which no formatting can change.

A room may grow past its number, rounded up to tens, only in a commit that says why; one that
shrinks lowers it.
"""

import ast
import functools
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STATEMENTS = {
    "cli": 450,
    "docs": 190,
    "ncclean": 80,
    "ncclean/auditing": 1140,
    "ncclean/base": 1650,
    "ncclean/data": 7680,
    "ncclean/evaluation": 1880,
    "ncclean/execution": 2950,
    "ncclean/explaining": 1570,
    "ncclean/exporting": 1870,
    "ncclean/judging": 880,
    "ncclean/models": 1520,
    "ncclean/neighbour_search": 1_430,
    "ncclean/recipes": 750,
    "ncclean/report": 1240,
    "ncclean/reviewing": 1380,
    "ncclean/runners": 330,
    "ncclean/scoring": 1470,
    "ncclean/selection": 620,
    "ncclean/storage": 3220,
    "ncclean/training": 2560,
    "ncclean/webdataset": 310,
    "ncclean/workers": 410,
    "pipelines": 3300,
    "tests": 37490,
    "tests/benchmarks": 6270,
}
ROOM_TO_SPARE = 100  # statements by which a room may lie below its number before that is lowered


def room(path: str) -> str:
    """The room of a file: a package of the library, `pipelines`, `cli`, tests or benchmarks."""
    folder, *rest = path.split("/")
    if folder == "tests":
        return "tests/benchmarks" if rest[0] == "benchmarks" else "tests"
    return f"{folder}/{rest[0]}" if folder == "ncclean" and len(rest) > 1 else folder


def statements(text: str) -> int:
    """Count the statements of a module without its docstrings."""
    nodes = list(ast.walk(ast.parse(text)))
    documented = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    docstrings = sum(
        isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None
        for node in nodes
    )
    return sum(isinstance(node, ast.stmt) for node in nodes) - docstrings


@functools.cache
def measured() -> Counter[str]:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("the files of the tree are not known without git")
    sizes: Counter[str] = Counter()
    for path in listed.stdout.splitlines():
        if (ROOT / path).exists():
            sizes[room(path)] += statements((ROOT / path).read_text())
    return sizes


def test_no_room_grows_past_its_number():
    sizes = measured()
    assert sizes.keys() == STATEMENTS.keys()
    grown = {
        name: f"{sizes[name]} > {most}" for name, most in STATEMENTS.items() if sizes[name] > most
    }
    assert not grown, f"say why in the commit that raises the number: {grown}"


def test_numbers_are_lowered_when_a_room_shrinks():
    sizes = measured()
    shrunk = {
        name: sizes[name] for name, most in STATEMENTS.items() if sizes[name] < most - ROOM_TO_SPARE
    }
    assert not shrunk, f"lower the numbers: {shrunk}"
