"""Three hundred suspects, nine in ten with another's caption, by keys alone; and by touch."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

import ncclean
from tests import hostile
from tests.report.browser import chromium, needs_chromium, resize
from tests.reviewing.served import served
from tests.reviewing.test_browser import wait

pytestmark = [needs_chromium, pytest.mark.slow]
SUSPECTS, SHIFTED = 300, 270


def right(number):
    return f"the {number}th photograph of a day at the sea"


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """From the first to the 270th, each picture has the caption of the one before it."""
    folder = tmp_path_factory.mktemp("photographs")
    (folder / "in").mkdir()
    for number in range(SUSPECTS):
        image = hostile.encoded(hostile.photo(seed=number % 40))
        (folder / "in" / f"{number:04d}.jpg").write_bytes(image)
        text = right((number - 1) % SHIFTED if number < SHIFTED else number)
        (folder / "in" / f"{number:04d}.txt").write_text(text)
    ncclean.score(
        str(folder / "in"), str(folder / "s.parquet"), model="demo", precision="fp32", shift=0.2
    )
    table = pq.read_table(folder / "s.parquet")
    at = table.column_names.index("noise_probability")
    table = table.set_column(at, "noise_probability", pa.array([0.9] * SUSPECTS, pa.float32()))
    pq.write_table(table, folder / "s.parquet")
    return folder


class Keyboard:
    """Presses keys, and counts them; a key that is held counts once."""

    def __init__(self, driver):
        self.driver, self.count = driver, 0

    def press(self, *keys, held=None, times=1):
        self.count += len(keys) * times + (held is not None)
        for _ in range(times):
            chain = ActionChains(self.driver)
            chain = chain.key_down(held) if held else chain
            chain = chain.send_keys(*keys)
            (chain.key_up(held) if held else chain).perform()


def test_shifted_captions_take_few_keys(photographs, tmp_path):
    out = tmp_path / "d.parquet"
    arguments = ("--shards", photographs / "in", "--out", out)
    with served(photographs / "s.parquet", *arguments) as running, chromium() as driver:
        keyboard = Keyboard(driver)

        def script(text):
            return driver.execute_script(f"return {text}")

        def state():
            return driver.find_element("id", "state").text

        resize(driver, 1280, 800)
        driver.get(running.url)
        wait(lambda: state().startswith("1 of 300"))
        keyboard.press("/", Keys.TAB, *"file", Keys.ENTER)  # in the order of file names
        wait(lambda: script("cards.get(0)?.file[1]") == "0000.jpg" and state().startswith("1 of"))
        keyboard.press("x", "g")
        wait(lambda: script("document.getElementById('jump').open"))
        keyboard.press(*str(SHIFTED), Keys.ENTER)
        wait(lambda: state() == f"{SHIFTED} of {SUSPECTS}, 1 selected")
        keyboard.press("X")
        wait(lambda: f"{SHIFTED} selected" in state())
        keyboard.press("]")
        decided = "document.getElementById('decided').textContent"
        wait(lambda: script(decided) == f"decided: {SHIFTED - 1} correct")
        # The last of them needs the caption of the first, which no neighbour has any more.
        keyboard.press("e")
        keyboard.press("a", held=Keys.CONTROL)
        keyboard.press(*right(SHIFTED - 1), Keys.ENTER)
        wait(lambda: script(decided) == f"decided: {SHIFTED} correct")
        keyboard.press("a")
        wait(lambda: f"{SUSPECTS - SHIFTED} undecided" in script("$('all-what').textContent"))
        keyboard.press(Keys.ENTER)  # keep
        wait(lambda: script(decided) == f"decided: {SUSPECTS - SHIFTED} keep, {SHIFTED} correct")
        if shot := os.environ.get("REVIEW_SCREENSHOTS"):
            driver.save_screenshot(f"{shot}/keys.png")
        assert running.end() == 0
    mended = {row["uid"]: row["caption"] for row in pq.read_table(out).to_pylist()}
    for row in pq.read_table(photographs / "s.parquet").to_pylist():
        number = int(row["key"].split("/")[-1])
        assert (mended[row["uid"]] or row["text"]) == right(number)
    # Without: each caption is edited, be it pasted (e, select, paste, Enter), each other pair kept.
    assert keyboard.count <= (4 * SHIFTED + SUSPECTS - SHIFTED) / 2
    print(f"{keyboard.count} keys")


def test_all_is_in_reach_by_touch_on_a_phone(photographs, tmp_path):
    out = tmp_path / "d.parquet"
    arguments = ("--shards", photographs / "in", "--out", out)
    with served(photographs / "s.parquet", *arguments) as running, chromium() as driver:

        def script(text):
            return driver.execute_script(f"return {text}")

        def tap(selector):
            place = script(
                "(e => { e.scrollIntoView({block: 'nearest'});"
                "const r = e.getBoundingClientRect();"
                "return [r.x + r.width / 2, r.y + r.height / 2]; })"
                f"(document.querySelector('{selector}'))"
            )
            point = [{"x": place[0], "y": place[1]}]
            for kind, points in (("touchStart", point), ("touchEnd", [])):
                driver.execute_cdp_cmd(
                    "Input.dispatchTouchEvent", {"type": kind, "touchPoints": points}
                )

        def more(deed):
            tap("[data-do=help]")
            wait(lambda: script("document.getElementById('help').open"))
            tap(f'#help [value="{deed}"]')
            wait(lambda: not script("document.getElementById('help').open"))

        driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
        resize(driver, 360, 740)
        driver.get(running.url)
        wait(lambda: script("document.querySelectorAll('.card').length"))
        widths = "[document.documentElement.scrollWidth, innerWidth]"
        assert script(widths) == [360, 360]
        first, second = (script(f"cards.get({n}).text") for n in (0, 1))
        tap("#card-0 .pick")
        wait(lambda: "1 selected" in driver.find_element("id", "state").text)
        tap("#card-1 .file")
        wait(lambda: "2 selected" in driver.find_element("id", "state").text)
        assert script(widths) == [360, 360]
        small = (
            "[...document.querySelectorAll('button, select, input, .check, .pick')].filter(e =>"
            "e.offsetParent && e.type !== 'checkbox' && e.getBoundingClientRect().height < 40)"
            ".map(e => e.outerHTML)"
        )
        assert script(small) == []
        tap("[data-do=swap]")
        verdicts = "[0, 1].map(n => document.querySelector(`#card-${n} .verdict`).textContent)"
        wait(lambda: script(verdicts) == [f"corrected: {second}", f"corrected: {first}"])
        tap("#card-0 .file")
        more("note")
        wait(lambda: script("document.getElementById('noting').open"))
        driver.switch_to.active_element.send_keys("ask Anna")
        tap("#noting [value=note]")
        note = "document.querySelector('#card-0 .note').textContent"
        wait(lambda: script(note) == "Note: ask Anna")
        more("undo")
        wait(lambda: script(note) == "")
        more("redo")
        wait(lambda: script(note) == "Note: ask Anna")
        # The rest of the filters is one touch away, and everything has a name.
        tap("#further")
        wait(lambda: script("document.getElementById('where').offsetHeight") > 0)
        assert script(widths) == [360, 360]
        assert script(small) == []
        tree = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        roles = {node["role"]["value"] for node in tree if "role" in node}
        assert {"banner", "navigation", "main", "contentinfo", "heading", "toolbar"} <= roles
        needing = {"button", "textbox", "searchbox", "combobox", "checkbox", "listbox"}
        unnamed = [
            node
            for node in tree
            if not node.get("ignored")
            and node.get("role", {}).get("value") in needing
            and not node.get("name", {}).get("value")
        ]
        assert not unnamed
        assert running.end() == 0
    notes = {row["caption"]: row["note"] for row in pq.read_table(out).to_pylist()}
    assert notes == {second: "ask Anna", first: None}
