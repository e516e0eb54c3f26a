"""Decisions of a review: on disk when they are acknowledged, undone, the last one counts."""

from __future__ import annotations

import datetime
import json

import duckdb
import pytest
from upath import UPath

from ncclean.errors import InputError
from ncclean.reviewing.decided import Decided
from ncclean.storage.decisions import CORRECT, DROP, KEEP, NOTE, Decision, read_decisions


def opened(folder, earlier=(), reviewer="anna", replaces=False):
    connection = duckdb.connect()
    return Decided(connection, UPath(folder / "d.parquet"), reviewer, earlier, replaces)


def on_disk(folder):
    """What a process that was killed now would leave."""
    decisions = read_decisions(str(folder / "d.parquet"))
    return {one.pair: (one.decision, one.caption) for one in decisions}


def test_each_decision_is_on_disk_when_it_is_made(tmp_path):
    decided = opened(tmp_path)
    decided.decide([("a", 0), ("b", 1)], DROP)
    assert on_disk(tmp_path) == {("a", 0): (DROP, None), ("b", 1): (DROP, None)}
    decided.decide([("a", 0)], CORRECT, ["right"])
    assert on_disk(tmp_path)["a", 0] == (CORRECT, "right")
    assert decided.of_pairs([("a", 0), ("c", 0)]) == {("a", 0): [CORRECT, "right", "anna", None]}
    assert decided.counts() == {CORRECT: 1, DROP: 1}


def test_undo_is_on_disk_and_ends_at_the_start_of_the_session(tmp_path):
    decided = opened(tmp_path)
    decided.decide([("a", 0)], KEEP)
    decided.decide([("a", 0), ("b", 0)], DROP)
    assert decided.undo() == [("a", 0), ("b", 0)]
    assert on_disk(tmp_path) == {("a", 0): (KEEP, None)}
    assert decided.counts() == {KEEP: 1}
    decided.close()
    again = opened(tmp_path)
    assert not again.can_undo
    assert again.undo() == []
    again.decide([("b", 0)], DROP)
    assert again.undo() == [("b", 0)]
    assert on_disk(tmp_path) == {("a", 0): (KEEP, None)}


def test_a_note_stays_with_whatever_is_decided(tmp_path):
    decided = opened(tmp_path)
    pair = ("a", 0)

    def now():
        """What the page shows, and what a process that was killed now would leave."""
        shown = decided.of_pairs([pair]).get(pair)
        left = [(one.decision, one.caption, one.note or None)
                for one in read_decisions(str(tmp_path / "d.parquet"))]  # fmt: skip
        return shown and (shown[0], shown[1], shown[3]), left

    decided.decide([pair], NOTE, notes=["is it a dog?"])
    assert now() == ((NOTE, None, "is it a dog?"), [(NOTE, None, "is it a dog?")])
    assert decided.counts() == {}  # nothing is decided
    decided.decide([pair], CORRECT, ["a wolf"])
    assert now() == ((CORRECT, "a wolf", "is it a dog?"), [(CORRECT, "a wolf", "is it a dog?")])
    decided.decide([pair], NOTE, notes=["a wolf, says Anna"])
    assert now()[0] == (CORRECT, "a wolf", "a wolf, says Anna")
    decided.decide([pair], NOTE, notes=[""])
    assert now() == ((CORRECT, "a wolf", None), [(CORRECT, "a wolf", None)])
    decided.undo()
    assert now()[0] == (CORRECT, "a wolf", "a wolf, says Anna")
    decided.undo()
    assert now()[0] == (CORRECT, "a wolf", "is it a dog?")
    decided.redo()
    assert now()[0] == (CORRECT, "a wolf", "a wolf, says Anna")
    decided.decide([("b", 0)], NOTE, notes=["later"])
    decided.decide([("c", 0)], NOTE, notes=["taken away"])
    decided.decide([("c", 0)], NOTE, notes=[""])
    assert decided.save() == 2
    again = opened(tmp_path)
    assert again.of_pairs([("b", 0)]) == {("b", 0): [NOTE, None, "anna", "later"]}
    again.decide([("b", 0)], DROP)
    assert again.of_pairs([("b", 0)]) == {("b", 0): [DROP, None, "anna", "later"]}


def test_a_note_changes_neither_who_decided_nor_when(tmp_path):
    """In the file as in the journal: of several files, the latest decision counts."""
    path = str(tmp_path / "d.parquet")
    decided = opened(tmp_path)
    decided.decide([("a", 0)], DROP)
    decided.close()
    (before,) = read_decisions(path)
    again = opened(tmp_path, reviewer="bert")
    again.decide([("a", 0)], NOTE, notes=["why?"])
    noted = before._replace(note="why?")
    assert read_decisions(path) == [noted]
    assert again.of_pairs([("a", 0)]) == {("a", 0): [DROP, None, "anna", "why?"]}
    again.save()
    assert read_decisions(path) == [noted]


def test_what_was_undone_is_done_again_until_something_else_is_decided(tmp_path):
    decided = opened(tmp_path)
    decided.decide([("a", 0)], CORRECT, ["right"])
    decided.decide([("b", 0), ("c", 0)], DROP)
    decided.undo()
    decided.undo()
    assert decided.redo() == [("a", 0)]
    assert decided.can_redo
    assert sorted(decided.redo()) == [("b", 0), ("c", 0)]
    assert on_disk(tmp_path) == {
        ("a", 0): (CORRECT, "right"), ("b", 0): (DROP, None), ("c", 0): (DROP, None)
    }  # fmt: skip
    assert not decided.can_redo
    assert decided.redo() == []
    decided.undo()
    assert on_disk(tmp_path) == {("a", 0): (CORRECT, "right")}
    decided.decide([("d", 0)], KEEP)
    assert not decided.can_redo


def test_pieces_of_one_batch_are_undone_together(tmp_path):
    decided = opened(tmp_path)
    batch = decided.decide([("a", 0)], DROP)
    assert decided.decide([("b", 0)], DROP, batch=batch) == batch
    assert decided.decide([], DROP, batch=batch) == batch
    assert sorted(decided.undo()) == [("a", 0), ("b", 0)]
    assert on_disk_is_empty(tmp_path)


def test_a_batch_goes_on_around_decisions_of_another_window(tmp_path):
    decided = opened(tmp_path)
    batch = decided.decide([("a", 0)], DROP)
    decided.decide([("x", 0)], KEEP)
    decided.decide([("b", 0)], DROP, batch=batch)
    assert decided.undo() == [("x", 0)]
    assert sorted(decided.undo()) == [("a", 0), ("b", 0)]
    assert decided.decide([("c", 0)], DROP, batch=batch) == 0  # it was undone
    decided.decide([("y", 0)], KEEP)
    assert decided.decide([("c", 0)], DROP, batch=batch) == 0
    assert decided.undo() == [("y", 0)]
    assert on_disk_is_empty(tmp_path)


def on_disk_is_empty(folder):
    try:
        return on_disk(folder) == {}
    except InputError:  # neither a file nor a decision in the journal
        return True


def test_saved_decisions_replace_the_journal_and_are_gone_on_from(tmp_path):
    decided = opened(tmp_path)
    decided.decide([("a", 0)], DROP)
    decided.decide([("a", 0)], KEEP)
    assert decided.save() == 1
    assert not list((tmp_path / ".ncclean").iterdir())
    again = opened(tmp_path, reviewer="bert")
    again.decide([("b", 0)], DROP)
    assert again.save() == 2
    by = {one.uid: one.reviewer for one in read_decisions(str(tmp_path / "d.parquet"))}
    assert by == {"a": "anna", "b": "bert"}


def test_earlier_decisions_of_other_files_are_there_and_saved(tmp_path):
    now = datetime.datetime.now(datetime.timezone.utc)
    earlier = [Decision("a", 0, DROP, None, "carl", now), Decision("b", 0, KEEP, None, "carl", now)]
    decided = opened(tmp_path, earlier)
    assert decided.counts() == {DROP: 1, KEEP: 1}
    decided.decide([("a", 0)], KEEP)
    assert decided.save() == 2
    by = {one.uid: (one.decision, one.reviewer)
          for one in read_decisions(str(tmp_path / "d.parquet"))}  # fmt: skip
    assert by == {"a": (KEEP, "anna"), "b": (KEEP, "carl")}


@pytest.mark.parametrize("batch", ["x", None, {}, [1], 1e300, 10**30])
def test_a_journal_with_odd_batches_is_gone_on_from(batch, tmp_path):
    line = {"decision": KEEP, "reviewer": "a", "time": "2026-01-02T00:00:00", "pairs": [["a", 0]]}
    (tmp_path / ".ncclean").mkdir()
    journal = tmp_path / ".ncclean" / "d.parquet.jsonl"
    journal.write_text(f"{json.dumps({**line, 'batch': batch})}\n{json.dumps({'undo': [1]})}\n")
    decided = opened(tmp_path)
    decided.decide([("b", 0)], DROP)
    assert decided.counts() == {DROP: 1, KEEP: 1}  # the undone batch is none
    assert decided.undo() == [("b", 0)]
    decided.decide([("c", 0)], DROP)
    assert on_disk(tmp_path)["c", 0] == (DROP, None)


def test_what_is_no_decisions_is_replaced_at_the_end(tmp_path):
    (tmp_path / "d.parquet").write_text("mine")
    decided = opened(tmp_path, replaces=True)
    decided.decide([("a", 0)], DROP)
    assert (tmp_path / "d.parquet").read_text() == "mine"
    decided.close()  # a crash
    assert opened(tmp_path, replaces=True).save() == 1
    assert on_disk(tmp_path) == {("a", 0): (DROP, None)}


def test_a_table_that_a_person_made_is_gone_on_from(tmp_path):
    """With `--overwrite`: it has no mark."""
    duckdb.sql(
        "COPY (SELECT 'a' AS uid, 0 AS caption_number, 'drop' AS decision, NULL AS caption, "
        f"'me' AS reviewer, now() AS time) TO '{tmp_path / 'd.parquet'}' (FORMAT parquet)"
    )
    decided = opened(tmp_path, replaces=True)
    decided.decide([("b", 0)], KEEP)
    assert decided.save() == 2
    assert on_disk(tmp_path) == {("a", 0): (DROP, None), ("b", 0): (KEEP, None)}


def test_a_table_of_something_else_is_refused(tmp_path):
    duckdb.sql(f"COPY (SELECT 1 AS x) TO '{tmp_path / 'd.parquet'}' (FORMAT parquet)")
    with pytest.raises(InputError, match="no decisions"):
        opened(tmp_path)


def test_of_earlier_decisions_the_latest_counts_whatever_file_it_is_in(tmp_path):
    late, early = (datetime.datetime(2026, 1, day, tzinfo=datetime.timezone.utc) for day in (2, 1))
    files = [
        Decision("a", 0, DROP, None, "bert", late),
        Decision("a", 0, KEEP, None, "anna", early),
    ]
    for earlier in (files, files[::-1]):
        decided = opened(tmp_path, earlier)
        assert decided.of_pairs([("a", 0)]) == {("a", 0): [DROP, None, "bert", None]}
        decided.save()
        (tmp_path / "d.parquet").unlink()


def test_a_continued_batch_is_whole_after_a_kill(tmp_path):
    decided = opened(tmp_path)
    batch = decided.decide([("a", 0)], DROP)
    decided.decide([("b", 0)], DROP, batch=batch)
    assert set(on_disk(tmp_path)) == {("a", 0), ("b", 0)}


def test_a_session_begins_a_batch(tmp_path):
    decided = opened(tmp_path)
    decided.decide([("a", 0)], DROP)
    decided.close()
    again = opened(tmp_path)
    again.decide([("b", 0)], DROP)
    assert again.undo() == [("b", 0)]
    again.decide([("c", 0)], DROP)
    again.close()
    third = opened(tmp_path)
    third.decide([("d", 0)], KEEP)
    assert third.undo() == [("d", 0)]
    assert set(on_disk(tmp_path)) == {("a", 0), ("c", 0)}


def test_undo_after_a_restart_takes_nothing_back_that_was_decided_before(tmp_path):
    decided = opened(tmp_path)
    for uid in ("a", "b", "c"):
        decided.decide([(uid, 0)], DROP)
    decided.close()
    again = opened(tmp_path)
    again.decide([("d", 0)], KEEP)
    assert again.undo() == [("d", 0)]
    assert set(on_disk(tmp_path)) == {("a", 0), ("b", 0), ("c", 0)}
