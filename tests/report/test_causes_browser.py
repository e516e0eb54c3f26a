"""The section of causes in a browser: a person sees what is wrong, how much of it, and what to do.

`REPORT_SCREENSHOTS=FOLDER` keeps what the section looks like.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from ncclean_pipelines.explain import Explain
from ncclean_pipelines.report import Report
from PIL import Image

import ncclean
from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_pairs
from ncclean.data.synthetic import CorpusOptions, write_corpus
from tests.hostile import tar_bytes
from tests.report.browser import chromium, needs_chromium

pytestmark = [needs_chromium, pytest.mark.slow]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A report: the captions of a shard are shifted, 150 wrong ones have a phrase."""
    folder = tmp_path_factory.mktemp("causes")
    options = CorpusOptions(pairs=1500, shard_size=300, noise={"ncr": 0.05}, duplicates=0, seed=4)
    write_corpus(folder / "rendered", options, 1)
    samples = [
        one for shard in resolve_pairs([str(folder / "rendered")]) for one in read_samples(shard)
    ]
    captions = np.array([sample.caption for sample in samples], object)
    captions[300:600] = np.roll(captions[300:600], 1)
    chosen = np.random.default_rng(0).permutation(np.arange(600, 1500))[:150]
    captions[chosen] = [f"As seen on {caption}" for caption in np.roll(captions[chosen], 1)]
    (folder / "shards").mkdir()
    for first in range(0, 1500, 300):
        members = []
        for sample, caption in zip(samples[first:][:300], captions[first:], strict=False):
            members += [
                (f"{sample.key}.jpg", sample.image),
                (f"{sample.key}.txt", caption.encode()),
            ]
        (folder / "shards" / f"{first // 300:05d}.tar").write_bytes(tar_bytes(members))
    scores, causes = str(folder / "scores.parquet"), str(folder / "causes.parquet")
    ncclean.score(
        str(folder / "shards"), scores, model="demo", precision="fp32", words=True,
        embeddings=str(folder / "embeddings"),
    )  # fmt: skip
    Explain(scores=[scores], out=causes, embeddings=[str(folder / "embeddings")]).run()
    out = folder / "report.html"
    Report(scores=[scores], out=str(out), shards=[str(folder / "shards")], causes=causes).run()
    return out


@pytest.fixture(scope="module")
def driver(page):
    with chromium() as opened:
        opened.get(page.as_uri())
        yield opened


def shot(driver, name, folder):
    """Save what the window shows, and return its size."""
    path = os.path.join(os.environ.get("REPORT_SCREENSHOTS", str(folder)), f"{name}.png")
    driver.save_screenshot(path)
    with Image.open(path) as image:
        return image.size


def test_the_first_screen_of_the_section_says_it_all(driver, tmp_path):
    """At 1280 x 900: all causes, the share of the first, what to do, and pictures with captions."""
    driver.find_element("css selector", "a[href='#causes']").click()
    assert shot(driver, "causes", tmp_path) == (1280, 900)
    seen = driver.execute_script(
        "const inside = e => { const r = e.getBoundingClientRect();"
        " return r.top >= 0 && r.bottom <= innerHeight && r.width > 0 };"
        "const all = s => [...document.querySelectorAll('#causes ' + s)].filter(inside);"
        "return {titles: all('.cause h3').map(e => e.innerText),"
        " claims: all('.claim').map(e => e.innerText),"
        " proposals: all('.proposal').map(e => e.innerText),"
        " overview: all('.overview tbody tr').map(e => e.innerText),"
        " pictures: all('.cause img').filter(e => e.naturalWidth).length}"
    )
    assert ["Shard 00001" in seen["overview"][0], "as seen" in seen["overview"][1]] == [True] * 2
    assert "Shard 00001" in seen["titles"][0]
    assert "are mismatched" in seen["claims"][0]
    assert "shifted by +1" in seen["proposals"][0]
    assert seen["pictures"] >= 3
    for clipped in driver.find_elements("css selector", ".cause h3, .cause .claim, .cause pre"):
        overflow = driver.execute_script(
            "return arguments[0].scrollWidth - arguments[0].clientWidth", clipped
        )
        assert overflow <= 0
