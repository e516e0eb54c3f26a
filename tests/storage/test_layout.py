"""Where a score table lies, and what may be removed of it."""

import pytest
from upath import UPath

from ncclean.data.shards import ShardRef
from ncclean.errors import InputError
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.run_record import RUN
from ncclean.storage.score_run import RunIdentity, ScoreRun
from tests.storage.scored_runs import score

SHARDS = [ShardRef("00000", "00000.tar", 1, ""), ShardRef("x/00001", "x/00001.tar", 1, "")]
IDENTITY = RunIdentity({}, {}, SHARDS, "1")


def begin(layout, **options):
    ScoreRun.open(layout, IDENTITY, **options).close()


def test_a_file_has_its_working_folder_beside_it():
    layout = ScoreLayout(UPath("/d/s.parquet"))
    assert str(layout.shard_list) == "/d/s.parquet.work/shards.parquet"
    assert str(layout.part(SHARDS[1])) == "/d/s.parquet.work/part-x__00001.parquet"
    assert str(layout.table_file("s.parquet")) == "/d/s.parquet"


def test_a_folder_has_it_inside():
    layout = ScoreLayout(UPath("/d/s"))
    assert str(layout.shard_list) == "/d/s/.ncclean/shards.parquet"
    assert str(layout.part(SHARDS[1])) == "/d/s/.ncclean/part-x__00001.parquet"
    assert str(layout.table_file("part-00000-a.parquet")) == "/d/s/part-00000-a.parquet"


@pytest.mark.parametrize("name", ["s", "s.parquet"])
def test_overwrite_removes_what_the_run_lists_and_nothing_else(tmp_path, name):
    layout = ScoreLayout(UPath(tmp_path / name))
    score(layout.out, ["a", "b"])
    score(layout.out, ["a", "b", "c"], until_finalize=True)
    layout.check_usable()
    mine = [layout.work / "part-mine.parquet", tmp_path / "notes.txt"]
    if name == "s":
        mine += [tmp_path / "s" / "part-mine.parquet", tmp_path / "s" / "README"]
    for path in mine:
        path.write_text("mine")
    begin(layout, overwrite=True)
    files = {str(path) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == set(map(str, [*mine, layout.work / RUN, layout.shard_list]))


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(("name", "table"), [("s", "s/mine.parquet"), ("s.parquet", "s.parquet")])
def test_a_table_that_no_manifest_lists_is_in_the_way(tmp_path, name, table, overwrite):
    (tmp_path / "s").mkdir()
    (tmp_path / table).write_text("mine")
    layout = ScoreLayout(UPath(tmp_path / name))
    for use in (layout.check_usable, lambda: begin(layout, overwrite=overwrite)):
        with pytest.raises(InputError, match=f"{table} is in the way"):
            use()
    assert (tmp_path / table).read_text() == "mine"
    assert not layout.work.exists()


def test_a_folder_for_a_file_and_a_file_for_a_folder_are_refused(tmp_path, refused):
    (tmp_path / "s.parquet").mkdir()
    (tmp_path / "s").write_text("mine")
    for name in ("s.parquet", "s"):
        layout = ScoreLayout(UPath(tmp_path / name))
        for use in (layout.check_usable, lambda layout=layout: begin(layout)):
            refused(use)
