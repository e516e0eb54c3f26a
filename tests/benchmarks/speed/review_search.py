"""Searches of `ncclean review` over the embeddings of a million pairs: seconds, and memory.

    python tests/benchmarks speed.review_search --record docs/records/review-search.json

Of each search, the time is that until the first rows are there: every cosine, and the whole order
of all pairs or of the suspects. Before the first, the files of the embeddings are taken out of the
system's cache; the first words load a ViT-B/32.
"""

from __future__ import annotations

import functools
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from corpora import unit, write_embeddings
from process import Memory
from records import ROOT, Row, benchmark

from ncclean.data.member_samples import hashed_uid
from ncclean.models.estimator import Estimator
from ncclean.models.request import write_model
from speed.review import caption_of, key_of, peak_mb, spread, write_table
from tests.reviewing.served import Served, served

_SHARDS_OF_FILE = 10
_SEARCHES = 20
_LOOKED_AT = 2.0  # seconds
_TOLD = 8  # captions by which the review tells that the model is that of the embeddings


def measured(
    shards: int = 100, pairs_of_shard: int = 10_000, model: str = "ViT-B-32",
    scratch: Path | None = None,
) -> Iterator[Row]:  # fmt: skip
    """A row; the model has random weights."""
    with tempfile.TemporaryDirectory(prefix="ncclean-search-", dir=scratch) as name:
        folder = Path(name)
        estimator = Estimator.load(model, random_seed=0, device="cpu", precision="fp32")
        write_model(estimator, folder / "model")
        captions = [caption_of("00000", row) for row in range(_TOLD)]
        told, dim = estimator.encode_text(captions).numpy(), estimator.embed_dim
        del estimator
        scores = write_table(folder, shards, pairs_of_shard, has_tars=False)
        for number, first in enumerate(range(0, shards, _SHARDS_OF_FILE)):
            some = range(first, min(first + _SHARDS_OF_FILE, shards))
            embed(folder / "embeddings", number, some, pairs_of_shard, told)
        cold(folder / "embeddings")
        yield searches(folder, scores)
    return {"settings": {
        "pairs": shards * pairs_of_shard, "dim": dim, "model": model, "searches": _SEARCHES,
    }}  # fmt: skip


def searches(folder: Path, scores: Path) -> Row:
    """Seconds of each kind of search, and what the server and its search held in memory."""
    arguments = ("--embeddings", folder / "embeddings", "--model", folder / "model")
    with served(scores, *arguments, "--out", folder / "d.parquet") as running:
        cards = running.get("rows", view="all", start=1000, count=_SEARCHES)["cards"]
        running.get("rows", view="suspects", count=1)
        first = timed(running.post, "proposals", place=cards[0]["place"])
        [child] = children(running.process.pid)
        closest = [timed(running.post, "proposals", place=card["place"]) for card in cards]
        rows = functools.partial(running.get, "rows", count=60)
        first_words = timed(rows, view="suspects", meaning="a dog")
        before = processor_seconds(running.process.pid, child)
        words = [timed(rows, view="all", meaning=f"{number} dogs") for number in range(_SEARCHES)]
        processor = processor_seconds(running.process.pid, child) - before
        suspects = [
            timed(rows, view="suspects", meaning=f"{number} cats") for number in range(_SEARCHES)
        ]
        like = [timed(rows, view="all", like=card["place"]) for card in cards]
        decisions = deciding(running, cards)
        # Only now: to look at mapped memory holds up who maps it.
        server, search = Memory(running.process.pid), Memory(child)
        time.sleep(_LOOKED_AT)
        row = {
            "first_seconds": round(first, 2), "first_words_seconds": round(first_words, 2),
            **spread("proposals", closest), **spread("words", words),
            "words_processor_seconds": round(processor / _SEARCHES, 3),
            **spread("words_of_suspects", suspects), **spread("like", like),
            **spread("decisions_beside", decisions), "server_mb": round(server.first),
            "search_mb": round(search.first), "server_peak_mb": peak_mb(running.process.pid),
        }  # fmt: skip
        running.end()
    return row


def deciding(running: Served, cards: list[dict[str, Any]]) -> list[float]:
    """Seconds of decisions while words are searched."""
    seconds: list[float] = []
    for number, card in enumerate(cards):
        query = {"view": "all", "count": 60, "meaning": f"{number} birds"}
        search = threading.Thread(target=running.get, args=("rows",), kwargs=query)
        search.start()
        pairs = [[card["uid"], card["number"]]]
        seconds.append(timed(running.post, "decide", decision="keep", pairs=pairs))
        search.join()
    return seconds


def timed(ask: Callable[..., Any], *arguments: str, **fields: Any) -> float:
    begin = time.perf_counter()
    answer = ask(*arguments, **fields)
    seconds = time.perf_counter() - begin
    assert "error" not in answer, answer
    return seconds


def processor_seconds(*pids: int) -> float:
    """Seconds of processors that processes have used."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def cold(folder: Path) -> None:
    """Take the files out of the system's cache."""
    for path in folder.rglob("*.npy"):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def embed(folder: Path, number: int, shards: Iterable[int], pairs: int, told: np.ndarray) -> None:
    """Embeddings of the pairs of some shards, in a file of their own; `told` are the first ones."""
    rng = np.random.default_rng(number)
    rows = [(f"{shard:05d}", row) for shard in shards for row in range(pairs)]
    image = rng.standard_normal((len(rows), told.shape[1]), dtype=np.float32)
    text = image + 2 * rng.standard_normal(image.shape, dtype=np.float32)
    if number == 0:
        text[: len(told)] = told
    facts = {
        "uid": [hashed_uid(shard, key_of(row)) for shard, row in rows],
        "caption": [caption_of(shard, row) for shard, row in rows],
    }
    write_embeddings(folder, unit(image), unit(text), facts, number)


if __name__ == "__main__":
    os.chdir(ROOT)
    benchmark(measured)
