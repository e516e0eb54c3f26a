"""The page in a real browser: what a reader does with it, and what a caption cannot do to it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from ncclean_pipelines.report import Report
from ncclean_pipelines.score import Score

from ncclean.data.synthetic import CorpusOptions, write_corpus
from ncclean.storage.joined import query
from tests import hostile
from tests.report.browser import chromium, needs_chromium, requests, resize
from tests.report.tables import HOSTILE

pytestmark = [needs_chromium, pytest.mark.slow]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A rendered corpus and a shard of hostile captions, scored and reported."""
    folder = tmp_path_factory.mktemp("browser")
    shards = folder / "shards"
    options = CorpusOptions(pairs=600, shard_size=200, noise={"ncr": 0.2}, broken=0.03, seed=3)
    write_corpus(shards, options, 2)
    members = []
    for name, text in HOSTILE.items():
        image = hostile.encoded(hostile.photo(seed=len(name)))
        metadata = json.dumps({"url": "javascript:window.hacked=9", "is_noisy": True}).encode()
        members += [*hostile.sample(name, image, text.encode()), (f"{name}.json", metadata)]
    (shards / "hostile.tar").write_bytes(hostile.tar_bytes(members))
    scores = str(folder / "scores.parquet")
    # A probability of the cosine alone has a place in the plot of cosines.
    Score(
        shards=[str(shards)], out=scores, model="demo", precision="fp32", shift=0.2,
        calibrate_on="similarity",
    ).run()  # fmt: skip
    out = folder / "report.html"
    request = Report(scores=[scores], out=str(out), shards=[str(shards)], pairs=150)
    return SimpleNamespace(out=out, scores=scores, result=request.run().summary)


@pytest.fixture(scope="module")
def driver(made):
    with chromium() as opened:
        opened.get(made.out.as_uri())
        yield opened


def text(driver, selector):
    return driver.find_element("css selector", selector).text


def cell(driver, row, kind):
    return text(driver, f"#{row} [data-cell={kind}]")


def choose(driver, selector, value, event="input"):
    driver.execute_script(
        "const e = document.querySelector(arguments[0]); e.value = arguments[1];"
        "e.dispatchEvent(new Event(arguments[2], {bubbles: true}))",
        selector, str(value), event,
    )  # fmt: skip


def visible_cards(driver):
    return driver.execute_script(
        "return [...document.querySelectorAll('.card')].filter(c => c.offsetParent)"
        ".map(c => +c.dataset.index)"
    )


def test_the_threshold_shows_what_duckdb_counts(made, driver):
    for column, keeps, values in [
        ("noise_probability", "<", ["0.500", "0.031", "0.950", "0.000", "1.001"]),
        ("similarity", ">=", ["0.200", "0.450"]),
        ("ncu_confidence", ">=", ["0.500"]),
        ("neg_clip_loss", ">=", ["-0.1"]),
    ]:
        choose(driver, "#score", column, "change")
        for value in values:
            choose(driver, "#value", value, "change")
            where = text(driver, "#where")
            assert where.startswith(f"{column} {keeps} ")
            assert float(where.split()[-1]) == pytest.approx(float(value), abs=0.006)
            kept, wrong, noisy = query(
                "SELECT count(*), coalesce(sum(noise_probability), 0), "
                f"count(*) FILTER (is_noisy) FROM scores WHERE {where}",
                [made.scores],
            ).fetchall()[0]
            assert cell(driver, "kept", "pairs") == f"{kept:,}"
            assert float(cell(driver, "kept", "wrong").replace(",", "")) == pytest.approx(
                wrong, abs=0.051
            )
            assert cell(driver, "kept", "noisy") == f"{noisy:,}"
            total = made.result.numbers.counts.ok
            assert cell(driver, "dropped", "pairs") == f"{total - kept:,}"
            assert where in driver.find_element("id", "live-sql").get_property("textContent")


def test_the_slider_moves_the_line_in_both_plots(driver):
    from selenium.webdriver.common.keys import Keys

    choose(driver, "#score", "noise_probability", "change")
    places = (
        "return [...document.querySelectorAll('svg.wide .cut')].map(c => "
        "c.getAttribute('visibility') === 'visible' ? c.getAttribute('transform') : null)"
    )
    before = driver.execute_script(places)
    slider = driver.find_element("id", "slider")
    slider.send_keys(Keys.ARROW_RIGHT)  # by keyboard, one step
    assert text(driver, "#where") == "noise_probability < 0.501"
    choose(driver, "#slider", 5)
    after = driver.execute_script(places)
    assert text(driver, "#where") == "noise_probability < 0.005"
    assert before[0] != after[0]
    assert before[1] != after[1]
    choose(driver, "#score", "neg_clip_loss", "change")
    assert driver.execute_script(places)[0] is None  # no one cosine belongs to this threshold
    choose(driver, "#score", "noise_probability", "change")


def test_filters(made, driver):
    pairs = made.result.page.pairs
    group = driver.find_elements("css selector", "#filters [data-group]")
    assert visible_cards(driver) == [i for i, p in enumerate(pairs) if p.group == "worst"]
    group[-1].click()
    assert len(visible_cards(driver)) == len(pairs)
    choose(driver, "#filter-shard", "00001")
    assert visible_cards(driver) == [i for i, p in enumerate(pairs) if p.shard == "00001"]
    choose(driver, "#filter-rule", "+ncu_split = forget")
    assert visible_cards(driver) == [
        i for i, p in enumerate(pairs) if p.shard == "00001" and "ncu_split = forget" in p.flags
    ]
    choose(driver, "#filter-shard", "")
    choose(driver, "#filter-rule", "dropped")
    assert visible_cards(driver) == [
        i for i, p in enumerate(pairs) if p.status == "ok" and p.noise_probability >= 0.5
    ]
    choose(driver, "#filter-rule", "")
    choose(driver, "#filter-status", "image_corrupt")
    assert visible_cards(driver) == [i for i, p in enumerate(pairs) if p.status == "image_corrupt"]
    choose(driver, "#filter-status", "")
    choose(driver, "#filter-text", "ZALGO")
    assert [pairs[i].key for i in visible_cards(driver)] == ["zalgo"]
    assert text(driver, "#shown") == f"1 of {len(pairs)} pairs shown"
    choose(driver, "#filter-text", "no such words")
    assert text(driver, "#shown") == "No pair fits these filters"
    choose(driver, "#filter-text", "")


def test_a_pair_opens_and_closes_by_keyboard(made, driver):
    from selenium.webdriver.common.keys import Keys

    pairs = made.result.page.pairs
    index = next(i for i, p in enumerate(pairs) if p.key == "script")
    button = driver.find_elements("css selector", ".card > button")[index]
    button.send_keys(Keys.ENTER)
    assert driver.switch_to.active_element.get_attribute("id") in ("previous", "next", "close")
    assert text(driver, "#viewer-title") == "script"
    assert text(driver, "#viewer-caption") == HOSTILE["script"]
    rows = {
        row.find_element("css selector", "th").text: row.find_element("css selector", "td").text
        for row in driver.find_elements("css selector", "#viewer-scores tr")
    }
    assert rows["url"] == "javascript:window.hacked=9"
    assert float(rows["similarity"].replace("−", "-")) == pytest.approx(
        pairs[index].scores["similarity"], abs=1e-4
    )
    size = driver.execute_script(
        "const i = document.querySelector('#viewer-image img'); return [i.naturalWidth, i.complete]"
    )
    assert size == [90, True]
    driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert text(driver, "#viewer-title") != "script"
    driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not driver.find_element("id", "viewer").is_displayed()


def test_captions_stay_text(made, driver):
    shown = driver.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('.card')].map((c, i) => "
        "[JSON.parse(document.getElementById('data').textContent).pairs[i].key, "
        "c.querySelector('.caption').textContent]))"
    )
    for name in ("script", "attribute", "closing", "template"):
        assert shown[name] == HOSTILE[name]
    assert shown["bidi"] == "invoice ⟨U+202E⟩gpj.exe⟨U+202C⟩ ⟨U+2066⟩isolated"
    assert len(shown["megabyte"]) < 3000
    assert shown["megabyte"].endswith("more characters")
    assert driver.execute_script("return window.hacked") is None
    assert driver.execute_script("return document.scripts.length") == 2


def test_dark_mode(driver):
    colours = (
        "return [document.body, document.querySelector('svg.wide .title')].map(e => "
        "getComputedStyle(e)).map(s => s.backgroundColor + s.fill)"
    )
    preference = {"name": "prefers-color-scheme", "value": "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [preference]})
    light = driver.execute_script(colours)
    toggle = driver.find_element("id", "theme")
    assert toggle.text == "Dark"
    toggle.click()
    dark = driver.execute_script(colours)
    assert all(a != b for a, b in zip(light, dark, strict=True))
    toggle.click()
    assert driver.execute_script(colours) == light
    preference["value"] = "dark"
    driver.execute_script("delete document.documentElement.dataset.theme")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [preference]})
    assert driver.execute_script(colours) == dark


def test_shards_can_be_sorted(made, driver):
    names = "return [...document.querySelectorAll('#shard-table tbody th')].map(c => c.textContent)"
    head = driver.find_elements("css selector", "#shard-table thead button")[3]
    assert head.text == "noise rate"
    head.click()
    rows = sorted(made.result.numbers.shards.rows, key=lambda row: -row.noise_rate)
    assert driver.execute_script(names) == [row.shard for row in rows]
    head.click()
    assert driver.execute_script(names) == [row.shard for row in reversed(rows)]


@pytest.mark.parametrize("width", [1280, 768, 360])
def test_no_sideways_scrolling(driver, width):
    resize(driver, width, 800)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    resize(driver, 1280, 900)


def test_copying_says_so(driver):
    button = driver.find_element("css selector", ".query .copy")
    button.click()
    from selenium.webdriver.support.ui import WebDriverWait

    assert WebDriverWait(driver, 3).until(lambda _: button.text == "Copied")


def test_no_error_and_no_request(made, driver):
    driver.refresh()
    asked = [url for url in requests(driver) if not url.startswith(("data:", "chrome"))]
    assert set(asked) == {made.out.as_uri()}
    assert [e for e in driver.get_log("browser") if e["level"] != "INFO"] == []


def test_readable_without_script(made):
    with chromium(script=False) as driver:
        driver.get(made.out.as_uri())
        assert driver.find_element("css selector", "#distribution svg.wide").is_displayed()
        assert cell(driver, "kept", "pairs")
        assert not driver.find_element("id", "controls").is_displayed()
        cards = driver.find_elements("css selector", ".card")
        assert len(cards) == len(made.result.page.pairs)
        assert cards[0].is_displayed()
