"""The ready SQL runs as it stands on the page."""

import json
import shlex

import pytest
from ncclean_cli.app import app
from typer.testing import CliRunner

from ncclean.base.schema import SCORES
from ncclean.report.queries import READY_QUERIES, command, ready_queries, threshold_query
from tests.report.tables import graded, write_scores


@pytest.mark.parametrize("query", READY_QUERIES, ids=lambda query: query.title[:24])
def test_runs_through_ncclean_query(tmp_path, query):
    folder = tmp_path / "it's a table"
    folder.mkdir()
    path = write_scores(folder / "s.parquet", [*graded(), {"status": "image_missing"}])
    words = shlex.split(command(query.sql, [str(path)]))
    assert words == ["ncclean", "query", query.sql, str(path)]
    assert not set(query.sql) & set('"$`\\!')  # the shell would expand them
    result = CliRunner().invoke(app, [*words[1:], "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["columns"]


def test_only_those_that_the_table_can_answer():
    assert ready_queries(SCORES.names) == READY_QUERIES
    assert [q.title for q in ready_queries(["status"])] == ["What could not be scored"]


def test_threshold_query():
    assert "expected_mismatched" in threshold_query("similarity >= 0.2", True)
    assert "expected_mismatched" not in threshold_query("similarity >= 0.2", False)
