"""`ncclean review` of a million pairs over tars, in Chromium: first view, scrolls, jumps, memory.

    python tests/benchmarks speed.review --record docs/records/review-speed.json

A time begins with the address, or the key, and ends when every picture in the window is there. The
tars were never opened before, and are not in the system's cache of files. The same over HTTP from a
server of byte ranges on this machine that waits before each answer.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from corpora import jpeg, write_shard
from PIL import Image
from records import ROOT, Row, benchmark
from werkzeug.exceptions import NotFound
from werkzeug.serving import make_server
from werkzeug.utils import send_file

from ncclean.base import schema
from ncclean.data.member_samples import hashed_uid
from ncclean.data.reader import read_samples
from ncclean.data.shards import resolve_shards
from ncclean.storage.parts import table_writer
from tests.report.browser import chromium
from tests.reviewing.served import served

_JPEGS = 64
_LINKS = 5  # names of each tar
_STEPS = 20  # scrolls and jumps
# When all that the window shows is there: the time, and how many pictures that is.
_THERE = """
const [begin, done] = arguments, started = performance.now();
const look = () => {
  const box = document.getElementById('grid').getBoundingClientRect();
  const cards = [...document.querySelectorAll('.card')].filter(c => {
    const r = c.getBoundingClientRect(); return r.bottom > box.top && r.top < box.bottom; });
  const images = cards.map(c => c.querySelector('img'));
  const there = images.filter(i => i && i.complete && i.naturalWidth).length;
  const now = performance.now();
  if (there && there === images.length) done([(now - (begin || 0)) / 1000, there, cards.length]);
  else if (now - started > 60000) done([60, there, cards.length]);
  else setTimeout(look, 10);
};
look();
"""


def measured(
    shards: int = 100, pairs_of_shard: int = 10_000, store_shards: int = 100, delay: float = 0.05,
    scratch: Path | None = None,
) -> Iterator[Row]:  # fmt: skip
    """A row for each source; `delay` is in seconds before each answer of the store."""
    with tempfile.TemporaryDirectory(prefix="ncclean-review-", dir=scratch) as name:
        folder = Path(name)
        size = write_tars(folder / "shards", shards, pairs_of_shard)
        scores = write_table(folder, shards, pairs_of_shard)
        cold(folder / "shards")
        yield {"source": "tars on a disk", **review(folder, scores, folder / "shards")}
        with in_store(folder / "shards", store_shards, delay) as url:
            found = review(folder, scores, url, "--where", f"shard < '{store_shards:05d}'")
        yield {"source": f"HTTP, {delay * 1000:.0f} ms an answer", **found}
    return {"settings": {
        "pairs": shards * pairs_of_shard, "shards": shards, "bytes": size,
        "store_shards": store_shards, "delay": delay, "steps": _STEPS,
    }}  # fmt: skip


def review(folder: Path, scores: Path, shards: object, *more: str) -> dict[str, Any]:
    """A review in Chromium from its start: seconds, pictures, and the server's memory."""
    out = folder / f"run-{time.time_ns()}" / "decisions.parquet"
    out.parent.mkdir()
    begin = time.perf_counter()
    with served(scores, "--shards", shards, "--out", out, *more) as running, chromium() as driver:
        listens = time.perf_counter() - begin
        driver.set_script_timeout(120)
        driver.get(running.url)
        first, pictures, cards = driver.execute_async_script(_THERE, None)
        scrolls = [
            there(driver, "grid.scrollTop += grid.clientHeight; fill();") for _ in range(_STEPS)
        ]
        driver.execute_script(
            "document.getElementById('view').value = 'all'; request.view = 'all';"
            "request.score = 'noise_probability';"
        )
        total = driver.execute_async_script(
            "const done = arguments[0]; Promise.resolve(open(0)).then(() => done(total))"
        )
        there(driver, "")
        draw = random.Random(0)
        jumps = [there(driver, f"await open({draw.randrange(total)}, 0);") for _ in range(_STEPS)]
        memory = peak_mb(running.process.pid)
        running.end()
    shutil.rmtree(out.parent)
    return {
        "pairs": total, "seconds_until_it_listens": round(listens, 2),
        "first_view": round(first, 3), "pictures_of_first_view": pictures,
        "cards_of_first_view": cards, **spread("scroll", scrolls), **spread("jump", jumps),
        "peak_mb": memory,
    }  # fmt: skip


def there(driver: Any, script: str) -> float:
    """Seconds from a step to all pictures that it brings into the window."""
    begin = driver.execute_async_script(
        f"const done = arguments[0]; (async () => {{ const begin = performance.now(); {script}"
        "requestAnimationFrame(() => requestAnimationFrame(() => done(begin))); })()"
    )
    return float(driver.execute_async_script(_THERE, begin)[0])


def spread(name: str, seconds: list[float]) -> dict[str, float]:
    return {
        f"{name}_median": round(statistics.median(seconds), 3),
        f"{name}_worst": round(max(seconds), 3),
    }


def peak_mb(pid: int) -> int:
    """The most that the server has held in memory, files that it maps included."""
    status = Path(f"/proc/{pid}/status").read_text()
    return round(int(status.partition("VmHWM:")[2].split()[0]) / 1000)


@functools.cache
def places(tar: Path) -> dict[str, pa.Array]:
    """The columns that say where the samples of a tar lie."""
    [shard] = resolve_shards([str(tar)])
    columns = zip(*(sample.place for sample in read_samples(shard)), strict=True)
    return {
        name: pa.array(values, schema.SCORES.field(name).type)
        for name, values in zip(schema.PLACE_COLUMNS, columns, strict=True)
    }


def write_table(folder: Path, shards: int, pairs: int, has_tars: bool = True) -> Path:
    """A score table in the order of the shards; a tenth of the pairs is mismatched."""
    path, rng = folder / "scores.parquet", np.random.default_rng(0)
    floats = [field.name for field in schema.SCORES if field.type == pa.float32()]
    kinds = -(-shards // _LINKS)
    with table_writer(path, schema.SCORES) as writer:
        for number in range(shards):
            noise = np.where(rng.random(pairs) < 0.1, 1, 0) * 0.5 + 0.49 * rng.random(pairs)
            shard = f"{number:05d}"
            columns: dict[str, Any] = {field.name: pa.nulls(pairs, field.type)
                                       for field in schema.SCORES}  # fmt: skip
            columns |= {name: pa.array(rng.random(pairs), pa.float32()) for name in floats}
            if has_tars:
                columns |= places(folder / "shards" / f"{number % kinds:05d}.tar")
            columns |= {
                "uid": [hashed_uid(shard, key_of(row)) for row in range(pairs)],
                "shard": [shard] * pairs,
                "key": [key_of(row) for row in range(pairs)],
                "row": pa.array(np.arange(pairs), pa.int32()),
                "caption_number": pa.array(np.zeros(pairs), pa.int16()),
                "text": [caption_of(shard, row) for row in range(pairs)],
                "status": ["ok"] * pairs,
                "noise_probability": pa.array(noise, pa.float32()),
                "similarity": pa.array(0.4 - 0.3 * noise, pa.float32()),
            }
            writer.write_table(pa.table(columns, schema=schema.SCORES))
    return path


def key_of(row: int) -> str:
    return f"{row:09d}"


def caption_of(shard: str, row: int) -> str:
    return f"a caption of some forty characters, {shard} {row}"


def write_tars(folder: Path, shards: int, pairs: int) -> int:
    """Tars of 256 pixel JPEGs with captions; a fifth of them, each linked under five names."""
    rng = np.random.default_rng(0)
    noise = (rng.integers(0, 256, (32, 32, 3), np.uint8) for _ in range(_JPEGS))
    jpegs = [jpeg(Image.fromarray(pixels).resize((256, 256)), 75) for pixels in noise]
    kinds = -(-shards // _LINKS)
    for number in range(kinds):
        samples = (
            (
                key_of(row),
                {"jpg": jpegs[(number + row) % _JPEGS], "txt": caption_of("", row).encode()},
            )
            for row in range(pairs)
        )
        write_shard(folder / f"{number:05d}.tar", samples)
    for number in range(kinds, shards):
        (folder / f"{number:05d}.tar").hardlink_to(folder / f"{number % kinds:05d}.tar")
    return sum(path.stat().st_size for path in folder.glob("*.tar"))


def cold(folder: Path) -> None:
    """Take the files out of the system's cache."""
    for path in folder.glob("*.tar"):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def in_store(folder: Path, shards: int, delay: float) -> Iterator[str]:
    """The tars of a folder over HTTP, `delay` seconds before each answer, in any byte range."""

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        time.sleep(delay)
        path = folder / Path(environ["PATH_INFO"]).name
        if not path.is_file():  # HTTP does not list folders
            return NotFound()(environ, start_response)
        return send_file(path, environ)(environ, start_response)

    server = make_server("127.0.0.1", 0, answer, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/{{00000..{shards - 1:05d}}}.tar"
    server.shutdown()


if __name__ == "__main__":
    os.chdir(ROOT)
    benchmark(measured)
