"""The HTML: self-contained, safe whatever captions say, with SQL that runs as it stands."""

import base64
import hashlib
import json
import re
import shlex
from datetime import date
from html.parser import HTMLParser

import pytest
from ncclean_cli.app import app
from typer.testing import CliRunner

from ncclean.base.schema import SCORES
from ncclean.errors import InputError
from ncclean.report import page as page_module
from ncclean.report.measurements import measure, measure_table
from ncclean.report.page import (
    READY_QUERIES,
    Page,
    command,
    ready_queries,
    render,
    script_json,
    threshold_query,
)
from ncclean.report.pairs import choose_pairs
from ncclean.report.table import ScoreTable
from tests.report.tables import HOSTILE, graded, write_scores


def test_a_noise_rate_that_was_measured_is_not_called_unknown(tmp_path):
    rate = {"noise_rate": "0.3", "noise_rate_low": "0.1", "noise_rate_high": "0.6"}
    audited = {
        "recalibration": {"intercept": 0.1, "knots": [0.0], "slopes": [1.0, 1.0]},
        "noise_rate": 0.3, "answers": 99, "digest": "x", "drawn_bounds": [0.5], "bounds": [0.5],
    }  # fmt: skip
    for metadata, is_said in ((rate, True), ({**rate, "audited": json.dumps(audited)}, False)):
        path = write_scores(tmp_path / "s.parquet", graded(), metadata)
        said = " ".join(measure([str(path)]).missing)
        assert ("cannot tell how noisy this corpus is" in said) == is_said


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


class Elements(HTMLParser):
    """Start tags with attributes, and the text of each kind of element."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data


def page_of(path, title="A title", each=24):
    table = ScoreTable.open([str(path)])
    page = Page(title, [str(path)], date(2026, 1, 2), choose_pairs(table, each))
    return render(measure_table(table), page)


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory):
    rows = graded(len(HOSTILE))
    for row, (name, text) in zip(rows, HOSTILE.items(), strict=True):
        row.update(text=text, key=f"{name}<i>", url="javascript:alert(1)//<b>")
    rows.append({"status": "image_corrupt", "error": "<u>no image</u>", "shard": "<s>shard</s>"})
    path = write_scores(tmp_path_factory.mktemp("page") / "s.parquet", rows)
    return page_of(path, title='</title><script>alert("t")</script>')


def test_hostile_text_makes_no_element(hostile_page):
    elements = Elements(hostile_page)
    names = [tag for tag, _ in elements.tags]
    assert names.count("script") == 2  # the data and the page's own
    assert not {"img", "i", "u", "s", "iframe", "object"} - {"i"} & set(names)
    assert names.count("i") == sum(  # legend swatches only
        tag == "i" and "swatch" in (attributes.get("class") or "")
        for tag, attributes in elements.tags
    )
    for tag, attributes in elements.tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        assert "style" not in attributes
        for name in ("src", "href", "action", "data", "srcset"):
            value = attributes.get(name) or ""
            assert value.startswith(("#", "data:")) or not value, (tag, value)
    assert HOSTILE["script"] in elements.text
    assert "{{ 7 * 7 }}" in elements.text
    assert "⟨U+202E⟩gpj" in elements.text


def test_nothing_is_loaded_and_only_our_script_may_run(hostile_page):
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', hostile_page)[1]
    policy = policy.replace("&#39;", "'")
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        text = re.search(rf"<{tag}>(.*?)</{tag}>", hostile_page, re.S)[1]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|eval\(|innerHTML", hostile_page)


def test_data_can_be_read_back_and_cannot_end_its_element(hostile_page):
    raw = re.search(r'<script type="application/json" id="data">(.*?)</script>', hostile_page)[1]
    data = json.loads(raw)
    assert {pair["key"] for pair in data["pairs"]} >= {"script<i>", "bidi<i>"}
    assert "<" not in raw
    text = script_json({"a": "</script><!--&"})
    assert text == '{"a":"\\u003c/script\\u003e\\u003c!--\\u0026"}'
    with pytest.raises(ValueError, match="JSON compliant"):
        script_json(float("nan"))


def test_numbers_are_there_without_the_script(tmp_path):
    text = Elements(page_of(write_scores(tmp_path / "s.parquet", graded()))).text
    assert "Made" not in text
    assert "2 January 2026" in text
    for found in (
        "A title",
        "20.0",
        "ncu_split = forget",
        "Figure 1.",
        "Table 3.",
        "ncclean query",
    ):
        assert found in text


def test_too_large_a_page_is_refused(tmp_path, monkeypatch):
    path = write_scores(tmp_path / "s.parquet", graded())
    monkeypatch.setattr(page_module, "LARGEST_PAGE", 30_000)
    with pytest.raises(InputError, match="show fewer pairs with --pairs"):
        page_of(path)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_tiny_tables_have_a_page(tmp_path, rows):
    path = write_scores(tmp_path / "s.parquet", graded(3)[:rows])
    assert f"<dd>{rows}</dd>" in page_of(path)


def test_a_table_where_every_pair_failed(tmp_path):
    rows = [{"status": "image_corrupt", "error": "not an image"}] * 5
    path = write_scores(tmp_path / "s.parquet", rows)
    html = page_of(path)
    assert "No pair could be scored" in html
    assert 'id="threshold"' not in html
    assert measure([str(path)]).curves == ()


def test_a_repeated_key_cannot_be_decided_about(tmp_path):
    """Its uid is that of the first sample."""
    rows = [*graded(4), {"uid": "u1", "status": "duplicate_key"}]
    html = page_of(write_scores(tmp_path / "s.parquet", rows))
    data = json.loads(re.search(r'<script[^>]* id="data"[^>]*>(.*?)</script>', html, re.S)[1])
    uids = {pair["row"]: pair["uid"] for pair in data["pairs"]}
    assert (uids[1], uids[4]) == ("u1", None)


def test_wrong_sentences_are_struck_through_and_escaped(tmp_path):
    """A caption cannot end the line through it, nor begin one."""
    rows = graded(4)
    for row, text in zip(rows[2:], ("</s><s>A</s>. ", '<script>x</script>"></s>. '), strict=True):
        row |= {
            "text": text + "\u202e<b>cat</b>.", "part_starts": [0, len(text)],
            "part_noise_probabilities": [0.9, 0.1], "part_noise_probability": 0.9,
            "noise_probability": 0.1,
        }  # fmt: skip
    page = page_of(write_scores(tmp_path / "s.parquet", rows))
    elements = Elements(page)
    struck = [attributes for tag, attributes in elements.tags if tag == "s"]
    assert struck == [{"title": "probably wrong"}] * 2
    assert page.count("</s>") == 2
    assert '<s title="probably wrong">&lt;/s&gt;&lt;s&gt;A&lt;/s&gt;.</s> ' in page
    assert "⟨U+202E⟩&lt;b&gt;cat&lt;/b&gt;." in page
    assert [tag for tag, _ in elements.tags].count("script") == 2
    assert "those with a wrong sentence" in page
    assert 'data-group="wrong sentence"' in page


def test_without_parts_the_page_says_nothing_of_them(tmp_path):
    page = page_of(write_scores(tmp_path / "s.parquet", graded(10)))
    assert "those with a wrong sentence" not in page
    assert 'data-group="wrong sentence"' not in page
    assert "wrong sentences" not in page


def test_the_rate_of_wrong_sentences_and_the_captions_cut(tmp_path):
    metadata = {
        "part_noise_rate": "0.125", "part_noise_rate_low": "0.1", "part_noise_rate_high": "0.15",
        "captions_cut": "1234", "context_length": "77",
    }  # fmt: skip
    page = page_of(write_scores(tmp_path / "s.parquet", graded(10), metadata))
    assert "<dt>wrong sentences</dt><dd>12.5" in page
    assert "1,234, at 77 tokens" in page
    for lie in ("-1", "x", "9" * 30, "", "1.5", "²"):
        path = write_scores(tmp_path / "s.parquet", graded(10), {**metadata, "context_length": lie})
        assert " tokens<" not in page_of(path)
