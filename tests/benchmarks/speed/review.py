"""`ncclean review` of a million pairs over tars, in Chromium: first view, scrolls, jumps, memory.

    python tests/benchmarks speed.review --record docs/records/review-speed.json

A time begins with the address, or the key, and ends when every picture in the window is there. The
tars were never opened before, and are not in the system's cache of files. The same over HTTP from a
server of byte ranges on this machine that waits before each answer; and, last, proposals from
embeddings.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import os
import random
import shutil
import statistics
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from neighbours.memory import Watch
from records import ROOT, make_record, write_record

from ncclean.base import schema
from ncclean.data.member_samples import hashed_uid
from ncclean.data.reader import read_samples
from ncclean.data.shards import resolve_shards
from ncclean.storage.parts import table_writer
from tests.report.browser import chromium
from tests.reviewing.served import Served, served

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shards", type=int, default=100)
    parser.add_argument("--pairs-of-shard", type=int, default=10_000)
    parser.add_argument("--store-shards", type=int, default=100)
    parser.add_argument("--delay", type=float, default=0.05, help="seconds before each answer")
    parser.add_argument("--dim", type=int, default=512, help="of the embeddings")
    parser.add_argument("--scratch", type=Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--record", type=Path, help="write a record")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="ncclean-review-", dir=args.scratch) as name:
        folder = Path(name)
        size = write_tars(folder / "shards", args.shards, args.pairs_of_shard)
        scores = write_table(folder, args.shards, args.pairs_of_shard)
        cold(folder / "shards")
        rows.append({"source": "tars on a disk", **review(folder, scores, folder / "shards")})
        print(rows[-1], flush=True)
        with in_store(folder / "shards", args.store_shards, args.delay) as url:
            last = f"{args.store_shards:05d}"
            found = review(folder, scores, url, "--where", f"shard < '{last}'")
            rows.append({"source": f"HTTP, {args.delay * 1000:.0f} ms an answer", **found})
        print(rows[-1], flush=True)
        shutil.rmtree(folder / "shards")
        write_embeddings(folder / "embeddings", args.shards, args.pairs_of_shard, args.dim)
        rows.append({"source": "proposals", **proposals(folder, scores)})
        print(rows[-1], flush=True)
    if args.record is not None:
        settings = {
            "pairs": args.shards * args.pairs_of_shard, "shards": args.shards, "bytes": size,
            "store_shards": args.store_shards, "delay": args.delay, "dim": args.dim,
            "steps": _STEPS,
        }  # fmt: skip
        write_record(args.record, make_record(rows, settings=settings))


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


def proposals(folder: Path, scores: Path) -> dict[str, Any]:
    """Seconds until the captions are indexed, and until those of one pair are there."""
    out = folder / "proposals.parquet"
    with served(scores, "--embeddings", folder / "embeddings", "--out", out) as running:
        cards = running.get("rows", view="all", start=1000, count=_STEPS)["cards"]
        building = Watch(running.process.pid)
        begin = time.perf_counter()
        while proposed(running, cards[0]).get("isWaiting"):
            time.sleep(0.2)
        built = time.perf_counter() - begin
        watch, seconds = Watch(running.process.pid), []
        for card in cards:
            begin = time.perf_counter()
            answer = proposed(running, card)
            seconds.append(time.perf_counter() - begin)
            assert len(answer["captions"]) == 5, answer
        memory = peak_mb(running.process.pid)
        running.end()
    index = sum(file.stat().st_size for file in (folder / ".ncclean").glob("captions-*/*"))
    return {
        "indexing_mb": round(building.driver), "searching_mb": round(watch.driver),
        "index_seconds": round(built, 1), "index_bytes": index, **spread("proposals", seconds),
        "peak_mb": memory,
    }  # fmt: skip


def proposed(running: Served, card: dict[str, Any]) -> Any:
    return running.post("proposals", uid=card["uid"], text=card["text"])


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


def write_table(folder: Path, shards: int, pairs: int) -> Path:
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
            columns |= places(folder / "shards" / f"{number % kinds:05d}.tar")
            columns |= {
                "uid": [hashed_uid(shard, _key(row)) for row in range(pairs)],
                "shard": [shard] * pairs,
                "key": [_key(row) for row in range(pairs)],
                "row": pa.array(np.arange(pairs), pa.int32()),
                "caption_number": pa.array(np.zeros(pairs), pa.int16()),
                "text": [f"a caption of some forty characters, {shard} {n}" for n in range(pairs)],
                "status": ["ok"] * pairs,
                "noise_probability": pa.array(noise, pa.float32()),
                "similarity": pa.array(0.4 - 0.3 * noise, pa.float32()),
            }
            writer.write_table(pa.table(columns, schema=schema.SCORES))
    return path


def _key(row: int) -> str:
    return f"{row:09d}"


def write_tars(folder: Path, shards: int, pairs: int) -> int:
    """Tars of 256 pixel JPEGs with captions; a fifth of them, each linked under five names."""
    from PIL import Image

    folder.mkdir()
    rng, jpegs = np.random.default_rng(0), []
    for _ in range(_JPEGS):
        small = Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8))
        buffer = io.BytesIO()
        small.resize((256, 256)).save(buffer, "JPEG", quality=75)
        jpegs.append(buffer.getvalue())
    kinds = -(-shards // _LINKS)
    for number in range(shards):
        path = folder / f"{number:05d}.tar"
        if number >= kinds:
            path.hardlink_to(folder / f"{number % kinds:05d}.tar")
            continue
        with tarfile.open(path, "w") as tar:
            for row in range(pairs):
                caption = f"a caption of some forty characters, {row}".encode()
                for ending, data in (("jpg", jpegs[(number + row) % _JPEGS]), ("txt", caption)):
                    member = tarfile.TarInfo(f"{_key(row)}.{ending}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
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

    class Ranges(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            time.sleep(delay)
            path = folder / Path(self.path).name
            if not path.is_file():  # HTTP does not list folders
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            size = path.stat().st_size
            asked = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
            begin, end = int(asked[0] or 0), min(int(asked[2] or size - 1), size - 1)
            self.send_response(206 if asked[1] else 200)
            self.send_header("Content-Range", f"bytes {begin}-{end}/{size}")
            self.send_header("Content-Length", str(end + 1 - begin))
            self.send_header("Accept-Ranges", "bytes")
            self.end_headers()
            if self.command == "GET":
                with open(path, "rb") as file:
                    self.wfile.write(os.pread(file.fileno(), end + 1 - begin, begin))

        def log_message(self, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Ranges)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/{{00000..{shards - 1:05d}}}.tar"
    server.shutdown()


def write_embeddings(folder: Path, shards: int, pairs: int, dim: int) -> None:
    """As clip-retrieval writes them, a file for ten shards."""
    rng = np.random.default_rng(0)
    for name in ("img_emb", "text_emb", "metadata"):
        (folder / name).mkdir(parents=True)
    for number, first in enumerate(range(0, shards, 10)):
        names = [f"{shard:05d}" for shard in range(first, min(first + 10, shards))]
        image = rng.standard_normal((len(names) * pairs, dim), dtype=np.float32)
        text = image + 2 * rng.standard_normal(image.shape, dtype=np.float32)
        for kind, vectors in (("img_emb", image), ("text_emb", text)):
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            np.save(folder / kind / f"{kind}_{number}.npy", vectors.astype(np.float16))
        places = [(shard, row) for shard in names for row in range(pairs)]
        facts = {
            "uid": [hashed_uid(shard, _key(row)) for shard, row in places],
            "caption": [f"a caption of some forty characters, {s} {n}" for s, n in places],
        }
        pq.write_table(pa.table(facts), folder / "metadata" / f"metadata_{number}.parquet")


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
