"""What is installed is what is in the tree, and under names that no other wheel overwrites."""

import ast
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def declared() -> tuple[set[str], dict[str, str]]:
    if sys.version_info < (3, 11):
        pytest.skip("tomllib is part of Python from 3.11")
    import tomllib

    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    return set(tool["packages"]), tool["package-dir"]


def test_every_package_on_disk_is_declared():
    packages, folders = declared()
    found = set()
    for name, folder in folders.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            inside = init.parent.relative_to(ROOT / folder).parts
            found.add(".".join((name, *inside)))
    assert found == packages


def test_what_the_packages_need_besides_code_is_declared():
    if sys.version_info < (3, 11):
        pytest.skip("tomllib is part of Python from 3.11")
    import tomllib

    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages, folders = declared()
    for package in packages:
        top, *inside = package.split(".")
        folder = ROOT.joinpath(folders[top], *inside)
        patterns = tool["package-data"].get(package, [])
        listed = {path for pattern in patterns for path in folder.glob(pattern)}
        there = {
            path
            for path in folder.rglob("*")
            if path.is_file() and path.suffix not in (".py", ".pyc") and owner(path) == folder
        }
        assert there == listed, f"{package}: {there ^ listed}"


def test_class_variables_have_types():
    """Python 3.10 evaluates no bare ClassVar, and every command would end at its declaration."""
    for folder in ("ncclean", "pipelines", "cli"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                is_bare = isinstance(node, ast.AnnAssign) and isinstance(node.annotation, ast.Name)
                assert not (is_bare and node.annotation.id == "ClassVar"), f"{path}:{node.lineno}"


def owner(path: Path) -> Path:
    """The folder of the package that a file belongs to."""
    return next(folder for folder in path.parents if (folder / "__init__.py").exists())


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
    return found


ALLOWED = {  # packages inside ncclean that each may import
    "auditing": {"auditing", "data", "scoring", "storage"},
    "data": {"data"},
    "models": {"data", "models"},
    "scoring": {"data", "scoring"},
    "storage": {"data", "scoring", "storage"},
    "execution": {"data", "models", "scoring", "storage", "execution"},
    "neighbours": {"data", "execution", "neighbours", "storage"},
    "evaluation": {"data", "models", "scoring", "storage", "evaluation"},
    "report": {"auditing", "data", "scoring", "storage", "report"},
    "selection": {"data", "scoring", "storage", "selection"},
    "training": {"data", "models", "scoring", "training"},
}


@pytest.mark.parametrize("package", ALLOWED)
def test_dependencies_point_one_way(package):
    for path in (ROOT / "ncclean" / package).rglob("*.py"):
        for name in imports(path):
            parts = name.split(".")
            assert parts[0] not in ("cli", "pipelines", "ncclean_cli", "ncclean_pipelines"), path
            if parts[0] == "ncclean" and len(parts) > 1 and parts[1] in ALLOWED:
                assert parts[1] in ALLOWED[package], f"{path} imports {name}"


def test_only_the_front_door_knows_of_the_pipelines():
    """`ncclean.score(...)` is the command as a function, looked up in ncclean_pipelines when it is
    first used: importing the library loads none of it, and nothing inside depends on it."""
    for path in (ROOT / "ncclean").glob("*.py"):
        outer = {name.split(".")[0] for name in imports(path)}
        allowed = {"ncclean_pipelines"} if path.name == "__init__.py" else set()
        assert not (outer & {"cli", "pipelines", "ncclean_cli", "ncclean_pipelines"}) - allowed, (
            path
        )
    code = (
        "import ncclean, sys; print([m for m in sys.modules if 'pipelines' in m or m == 'torch'])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


def test_pipelines_do_not_import_the_command_line():
    for path in (ROOT / "pipelines").rglob("*.py"):
        assert not any(
            name.split(".")[0] in ("cli", "ncclean_cli", "typer") for name in imports(path)
        )


HEAVY = {"torch", "duckdb", "ray", "faiss", "pyarrow", "sklearn", "open_clip"}


def test_the_declarations_load_nothing_heavy():
    code = f"import sys, ncclean_pipelines.registry; print({HEAVY} & set(sys.modules))"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "set()"


def test_tests_import_what_is_installed():
    """From the root of the repository `pipelines.score` is there too: a second copy, whose classes
    are other ones than those that the commands use."""
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text()
        wrong = {name for name in imports(path) if name.split(".")[0] in ("cli", "pipelines")}
        # Programs that tests run, and names to patch, are text.
        wrong |= set(re.findall(r"(?:from|import) (?:cli|pipelines)[. ]", text))
        wrong |= set(re.findall(r"[\"'](?:cli|pipelines)\.(?!md)[a-z_.]+[\"']", text))
        assert not wrong, f"{path} imports {wrong}"


def test_help_is_quick_and_loads_nothing_heavy():
    code = (
        "import sys; from ncclean_cli.app import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        f"print({HEAVY} & set(sys.modules), file=sys.stderr)"
    )
    start = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert time.monotonic() - start < 3  # about 0.2 s on an idle machine
    assert "score" in result.stdout
    assert result.stderr.strip() == "set()"
