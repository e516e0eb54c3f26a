"""The page of an audit in a real browser: keys, a thumb, a reload, hostile captions, no network."""

from __future__ import annotations

import json
import re
import time
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.audit import Audit
from ncclean_pipelines.score import Score

from ncclean.auditing.judge_answers import JudgeAnswers
from ncclean.base.config import ScoreOptions
from ncclean.data.synthetic import CorpusOptions, write_corpus
from tests import hostile
from tests.report.browser import chromium, needs_chromium, requests
from tests.report.tables import HOSTILE

pytestmark = [needs_chromium, pytest.mark.slow]
PAIRS = 120


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A rendered corpus and a shard of hostile captions, scored, and a sample with all of these."""
    folder = tmp_path_factory.mktemp("audit")
    shards = folder / "shards"
    write_corpus(shards, CorpusOptions(pairs=111, shard_size=111, noise={"ncr": 0.2}, seed=3), 1)
    members = []
    for name, text in HOSTILE.items():
        image = hostile.encoded(hostile.photo(seed=len(name)))
        metadata = json.dumps({"url": "javascript:window.hacked=9"}).encode()
        members += [*hostile.sample(name, image, text.encode()), (f"{name}.json", metadata)]
    (shards / "hostile.tar").write_bytes(hostile.tar_bytes(members))
    scores = str(folder / "scores.parquet")
    options = ScoreOptions(words=True)
    Score(
        shards=[str(shards)], out=scores, model="demo", precision="fp32", shift=0.2, options=options
    ).run()
    table = pq.read_table(scores)  # of too few pairs to tell what a suspected word is worth
    at = table.schema.get_field_index("near_miss_probability")
    known = pa.array([0.5] * len(table), pa.float32())
    pq.write_table(table.set_column(at, table.schema.field(at), known), scores)
    out = folder / "audit"
    command = Audit(scores=[scores], out=str(out), shards=[str(shards)], pairs=PAIRS)
    return SimpleNamespace(
        page=out / "audit.html", scores=scores, folder=folder, written=command.run().summary
    )


def opened(made, driver):
    driver.get(made.page.as_uri())
    return driver


@pytest.fixture
def phone(made):
    """As narrow as phones get."""
    with chromium(320, 568) as driver:
        requests(driver)
        yield opened(made, driver)


def press(driver, *keys):
    from selenium.webdriver.common.action_chains import ActionChains

    for key in keys:
        ActionChains(driver).send_keys(key).perform()


def text(driver, selector):
    return driver.find_element("css selector", selector).text


def kept(driver):
    """What the browser keeps."""
    return driver.execute_script("return JSON.parse(Object.values(localStorage)[0])")


def saved(driver, folder):
    """The file that the button saves."""
    folder.mkdir(exist_ok=True)
    behaviour = {"behavior": "allow", "downloadPath": str(folder)}
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
    driver.find_element("id", "save").click()
    for _ in range(100):
        if (folder / "answers.json").exists():
            return json.loads((folder / "answers.json").read_text())
        time.sleep(0.1)
    raise AssertionError("nothing was saved")


def test_keys_answer_go_back_and_survive_a_reload(made, phone, tmp_path):
    from selenium.webdriver.common.keys import Keys

    assert text(phone, "#place") == f"1 of {PAIRS}"
    press(phone, "1", "2", "3", "0")
    assert text(phone, "#place") == f"5 of {PAIRS}"
    press(phone, Keys.ARROW_LEFT, Keys.BACKSPACE)
    assert text(phone, "#place") == f"3 of {PAIRS}"
    pressed = "[aria-pressed=true]"
    assert phone.find_element("css selector", pressed).get_attribute("data-key") == "3"
    press(phone, Keys.NUMPAD1)  # another answer takes its place
    assert text(phone, "#place") == f"4 of {PAIRS}"
    phone.refresh()
    assert text(phone, "#place") == f"4 of {PAIRS}"
    assert kept(phone)["answers"] == {"0": 1, "1": 2, "2": 1, "3": 0}
    answers = saved(phone, tmp_path / "saved")
    words = [answer["answer"] for answer in answers["answers"]]
    assert words == ["match", "partly", "match", "cannot tell"]
    measured = Audit(
        scores=[made.scores], answers=str(tmp_path / "saved" / "answers.json"), partly="mismatch"
    ).run()
    assert measured["answers"] == 3
    assert measured["answers_by_kind"]["cannot tell"] == 1


def test_a_hundred_pairs_by_keys_to_the_end(made, phone, tmp_path):
    begin = time.monotonic()
    press(phone, *("13012"[number % 5] for number in range(PAIRS)))
    assert time.monotonic() - begin < 300  # the page itself takes no time to speak of
    assert text(phone, "h1") == "All pairs are judged"
    press(phone, "1")  # nothing more to answer
    assert len(kept(phone)["answers"]) == PAIRS
    answers = saved(phone, tmp_path / "saved")["answers"]
    assert len({answer["uid"] for answer in answers}) == PAIRS
    assert "ncclean audit" in text(phone, "#end pre")


def test_a_key_that_is_held_down_judges_one_pair(phone):
    event = {"key": "1", "windowsVirtualKeyCode": 49, "text": "1"}
    phone.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": "keyDown", **event})
    for _ in range(5):
        repeat = {"type": "keyDown", "autoRepeat": True, **event}
        phone.execute_cdp_cmd("Input.dispatchKeyEvent", repeat)
    assert text(phone, "#place") == f"2 of {PAIRS}"


def test_a_thumb_reaches_everything_on_a_phone(phone):
    """No scrolling, targets of 44 pixels, all buttons in the lower third of the screen."""
    size = phone.execute_script(
        "const e = document.documentElement; return [e.scrollWidth, e.scrollHeight]"
    )
    assert size == [320, 568]
    boxes = phone.execute_script(
        "return [...document.querySelectorAll('button')].map(b => b.getBoundingClientRect())"
        ".map(r => [r.x, r.y, r.width, r.height])"
    )
    for x, y, width, height in boxes:
        assert width >= 44
        assert height >= 44
        assert x >= 0
        assert x + width <= 320
        assert 568 * 0.6 < y < y + height <= 568
    image = phone.find_element("css selector", "#picture img")
    assert image.size["height"] > 150
    touch = phone.find_element("css selector", "[data-key='3']")
    touch.click()
    phone.find_element("css selector", "[data-key='0']").click()
    phone.find_element("id", "back").click()
    assert text(phone, "#place") == f"2 of {PAIRS}"
    assert kept(phone)["answers"] == {"0": 3, "1": 0}


def test_hostile_captions_stay_text_and_nothing_is_loaded(made, phone):
    from selenium.webdriver.common.keys import Keys

    shown = []
    for _ in range(PAIRS):
        shown.append(text(phone, "#caption"))
        assert phone.execute_script("return document.querySelectorAll('#caption *').length") <= 2
        press(phone, Keys.ARROW_RIGHT)
    everything = "\n".join(shown)
    assert HOSTILE["script"] in everything
    assert HOSTILE["attribute"] in everything
    assert HOSTILE["closing"] in everything
    assert "{{ 7 * 7 }}" in everything
    assert "⟨U+202E⟩" in everything
    assert "more characters" in everything  # a megabyte is cut
    assert phone.execute_script("return window.hacked") is None
    assert phone.execute_script("return document.querySelectorAll('a').length") == 0
    asked = [url for url in requests(phone) if not url.startswith(("data:", "blob:", "chrome:"))]
    assert asked == [made.page.as_uri()]
    errors = [entry for entry in phone.get_log("browser") if entry["level"] == "SEVERE"]
    assert not errors


def test_the_page_does_not_say_what_the_calibration_thinks(made):
    page = made.page.read_text("utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])
    assert set(data["pairs"][0]) == {
        "uid", "caption_number", "stratum", "caption", "leftOut", "words", "judge", "picture",
        "reason", "link",
    }  # fmt: skip
    assert "http" not in re.sub(r'"link":"[^"]*"', "", page).replace("http-equiv", "")


def test_the_suspected_word_is_shown_beside_an_answer_alone(made, phone):
    from selenium.webdriver.common.keys import Keys

    pairs = json.loads(phone.execute_script("return document.getElementById('data').textContent"))
    number, words = next(
        (number, pair["words"]) for number, pair in enumerate(pairs["pairs"]) if pair["words"]
    )
    press(phone, *[Keys.ARROW_RIGHT] * number)
    assert text(phone, "#words") == ""
    press(phone, "2", Keys.ARROW_LEFT)
    sentence = f"The estimator would say {words[1]} in place of {words[0]}."
    assert text(phone, "#words") == sentence
    assert words[0] in text(phone, "#caption")


def test_without_pictures_the_page_still_asks(made, tmp_path):
    result = Audit(scores=[made.scores], out=str(tmp_path / "audit"), pairs=20).run()
    assert result["pictures"] == 0
    assert any("without --shards there are no pictures" in str(line) for line in result.shown)
    with chromium(320, 568) as driver:
        driver.get((tmp_path / "audit" / "audit.html").as_uri())
        assert "without --shards" in text(driver, "#picture")
        press(driver, "3")
        assert text(driver, "#place") == "2 of 20"


def test_the_judge_is_shown_after_an_answer_and_compared_at_the_end(made, tmp_path):
    from selenium.webdriver.common.keys import Keys

    sample = pq.read_table(made.folder / "audit" / "sample.parquet")
    says = ["mismatch", "match"] * (len(sample) // 2)
    columns = (sample.column(name).to_pylist() for name in ("uid", "caption_number"))
    rows = [
        {"uid": uid, "caption_number": number, "answer": answer}
        for uid, number, answer in zip(*columns, says, strict=True)
    ]
    file = tmp_path / "judge.json"
    file.write_text(json.dumps(rows))
    out = tmp_path / "audit"
    judge = JudgeAnswers(judge_answers=str(file))
    Audit(scores=[made.scores], out=str(out), pairs=10, beside=judge).run()
    with chromium(320, 568) as driver:
        driver.get((out / "audit.html").as_uri())
        data = driver.execute_script(
            "return JSON.parse(document.getElementById('data').textContent)"
        )
        judges = [pair["judge"] for pair in data["pairs"]]
        assert text(driver, "#words") == ""
        press(driver, "1", Keys.ARROW_LEFT)
        assert f"The judge: {judges[0]}." in text(driver, "#words")
        press(driver, "0", *"3" * (len(judges) - 1))  # the first one cannot be told
        same = judges[1:].count("mismatch")
        agreed = f"You and the judge agree on {same} of {len(judges) - 1} pairs."
        assert text(driver, "#agreement") == agreed


def test_other_shards_are_not_taken_for_no_shards(made, tmp_path):
    (tmp_path / "other.tar").write_bytes(hostile.tar_bytes([("1.txt", b"a caption")]))
    out = str(tmp_path / "audit")
    result = Audit(scores=[made.scores], out=out, shards=[str(tmp_path / "other.tar")], pairs=20)
    shown = " ".join(map(str, result.run().shown))
    assert "not among --shards: " in shown
    assert "without --shards" not in shown
