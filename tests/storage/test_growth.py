"""A run over a list of shards that changes: the table is that of one run over the present list."""

import contextlib
import json
import os
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from upath import UPath

from ncclean.errors import InputError
from ncclean.scoring.calibration import Calibration
from ncclean.storage import finalize as stage
from ncclean.storage import lease, parts, table_file
from ncclean.storage.calibration import calibrate
from ncclean.storage.finalize import finalize
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.score_run import ScoreRun
from ncclean.storage.tables import table_files
from tests.storage.scored_runs import (
    EMPTY,
    Killed,
    assert_same_table,
    fitted_once,
    identity,
    killed_at,
    read,
    refs,
    score,
)

OLD = ["b", "d", EMPTY, "f"]
PRESENT = ["a", "b", "c", "d", EMPTY, "e", "f", "g"]


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    """So that row groups and files hold several shards, and shards lie in several row groups."""
    monkeypatch.setattr(lease, "RENEW_SECONDS", 1e6)  # no thread changes files in between
    monkeypatch.setattr(lease, "_TICK_SECONDS", 0.01)
    monkeypatch.setattr(stage, "FILE_BYTES", 30 * 256)
    monkeypatch.setattr(Calibration, "fit", fitted_once)
    for module in (table_file, parts):
        monkeypatch.setattr(module, "ROW_GROUP_ROWS", 20)


@pytest.fixture(params=["file", "folder", "file in a store", "folder in a store"])
def out(request, tmp_path):
    name = "s.parquet" if "file" in request.param else "s"
    if "store" not in request.param:
        yield UPath(tmp_path / name)
        return
    place = UPath(f"memory://{tmp_path.name}/{name}")
    yield place
    place.fs.store.clear()


def once(tmp_path, out, names, **options):
    """The table of one run over these shards."""
    place = UPath(tmp_path / "once" / out.name)
    score(place, names, **options)
    return read(place)


@pytest.mark.parametrize(
    ("out", "lists"),
    [
        ("file", [OLD, PRESENT]),
        ("folder", [OLD, PRESENT]),
        ("folder", [["b"], ["b", "d"], ["a", "b", "d", "e"], PRESENT]),
        ("file in a store", [PRESENT, PRESENT[::-1]]),
        ("folder", [PRESENT, PRESENT[::-1]]),
        ("folder in a store", [OLD, ["f", "c", "b", "a", "d", EMPTY]]),
    ],
    indirect=["out"],
)
def test_a_grown_table_is_that_of_one_run(out, tmp_path, lists):
    for names in lists:
        score(out, names)
    assert_same_table(read(out), once(tmp_path, out, lists[-1]))
    run = ScoreRun.load(ScoreLayout(out), to_write=True)
    assert [shard.name for shard in run.identity.shards] == lists[-1]
    finalize(run, calibrate(run, 0.4))
    run.close()
    assert_same_table(read(out), once(tmp_path, out, lists[-1], shift=0.4))


def test_only_new_shards_are_scored(out):
    score(out, OLD)
    run = ScoreRun.open(ScoreLayout(out), score(out, OLD).identity)
    assert run.change is None
    run.close()
    run = ScoreRun.open(ScoreLayout(out), identity(PRESENT, embeddings=None))
    assert run.change.counts() == "4 new shards, 4 kept"
    assert [shard.name for shard in run.pending()] == ["a", "c", "e", "g"]
    run.close()


@pytest.mark.parametrize(
    ("out", "lists"),
    [
        ("file in a store", [PRESENT, ["b", "d", "f"]]),
        ("folder in a store", [PRESENT, ["b", "d", "f"]]),
        ("file", [PRESENT, ["x", "b", "g", "d"], ["b", "c", "d", "x"], PRESENT]),
        ("folder", [PRESENT, ["x", "b", "g", "d"], ["b", "c", "d", "x"], PRESENT]),
    ],
    indirect=["out"],
)
def test_what_is_gone_leaves_the_table_and_its_files(out, tmp_path, lists, refused):
    score(out, lists[0])
    refused(score, out, lists[1])
    for names in lists[1:]:
        run = score(out, names, drop_missing=True)
        assert set(run.done) == set(names)
    expected = once(tmp_path, out, lists[-1])
    assert_same_table(read(out), expected)
    score(out, lists[-1])
    assert_same_table(read(out), expected)


def test_a_shard_between_two_others_in_a_row_group_goes(tmp_path, monkeypatch):
    """Those beside it are read by their own places, not as one span from the first to the last."""
    monkeypatch.setattr(table_file, "ROW_GROUP_ROWS", 1000)
    out = UPath(tmp_path / "s.parquet")
    score(out, ["a", "b", "c"])
    assert pq.ParquetFile(str(out)).num_row_groups == 1
    score(out, ["a", "c"], drop_missing=True)
    assert_same_table(read(out), once(tmp_path, out, ["a", "c"]))


def test_a_changed_shard_and_a_renamed_one_are_refused(out, refused):
    score(out, OLD)
    refused(score, out, [*refs(["b"], "v2"), *OLD[1:]], drop_missing=True)
    deeper = [type(ref)(f"corpus/{ref.name}", ref.url, 10, "v1") for ref in refs(OLD)]
    refused(score, out, [*deeper, *refs(["new/b"])], drop_missing=True)


@pytest.mark.parametrize("out", ["folder", "file in a store"], indirect=True)
def test_shards_that_broke_off_are_tried_again_when_the_corpus_has_grown(out, tmp_path):
    score(out, OLD, broken="d")
    score(out, PRESENT, broken="dg")
    broken = once(tmp_path, out, PRESENT, broken="dg")
    assert_same_table(read(out), broken)
    assert len(broken) < len(once(tmp_path, out, PRESENT))
    score(out, PRESENT)
    assert_same_table(read(out), once(tmp_path, out, PRESENT))
    left = {path.name for path in ScoreLayout(out).work.iterdir()}
    assert left == {"run.json", "shards.parquet"}


@pytest.mark.parametrize("others", [["b", "d"], ["d"]])
def test_a_dropped_shard_that_comes_back_changed_is_scored_again(out, others):
    """Its record is not taken for that of its present bytes, whatever else goes at the time."""
    score(out, ["b", "d", "f"])
    score(out, ["b", "d"], drop_missing=True, until_finalize=True)
    for _ in range(2):  # the second time, the list has its new version already
        changed = identity([*refs(others), *refs("f", "v2")], embeddings=None)
        run = ScoreRun.open(ScoreLayout(out), changed, drop_missing=True)
        assert [shard.name for shard in run.pending()] == ["f"]
        run.close()


@pytest.mark.parametrize(
    ("name", "apart"),
    [
        ("s.parquet", 3),
        pytest.param("s.parquet", 1, marks=pytest.mark.slow),
        pytest.param("s", 1, marks=pytest.mark.slow),
    ],
)
def test_a_shard_comes_back_when_dropping_it_was_killed_anywhere(
    tmp_path, monkeypatch, name, apart
):
    """Before every change of a file, or before each third one."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    before, place, folder = tmp_path / "before", tmp_path / "run", tmp_path / "run" / "e"
    place.mkdir()
    score(UPath(place / name), ["b", "d"], broken="d", embeddings=str(folder))
    score(UPath(place / name), ["b", "d", "f"], embeddings=str(folder), until_finalize=True)
    place.rename(before)
    shutil.copytree(before, place)
    score(UPath(place / name), ["b", "d", "f"], embeddings=str(folder))
    expected = read(UPath(place / name))
    deaths, is_over = 0, False
    while not is_over:
        shutil.rmtree(place)
        shutil.copytree(before, place)
        with contextlib.suppress(Killed), killed_at(deaths):
            score(UPath(place / name), ["b"], embeddings=str(folder), drop_missing=True)
            is_over = True
        deaths += apart
        run = score(UPath(place / name), ["b", "d", "f"], embeddings=str(folder))
        assert_same_table(read(UPath(place / name)), expected)
        numbers = run.numbers.values()
        assert {path.name for path in folder.glob("img_emb/*")} == {
            f"img_emb_{number}.npy" for number in numbers
        }
    assert deaths > 10


def test_a_table_without_its_list_of_shards_is_in_the_way(out, refused):
    score(out, OLD)
    ScoreLayout(out).shard_list.unlink()
    for options in ({}, {"embeddings": "e"}, {"overwrite": True}):
        refused(score, out, PRESENT, **options)
    assert len(read(out)) > 0


def test_a_number_stays_with_its_shard(tmp_path):
    out, folder = UPath(tmp_path / "s.parquet"), tmp_path / "e"

    def files():
        return {path.stem.rsplit("_", 1)[1] for path in folder.rglob("*.*")}

    many = [f"m{n}" for n in range(9)]
    score(out, many, embeddings=str(folder))
    assert files() == set("012345678")
    first = (folder / "img_emb" / "img_emb_3.npy").read_bytes()
    grown = ["a", *many, "z"]
    numbers = score(out, grown, embeddings=str(folder)).numbers
    assert (numbers["a"], numbers["m3"], numbers["z"]) == (9, 3, 10)
    assert files() == {*map(str, range(11))}
    score(out, grown[:-2], embeddings=str(folder), drop_missing=True)
    assert files() == {*map(str, range(8)), "9"}
    numbers = score(out, grown, embeddings=str(folder)).numbers  # the dropped ones came back
    assert (numbers["m8"], numbers["z"]) == (11, 12)
    assert files() == {*map(str, range(8)), "9", "11", "12"}
    assert (folder / "img_emb" / "img_emb_3.npy").read_bytes() == first


def test_a_users_file_where_a_new_part_would_be_is_in_the_way(tmp_path, refused):
    out = UPath(tmp_path / "s")
    score(out, OLD)
    (tmp_path / "s" / ".ncclean" / "part-c.parquet").write_text("mine")
    refused(score, out, PRESENT)
    assert (tmp_path / "s" / ".ncclean" / "part-c.parquet").read_text() == "mine"
    score(out, OLD)


def test_overwriting_a_grown_run_removes_all_that_it_wrote(out):
    score(out, OLD)
    score(out, PRESENT[1:], drop_missing=True)
    score(out, ["q"], overwrite=True)
    assert set(read(out).column("shard").to_pylist()) == {"q"}
    again = ScoreRun.load(ScoreLayout(out))
    assert [shard.name for shard in again.identity.shards] == ["q"]


def test_files_that_do_not_go_together_are_not_read(out, monkeypatch, refused):
    score(out, OLD)
    with monkeypatch.context() as patched:
        patched.setattr(stage, "_remove", lambda *rest: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            score(out, PRESENT)
    if out.suffix == ".parquet":
        assert table_files([str(out)]) == [str(out)]
        return
    refused(table_files, [str(out)])
    refused(table_files, [f"{out}/*.parquet"])
    score(out, PRESENT)
    assert len(table_files([f"{out}/*.parquet"])) == len(table_files([str(out)]))
    assert len(table_files([str(out)])) > 1


@pytest.mark.parametrize(("old", "new"), [("s.parquet", "t.parquet"), ("s", "t")])
def test_a_table_that_was_moved_is_written_where_it_is_now(tmp_path, old, new):
    score(UPath(tmp_path / old), OLD)
    for path in list(tmp_path.iterdir()):
        path.rename(path.with_name(path.name.replace(old, new, 1)))
    score(UPath(tmp_path / new), PRESENT, shift=0.4)
    assert_same_table(
        read(UPath(tmp_path / new)), once(tmp_path, UPath(tmp_path / new), PRESENT, shift=0.4)
    )


def test_what_a_planted_list_names_is_not_removed(tmp_path):
    out = UPath(tmp_path / "s")
    score(out, OLD)
    mine = [tmp_path / "part-mine.parquet", tmp_path / "s" / "notes.parquet"]
    for path in mine:
        path.write_text("mine")
    names = ["../part-mine.parquet", "notes.parquet", ".."]
    path = ScoreLayout(out).shard_list
    table = pq.read_table(str(path))
    planted = pa.array([names[0], *table["file"].to_pylist()[1:]], pa.string())
    place = table.schema.get_field_index("file")
    pq.write_table(table.set_column(place, "file", planted), str(path))
    (out / ".ncclean" / "finalizing").write_text(json.dumps({"table": names}))
    with contextlib.suppress(InputError):
        score(out, OLD)
    score(out, OLD, overwrite=True)
    assert all(path.read_text() == "mine" for path in mine)


def test_rows_that_are_gone_are_not_made_up_for(tmp_path, refused):
    out = UPath(tmp_path / "s.parquet")
    score(out, OLD)
    (tmp_path / "once").mkdir()
    score(UPath(tmp_path / "once" / "t.parquet"), ["b"])
    shutil.copy(tmp_path / "once" / "t.parquet", tmp_path / "s.parquet")
    refused(score, out, PRESENT)
    os.truncate(out, 1000)
    refused(score, out, PRESENT)


@pytest.mark.parametrize(
    ("name", "apart"),
    [
        ("s", 3),
        pytest.param("s", 1, marks=pytest.mark.slow),
        pytest.param("s.parquet", 1, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("names", [["a", "b", "d", "f"], ["f", "a", "b"]], ids=["grown", "dropped"])
def test_killed_before_any_change_of_a_file(tmp_path, monkeypatch, name, apart, names):
    """The same command goes on, and ends with the same table and files.

    Before every change, or before each third one.
    """
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    before, place, folder = tmp_path / "before", tmp_path / "run", tmp_path / "run" / "e"

    def step():
        score(UPath(place / name), names, embeddings=str(folder), drop_missing=True)

    place.mkdir()
    score(UPath(place / name), ["b", "d", "f"], broken="d", embeddings=str(folder))
    place.rename(before)
    shutil.copytree(before, place)
    step()
    expected = read(UPath(place / name))
    left = sorted(str(path) for path in place.rglob("*"))
    deaths = 0
    while True:
        shutil.rmtree(place)
        shutil.copytree(before, place)
        try:
            with killed_at(deaths) as changes:
                step()
        except Killed:
            deaths += apart
            if deaths // apart % 3 == 0:  # a second time, while it goes on
                with contextlib.suppress(Killed), killed_at(deaths % 5):
                    step()
        else:
            break
        step()
        assert_same_table(read(UPath(place / name)), expected)
        assert sorted(str(path) for path in place.rglob("*") if ".tmp" not in path.name) == left
    assert deaths - apart < len(changes) <= deaths
    assert deaths > 10
