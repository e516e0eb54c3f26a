"""Options of a declaration on the command line."""

import pytest
import typer
from ncclean_cli import app as cli
from ncclean_pipelines.score import Score
from typer.testing import CliRunner


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
