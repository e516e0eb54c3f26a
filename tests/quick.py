"""Runs the tests of what changed, for a minute: those that notice its planted breaks come first.

    python tests/quick.py [--since COMMIT] [--seconds 60]

Changed are the files that differ from the commit, and those that git does not know; where nothing
differs, those of the last commit. Their tests are the changed test files, those that
`semantic_breaks.yaml` names for a module, and those that import it, nearest in the tree first.
Whether the rest of the tests still pass, only `make test` says.
"""

from __future__ import annotations

import argparse
import ast
import functools
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
_PACKAGES = {"ncclean": "ncclean", "pipelines": "ncclean_pipelines", "cli": "ncclean_cli"}
_DISTANCE = 3  # from a module to a test: its command imports it, and the test the command


def changed_files(since: str) -> list[str]:
    """Paths of Python files that differ from a commit, or from the one before it if none do."""
    new = _git("ls-files", "--others", "--exclude-standard")
    paths = [*_git("diff", "--name-only", since), *new] or _git("diff", "--name-only", f"{since}~")
    return [path for path in paths if path.endswith(".py") and (ROOT / path).exists()]


def _git(*words: str) -> list[str]:
    result = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return result.stdout.splitlines()


def tests_of(paths: Iterable[str]) -> list[str]:
    """Test files of files of the repository, without repetitions."""
    named, imports = _breaks_and_imports()
    return list(
        dict.fromkeys(test for path in paths for test in covering_tests(path, named, imports))
    )


@functools.cache
def _breaks_and_imports() -> tuple[dict[str, list[str]], dict[str, set[str]]]:
    named: dict[str, list[str]] = {}
    for planted in yaml.safe_load((ROOT / "tests/semantic_breaks.yaml").read_text()):
        named.setdefault(planted["file"], []).extend(planted.get("tests", []))
    patterns = ("tests/**/test_*.py", *(f"{folder}/**/*.py" for folder in _PACKAGES))
    files = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    return named, {str(path.relative_to(ROOT)): imported_modules(path) for path in files}


def covering_tests(
    path: str, named: dict[str, list[str]], imports: dict[str, set[str]]
) -> list[str]:
    """Test files of a changed file, the most telling first.

    `named` are the tests of planted breaks by file, `imports` the modules that each file imports.
    After the tests that import the module come those that import what imports it, such as its
    command.
    """
    if path.startswith("tests/"):
        return [path] if Path(path).name.startswith("test_") else []
    near = f"tests/{'/'.join(Path(path).parts[1:-1])}/"
    tests, layer = list(named.get(path, [])), {path}
    for _ in range(_DISTANCE):
        modules = {_module_of(file) for file in layer}
        importing = [file for file, imported in imports.items() if modules & imported]
        layer = {file for file in importing if not file.startswith("tests/")}
        tests += sorted(set(importing) - layer, key=lambda test: (not test.startswith(near), test))
    return list(dict.fromkeys(tests))


def _module_of(path: str) -> str:
    folder, *rest = Path(path).with_suffix("").parts
    return ".".join([_PACKAGES[folder], *(part for part in rest if part != "__init__")])


def imported_modules(path: Path) -> set[str]:
    """Names of the modules that a file imports, with those that a name of a package may be."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return modules


class TimeLimit:
    """Plugin of pytest that ends a session once its seconds are over, and says so."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self.is_over = False

    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        if time.monotonic() > self.end:
            self.is_over = True
            item.session.shouldstop = "the time is over; the tests after this one did not run"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--since", default="HEAD", help="commit to compare with")
    parser.add_argument("--seconds", type=float, default=50.0, help="time that the tests may take")
    options = parser.parse_args()
    changed = changed_files(options.since)
    files = tests_of(changed)
    print(f"{len(changed)} changed files, {len(files)} files of tests", flush=True)
    if not files:
        return 0
    words = ["-q", "-x", "-m", "not slow", *files]
    limit = TimeLimit(options.seconds)
    code = int(pytest.main(words, plugins=[limit]))
    return 0 if limit.is_over else code


if __name__ == "__main__":
    sys.exit(main())
