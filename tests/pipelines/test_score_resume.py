"""Scoring again where there is something: what goes on, what is refused, what is replaced."""

import os
import shutil
import socket

import pytest
from upath import UPath

from ncclean.execution.finish_shard import ShardScoring
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.score_run import ScoreRun
from tests.factories import rendered
from tests.pipelines.score_tables import assert_same_rows, command, read

pytestmark = pytest.mark.usefixtures("rough_shifts")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """150 pairs in three shards."""
    folder = tmp_path_factory.mktemp("corpus") / "shards"
    return rendered(folder, pairs=150, shard_size=50, noise={"ncr": 0.2}, seed=7)


def test_a_repaired_shard_is_scored_on_resume_and_the_rest_is_kept(corpus, scored_here, tmp_path):
    shards = tmp_path / "shards"
    shards.mkdir()
    for source in sorted(corpus.glob("*.tar")):
        (shards / source.name).write_bytes(source.read_bytes())
    whole = (shards / "00001.tar").read_bytes()
    (shards / "00001.tar").write_bytes(whole[: len(whole) // 3])
    first = command(shards, tmp_path / "s.parquet").run().summary
    assert first.shards_failed == 1
    assert first.rows < 150
    (shards / "00001.tar").write_bytes(whole)
    second = command(shards, tmp_path / "s.parquet").run().summary
    assert (second.shards_failed, second.rows) == (0, 150)
    third = command(shards, tmp_path / "s.parquet").run().summary
    assert (third.rows, third.samples_per_second) == (150, None)
    assert_same_rows(read(tmp_path / "s.parquet"), read(scored_here))


@pytest.mark.parametrize(
    "change",
    [
        {"block_size": 100},
        {"forget_percent": 5.0},
        {"seed": 1},
        {"text": False},
        {"precision": "bf16"},
        {"model": "demo-noisy"},
    ],
)
def test_resuming_another_run_is_refused_with_the_difference(corpus, scored_here, change, refused):
    refused(command, corpus, scored_here, **change)


@pytest.fixture(scope="module")
def scored_here(corpus, rough_shifts, tmp_path_factory):
    out = tmp_path_factory.mktemp("resume") / "s.parquet"
    command(corpus, out).run()
    return out


def test_resuming_with_other_shards_is_refused(corpus, scored_here, refused):
    refused(command, [str(corpus / "{00000..00001}.tar")], scored_here)


def test_overwrite_starts_again_and_foreign_files_are_safe(corpus, scored_here, tmp_path, refused):
    summary = command(corpus, scored_here, seed=5, overwrite=True).run().summary
    assert summary.rows == 150
    foreign = tmp_path / "mine.parquet"
    foreign.write_text("precious")
    for overwrite in (False, True):
        refused(command, corpus, foreign, overwrite=overwrite)
    assert foreign.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [foreign]


def test_overwriting_a_folder_keeps_a_users_files(corpus, tmp_path):
    out = tmp_path / "s"
    command([str(corpus / "{00000..00001}.tar")], out).run()
    mine = [out / "notes.txt", out / "part-mine.txt", out / ".ncclean" / "part-mine.parquet"]
    for path in mine:
        path.write_text("mine")
    assert (
        command([str(corpus / "00000.tar")], out, seed=1, overwrite=True).run().summary.rows == 50
    )
    assert all(path.read_text() == "mine" for path in mine)
    assert len(list(out.glob("*.parquet"))) == 1


@pytest.mark.parametrize(
    "change", [{"precision": "int8"}, {"model": "demi"}, {"model": "local-dir:nowhere"}]
)
def test_overwriting_begins_when_the_model_is_there(corpus, scored_here, tmp_path, change, refused):
    shutil.copytree(scored_here.parent, tmp_path, dirs_exist_ok=True)
    out = tmp_path / "s.parquet"
    before = out.read_bytes()
    refused(command, corpus, out, overwrite=True, **change)
    assert out.read_bytes() == before
    assert (tmp_path / "s.parquet.work").is_dir()


def test_a_run_that_got_nowhere_is_in_nobodys_way(corpus, tmp_path):
    (tmp_path / "wrong.tar").write_bytes(b"<html>" * 1000)
    out = tmp_path / "s.parquet"
    assert command([str(tmp_path / "wrong.tar")], out, shift=0.2).run().summary.rows == 0
    assert command([str(corpus / "00000.tar")], out, shift=0.2).run().summary.rows == 50


def test_a_part_says_where_a_shard_failed_and_how(corpus, tmp_path, monkeypatch):
    def fails(self, shard):
        raise ZeroDivisionError("of a test")

    monkeypatch.setattr(ShardScoring, "finish", fails)
    out = tmp_path / "s.parquet"
    summary = command([str(corpus / "00000.tar")], out).run().summary
    assert summary.failed_shards == {"00000": "ZeroDivisionError: of a test"}
    run = ScoreRun.load(ScoreLayout(UPath(out)))
    trace = run.done["00000"].trace
    assert trace.startswith(f"process {os.getpid()} on {socket.gethostname()}\n")
    assert 'raise ZeroDivisionError("of a test")' in trace
