"""The cards of a report in a browser: sorted, filtered by any column, ticked, saved, copied."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.report import Report
from ncclean_pipelines.select import Select

from ncclean.storage.decisions import read_decisions
from tests import hostile
from tests.report.browser import chromium, needs_chromium, requests, resize
from tests.report.tables import graded, write_scores

pytestmark = [needs_chromium, pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A report of 40 pairs, with a signal and columns of the user's own."""
    folder = tmp_path_factory.mktemp("decisions")
    rows = graded(40)
    for number, row in enumerate(rows):
        row["key"] = f"k{number:02d}"
    rows[3]["key"] = "k03\nrm -rf ~"
    table = pq.read_table(write_scores(folder / "plain.parquet", rows))
    own = {
        "blur": pa.array([n / 40 for n in range(40)], pa.float32()),
        "source": pa.array([["web", "books"][n % 2] for n in range(40)]),
        "my score": pa.array([None if n % 4 else 40 - n for n in range(40)], pa.int64()),
        "vector": pa.array([[0.0]] * 40),
    }
    for name, values in own.items():
        table = table.append_column(name, values)
    pq.write_table(table, folder / "scores.parquet")
    members = []
    for number in range(40):
        members += hostile.sample(
            f"k{number:02d}", hostile.encoded(hostile.photo(seed=number)), b"c"
        )
    (folder / "00000.tar").write_bytes(hostile.tar_bytes(members))
    Report(
        scores=[str(folder / "scores.parquet")], out=str(folder / "report.html"),
        shards=[str(folder / "00000.tar")],
    ).run()  # fmt: skip
    return folder


@pytest.fixture
def driver(folder, tmp_path):
    with chromium() as opened:
        opened.execute_cdp_cmd(
            "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
        )
        opened.get((folder / "report.html").as_uri())
        opened.execute_script("document.querySelector('#filters [data-group=\"\"]').click()")
        yield opened


def choose(driver, name, value):
    driver.execute_script(
        "const e = document.getElementById(arguments[0]); e.value = arguments[1];"
        "e.dispatchEvent(new Event('input', {bubbles: true}))",
        name, value,
    )  # fmt: skip


def keys(driver):
    return driver.execute_script(
        "const pairs = JSON.parse(document.getElementById('data').textContent).pairs;"
        "return [...document.querySelectorAll('.card')].filter(c => c.offsetParent)"
        ".map(c => pairs[c.dataset.index].key.slice(0, 3))"
    )


def card(driver, key):
    return next(c for c, k in zip(visible(driver), keys(driver), strict=True) if k == key)


def visible(driver):
    return [c for c in driver.find_elements("css selector", ".card") if c.is_displayed()]


def test_cards_are_filtered_and_sorted_by_any_column(driver):
    numbers = {int(key[1:]) for key in keys(driver)}
    choose(driver, "filter-column", "blur")
    choose(driver, "filter-low", "0.5")
    choose(driver, "filter-high", "0.7")
    assert {int(k[1:]) for k in keys(driver)} == {n for n in numbers if 0.5 <= n / 40 <= 0.7}
    choose(driver, "filter-column", "source")
    assert {int(k[1:]) for k in keys(driver)} == numbers  # the bounds are those of a column
    choose(driver, "filter-low", "BOOK")
    assert {int(k[1:]) for k in keys(driver)} == {n for n in numbers if n % 2}
    choose(driver, "filter-column", "")
    driver.execute_script("document.querySelector('#filters [data-group=worst]').click()")
    worst = keys(driver)
    for value, order in (("-blur", sorted(worst, reverse=True)), ("blur", sorted(worst))):
        choose(driver, "sort", value)
        assert keys(driver) == order
    choose(driver, "sort", "my score")  # nulls last
    have = sorted(k for k in worst if int(k[1:]) % 4 == 0)
    assert keys(driver)[: len(have)] == have[::-1]
    choose(driver, "sort", "")
    assert keys(driver) == worst
    options = driver.execute_script(
        "return [...document.getElementById('filter-column').options].map(o => o.value)"
    )
    assert {"blur", "source", "my score", "similarity"} <= set(options)
    assert "vector" not in options


def test_ticks_are_saved_as_decisions_that_select_reads(folder, driver, tmp_path):
    from selenium.webdriver.common.keys import Keys

    first, second, third, fourth = keys(driver)[:4]
    card(driver, first).find_element("css selector", "[data-tick=drop]").click()
    button = card(driver, second).find_element("css selector", "button")
    button.send_keys("k")
    third_button = card(driver, third).find_element("css selector", "button")
    third_button.send_keys("d")
    third_button.send_keys("u")
    card(driver, fourth).find_element("css selector", "button").send_keys(Keys.ENTER)
    driver.switch_to.active_element.send_keys("d")
    driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert driver.find_element("id", "ticked").text == "1 to keep, 2 to drop"
    driver.find_element("id", "reviewer").send_keys("Anna")
    driver.find_element("id", "save").click()
    file = tmp_path / "decisions.jsonl"
    for _ in range(100):
        if file.exists():
            break
        time.sleep(0.05)
    decisions = {one.uid: one for one in read_decisions(str(file))}
    uid = {key: f"u{int(key[1:])}" for key in (first, second, third, fourth)}
    assert {u: one.decision for u, one in decisions.items()} == {
        uid[first]: "drop", uid[second]: "keep", uid[fourth]: "drop",
    }  # fmt: skip
    assert {one.reviewer for one in decisions.values()} == {"Anna"}
    selected = Select(
        scores=[str(folder / "scores.parquet")], out=str(tmp_path / "s.parquet"),
        decisions=[str(file)],
    ).run()  # fmt: skip
    kept = set(pq.read_table(tmp_path / "s.parquet").column("uid").to_pylist())
    assert kept >= {f"u{n}" for n in range(40)} - {uid[first], uid[fourth]} - kept
    assert uid[first] not in kept
    assert uid[second] in kept
    assert selected.summary.decided == {"drop": 2, "keep": 1}
    # The report shows what was decided before.
    again = tmp_path / "again.html"
    Report(
        scores=[str(folder / "scores.parquet")], out=str(again), decisions=[str(file)]
    ).run()  # fmt: skip
    driver.execute_script("window.onbeforeunload = null")
    driver.get(again.as_uri())
    shown = driver.execute_script(
        "return [...document.querySelectorAll('.card')].map(c => c.dataset.decision).filter(d => d)"
    )
    assert sorted(shown) == ["drop", "drop", "keep"]
    assert driver.find_element("id", "ticked").text == "Nothing ticked"


def test_the_place_of_the_original_can_be_copied(folder, driver):
    from selenium.webdriver.common.keys import Keys

    driver.execute_script(
        "navigator.clipboard.writeText = t => { window.copied = t; return Promise.resolve(); }"
    )
    first = keys(driver)[0]
    card(driver, first).find_element("css selector", "button").send_keys(Keys.ENTER)
    place = f"{folder / '00000.tar'} {first}"
    assert driver.find_element("id", "viewer-original").text == place
    driver.find_element("css selector", ".original .copy").click()
    assert driver.execute_script("return window.copied") == place
    driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    shown = keys(driver)
    driver.find_element("id", "copy-shown").click()
    lines = driver.execute_script("return window.copied").split("\n")
    assert len(lines) == len(shown)  # also of a key with a line break
    assert all(line.startswith(str(folder / "00000.tar")) for line in lines)


def test_phone_dark_and_no_request(driver, folder):
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        for width in (390, 1280):
            resize(driver, width, 800)
            assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    asked = [url for url in requests(driver) if not url.startswith(("data:", "chrome", "blob:"))]
    assert {Path(url).name for url in asked} == {"report.html"}
    assert [e for e in driver.get_log("browser") if e["level"] != "INFO"] == []
