"""The documentation builds, its generated pages are current, and its examples parse."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from ncclean_cli.app import app
from ncclean_cli.parameters import flags_of
from ncclean_pipelines.command import Command
from ncclean_pipelines.evaluate_noise import TrialOptions
from ncclean_pipelines.registry import COMMANDS as DECLARATIONS
from typer.testing import CliRunner

from ncclean.base.options import parameters
from ncclean.recipes.model import EngineModel, RecipeModel, StageModel

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
# As Typer made them of the declarations.
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
# The commands inside a group, such as `evaluate noise`.
INNER = {
    f"{name} {inner}": command
    for name, group in COMMANDS.items()
    for inner, command in getattr(group, "commands", {}).items()
}


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code_blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.S | re.M)


def shell_commands(page: Path) -> Iterator[list[str]]:
    """The commands of the bash blocks of a page, split into words; quotes may span lines."""
    for block in code_blocks(page, "bash"):
        held = ""
        for line in block.splitlines():
            held += line + "\n"
            try:
                words = shlex.split(held.replace("\\\n", " "), comments=True)
            except ValueError:  # a quote is still open
                continue
            if not line.endswith("\\"):
                held = ""
                if words:
                    yield words
        assert not held, f"{page.name}: {held!r} does not end"


def ncclean_commands() -> list[Any]:
    names = ("index", "what-to-use", "tutorial", "howto", "noise", "evaluation", "recipes")
    pages = (ROOT / "README.md", *(DOCS / f"{name}.md" for name in names))
    return [
        pytest.param(words[1:], id=f"{page.name}-{number}-{words[1]}")
        for page in pages
        for number, words in enumerate(shell_commands(page))
        if words[0] == "ncclean"
    ]


@pytest.mark.slow
def test_site_builds_strictly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "index.html").is_file()
    assert not (tmp_path / "generate.py").exists()
    pages = "".join(page.read_text("utf-8") for page in tmp_path.rglob("*.html"))
    loaded = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)', pages)
    assert not loaded, "the site must not load anything from the network"


@pytest.mark.parametrize("name", ["schema.md", "cli.md"])
def test_generated_page_is_current(name: str) -> None:
    made = load_generator().PAGES[name]()
    assert (DOCS / name).read_text("utf-8") == made, "run: python docs/generate.py"


def test_the_stub_of_the_functions_is_current() -> None:
    generator = load_generator()
    assert generator.STUB.read_text("utf-8") == generator.stub(), "run: python docs/generate.py"


LEAVES = {name: command for name, command in {**COMMANDS, **INNER}.items()
          if not hasattr(command, "commands")}  # fmt: skip
# What the command line adds to the options of every command, and `--set` where there are options
# that are not listed.
SHARED = {"--json", "--quiet", "-q"}


def test_the_command_line_has_exactly_the_declared_commands() -> None:
    assert set(DECLARATIONS) == set(LEAVES)


@pytest.mark.parametrize("name", DECLARATIONS)
def test_the_command_line_has_exactly_the_declared_options(name: str) -> None:
    """cli.md is made from the declarations; this is what makes it true."""
    kind = DECLARATIONS[name]
    known = list(parameters(kind).values())
    shown = [p for p in LEAVES[name].params if p.name != "help"]
    arguments = [p for p in shown if p.param_type_name == "argument"]
    assert [(p.name, p.metavar) for p in arguments] == [
        (p.name, p.option.metavar) for p in known if p.option.argument
    ]
    flags = {flag for p in shown if p not in arguments for flag in (*p.opts, *p.secondary_opts)}
    declared = {
        flag for p in known if not p.option.argument for each in flags_of(p)
        for flag in each.split("/")
    } | {f"--{p.option.former}" for p in known if p.option.former}  # fmt: skip
    added = SHARED | ({"--set"} if kind.takes_settings else set())
    assert not declared & added
    assert flags == declared | added
    by_name = {p.name: p for p in shown}
    for parameter in known:
        option, made = parameter.option, by_name[parameter.name]
        assert made.help == option.help or made.help.startswith(f"{option.help}  [")
        assert made.required == (parameter.is_required and option.typed_default is None)
        if not option.argument:
            assert made.hidden == (not option.is_listed)


@pytest.mark.parametrize("name", DECLARATIONS)
def test_every_option_of_a_command_has_a_meaning(name: str) -> None:
    """In its section of cli.md, or in one that the section names: alone, or with its group."""
    page = (DOCS / "cli.md").read_text("utf-8")
    usage, section, shared = (
        page.partition(f"\n## {title}\n")[2].partition("\n## ")[0] if title else
        page.partition("\nMost commands:\n")[2].partition("\n```")[0]
        for title in ("", name, "Shared options")
    )  # fmt: skip
    groups = dict(re.findall(r"^(\w[^:\n]*):\n(.*?)(?=^\S)", shared, re.MULTILINE | re.DOTALL))
    assert {"Images", "Others"} < set(groups)
    named = re.findall(r"^\[Shared\]\(#shared-options\): (.*)\.$", section, re.MULTILINE)
    names = named[0].split(", ") if named else []
    assert {each for each in names if not each.startswith("`")} <= set(groups)
    together = "".join(groups[each] for each in names if each in groups)
    for parameter in parameters(DECLARATIONS[name]).values():
        option = parameter.option
        flag = option.metavar if option.argument else parameter.flag
        assert option.help
        line = re.compile(rf"^  {re.escape(flag)}(?![\w-]).*  \S", re.MULTILINE)
        is_own, is_grouped, is_shared = (
            line.search(text) is not None for text in (section, together, shared)
        )
        is_named = f"`{flag}`" in names
        is_usual = line.search(usage) is not None and not is_own
        assert is_own + is_grouped + is_named + is_usual == 1
        assert is_shared or not is_named


def test_what_recipes_do_not_have_is_listed() -> None:
    page = (DOCS / "recipes.md").read_text("utf-8")
    for name, kind in DECLARATIONS.items():
        assert kind.is_stage or f"`{name}`" in page
        for parameter in parameters(kind).values():
            is_listed = f"`{parameter.flag}`" in page or parameter.name in parameters(TrialOptions)
            assert not kind.is_stage or parameter.option.in_recipes or is_listed


def test_the_keys_of_a_recipe_are_explained() -> None:
    page = (DOCS / "recipes.md").read_text("utf-8")
    for model in (RecipeModel, EngineModel, StageModel):
        for name, field in model.model_fields.items():
            assert f"`{field.alias or name}`" in page


@pytest.mark.parametrize("name", [*COMMANDS, *INNER])
def test_command_has_help_with_an_example(name: str) -> None:
    command = {**COMMANDS, **INNER}[name]
    assert f"Example: `ncclean {name} " in (command.help or "")
    undocumented = [p.name for p in command.params if not p.hidden and not p.help]
    assert not undocumented


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], Command]:
    """What a command line would run."""
    made: list[Command] = []
    monkeypatch.setattr("ncclean_cli.app._run", lambda command, **_: made.append(command))

    def parse(words: list[str]) -> Command:
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, f"{shlex.join(words)}\n{result.output}"
        return made[-1]

    return parse


@pytest.mark.parametrize("name", [*COMMANDS, *INNER])
def test_example_of_the_help_parses(name: str, parse: Callable[[list[str]], Command]) -> None:
    example = re.search(r"Example: `ncclean (.*?)`", {**COMMANDS, **INNER}[name].help, re.S)
    assert example is not None
    assert parse(shlex.split(example[1])).name.startswith(name)


@pytest.mark.parametrize("words", ncclean_commands())
def test_documented_command_parses(words: list[str], parse: Callable[[list[str]], Command]) -> None:
    arguments = words[: words.index(">")] if ">" in words else words
    assert parse(arguments).name in (words[0], " ".join(words[:2]))


def test_readme_and_tutorial_show_commands() -> None:
    for page in (ROOT / "README.md", DOCS / "tutorial.md"):
        names = {words[1] for words in shell_commands(page) if words[0] == "ncclean"}
        assert {"score", "query"} <= names


@pytest.mark.parametrize(
    "code",
    [
        block
        for name in ("python", "howto", "evaluation", "own-loop")
        for block in code_blocks(DOCS / f"{name}.md", "python")
    ],
)
def test_imports_of_python_examples_resolve(code: str) -> None:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "datasets":  # none of ncclean's: whoever has it uses it
                continue
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"


def test_every_score_column_is_explained() -> None:
    from ncclean.base import schema

    page = (DOCS / "scores.md").read_text("utf-8")
    scores = schema.SCORES.names[schema.SCORES.names.index("similarity") :]
    missing = [name for name in scores if name not in page and name != "is_noisy"]
    assert not missing
