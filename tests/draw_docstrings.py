"""Draws docstrings of public functions at random, for a reader who has nothing else.

    python tests/draw_docstrings.py --seed 7 [--count 20] [--names]

They are printed without names and signatures: a docstring should say by itself what is computed or
done. `--names` lists afterwards where they stand.
"""

from __future__ import annotations

import argparse
import ast
import random
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PRODUCT = ("ncclean", "pipelines", "cli")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Documented(NamedTuple):
    """A public function with a docstring."""

    name: str
    docstring: str


def public_functions() -> list[Documented]:
    """All of the product, in the order of their files: functions and methods of public classes."""
    documented: list[Documented] = []
    for path in sorted(path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        documented += _functions_in(ast.parse(path.read_text("utf-8")), module)
    return documented


def _functions_in(parent: ast.Module | ast.ClassDef, inside: str) -> Iterator[Documented]:
    for node in parent.body:
        if not isinstance(node, (ast.ClassDef, *_FUNCTIONS)) or node.name.startswith("_"):
            continue
        name = f"{inside}.{node.name}"
        if isinstance(node, ast.ClassDef):
            yield from _functions_in(node, name)
        elif docstring := ast.get_docstring(node):
            yield Documented(name, docstring)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--names", action="store_true")
    arguments = parser.parse_args()
    drawn = random.Random(arguments.seed).sample(public_functions(), arguments.count)
    for number, one in enumerate(drawn, start=1):
        print(f"{number}.\n{textwrap.indent(one.docstring, '    ')}\n")
    if arguments.names:
        print("\n".join(f"{number}. {one.name}" for number, one in enumerate(drawn, start=1)))


if __name__ == "__main__":
    main()
