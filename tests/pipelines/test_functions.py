"""Commands as functions of the package: `ncclean.score(...)`."""

import ast
import inspect
import os
import pkgutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
from ncclean_pipelines.command import Command, Result
from ncclean_pipelines.functions import FUNCTIONS, function
from ncclean_pipelines.progress import Report
from ncclean_pipelines.registry import COMMANDS

import ncclean
from ncclean.base.options import parameters

SMALL = {"pairs": 60, "shard_size": 60, "held_out": 0, "workers": 1}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    out = tmp_path_factory.mktemp("functions") / "c"
    ncclean.synth(str(out), **SMALL)
    return out


def score(shards, out, **options):
    return ncclean.score(shards, out, model="demo", precision="fp32", shift=0.2, **options)


def test_every_command_is_a_function():
    assert list(FUNCTIONS.values()) == list(COMMANDS.values())
    assert set(FUNCTIONS) | {"evaluate"} == set(ncclean.__all__) - {"__version__"}
    for name, kind in FUNCTIONS.items():
        call = getattr(ncclean, name)
        assert call.__name__ == name
        assert call.__doc__.startswith(inspect.getdoc(kind))
        for option in parameters(kind).values():
            assert (f"\n  {option.name}: " in call.__doc__) == option.option.is_listed
        assert list(inspect.signature(call).parameters)[-1] == "progress"
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        ncclean.nonsense  # noqa: B018


def test_no_module_takes_the_name_of_a_function():
    """Python sets a package's attribute when a module of it is imported: it would hide one."""
    modules = {module.name for module in pkgutil.iter_modules(ncclean.__path__)}
    assert not modules & set(ncclean.__all__)


def test_the_stub_lists_the_same_functions_with_the_same_parameters():
    stub = ast.parse(Path(ncclean.__file__).with_name("__init__.pyi").read_text("utf-8"))
    defined = {node.name: node.args for node in stub.body if isinstance(node, ast.FunctionDef)}
    assert set(defined) == {*FUNCTIONS, "evaluate"}
    for name in FUNCTIONS:
        arguments = inspect.signature(function(name)).parameters.values()
        by_position = [a.name for a in arguments if a.kind is a.POSITIONAL_OR_KEYWORD]
        assert [one.arg for one in defined[name].args] == by_position, name
        by_name = [a.name for a in arguments if a.kind is a.KEYWORD_ONLY]
        assert [one.arg for one in defined[name].kwonlyargs] == by_name, name


SNIPPET = """
from pathlib import Path
import ncclean
reveal_type(ncclean.score(Path("c"), "s.parquet", words=True).summary)
reveal_type(ncclean.select("s.parquet", "x.parquet").summary.kept)
ncclean.score([("a.jpg", "a dog")], "s.parquet")
ncclean.query("SELECT 1", "s.parquet").to_pandas()
ncclean.query("SELECT 1", "s.parquet").to_polars()
ncclean.score("c", "s.parquet", modle="demo")
"""


@pytest.mark.slow
def test_type_checkers_see_results_and_options(tmp_path):
    (tmp_path / "snippet.py").write_text(SNIPPET)
    root = Path(ncclean.__file__).parents[1]
    for name in ("pipelines", "cli"):
        (tmp_path / f"ncclean_{name}").symlink_to(root / name)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", tmp_path / "snippet.py"],
        cwd=root, env=os.environ | {"MYPYPATH": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    lines = [line.partition("snippet.py:")[2] for line in done.stdout.splitlines()]
    for expected in (
        '4: note: Revealed type is "ncclean.storage.summary.ScoreSummary | Any"',
        '5: note: Revealed type is "int"',
        '8: error: "QueryResult" has no attribute "to_polars"  [attr-defined]',
        '9: error: Unexpected keyword argument "modle" for "score"; did you mean "model"?'
        "  [call-arg]",
    ):
        assert expected in lines, done.stdout
    assert sum("error" in line for line in lines) == 2


def test_results_print_themselves(shards, tmp_path, refused):
    out = str(tmp_path / "s.parquet")
    scored = score(str(shards), out)
    assert scored["rows"] == 60
    assert repr(scored).splitlines()[:2] == ["score", "  rows        60"]
    assert "<td style='text-align:left'>60</td>" in scored._repr_html_()
    assert scored.made == (out,)
    assert scored.summary.rows == 60
    refused(ncclean.select, out, str(tmp_path / "x.parquet"), keep_fraction=0.5)
    kept = ncclean.select(out, str(tmp_path / "x.parquet"), score="similarity", keep_fraction=0.5)
    assert kept["kept"] == 30


def test_paths_and_lists_are_taken_too(shards, tmp_path):
    scored = score([shards / "00000.tar"], tmp_path / "s.parquet")
    assert scored["rows"] == 60
    assert scored.made == (str(tmp_path / "s.parquet"),)


@pytest.mark.parametrize("name", ["score", "clean", "finetune", "adapt"])
def test_pretrained_weights_are_not_named_unasked(name, monkeypatch):
    ran = []

    def run(self: Command, progress: object) -> Result:
        ran.append(self)
        return Result(self.name, None, {})

    kind = FUNCTIONS[name]
    monkeypatch.setattr(kind, "run", run)
    required = {"method": "clip", "shards": "c", "source": "c", "scores": "s", "out": "o"}
    taken = {k: v for k, v in required.items() if k in inspect.signature(function(name)).parameters}
    function(name)(**taken, pretrained=None)
    function(name)(**taken)
    assert [command.pretrained for command in ran] == [None, None]


def test_progress_may_be_a_function(shards, tmp_path):
    reports = []
    score(str(shards), str(tmp_path / "s.parquet"), progress=reports.append)
    assert all(isinstance(report, Report) for report in reports)
    lines = list(map(str, reports))
    assert lines[0] == "loading demo"
    assert lines[-1] == "finalizing"
    assert any(report.done == 60 and report.unit == "samples" for report in reports)


class Shell:
    """IPython as the kernel of a notebook has it, and what is displayed there."""

    def __init__(self):
        self.kernel, self.shown, self.display = (
            object(),
            [],
            types.SimpleNamespace(display=self.add),
        )

    def get_ipython(self):
        return self

    def add(self, page, raw, display_id):
        self.update(page, raw)
        return self

    def update(self, page, raw):
        self.shown.append(page)


def test_a_notebook_shows_a_bar(shards, tmp_path, monkeypatch):
    shell = Shell()
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", shell.display)
    score(str(shards), str(tmp_path / "s.parquet"))
    pages = [page["text/html"] for page in shell.shown]
    assert any("<progress value='60' max='60'>" in page for page in pages)
    assert pages[-1] == "<small>finalizing</small>"
    shell.shown.clear()
    ncclean.query("SELECT 1", str(tmp_path / "s.parquet"))
    assert shell.shown == []


class Watcher:
    """A progress of somebody's own."""

    def __init__(self):
        self.said, self.counted = [], []

    def say(self, text):
        self.said.append(text)

    def advance(self, done, total, unit, **facts):
        self.counted.append((done, unit))


def test_progress_may_be_an_object(shards, tmp_path):
    watcher = Watcher()
    score(str(shards), str(tmp_path / "s.parquet"), progress=watcher)
    assert watcher.said[0] == "loading demo"
    assert watcher.counted[-1] == (60, "samples")


def test_wrong_values_are_input_errors_and_wrong_names_are_pythons(tmp_path, refused):
    refused(ncclean.synth, str(tmp_path), pairs="many")
    refused(ncclean.synth, str(tmp_path), pairs=0)
    refused(ncclean.synth, str(tmp_path), kind="salt")
    with pytest.raises(TypeError, match=r"'pears' \(did you mean pairs\?\)"):
        ncclean.synth(str(tmp_path), pears=3)
    with pytest.raises(TypeError, match="missing a required argument: 'out'"):
        ncclean.synth()
    with pytest.raises(TypeError, match="too many positional arguments"):
        ncclean.score("shards", "out", "demo")
    assert list(tmp_path.iterdir()) == []


def test_evaluate_takes_the_task(shards, tmp_path, refused):
    refused(ncclean.evaluate, "beauty")
    with pytest.raises(TypeError, match="pears"):
        ncclean.evaluate("noise", scores="s.parquet", out="n.json", pears=3)
    scores = str(tmp_path / "s.parquet")
    score(str(shards), scores)
    written = ncclean.evaluate("noise", scores=scores, out=str(tmp_path / "noise.json"))
    assert written.command == "evaluate noise"
    assert written["clean"] + sum(written["noisy"].values()) == 60
    alone = ncclean.evaluate("noise", scores)
    assert alone.to_json() == written.to_json()
    assert alone.made == ()
    assert ncclean.evaluate_noise(scores).to_json() == written.to_json()
    refused(ncclean.evaluate, "nois", scores)
