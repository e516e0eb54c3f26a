"""The page in Chromium: files by name, search, captions swapped and shifted, redo, one picture."""

import io
import os

import pytest
from PIL import Image
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

import ncclean
from tests import hostile
from tests.report.browser import chromium, needs_chromium, resize
from tests.reviewing.served import served
from tests.reviewing.test_browser import wait

pytestmark = [needs_chromium, pytest.mark.slow]
FILES = {"dogs/a.jpg": "a cat", "dogs/b.jpg": "a dog", "cats/c.jpg": "one", "cats/d.jpg": "two"}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photographs")
    for number, (name, text) in enumerate(FILES.items()):
        path = folder / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        exif, data = Image.Exif(), io.BytesIO()
        exif.get_ifd(0x8769)[0x9003] = f"202{3 - number}:01:01 00:00:00"  # the last comes first
        hostile.photo(seed=number).save(data, "JPEG", exif=exif)
        path.write_bytes(data.getvalue())
        path.with_suffix(".txt").write_text(text)
    ncclean.score(
        str(folder / "in"), str(folder / "s.parquet"), model="demo", precision="fp32", shift=0.2
    )
    return folder


def test_a_person_mends_shifted_captions_by_keys(photographs, tmp_path):
    arguments = ("--shards", photographs / "in", "--out", tmp_path / "d.parquet")
    with served(photographs / "s.parquet", *arguments) as running, chromium() as driver:

        def script(text):
            return driver.execute_script(f"return {text}")

        def press(*keys):
            ActionChains(driver).send_keys(*keys).perform()

        def choose(name, field="value", value="'all'"):
            script(
                f"(() => {{ const v = document.getElementById('{name}'); v.{field} = {value};"
                "v.dispatchEvent(new Event('change')); })()"
            )

        def texts(selector):
            return script(f"[...document.querySelectorAll('{selector}')].map(e => e.textContent)")

        def verdicts():
            return texts(".verdict")

        driver.get(running.url)
        choose("view")
        choose("score", value="'name'")
        expected = ["cats/c.jpg", "cats/d.jpg", "dogs/a.jpg", "dogs/b.jpg"]
        wait(lambda: [name.removesuffix(".jpg") + ".jpg" for name in texts(".file")] == expected)

        choose("score", value="'date'")
        wait(lambda: texts(".file")[0].endswith("d.jpg · 2020-01-01 00:00"))
        choose("score", value="'name'")
        wait(lambda: texts(".file")[0].startswith(expected[0]))

        # The two of dogs have each other's captions.
        script("grid.focus()")
        press(Keys.END)
        at = "document.querySelector('.card.at .file b')?.textContent"
        wait(lambda: script(at) == "b.jpg")
        press("x", Keys.ARROW_LEFT, "x", "w")
        wait(lambda: verdicts()[2:] == ["corrected: a dog", "corrected: a cat"])
        press("u")
        wait(lambda: verdicts() == [""] * 4)
        press("y")
        wait(lambda: verdicts()[2:] == ["corrected: a dog", "corrected: a cat"])

        # The first of cats takes the caption of the next.
        press(Keys.HOME)
        wait(lambda: script(at) == "c.jpg")
        ActionChains(driver).key_down(Keys.SHIFT).send_keys(Keys.ARROW_RIGHT).key_up(
            Keys.SHIFT
        ).perform()
        press("]")
        wait(lambda: verdicts()[:2] == ["corrected: two", ""])
        wait(lambda: script("document.getElementById('progress').value") == 3)
        if shot := os.environ.get("REVIEW_SCREENSHOTS"):
            driver.save_screenshot(f"{shot}/cards.png")

        for _ in range(3):
            press("u")  # two decisions, and nothing
        trouble = "document.getElementById('trouble').textContent"
        wait(lambda: script(trouble).startswith("There is nothing to undo"))

        press("g")
        wait(lambda: script("document.getElementById('jump').open"))
        press("4", Keys.ENTER)
        wait(lambda: script(at) == "b.jpg")
        press("z")
        large = "document.querySelector('#large-picture img')"
        wait(lambda: script(f"{large} && {large}.naturalWidth > 0 && large.open"))
        if shot:
            driver.save_screenshot(f"{shot}/large.png")
        resize(driver, 640, 400)  # at a zoom of 200 %, a square stays one
        assert script(f"getComputedStyle({large}).objectFit") == "contain"
        press(Keys.ESCAPE)
        press("e")  # beside the picture, and all of it in the grid
        inside = "(e => e.getBoundingClientRect().bottom)"
        wait(lambda: script("!!document.querySelector('.editor')"))
        assert script(f"{inside}(document.querySelector('.editor')) <= {inside}(grid)")
        press(Keys.ESCAPE)
        resize(driver, 1280, 900)

        script("document.getElementById('search').value = 'CATS two'")
        choose("search", "lang", "'en'")
        wait(lambda: texts(".file") == ["cats/d.jpg"])
