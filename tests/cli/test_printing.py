"""What people see: tables that are never cut, and a bar that fits the terminal."""

import io
import json
import re
import sys
import time
from types import SimpleNamespace

import pytest
import rich.console
import typer
from ncclean_cli import app as cli
from ncclean_cli.errors import _say
from ncclean_cli.parameters import parsed
from ncclean_cli.printing import print_json, print_shown
from ncclean_cli.progress import Bar, shown_progress
from ncclean_pipelines.command import Result
from ncclean_pipelines.display import Note
from ncclean_pipelines.progress import Lines
from ncclean_pipelines.score import Score
from typer.testing import CliRunner

from ncclean.base.formats import Table, by_name, facts, file_size, hours
from ncclean.base.options import Option

WIDE = Table(
    "Figures",
    ("figure", *(f"model-number-{n}" for n in range(8))),
    (("accuracy", *(f"{n}0.123456789%" for n in range(8))), ("recall", *("-1.0 to 1.0",) * 8)),
)
PROSE = " ".join(f"word{n}" for n in range(60))


@pytest.fixture
def terminal(monkeypatch):
    """Makes all consoles of rich terminals of a width; returns what they were sent."""

    def make(width):
        stream = io.StringIO()
        console = rich.console.Console

        def of_width(**options):
            options.pop("stderr", None)
            return console(file=stream, width=width, force_terminal=True, **options)

        monkeypatch.setattr(rich.console, "Console", of_width)
        return stream

    return make


def plain(stream):
    """Without the codes of colours and of the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())


def shown(*values, failures=None, width, terminal):
    stream = terminal(width)
    print_shown(Result("example", None, {}, shown=values, failures=failures or {}))
    return plain(stream)


@pytest.mark.parametrize("width", [20, 40, 80, 300])
def test_no_figure_of_a_wide_table_is_cut(width, terminal):
    lines = shown(WIDE, width=width, terminal=terminal).splitlines()
    assert lines[1].strip() == "Figures"
    for cells in (WIDE.heads, *WIDE.rows):
        assert any(line.split() == " ".join(cells).split() for line in lines), cells
    assert "…" not in "".join(lines)


def test_prose_is_wrapped_between_words(terminal):
    table = Table("", ("stage", ""), (("score", PROSE),), last_left=True)
    lines = shown(table, width=40, terminal=terminal).splitlines()
    assert max(map(len, lines)) <= 40
    words = " ".join(lines).split()
    assert [word for word in words if word.startswith("word")] == PROSE.split()


def test_short_prose_has_no_blanks_behind_it(terminal):
    rows = (("a" * 30, "1"), ("b" * 30, PROSE))
    lines = shown(Table("", ("", ""), rows, last_left=True), width=40, terminal=terminal)
    assert not any(line.endswith(" ") for line in lines.splitlines())


def test_a_narrow_table_is_no_wider_than_it_needs(terminal):
    lines = shown(Table("", ("a", "b"), (("x", "1"),)), width=200, terminal=terminal).splitlines()
    assert max(len(line.rstrip()) for line in lines) < 20


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_long_fact_is_whole_and_takes_no_place_beside_the_others(width, terminal):
    path = "/somewhere/" + "a" * 100 + "/scores.parquet"
    rows = [("rows", "1,500"), ("written to", path)]
    lines = shown(facts(rows), width=width, terminal=terminal).splitlines()
    assert lines[0].split() == ["rows", "1,500"]
    assert len(lines[0]) <= max(width, 40)
    assert "".join(" ".join(lines).split()) == f"rows1,500writtento{path}"


def test_columns_are_aligned(terminal):
    table = Table("", ("name", "pairs"), (("a", "1"), ("bcd", "2,000")))
    lines = shown(table, width=80, terminal=terminal).splitlines()
    ends = {len(line.rstrip()) for line in lines if line.strip(" ─")}
    assert len(ends) == 1  # numbers to the right
    assert [line[0] for line in lines[-2:]] == ["a", "b"]


def test_text_is_printed_as_it_is(terminal, capsys):
    long = "[red]" + "x" * 100
    text = shown(
        Note(long), Note("[b]"), "a line", Table("[i]", ("[h]",), (("[c]",),)),
        failures={"a[0]": "[no] " + "y" * 100}, width=40, terminal=terminal,
    )  # fmt: skip
    for each in (long, "[b]", "[i]", "[h]", "[c]", "failed: a[0]: [no] " + "y" * 100):
        assert each in text
    assert capsys.readouterr().out == "a line\n"


def test_json_has_no_word_for_nan(capsys):
    values = {"a": float("nan"), "b": [float("inf"), 1.5], "c": {"d": (float("-inf"), None)}}
    print_json(Result("example", None, values))
    text = capsys.readouterr().out
    assert text.count("\n") == 1
    assert json.loads(text) == {"a": None, "b": [None, 1.5], "c": {"d": [None, None]}}
    assert "NaN" not in text
    assert "Infinity" not in text


@pytest.fixture
def bar(terminal):
    """A bar on a terminal of a width, with what it was sent."""
    made = []

    def make(width):
        stream = terminal(width)
        made.append(Bar())
        return made[0], stream

    yield make
    for each in made:
        each.stop()


def drawn(stream, text):
    """Wait until the bar shows it: it is drawn ten times a second."""
    for _ in range(100):
        if text in plain(stream):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("width", [40, 120])
def test_the_bar_counts_and_fits(bar, width):
    made, stream = bar(width)
    made.advance(1_200, 20_000, "pairs", loss=3.14159)
    assert drawn(stream, "1,200/20,000")
    if width > 40:
        assert drawn(stream, "1,200/20,000 pairs, loss 3.142")
    lines = re.split(r"[\r\n]+", plain(stream))
    assert max(map(len, lines)) <= width


def test_what_is_said_stays_above_the_bar(bar):
    made, stream = bar(80)
    made.advance(1, 0, "samples")
    assert drawn(stream, "1 samples")
    made.say("scoring [red]a[/red] " + "z" * 100)
    made.stop()
    made.stop()  # twice does no harm
    assert "scoring [red]a[/red] " + "z" * 100 + "\n" in plain(stream)


def test_another_count_is_another_bar(bar):
    made, stream = bar(120)
    for done in range(3):
        made.advance(done, 10, "pairs")
    made.advance(1, 5, "steps")
    assert drawn(stream, "1/5 steps")
    last = plain(stream).rpartition("\r")[2]
    assert "steps" in last
    assert "pairs" not in last


def test_a_bar_on_a_terminal_and_lines_elsewhere(monkeypatch, terminal):
    terminal(80)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with shown_progress() as progress:
        assert isinstance(progress, Lines)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with shown_progress() as progress:
        assert isinstance(progress, Bar)


def test_what_a_file_can_name_moves_no_cursor(capsys):
    evil = "\x1b]0;owned\x07\x1b[2J"
    table = Table(evil, (evil, "b"), ((evil, "1"),))
    result = Result("score", None, {}, shown=[evil, Note(evil), table], failures={evil: evil})
    print_shown(result)
    _say(evil)
    Lines(sys.stderr).say(evil)
    printed = capsys.readouterr()
    assert "\x1b]" not in printed.out + printed.err
    assert "\x1b[2J" not in printed.out + printed.err
    assert "\x07" not in printed.out + printed.err
    assert printed.out.count("⟨U+001B⟩]0;owned") >= 5
    assert printed.err.count("⟨U+001B⟩]0;owned") == 2


def test_a_list_with_commas_may_be_given_in_several_options():
    option = SimpleNamespace(option=Option("Names.", commas=True))
    assert parsed(option, ["a, b", "c"]) == ["a", "b", "c"]


def test_small_amounts_are_not_said_to_be_nothing():
    assert [file_size(size) for size in (0, 9_600, 99_000, 100_000)] == [
        "0.0 MB", "9.6 kB", "99.0 kB", "0.1 MB",
    ]  # fmt: skip
    assert [hours(count) for count in (2.5, 0.5, 0.001)] == [
        "2.50 hours", "30.0 minutes", "3.6 seconds",
    ]  # fmt: skip


def test_of_counts_by_name_the_largest_are_shown():
    counts = {"a.png": 1, "depth.png": 1_000, "seg.png": 20, "mask.png": 300}
    assert by_name(counts) == "1,321 (depth.png 1,000, mask.png 300, seg.png 20, ...)"
    del counts["a.png"]
    assert by_name(counts) == "1,320 (depth.png 1,000, mask.png 300, seg.png 20)"


# Options of a declaration on the command line.


@pytest.mark.parametrize(
    "typed",
    [
        ("--signals", "language,image"),
        ("--signals", "language", "--signals", "image"),
        ("--signals", "language, image", "--signals", ""),
    ],
)
def test_lists_with_commas_may_be_given_several_times(typed, monkeypatch):
    built = []
    monkeypatch.setattr(cli, "_run", lambda command, **_: built.append(command))
    app = typer.Typer()
    app.command()(cli.typer_command(Score))
    result = CliRunner().invoke(app, ["x.tar", "--out", "s.parquet", *typed])
    assert result.exit_code == 0, result.output
    assert list(built[0].options.signals) == ["language", "image"]
