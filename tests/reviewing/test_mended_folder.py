"""A folder of 500 pictures, 50 of them with another's caption and 20 with a wrong word, is mended.

As a person does it: `clean`, the keys of `review`, then the folder back, which is scored again.
`REVIEW_SCREENSHOTS=FOLDER` keeps what the page looked like on the way.
"""

from __future__ import annotations

import csv
import os
import re

import pyarrow.parquet as pq
import pytest

import ncclean
from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_pairs
from ncclean.data.synthetic import CorpusOptions, write_corpus
from tests.report.browser import chromium, needs_chromium
from tests.reviewing.served import served
from tests.reviewing.test_browser import wait

pytestmark = [needs_chromium, pytest.mark.slow]
MODEL = {"model": "demo", "precision": "fp32", "words": True}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """A folder with its table, and what is true: the right caption of each picture."""
    folder = tmp_path_factory.mktemp("photographs")
    captions = {}
    for name, noise in (("right", {}), ("wrong", {"ncr": 0.1, "hard": 0.04})):
        write_corpus(folder / name, CorpusOptions(pairs=500, seed=5, duplicates=0, noise=noise), 2)
        shards = resolve_pairs([str(folder / name)])
        samples = {one.key: one for shard in shards for one in read_samples(shard)}
        captions[name] = {key: one.caption for key, one in samples.items()}
    out = folder / "photographs"
    out.mkdir()
    with (out / "metadata.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file_name", "text", "camera"])
        for key, one in samples.items():
            (out / f"{key}.jpg").write_bytes(one.image)
            table.writerow([f"{key}.jpg", one.caption, f"camera {key[-1]}"])
    return out, captions["right"], captions["wrong"]


class Person:
    """Looks at a pair, and presses a key: who sees the picture knows what is true of it."""

    def __init__(self, driver, right, wrong):
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.keys import Keys

        self.driver, self.right, self.keys = driver, right, Keys
        self.chains, self.typed, self.pressed = ActionChains, 0, []
        words = {key: caption.split() for key, caption in right.items()}
        self.is_a_word = {
            key: len(words[key]) == len(caption.split())
            and sum(a != b for a, b in zip(words[key], caption.split(), strict=True)) < 4
            for key, caption in wrong.items()
        }

    def press(self, *keys):
        self.chains(self.driver).send_keys(*keys).perform()

    def shot(self, name):
        if folder := os.environ.get("REVIEW_SCREENSHOTS"):
            wait(lambda: self.driver.execute_script(
                "return [...document.images].every(i => i.naturalWidth ||"
                " i.getBoundingClientRect().top > innerHeight)"
            ))  # fmt: skip
            self.driver.save_screenshot(f"{folder}/{name}.png")

    def card(self):
        """Place, key, caption, better word and verdict of the pair that the page is at."""
        return self.driver.execute_script(
            "const c = document.querySelector('.card.at'); if (!c) return null;"
            "const spans = [...c.querySelectorAll('.caption span')];"
            "const words = spans.map(s => [s.textContent, s.className]);"
            "return [+c.dataset.n, c.querySelector('.meta').title.split(' / ')[1], words,"
            " (c.querySelector('.better b') || {}).textContent || null,"
            " c.querySelector('.verdict').textContent]"
        )

    def open(self, view, score=None):
        self.press("v")
        self.choose("view", view)
        if score is not None:
            self.press(*3 * [self.keys.TAB])  # past what to find
            self.choose("score", score)
        self.press(self.keys.ESCAPE)
        wait(lambda: (self.card() or [None])[0] == 0)

    def choose(self, name, choice):
        """Type the begin of a choice of a list that has the focus, and wait for its cards."""
        self.driver.execute_script(
            "document.querySelectorAll('.card').forEach(c => { c.dataset.before = 1; })"
        )
        self.press(choice)
        chosen = f"return document.getElementById('{name}').selectedOptions[0].textContent"
        wait(lambda: self.driver.execute_script(chosen).startswith(choice))
        wait(lambda: self.driver.find_elements("css selector", ".card.at:not([data-before])"))

    def go_through(self):
        total = int(
            re.search(r"of ([\d,]+)", self.driver.find_element("id", "state").text)[1].replace(
                ",", ""
            )
        )
        for n in range(total):
            wait(lambda place=n: (self.card() or [None])[0] == place)
            self.decide(*self.card()[1:])

    def decide(self, key, words, better, verdict):
        truth = self.right[key]
        mended = "".join(better if better and kind == "word" else word for word, kind in words)
        text = "".join(word for word, _ in words)
        if text == truth or verdict == f"corrected: {truth}":
            key = "s"
        elif mended == truth:
            key = "r"
        elif self.is_a_word[key] or self.typed < 5:
            self.typed += 1
            self.press("e")
            wait(lambda: self.driver.switch_to.active_element.tag_name == "textarea")
            chain = self.chains(self.driver).key_down(self.keys.CONTROL).send_keys("a")
            chain.key_up(self.keys.CONTROL).send_keys(truth, self.keys.ENTER).perform()
            wait(lambda: self.driver.switch_to.active_element.tag_name != "textarea")
            key = "e"
        else:
            key = "d"
        if key != "e":
            self.press(key)
        self.pressed.append(key)


def test_five_hundred_photographs_are_mended_by_keys(photographs, tmp_path):
    source, right, wrong = photographs
    run, out = tmp_path / "run", tmp_path / "decisions.parquet"
    ncclean.clean(str(source), str(run), **MODEL)
    arguments = ("--shards", source, "--out", out, "--reviewer", "ann")
    with served(run / "scores.parquet", *arguments) as running, chromium() as driver:
        driver.get(running.url)
        wait(lambda: driver.find_elements("css selector", ".card"))
        person = Person(driver, right, wrong)
        person.shot("1-suspects")
        person.go_through()
        person.shot("2-decided")
        person.open("Near")
        person.shot("3-near-misses")
        person.go_through()
        person.open("All", "Near")
        person.go_through()  # all of them: not every wrong word stands out
        person.shot("4-all")
        driver.find_element("id", "done").send_keys(person.keys.ENTER)
        assert running.process.wait(30) == 0
    assert {"s", "r", "e", "d"} <= set(person.pressed)
    ncclean.select(
        [str(run / "scores.parquet")], str(tmp_path / "mended.parquet"),
        method="noise-probability", decisions=[str(out)],
    )  # fmt: skip
    back = tmp_path / "mended"
    ncclean.export(str(tmp_path / "mended.parquet"), str(back), shards=[str(source)], layout="auto")
    with (back / "metadata.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    keys = [row["file_name"].removesuffix(".jpg") for row in rows]
    left = [key for key, row in zip(keys, rows, strict=True) if row["text"] != right[key]]
    assert len(rows) > 440
    assert left == []
    assert all(row["camera"] == f"camera {key[-1]}" for key, row in zip(keys, rows, strict=True))
    assert all((back / row["file_name"]).read_bytes() == (source / row["file_name"]).read_bytes()
               for row in rows)  # fmt: skip
    ncclean.score([str(back)], str(tmp_path / "again.parquet"), **MODEL)
    again = pq.read_table(tmp_path / "again.parquet").to_pydict()
    assert sum(again["noise_probability"]) / len(rows) < 0.01
    assert max(again["noise_probability"]) < 0.5
