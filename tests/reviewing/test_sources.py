"""A review over each kind of source: every picture is that of its own pair."""

from __future__ import annotations

import gzip
import shutil

import pytest
from ncclean_pipelines.score import Score

from ncclean.report.thumbnails import LARGE_SIZES, encode_webp
from tests import hostile, object_store
from tests.data.image_layouts import LAYOUTS
from tests.reviewing.served import served

pytestmark = pytest.mark.slow

PAIRS = [
    (f"{n:03d}", hostile.encoded(hostile.photo(seed=n)), f"caption {n}") for n in range(40)
]  # fmt: skip
PICTURES = {caption: encode_webp(image, 60_000, LARGE_SIZES[2:])[0] for _, image, caption in PAIRS}


def scored(source, folder):
    scores = folder / "scores.parquet"
    Score(shards=[str(source)], out=str(scores), model="demo", precision="fp32", shift=0.2).run()
    return scores


def pictures(source, folder):
    """The picture of each caption, all asked for as a page does, in the order of the view."""
    with served(scored(source, folder), "--shards", source, "--out", folder / "d.parquet") as page:
        cards = page.get("rows", view="all", count=60)["cards"]
        shown = {}
        for card in cards:
            status, shown[card["text"]] = page.ask(
                f"picture?shard={card['shard'].replace('/', '%2F')}&key={card['key']}"
            )
            assert status == 200, shown
        return shown


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(tmp_path, layout):
    source = LAYOUTS[layout](PAIRS, tmp_path / "source")
    assert pictures(source, tmp_path) == PICTURES


def test_a_compressed_tar(tmp_path):
    folder = LAYOUTS["tar"](PAIRS, tmp_path / "source")
    (folder / "c.tar.gz").write_bytes(gzip.compress((folder / "c.tar").read_bytes()))
    (folder / "c.tar").unlink()
    assert pictures(folder, tmp_path) == PICTURES


@pytest.mark.parametrize("layout", ["tar", "Hugging Face", "imagefolder"])
def test_a_store(tmp_path, layout):
    source = LAYOUTS[layout](PAIRS, tmp_path / "source")
    with object_store.s3() as store:
        if layout == "imagefolder":
            object_store.upload(source / "c", "s3://corpus/c")
        else:
            object_store.upload(source, "s3://corpus/c")
        shutil.rmtree(source)
        store.delay = 0.02
        assert pictures("s3://corpus/c", tmp_path) == PICTURES
