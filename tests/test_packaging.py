"""What is installed is what is in the tree, and under names that no other wheel overwrites."""

import ast
import graphlib
import os
import re
import subprocess
import sys
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


# Of the library, from the bottom to the top. Modules beside these packages are as low as `base`.
LAYERS = (
    "base",
    "workers",
    "data",
    "models",
    "scoring",
    "storage",
    "runners",
    "selection",
    "exporting",
    "webdataset",
    "neighbour_search",
    "auditing",
    "training",
    "execution",
    "explaining",
    "evaluation",
    "report",
    "recipes",
    "judging",
    "reviewing",
)


def modules() -> dict[str, Path]:
    """Every module of the product by the name that it is installed under."""
    folders = {"ncclean": "ncclean", "ncclean_pipelines": "pipelines", "ncclean_cli": "cli"}
    named = {}
    for package, folder in folders.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            name = ".".join([package, *(part for part in parts if part != "__init__")])
            named[name] = path
    return named


def arrows(name: str, path: Path, named: dict[str, Path]) -> set[str]:
    """The modules that one imports, also within a function or for types alone."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    targets = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*(above if node.level else []), *filter(None, [node.module])])
            targets |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return {target for target in targets if target in named} - {name, "ncclean"}


def test_no_import_leads_back_to_its_module():
    named = modules()
    graph = {name: arrows(name, path, named) for name, path in named.items() if name != "ncclean"}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_imports_point_one_way():
    """From the command line to pipelines to the library, and there from a layer to those below."""
    named = modules()
    ranks = {"ncclean": 1, "ncclean_pipelines": len(LAYERS) + 1, "ncclean_cli": len(LAYERS) + 2}
    folders = {
        path.parent.name for path in named.values() if path.parent.parent == ROOT / "ncclean"
    }
    assert folders == set(LAYERS)

    def rank(name: str) -> int:
        first, second, *_ = [*name.split("."), "", ""]
        is_layer = first == "ncclean" and second in LAYERS
        return LAYERS.index(second) + 1 if is_layer else ranks[first]

    upward = [
        f"{name} imports {target}"
        for name, path in named.items()
        if name != "ncclean"  # the front door looks commands up when they are first used
        for target in arrows(name, path, named)
        if rank(target) > rank(name)
    ]
    assert not upward, upward


def test_the_core_knows_no_extra():
    """What each promises is in docs/architecture.md."""
    extras = {"explaining", "judging", "reviewing", "report", "recipes"}
    named = modules()
    imported = [
        f"{name} imports {target}"
        for name, path in named.items()
        if name.startswith("ncclean.") and name.split(".")[1] not in extras
        for target in arrows(name, path, named)
        if target.split(".")[1] in extras
    ]
    assert not imported


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


HEAVY = {"torch", "duckdb", "ray", "faiss", "pyarrow", "sklearn", "open_clip", "fsspec", "yaml"}


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
    begin = os.times().children_user
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert os.times().children_user - begin < 3  # about 0.2 s
    assert "score" in result.stdout
    assert result.stderr.strip() == "set()"
