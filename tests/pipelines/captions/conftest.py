"""A corpus with several captions of each image: its pairs, its scores and a selection."""

import pyarrow.parquet as pq
import pytest

import ncclean
from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_pairs
from tests.pipelines.captions.sources import score, write_tar


@pytest.fixture(scope="module")
def pairs(corpus):
    """Key, image, alternative text and recaptions; those of every fifth are missing."""
    samples = [
        sample
        for shard in resolve_pairs([str(corpus)])
        for sample in read_samples(shard)
        if not sample.metadata["broken"]
    ][:60]
    texts = [sample.caption for sample in samples]
    return [
        (f"{number:05d}", sample.image, texts[number], [] if number % 5 == 0 else
         [texts[number - 1], f"a picture of {texts[number]}"])
        for number, sample in enumerate(samples)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def scored(pairs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("captions")
    write_tar(pairs, folder / "source")
    score(folder / "source", folder / "s.parquet", embeddings=str(folder / "embeddings"),
          block_size=60)  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def table(scored):
    return pq.read_table(scored / "s.parquet")


@pytest.fixture(scope="module")
def selection(scored):
    """All captions but those of every third image."""
    out = scored / "selection.parquet"
    ncclean.select(str(scored / "s.parquet"), str(out), where="key::INT % 3 > 0")
    return out
