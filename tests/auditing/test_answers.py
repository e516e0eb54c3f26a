"""Answers of any judge: formats, words, and what cannot be read."""

import json
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ncclean.auditing.answers import ANSWERS, is_mismatched, read_answers
from ncclean.base.output_mark import mark

LIST = [{"uid": "a", "answer": "mismatch"}, {"uid": "b", "answer": "match"}]


def read(tmp_path, text, name="answers.json"):
    path = tmp_path / name
    path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    return read_answers(str(path))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", LIST),
        ("a.json", {"answers": LIST}),
        ("a.json", {"a": "mismatch", "b": "match"}),
        ("a.json", "\n".join(map(json.dumps, LIST))),
        ("a.jsonl", "\n".join(map(json.dumps, LIST))),
        ("a.csv", "uid,answer\na,mismatch\nb,match\n"),
        ("a.csv", "\ufeffjudge,answer,uid\nx,MISMATCH,a\nx, match ,b\nx,,c\n"),
        ("a.tsv", "uid\tanswer\na\t3\nb\t1\n"),
        ("a.json", [{"uid": "a", "answer": 3}, {"uid": "b", "answer": "1"}]),
    ],
)
def test_formats(tmp_path, name, text):
    assert read(tmp_path, text, name).by_pair == {("a", None): "mismatch", ("b", None): "match"}


def test_words_and_numbers_are_the_same(tmp_path):
    rows = [{"uid": str(n), "answer": n} for n in range(4)]
    rows += [{"uid": "x", "answer": "Cannot_tell"}, {"uid": "y", "answer": "cannot-tell"}]
    found = read(tmp_path, rows)
    assert list(found.by_pair.values()) == [*ANSWERS, "cannot tell", "cannot tell"]


def test_numbers_may_be_floats_and_gaps_nan(tmp_path):
    """As pandas stores integers with gaps."""
    columns = {"uid": list("abc"), "caption_number": [math.nan, 1.0, 0.0]}
    pq.write_table(pa.table({**columns, "answer": [1.0, 3.0, math.nan]}), tmp_path / "a.parquet")
    answers = {("a", None): "match", ("b", 1): "mismatch"}
    assert read_answers(str(tmp_path / "a.parquet")).by_pair == answers
    text = "uid,caption_number,answer\na,,1.0\nb,1.0,3.0\nc,0.0,\n"
    assert read(tmp_path, text, "a.csv").by_pair == answers


def test_the_last_answer_holds(tmp_path):
    found = read(tmp_path, [*LIST, {"uid": "a", "answer": "partly"}])
    assert found.by_pair["a", None] == "partly"
    assert found.repeated == 1


def test_captions_of_one_image_are_pairs_of_their_own(tmp_path):
    found = read(
        tmp_path, "uid,caption_number,answer\na,0,match\na,1,mismatch\nb,,match\n", "a.csv"
    )
    assert found.key_of("a", 1) == ("a", 1)
    assert found.key_of("b", 2) == ("b", None)
    assert found.key_of("a", 2) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "{\n{",
        [],
        {"answers": []},
        [{"uid": "a"}],
        [{"answer": 1}],
        [*LIST, "a"],
        [{"uid": "a", "answer": "yes"}],
        [{"uid": "a", "answer": True}],
        [{"uid": "a", "answer": 4}],
        [{"uid": "a", "answer": 1, "caption_number": "x"}],
        [{"uid": "a", "answer": 1, "caption_number": 1.5}],
        {"answers": LIST, "design": {"bounds": [0.5]}},
        {"answers": LIST, "design": {"bounds": [0.5, 0.1], "pairs": [1, 1, 1]}},
        {"answers": LIST, "design": {"bounds": [0.5, 0.5], "pairs": [1, 1, 1]}},
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, text, refused):
    refused(read, tmp_path, text)


def test_bytes_that_are_no_text(tmp_path, refused):
    (tmp_path / "a.json").write_bytes(b"\xff\xfe\x00")
    refused(read_answers, str(tmp_path / "a.json"))
    refused(read_answers, str(tmp_path / "missing.json"))


def test_what_counts():
    assert [is_mismatched(answer, "match", "leave-out") for answer in ANSWERS] == [
        None, False, False, True,
    ]  # fmt: skip
    assert is_mismatched("partly", "mismatch", "match") is True
    assert is_mismatched("partly", "leave-out", "match") is None
    assert is_mismatched("cannot tell", "match", "mismatch") is True


def test_the_digest_is_of_the_answers(tmp_path):
    first, second = read(tmp_path, LIST), read(tmp_path, LIST[::-1])
    assert first.digest() == second.digest()
    assert first.digest() != read(tmp_path, LIST[:1]).digest()


def test_an_answer_on_a_caption_goes_before_one_by_uid(tmp_path):
    found = read(tmp_path, "uid,caption_number,answer\na,,match\na,1,mismatch\n", "a.csv")
    assert found.key_of("a", 1) == ("a", 1)
    assert found.key_of("a", 0) == ("a", None)


def test_decisions_on_suspects_are_no_answers(tmp_path, refused):
    rows = pa.table({"uid": ["a"], "answer": ["match"]})
    path = tmp_path / "decisions.parquet"
    pq.write_table(rows.replace_schema_metadata({"made_by": mark("review")}), path)
    refused(read_answers, str(path))


def test_parquet_tells_its_design_and_its_answers(tmp_path):
    rows = pa.table({"uid": ["a", "a"], "caption_number": [0, 1], "answer": ["match", None]})
    design = {"bounds": [0.5], "pairs": [3, 4], "judged": [[1, 1, 0], [0, 2, 0]]}
    path = tmp_path / "answers.parquet"
    pq.write_table(rows.replace_schema_metadata({"audit_design": json.dumps(design)}), path)
    found = read_answers(str(path))
    assert found.by_pair == {("a", 0): "match"}
    assert found.design.to_json() == design


def test_several_files_are_one_set_of_answers(tmp_path, refused):
    first, second = tmp_path / "a.csv", tmp_path / "b.json"
    first.write_text("uid,answer\na,match\nb,match\n")
    second.write_text(json.dumps([{"uid": "b", "answer": "mismatch"}]))
    found = read_answers(str(first), str(second))
    assert found.by_pair == {("a", None): "match", ("b", None): "mismatch"}
    assert found.repeated == 1
    for path, pairs in ((first, [1, 2]), (second, [1, 3])):
        design = {"bounds": [0.5], "pairs": pairs}
        answers = [{"uid": "a", "answer": "match"}]
        path.with_suffix(".json").write_text(json.dumps({"design": design, "answers": answers}))
    refused(read_answers, str(first.with_suffix(".json")), str(second))


def test_of_several_designs_the_one_with_the_judges_counts_holds(tmp_path):
    designs = [{"bounds": [0.5], "pairs": [3, 4]}]
    designs.append({**designs[0], "judged": [[1, 1, 0], [0, 2, 0]]})
    for number, design in enumerate(designs):
        answers = [{"uid": str(number), "answer": "match"}]
        (tmp_path / f"{number}.json").write_text(json.dumps({"design": design, "answers": answers}))
    for names in ("01", "10"):
        found = read_answers(*(str(tmp_path / f"{name}.json") for name in names))
        assert found.design.to_json() == designs[1]


def test_a_few_bytes_that_stand_for_millions_of_answers_are_not_read(tmp_path, refused):
    table = pa.table({"uid": pa.nulls(5_000_000, pa.string()), "answer": ["match"] * 5_000_000})
    pq.write_table(table, tmp_path / "a.parquet")
    refused(read_answers, str(tmp_path / "a.parquet"))
