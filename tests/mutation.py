"""Breaks the code on purpose, one place at a time, and reports which breaks the tests catch.

    python tests/mutation.py --count 100 --seed 0 --jobs 2 [--out report.json] [--only training]
    python tests/mutation.py --again report.json --jobs 2

Draws breaks from the product: an operator or a comparison turned, a constant changed, a call, a
filter or a keyword left out, a statement removed, a condition turned, two arguments exchanged. Each
is made in a copy of the tree, where the tests of the module run until one fails: those that import
it or notice its planted breaks. A break that no test catches is printed with its line: either the
tests lack something, or the line does nothing.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import itertools
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from broken_tree import ROOT, begin_tests, copy_tree, first_failure, load_libraries
from quick import tests_of

_PRODUCT = ("ncclean", "pipelines", "cli")
_SECONDS = 150.0
_EXCHANGED = {"min": "max", "max": "min", "any": "all", "all": "any"}

_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult,
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}  # fmt: skip


@dataclass
class Break:
    """One change of one line; `caught` is None if the tests took too long."""

    path: str
    line: int
    what: str
    source: str
    caught: bool | None = None
    by: str = ""
    seconds: float = 0.0


def variants(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Other forms of a node, each with a description."""
    changed = copy.deepcopy(node)
    if isinstance(changed, ast.BinOp) and type(changed.op) in _ARITHMETIC:
        changed.op = _ARITHMETIC[type(changed.op)]()
        yield changed, "operator"
    elif isinstance(changed, ast.Compare) and type(changed.ops[0]) in _COMPARISONS:
        changed.ops[0] = _COMPARISONS[type(changed.ops[0])]()
        yield changed, "comparison"
    elif isinstance(changed, ast.UnaryOp) and isinstance(
        changed.op, (ast.USub, ast.Not, ast.Invert)
    ):
        yield changed.operand, "sign or negation"
    elif isinstance(changed, ast.Constant) and isinstance(changed.value, (bool, int, float)):
        value = changed.value
        changed.value = not value if isinstance(value, bool) else value * 2 + 1
        yield changed, "constant"
    elif isinstance(changed, ast.BoolOp):
        changed.op = ast.Or() if isinstance(changed.op, ast.And) else ast.And()
        yield changed, "and or or"
    elif isinstance(changed, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        if changed.generators[0].ifs:
            changed.generators[0].ifs = []
            yield changed, "without the filter"
    elif isinstance(changed, (ast.IfExp, ast.If)):
        changed.test = ast.UnaryOp(ast.Not(), changed.test)
        yield changed, "condition"
    elif isinstance(changed, ast.Call):
        function = changed.func
        # x.detach() -> x, but not torch.zeros(3) -> torch.
        if isinstance(function, ast.Attribute) and (
            not isinstance(function.value, ast.Name) or not (changed.args or changed.keywords)
        ):
            yield function.value, f"without .{function.attr}()"
        if isinstance(function, ast.Name) and function.id in _EXCHANGED:
            other = copy.deepcopy(changed)
            other.func = ast.Name(_EXCHANGED[function.id])
            yield other, "other function"
        if len(changed.args) > 1 and not any(isinstance(a, ast.Starred) for a in changed.args):
            turned = copy.deepcopy(changed)
            turned.args[:2] = turned.args[1::-1]
            yield turned, "arguments exchanged"
        if changed.keywords:
            shorter = copy.deepcopy(changed)
            dropped = shorter.keywords.pop()
            yield shorter, f"without the keyword {dropped.arg}"
    elif isinstance(changed, ast.AugAssign) or (
        isinstance(changed, ast.Expr) and isinstance(changed.value, ast.Call)
    ):
        yield ast.Pass(), "statement removed"


def breaks(path: Path, random_: random.Random | None = None) -> Iterator[tuple[Break, str]]:
    """All breaks of a file, in random order if asked for, with the whole changed text."""
    text = path.read_text("utf-8")
    lines = text.splitlines()
    tree = ast.parse(text)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    nodes = [node for node in ast.walk(tree) if hasattr(node, "lineno")]
    changes = [
        (node, changed, what)
        for node in nodes
        if not _is_idle(node, parents)
        for changed, what in variants(node)
    ]
    if random_ is not None:
        random_.shuffle(changes)
    for node, changed, what in changes:
        new = ast.unparse(ast.fix_missing_locations(changed))
        if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.BoolOp)):
            new = f"({new})"
        if isinstance(changed, ast.If):
            new = new.replace("\n", "\n" + " " * node.col_offset)
        replaced = _replaced(text, node, new)
        try:
            ast.parse(replaced)
        except SyntaxError:
            continue
        what = f"{what}: {' '.join(new.split())[:90]}"
        source = lines[node.lineno - 1].strip()
        yield Break(str(path.relative_to(ROOT)), node.lineno, what, source), replaced


def _is_idle(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether a node is text for people: annotations, errors, logs, names, imports."""
    while node in parents:
        parent = parents[node]
        if isinstance(parent, (ast.Raise, ast.Assert, ast.JoinedStr, ast.ImportFrom, ast.Import)):
            return True
        if isinstance(parent, ast.Call) and ast.unparse(parent.func).startswith("logger"):
            return True
        if isinstance(parent, (ast.arg, ast.AnnAssign)) and parent.annotation is node:
            return True
        if isinstance(parent, ast.FunctionDef) and (
            node is parent.returns or node in parent.decorator_list
        ):
            return True
        if isinstance(parent, ast.Subscript) and ast.unparse(parent.value) == "Annotated":
            return True
        node = parent
    return False


def _replaced(text: str, node: ast.AST, new: str) -> str:
    """The text with a node's own characters exchanged; columns count bytes of UTF-8."""
    lines = text.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    begin = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
    end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
    whole = text.encode()
    return (whole[:begin] + new.encode() + whole[end:]).decode()


def begin(place: Break, text: str, tree: Path) -> int:
    """Make the break in a tree, and begin the tests there; the number of their process."""
    (tree / place.path).write_text(text, "utf-8")
    return begin_tests(tree, ["-m", "not slow", *tests_of([place.path])])


def finish(place: Break, tree: Path, code: int | None, seconds: float) -> None:
    """Note the verdict and mend the tree."""
    shutil.copy(ROOT / place.path, tree / place.path)
    place.seconds = round(seconds, 1)
    place.caught = None if code is None else code != 0
    place.by = "took too long" if code is None else first_failure(tree)[:160]
    verdict = {True: "caught", False: "MISSED", None: "slow"}[place.caught]
    print(
        f"{verdict} {place.path}:{place.line} {place.what}\n    {place.source}\n"
        f"    {place.by} ({place.seconds:.0f} s)",
        flush=True,
    )


def run_all(drawn: list[tuple[Break, str]], trees: list[Path]) -> None:
    """Each break in a free tree, as many at a time as there are trees."""
    waiting, running = deque(drawn), dict[int, tuple[Break, Path, float]]()
    free = list(trees)
    while waiting or running:
        while waiting and free:
            place, text = waiting.popleft()
            tree = free.pop()
            running[begin(place, text, tree)] = (place, tree, time.monotonic())
        time.sleep(0.2)
        for child, (place, tree, since) in list(running.items()):
            done, status = os.waitpid(child, os.WNOHANG)
            seconds = time.monotonic() - since
            code: int | None = os.waitstatus_to_exitcode(status) if done else None
            if not done and seconds < _SECONDS:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            if not done:
                os.waitpid(child, 0)
            del running[child]
            free.append(tree)
            finish(place, tree, code, seconds)


def draw(files: list[Path], count: int, random_: random.Random) -> list[tuple[Break, str]]:
    """Breaks of files drawn by their sizes: every line is as likely."""
    sizes = [path.stat().st_size for path in files]
    numbers = Counter(random_.choices(files, sizes, k=count))
    drawn = []
    for path, number in numbers.items():
        drawn += itertools.islice(breaks(path, random_), number)
    random_.shuffle(drawn)
    return drawn


def _not_caught(report: Path) -> list[tuple[Break, str]]:
    """The breaks that a report has as missed or slow, wherever their lines are now."""
    missed = {
        (place["path"], place["what"], place["source"])
        for place in json.loads(report.read_text())
        if not place["caught"]
    }
    files = sorted({ROOT / path for path, *_ in missed})
    everything = [one for path in files for one in breaks(path)]
    return [one for one in everything if (one[0].path, one[0].what, one[0].source) in missed]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="part of the paths to break")
    parser.add_argument("--again", type=Path, help="those that an earlier --out has not as caught")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    files = [path for folder in _PRODUCT for path in sorted((ROOT / folder).rglob("*.py"))]
    files = [path for path in files if arguments.only in str(path) and path.stat().st_size]
    if arguments.again is None:
        drawn = draw(files, arguments.count, random.Random(arguments.seed))
    else:
        drawn = _not_caught(arguments.again)
    print(f"{len(drawn)} breaks", flush=True)
    load_libraries()
    with tempfile.TemporaryDirectory() as scratch:
        trees = [Path(scratch) / str(number) for number in range(arguments.jobs)]
        for tree in trees:
            copy_tree(tree)
        run_all(drawn, trees)
    caught = sum(place.caught is True for place, _ in drawn)
    print(f"{caught} of {len(drawn)} caught")
    if arguments.out is not None:
        arguments.out.write_text(json.dumps([asdict(place) for place, _ in drawn], indent=1) + "\n")


if __name__ == "__main__":
    main()
