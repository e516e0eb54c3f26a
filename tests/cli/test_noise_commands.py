"""`inject-noise` and `evaluate noise` as a user runs them."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ncclean_cli.app import app
from typer.testing import CliRunner

from tests import hostile


def run(*arguments):
    """In this process: starting one takes seconds."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def write_shard(folder):
    folder.mkdir()
    groups = [hostile.sample(f"{n:02d}", hostile.JPEG, b"no. %d dog" % n) for n in range(20)]
    members = [member for group in groups for member in group]
    (folder / "a.tar").write_bytes(hostile.tar_bytes(members))


def test_inject_then_again_with_another_rate(tmp_path):
    write_shard(tmp_path / "in")
    command = ("inject-noise", tmp_path / "in", "--out", tmp_path / "out", "--kind", "ncr")
    result = run(*command, "--rate", "0.5", "--json")
    assert result.exit_code == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["planned"] == {"ncr": 10}
    assert summary["noisy"]["ncr"] + summary["left_in_place"]["ncr"] == 10
    assert "1 shard to write" in result.stderr
    refused = run(*command, "--rate", "0.4")
    assert refused.exit_code == 2
    assert "--noise ncr was 0.5, is 0.4" in refused.stderr
    assert run(*command, "--rate", "0.5", "--quiet").stdout == ""


def test_a_broken_shard_is_exit_code_1_and_named(tmp_path):
    write_shard(tmp_path / "in")
    (tmp_path / "in" / "b.tar").write_bytes(b"<html>" * 1000)
    result = run("inject-noise", tmp_path / "in", "--out", tmp_path / "o", "--noise", "hard=0.1")
    assert result.exit_code == 1
    assert "failed: b: cannot be read" in result.stdout


def test_evaluate(tmp_path):
    table = pa.table({"similarity": [0.1, 0.2, 0.9], "is_noisy": [True, False, False]})
    pq.write_table(table, tmp_path / "s.parquet")
    shown = run("evaluate", "noise", tmp_path / "s.parquet", "--plot", tmp_path / "f.svg")
    assert shown.exit_code == 0, shown.stderr
    assert "1 unspecified" in shown.stdout
    assert (tmp_path / "f.svg").exists()
    found = json.loads(run("evaluate", "noise", tmp_path / "s.parquet", "--json").stdout)
    assert found["scores"][0]["kinds"][0]["report"]["auroc"] == 1
    # What cannot be computed is null, not NaN.
    pq.write_table(table.slice(1), tmp_path / "clean.parquet")
    found = json.loads(run("evaluate", "noise", tmp_path / "clean.parquet", "--json").stdout)
    assert found["scores"][0]["kinds"][0]["report"]["auroc"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("inject-noise", "x", "--out", "o"), "name the noise to inject"),
        (("inject-noise", "x", "--out", "o", "--kind", "ncr"), "give each kind its rate"),
        (("inject-noise", "x", "--out", "o", "--kind", "salt", "--rate", "0.1"), "unknown kind"),
        (("inject-noise", "nowhere", "--out", "o", "--noise", "ncr=0.1"), "nowhere does not exist"),
        (("evaluate", "noise", "nowhere.parquet"), "nowhere.parquet does not exist"),
        (("evaluate", "noise", "x", "--plot", "f.gif"), "--plot takes a file ending in"),
        (("evaluate", "noise", "x", "--threshold", "a"), "--threshold takes"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
