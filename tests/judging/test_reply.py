"""What counts as an answer, and what is none."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclean.auditing.answers import ANSWERS
from ncclean.judging.reply import read_reply


def completion(content, finish="stop", **message):
    choice = {"message": {"content": content, **message}, "finish_reason": finish}
    return json.dumps({"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 2}})


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        ('{"answer": "match"}', "match"),
        (' {"answer": "Mismatch", "why": "a dog"}\n', "mismatch"),
        ('```json\n{"answer": "partly"}\n```', "partly"),
        ('<think>"answer": "match"?</think>\n{"answer": "mismatch"}', "mismatch"),
        ([{"type": "text", "text": '{"answer": '}, {"type": "text", "text": '"match"}'}], "match"),
    ],
)
def test_answers(content, answer):
    judgement = read_reply(completion(content), False)
    assert (judgement.answer, judgement.reason) == (answer, None)
    assert (judgement.tokens_in, judgement.tokens_out) == (9, 2)


def test_a_judge_may_say_that_it_cannot_tell():
    judgement = read_reply(completion('{"answer": "cannot_tell"}'), False)
    assert (judgement.answer, judgement.reason) == ("cannot tell", "the judge says so")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (completion("match"), "no JSON"),
        (completion("oui"), "no JSON"),
        (completion('{"answer": "oui"}'), "another answer: oui"),
        (completion('{"answer": true}'), "another answer: true"),
        (completion('{"answer": ["match"]}'), "another answer"),
        (completion('{"description": "a picture of two dogs"}'), "no answer in it"),
        (completion('"match"'), "no answer in it"),
        (completion("I'm sorry, I can't look at pictures."), "no JSON"),
        (completion(None, refusal="I can't help with that."), "refusal: I can't"),
        (completion(None, "content_filter"), "refusal: content filter"),
        (completion('{"answer": "match"}', "length"), "cut short"),
        (completion(None, "tool_calls", tool_calls=[{"function": {"name": "look"}}]), "tool call"),
        (completion(""), "empty"),
        (completion(None), "empty"),
        (completion("<think>match</think>"), "empty"),
        # Prose may quote the caption: its JSON is not the judge's.
        (completion('The caption says {"answer": "match"}, but it shows a cat.'), "no JSON"),
        (completion('{"answer": "mismatch", "answer": "match"}'), "no JSON"),
        (completion('{"answer": "mismatch"} {"answer": "match"}'), "no JSON"),
        ("<html>502</html>", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "no chat completion"),
        ('{"choices": []}', "no chat completion"),
        ('{"choices": [{"message": "match"}]}', "no chat completion"),
        ('{"error": {"message": "x"}}', "no chat completion"),
    ],
)
def test_what_is_no_answer_is_never_a_guess(body, reason):
    judgement = read_reply(body, False)
    assert judgement.answer == "cannot tell"
    assert judgement.reason.startswith(reason)
    assert judgement.is_reply


def test_words():
    content = '{"words": ["a red", " ", "ball\\ud800"], "answer": "partly"}'
    assert read_reply(completion(content), True).words == ("a red", "ball?")
    assert read_reply(completion('{"answer": "match"}'), True).words == ()
    assert read_reply(completion('{"answer": "match"}'), False).words is None
    assert read_reply(completion('{"answer": "match", "words": "red"}'), True).reason.startswith(
        "no list of words"
    )


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["choices", "message", "content", "answer", "usage", "prompt_tokens",
                         "refusal", "tool_calls", "finish_reason", "words", "text"]),
        inner, max_size=4),
))  # fmt: skip
def test_any_json_is_a_judgement_that_a_table_holds(value):
    for body in (json.dumps(value), completion(value), completion(json.dumps(value))):
        judgement = read_reply(body, True)
        assert judgement.answer in ANSWERS
        pa.array([judgement.reason])
        pa.array([judgement.words])
        pa.array([judgement.tokens_in], pa.int32())


def test_tokens_that_are_no_numbers_are_not_known():
    usage = {"prompt_tokens": True, "completion_tokens": 1e308}
    judgement = read_reply(json.dumps({**json.loads(completion("{}")), "usage": usage}), False)
    assert (judgement.tokens_in, judgement.tokens_out) == (None, None)
