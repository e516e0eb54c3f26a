"""The page in Chromium: keys alone, hostile captions, and nothing from the network."""

from __future__ import annotations

import os
import time

import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.score import Score

from tests import hostile
from tests.report.browser import chromium, needs_chromium, requests, resize
from tests.report.tables import HOSTILE
from tests.reviewing.served import served

pytestmark = [needs_chromium, pytest.mark.slow]


@pytest.fixture(scope="module")
def scores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reviewed")
    members = []
    for name, text in HOSTILE.items():
        image = hostile.encoded(hostile.photo(seed=len(name)))
        members += hostile.sample(name, image, text.encode())
    (folder / "hostile.tar").write_bytes(hostile.tar_bytes(members))
    out = folder / "scores.parquet"
    Score(
        shards=[str(folder / "hostile.tar")],
        out=str(out),
        model="demo",
        precision="fp32",
        shift=0.2,
    ).run()
    return out


def wait(condition):
    for _ in range(200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it does not come")


def test_a_person_decides_by_keys_and_captions_are_text(scores, tmp_path):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    out = tmp_path / "decisions.parquet"
    with served(scores, "--shards", scores.parent / "hostile.tar", "--out", out) as running:
        with chromium() as driver:

            def text(name):
                return driver.find_element("id", name).text

            def press(*keys):
                ActionChains(driver).send_keys(*keys).perform()

            driver.get(running.url)
            wait(lambda: driver.find_elements("css selector", ".card"))
            driver.execute_script(
                "document.querySelectorAll('.card').forEach(c => { c.dataset.before = 1; });"
                "const v = document.getElementById('view'); v.value = 'all';"
                "v.dispatchEvent(new Event('change'))"
            )
            cards = "return document.querySelectorAll('.card:not([data-before])').length"
            wait(lambda: driver.execute_script(cards) == len(HOSTILE))
            loaded = "return [...document.images].filter(i => i.naturalWidth > 0).length"
            wait(lambda: driver.execute_script(loaded) > 0)
            if shot := os.environ.get("REVIEW_SCREENSHOTS"):
                driver.save_screenshot(f"{shot}/hostile.png")
            press("kd")  # faster than the server answers
            wait(lambda: text("decided") == "decided: 1 keep, 1 drop")
            press("u")
            wait(lambda: text("decided") == "decided: 1 keep")
            ActionChains(driver).key_down(Keys.SHIFT).send_keys(Keys.ARROW_RIGHT).key_up(
                Keys.SHIFT
            ).perform()
            press("d")
            wait(lambda: text("decided") == "decided: 1 keep, 2 drop")
            press("e")
            driver.switch_to.active_element.send_keys(Keys.CONTROL, "a")
            driver.switch_to.active_element.send_keys("what it shows", Keys.ENTER)
            wait(lambda: text("decided") == "decided: 1 keep, 2 drop, 1 correct")
            press("a")  # the number is that of the undecided pairs
            wait(lambda: f" {len(HOSTILE) - 4} undecided" in text("all-what"))
            press(Keys.ESCAPE)
            assert driver.execute_script("return window.hacked") is None
            assert not driver.find_elements(
                "css selector", ".card script, .card b:not(.better b, .file b)"
            )
            own = running.url.rstrip("/").rsplit("/", 1)[0]
            asked = [url for url in requests(driver) if not url.startswith(("data:", "chrome"))]
            assert all(url.startswith(own) for url in asked), asked
            for width in (390, 1280):
                resize(driver, width, 800)
                widths = "return [document.documentElement.scrollWidth, innerWidth]"
                assert driver.execute_script(widths) == [width, width]
            driver.find_element("id", "done").click()
            assert running.process.wait(30) == 0
        decisions = pq.read_table(out).column("decision").to_pylist()
        assert sorted(decisions) == ["correct", "drop", "drop", "keep"]


def test_who_asks_how_many_are_undecided_skips_no_pair(scored, tmp_path):
    fields = {"view": "all", "undecided": "1", "start": 60, "count": 1}
    with served(scored / "scores.parquet", "--out", tmp_path / "d.parquet") as running:
        next_block = running.get("rows", **fields)["cards"][0]["uid"]
        with chromium() as driver:

            def script(text):
                return driver.execute_script(f"return {text}")

            driver.get(running.url)
            script("($('view').value = 'all', $('undecided').checked = true, changed())")
            wait(lambda: script("!pending && request.undecided === '1' && cards.size >= 60"))
            script("(decide('keep'), decide('keep'), deeds.all())")
            wait(lambda: script("$('all').open"))
            script("($('all').close(), cards.delete(60), load(60))")
            wait(lambda: script("cards.has(60)"))
            assert script("cards.get(60).uid") == next_block


def test_the_closest_captions_by_keys(scored, corpus, tmp_path):
    from selenium.webdriver.common.action_chains import ActionChains

    out = tmp_path / "decisions.parquet"
    embeddings = scored / "embeddings"
    arguments = ("--shards", corpus, "--embeddings", embeddings, "--out", out)
    with served(scored / "scores.parquet", *arguments) as running, chromium() as driver:

        def press(*keys):
            ActionChains(driver).send_keys(*keys).perform()

        def proposals():
            return driver.execute_script(
                "return [...document.querySelectorAll('.card.at .proposals button')]"
                ".map(b => b.querySelector('span').textContent)"
            )

        driver.get(running.url)
        wait(lambda: driver.find_elements("css selector", ".card"))
        press("c")
        wait(lambda: len(proposals()) == 5)
        second = proposals()[1]
        assert driver.find_element("id", "decided").text == "nothing decided yet"
        press("2")
        wait(lambda: driver.find_element("id", "decided").text == "decided: 1 correct")
        wait(lambda: len(proposals()) == 5)  # those of the next pair
        third = proposals()[2]
        driver.find_elements("css selector", ".card.at .proposals button")[2].click()
        wait(lambda: driver.find_element("id", "decided").text == "decided: 2 correct")
        press("c")
        wait(lambda: not driver.find_elements("css selector", ".proposals"))
        for width in (390, 1280):
            resize(driver, width, 800)
            widths = "return [document.documentElement.scrollWidth, innerWidth]"
            assert driver.execute_script(widths) == [width, width]
        assert running.end() == 0
    captions = pq.read_table(out).column("caption").to_pylist()
    assert captions == [second, third]
