"""One rule for output that is there already, whatever kills a run in between."""

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from upath import UPath

from ncclean.base import stores
from ncclean.errors import InputError
from ncclean.storage.entries import Entries
from ncclean.storage.run_record import RunRecord

IDENTITY = {"seed": 0, "shards": [{"name": "a", "size": 1}, {"name": "b", "size": 2}]}


@pytest.fixture(params=["folder", "store"])
def out(request, tmp_path):
    """The output: a folder, or the same in fsspec's store in memory."""
    if request.param == "folder":
        yield UPath(tmp_path / "out")
        return
    place = UPath(f"memory://{tmp_path.name}/out")
    yield place
    place.fs.store.clear()


def begin(out, identity=IDENTITY, **options):
    """A run that writes `<shard>.tar` for each shard of its identity."""

    def files(identity):
        return [out / f"{shard['name']}.tar" for shard in identity["shards"]]

    path = out / "_work" / "record.json"
    return RunRecord.open(path, "copy", identity, base=out, files=files, **options)


def write(path, content=b"ours"):
    if not stores.is_url(path):
        os.makedirs(path.parent, exist_ok=True)
    path.write_bytes(content)


def present(out):
    endings = (".json", ".lease", ".entries")
    return {path for path in map(str, out.rglob("*.*")) if not path.endswith(endings)}


def test_the_same_run_goes_on_with_its_entries(out):
    with begin(out) as record:
        assert not record.resumed
        record.append("shard", shard="a", pairs=3)
    with begin(out) as record:
        assert record.resumed
        assert record.entries == [{"kind": "shard", "shard": "a", "pairs": 3}]


def test_another_run_is_refused_with_the_differences_and_loses_nothing(out, refused):
    with begin(out) as record:
        record.append("shard", shard="a")
        write(out / "a.tar")
    other = {"seed": 1, "shards": [{"name": "a", "size": 1}]}
    refused(begin, out, other)
    with begin(out) as record:
        assert len(record.entries) == 1
    assert present(out) == {str(out / "a.tar")}


def test_compare_may_allow_what_the_entries_make_harmless(out, refused):
    done = []

    def compare(before, now):
        changed = [s["name"] for s in now["shards"] if s not in before["shards"]]
        return [f"shard {name} has changed" for name in changed if name in done]

    begin(out).close()
    repaired = {"seed": 0, "shards": [{"name": "a", "size": 9}, {"name": "b", "size": 2}]}
    with begin(out, repaired, compare=compare) as record:
        assert record.resumed
        record.append("shard", shard="a")
    done.append("a")
    refused(begin, out, repaired, compare=compare)


def test_entries_are_put_into_one_file_and_go_on(out):
    with begin(out) as record:
        record.append("shard", shard="a")
        record.made(out / "log.txt")
        record.compact()
        record.append("shard", shard="b")
    with begin(out) as record:
        assert [entry["shard"] for entry in record.entries] == ["a", "b"]
        assert out / "log.txt" in list(record.listed())
    assert len(list(record.path.with_suffix(".entries").iterdir())) == 1


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_in_the_way_stays_and_nothing_is_begun(out, overwrite, refused):
    write(out / "b.tar", b"mine")
    refused(begin, out, overwrite=overwrite)
    assert (out / "b.tar").read_bytes() == b"mine"
    assert not (out / "_work").exists()


def test_taken_is_asked_where_there_is_no_record_and_only_there(out, refused):
    refused(begin, out, taken=lambda: out / "other")
    with begin(out, taken=lambda: None):
        pass
    with begin(out, taken=lambda: out / "other") as record:
        assert record.resumed
    with begin(out, overwrite=True, taken=lambda: out / "other") as record:
        assert not record.resumed


def test_overwrite_removes_what_the_record_lists_and_nothing_else(out):
    with begin(out) as record:
        record.made(out / "model" / "weights.bin", out / "log.txt")
        record.append("shard", shard="a")
    own = ["a.tar", "b.tar", "log.txt", "model/weights.bin"]
    users = ["c.tar", "notes.txt", "_work/mine.txt", "model/mine.bin", "a.tar.bak"]
    for name in own + users:
        write(out / name)
    with begin(out, {"seed": 1, "shards": []}, overwrite=True) as record:
        assert not record.resumed
        assert record.entries == []
    assert present(out) == {str(out / name) for name in users}


def test_overwrite_stops_at_a_file_of_the_users_before_it_removes_anything(out, refused):
    begin(out).close()
    for name in ("a.tar", "c.tar"):
        write(out / name)
    refused(begin, out, {"seed": 0, "shards": [{"name": "c"}]}, overwrite=True)
    assert present(out) == {str(out / "a.tar"), str(out / "c.tar")}
    with begin(out) as record:
        assert record.resumed


def test_a_removal_that_was_killed_is_finished_by_the_same_command(out, monkeypatch, refused):
    """Without it, the old run would go on, though its files are gone."""
    with begin(out) as record:
        record.append("shard", shard="a")
        for name in ("a.tar", "b.tar"):
            write(out / name)
    with monkeypatch.context() as killed:
        killed.setattr("ncclean.storage.run_record.remove_with_leftovers", lambda paths: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            begin(out, {"seed": 1, "shards": []}, overwrite=True)
    (out / "a.tar").unlink()
    refused(begin, out, {"seed": 1, "shards": []})
    assert present(out) == {str(out / "b.tar")}
    with begin(out, {"seed": 2, "shards": []}, overwrite=True) as record:
        assert not record.resumed
    assert present(out) == set()


def test_made_files_are_listed_once_and_before_they_are_there(out):
    with begin(out) as record:
        for _ in range(3):
            record.made(out / "step_1.pt")
        record.made(out / "step_1.pt", out / "step_2.pt", out / "step_2.pt")
        lines = list(RunRecord.load(record.path, "copy", base=out).listed())
        assert list(map(str, lines)) == [str(out / "step_1.pt"), str(out / "step_2.pt")]
    with begin(out) as record:
        assert record.entries == []
        record.made(out / "step_2.pt")
        names = [str(path) for path in record.listed() if path.suffix == ".pt"]
        assert names == [str(out / "step_1.pt"), str(out / "step_2.pt")]


def test_a_moved_output_is_cleared_where_it_is_now(tmp_path):
    out, moved = UPath(tmp_path / "out"), UPath(tmp_path / "moved")
    with begin(out) as record:
        record.made(out / "step_1.pt")
    for name in ("a.tar", "step_1.pt"):
        write(out / name)
    out.rename(moved)
    write(out / "step_1.pt", b"another run's")
    begin(moved, overwrite=True).close()
    assert present(moved) == set()
    assert (out / "step_1.pt").read_bytes() == b"another run's"


def plant(folder, names, identity=None, *, is_cleared=False):
    """A record that somebody else wrote."""
    folder.mkdir(exist_ok=True)
    run = {"kind": "run", "command": "copy", "identity": identity or {"seed": 0, "shards": []}}
    path = UPath(folder / "r.json")
    path.write_text(json.dumps({**run, "cleared": is_cleared}))
    Entries(path.with_suffix(".entries")).add({"kind": "made", "files": names})
    return path


@pytest.mark.parametrize("is_cleared", [False, True])
def test_a_planted_record_removes_nothing_outside_and_nothing_behind_a_link(tmp_path, is_cleared):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "a.txt").write_text("x")
    out = tmp_path / "out"
    out.mkdir()
    (out / "photos").symlink_to(precious)
    (out / "link.txt").symlink_to(precious / "a.txt")
    names = [str(precious / "a.txt"), "../precious/a.txt", "photos/a.txt", "link.txt"]
    names += ["photos/../../precious/a.txt", f"file://{precious}/a.txt", "//" + str(precious)]
    path = plant(out, names, is_cleared=is_cleared)
    RunRecord.open(path, "copy", {"seed": 1, "shards": []}, overwrite=True).close()
    RunRecord.clear(plant(out, names, is_cleared=is_cleared), "copy")
    assert (precious / "a.txt").read_text() == "x"
    assert all((out / name).is_symlink() for name in ("link.txt", "photos"))


def test_a_planted_identity_leads_nowhere_else_either(tmp_path):
    """Names of shards become names of files: `/home/me/notes` is one too."""
    (tmp_path / "precious.tar").write_text("x")
    out = UPath(tmp_path / "out")

    def files(run):
        return [out / f"{shard['name']}.tar" for shard in run["shards"]]

    for name in (str(tmp_path / "precious"), "../precious"):
        path = plant(tmp_path / "out", [], {"seed": 0, "shards": [{"name": name}]})
        RunRecord.clear(path, "copy", files=files)
    assert (tmp_path / "precious.tar").read_text() == "x"


def test_keys_of_a_store_outside_of_the_output_stay(tmp_path):
    place = UPath(f"memory://{tmp_path.name}")
    write(place / "other" / "a.tar")
    out = place / "out"
    with begin(out) as record:
        record.append(
            "made",
            files=["../other/a.tar", f"memory://{tmp_path.name}/other/a.tar", "/other/a.tar"],
        )
    begin(out, overwrite=True).close()
    assert (place / "other" / "a.tar").exists()
    place.fs.store.clear()


def test_a_planted_record_that_was_cleared_removes_nothing_unasked(tmp_path, refused):
    path = plant(tmp_path / "out", ["mine.txt"], is_cleared=True)
    (tmp_path / "out" / "mine.txt").write_text("x")
    refused(RunRecord.open, path, "copy", {"seed": 1})
    assert (tmp_path / "out" / "mine.txt").exists()


def test_what_is_removed_is_said(out, caplog):
    with begin(out) as record:
        record.made(out / "log.txt")
    write(out / "a.tar")
    write(out / "log.txt")
    begin(out, overwrite=True).close()
    assert caplog.messages == [f"removed 2 files of an earlier `ncclean copy` from {out}"]
    begin(out, overwrite=True).close()
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("content", ["my notes\n", "hello", "[1]\n", '{"kind": "walk"}\n'])
def test_a_file_of_the_same_name_that_is_no_record_stays(tmp_path, content, refused):
    path = UPath(tmp_path / "r.json")
    path.write_text(content)
    refused(RunRecord.open, path, "copy", {}, overwrite=True)
    assert path.read_text() == content


def test_a_record_behind_a_link_is_not_written(tmp_path, refused):
    """It would be emptied, whatever it is."""
    (tmp_path / "precious.txt").write_text("x")
    (tmp_path / "r.json").symlink_to(tmp_path / "precious.txt")
    refused(RunRecord.open, UPath(tmp_path / "r.json"), "copy", {}, overwrite=True)
    (tmp_path / "r.json").unlink()
    (tmp_path / "r.lease").symlink_to(tmp_path / "precious.txt")
    refused(RunRecord.open, UPath(tmp_path / "r.json"), "copy", {}, overwrite=True)
    assert (tmp_path / "precious.txt").read_text() == "x"


def test_a_pipe_is_no_record(tmp_path, refused):
    os.mkfifo(tmp_path / "r.json")
    for read in (RunRecord.open, RunRecord.load):
        arguments = [UPath(tmp_path / "r.json"), "copy"] + [{}] * (read == RunRecord.open)
        refused(read, *arguments)


@pytest.mark.parametrize("shards", [None, 3, [1], [{"size": 1}], [{"name": {"a": 1}}]])
def test_odd_values_of_a_planted_record_are_a_sentence(tmp_path, shards, refused):
    path = plant(tmp_path / "out", [], {"seed": 0, "shards": shards})

    def files(run):
        return [UPath(tmp_path) / "out" / (shard["name"] + ".tar") for shard in run["shards"]]

    refused(RunRecord.clear, path, "copy", files=files)
    path = plant(tmp_path / "out", 5)
    refused(RunRecord.load, path, "copy")


def test_nesting_without_end_is_no_record(tmp_path, refused):
    path = plant(tmp_path / "out", [])
    (path.with_suffix(".entries") / "000001.json").write_text("[" * 100_000)
    with RunRecord.load(path, "copy") as record:
        assert record.entries == []
    path.write_text("[" * 100_000)
    refused(RunRecord.load, path, "copy")


def test_load_gives_the_record_as_it_is(out):
    path = out / "_work" / "record.json"
    assert RunRecord.load(path, "copy") is None
    with begin(out) as record:
        record.append("shard", shard="a")
    with RunRecord.load(path, "copy", base=out) as record:
        assert record.identity == IDENTITY
        assert record.entries == [{"kind": "shard", "shard": "a"}]


def test_a_record_of_another_command_is_refused(out, refused):
    begin(out).close()
    path = out / "_work" / "record.json"
    for opened in (
        lambda: RunRecord.open(path, "score", {}, base=out, overwrite=True),
        lambda: RunRecord.load(path, "score", base=out),
        lambda: RunRecord.clear(path, "score", base=out),
    ):
        refused(opened)
    with begin(out) as record:
        assert record.resumed


def test_a_record_of_an_older_version_is_refused_and_kept(tmp_path, refused):
    path = UPath(tmp_path / "r.json")
    path.write_text('{"kind": "run", "model": {}, "options": {}}\n')
    refused(RunRecord.open, path, "score", {}, overwrite=True)
    assert path.read_text().startswith('{"kind": "run"')


def test_two_runs_on_one_output_are_refused(tmp_path):
    out = UPath(tmp_path / "out")
    with begin(out), pytest.raises(InputError, match="another run is writing"):
        begin(out)
    with begin(out) as record:
        assert record.resumed
        reader = RunRecord.load(record.path, "copy", base=out)
        assert reader.identity == IDENTITY
        with pytest.raises(RuntimeError, match="closed"):
            reader.append("shard")


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(0, 60))
def test_a_record_cut_anywhere_goes_on_with_what_was_whole(tmp_path_factory, cut):
    out = UPath(tmp_path_factory.mktemp("cut") / "out")
    with begin(out) as record:
        for number in range(4):
            record.append("shard", shard=f"s{number}")
    last = sorted((out / "_work" / "record.entries").iterdir())[-1]
    last.write_bytes(last.read_bytes()[:cut])
    with begin(out) as record:
        shards = [entry["shard"] for entry in record.entries]
        assert shards == [f"s{number}" for number in range(len(shards))]
        assert len(shards) >= 3
        record.append("shard", shard="after")
    with begin(out) as record:
        assert [entry["shard"] for entry in record.entries] == [*shards, "after"]


def test_identities_are_compared_as_json_gives_them_back(tmp_path):
    path = UPath(tmp_path / "r.json")
    RunRecord.open(path, "x", {"columns": ("a", "b"), "sizes": {1: 2.0}}).close()
    with RunRecord.open(path, "x", {"columns": ["a", "b"], "sizes": {"1": 2}}) as record:
        assert record.resumed
