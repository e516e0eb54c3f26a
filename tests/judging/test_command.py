"""`ncclean audit --judge` on the command line: its sentences, and the words that a judge names."""

from __future__ import annotations

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.audit import Audit

from ncclean.errors import InputError
from ncclean.judging.options import JudgeOptions
from tests.command_line import run
from tests.judging.judge_server import Reply, serving

URL = "http://localhost:1/v1"
MINE = {"judge": URL, "judge_model": "demo"}


def audit(**options):
    judging = {name: options.pop(name) for name in list(options) if name.startswith("judge")}
    given = {"out": "a", "shards": ["s"], **options}
    return Audit(scores=["s.parquet"], judging=JudgeOptions(**judging), **given)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"judge": URL}, "--judge needs --judge-model"),
        ({**MINE, "shards": ()}, "--judge needs --shards"),
        ({**MINE, "out": None}, "either --out"),
        ({**MINE, "answers": "a.json"}, "draws its own pairs"),
        ({**MINE, "out": None, "shards": (), "answers": "a.json"}, "--judge is for drawing"),
        ({**MINE, "title": "x"}, "--title is for the page"),
        ({"judge_model": "demo"}, "--judge-model needs --judge"),
        ({"judge_tokens": 9}, "--judge-tokens needs --judge"),
        ({"pairs": 5_001}, "--pairs must be at most 5,000 for a page"),
        ({**MINE, "judge_requests": 0}, "--judge-requests must be at least 1"),
        ({**MINE, "judge_timeout": 0}, "--judge-timeout must be above 0"),
    ],
)
def test_options_that_do_not_fit_are_one_sentence(options, sentence):
    with pytest.raises(InputError) as refused:
        audit(**options)
    assert sentence in str(refused.value)


def test_more_pairs_than_a_page_has():
    assert audit(**MINE, pairs=900_000).pairs == 900_000


def test_without_openai_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("ncclean.base.options.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"--judge needs openai: pip install 'ncclean\[judge\]'"):
        audit(**MINE)


def test_a_prompt_that_is_none_is_one_sentence(scored, corpus, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text('system: Judge.\nuser: "Right?"\n')
    finished = run(
        "audit", scored / "scores.parquet", "--shards", corpus, "--out", tmp_path / "a", "--judge",
        URL, "--judge-model", "demo", "--judge-prompt", path,
    )  # fmt: skip
    assert finished.returncode == 2
    assert "`user` must contain {caption}" in finished.stderr
    assert not (tmp_path / "a").exists()


def test_a_dry_run_says_what_it_takes(scored, corpus, tmp_path):
    finished = run(
        "audit", scored / "scores.parquet", "--shards", corpus, "--out", tmp_path / "a", "--judge",
        URL, "--judge-model", "demo", "--pairs", 50, "--dry-run",
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    assert "tokens in" in finished.stdout
    assert not (tmp_path / "a").exists()


def test_words_are_checked_against_those_of_the_table(scored, corpus, tmp_path):
    """The judge names the first word of each caption, the table its first or its second one."""
    scores = tmp_path / "scores.parquet"
    shutil.copy(scored / "scores.parquet", scores)
    table = pq.read_table(scores)
    texts = table.column("text").to_pylist()
    suspects = [(text or "a b").split()[number % 2] for number, text in enumerate(texts)]
    for name, values in (("suspect_word", suspects), ("worst_part", texts)):
        if name in table.column_names:
            table = table.drop_columns([name])
        table = table.append_column(name, pa.array(values, pa.string()))
    pq.write_table(table, scores)
    of_caption = dict(zip(texts, suspects, strict=True))

    def behave(asked):
        assert "words" in asked.body["response_format"]["json_schema"]["schema"]["required"]
        words = [asked.caption.split()[0]] if asked.number % 2 else []
        return Reply(json.dumps({"words": words, "answer": "partly"}))

    with serving(behave) as judge:
        options = {"judge": judge.url, "judge_model": "demo", "judge_prompt": "words"}
        judged = Audit(
            scores=[str(scores)], shards=[str(corpus)], out=str(tmp_path / "a"), pairs=50,
            judging=JudgeOptions(**options),
        ).run()  # fmt: skip
        named = {asked.caption for asked in judge.asked if asked.number % 2}
    rows = pq.read_table(tmp_path / "a" / "judge.parquet").to_pylist()
    assert sum(bool(row["words"]) for row in rows) == judged.summary.suspect_word.checked
    same = sum(caption.split()[0] == of_caption[caption] for caption in named)
    assert judged.summary.suspect_word.same == pytest.approx(same, abs=3)  # captions repeat
    assert judged.summary.worst_part.same == judged.summary.worst_part.checked
    assert any("suspect word: the same as the judge's on" in str(line) for line in judged.shown)
    json.dumps(judged.to_json())
