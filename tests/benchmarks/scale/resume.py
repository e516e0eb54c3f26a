"""How long a run of many shards in an object store takes to go on, and to write its table.

    python tests/benchmarks scale.resume --json resume.json

The parts of a run lie in a store that keeps objects in memory and waits before each answer. It
speaks as much of S3 as is asked of it, faster than moto, which computes as long as it waits.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from xml.sax.saxutils import escape

import pyarrow as pa
from aiohttp import web
from records import Row, benchmark
from upath import UPath

from ncclean.base import stores
from ncclean.data.shards import ShardRef
from ncclean.storage.calibration import calibrate
from ncclean.storage.finalize import finalize
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.parts import write_part
from ncclean.storage.score_run import RunIdentity, ScoreRun
from ncclean.storage.shard_records import ShardRecord
from tests.storage.scored_runs import result

_PAGE = 1000
_BUCKET = "/out/"


class Store:
    """Objects by key, and how many requests of each kind there were."""

    def __init__(self, objects: dict[str, bytes], delay: float) -> None:
        self.objects, self.delay = objects, delay
        self.requests: Counter[str] = Counter()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/requests":
            counts, self.requests = self.requests, Counter()
            return web.json_response(counts)
        self.requests[request.method] += 1
        await asyncio.sleep(self.delay)
        key = request.path.removeprefix(_BUCKET)
        if "list-type" in request.query:
            return self._listing(request.query)
        if request.method == "PUT":
            self.objects[key] = await request.read()
            return web.Response(headers={"ETag": '"e"'})
        if request.method == "POST":
            text = (await request.read()).decode()
            for piece in text.split("<Key>")[1:]:
                self.objects.pop(piece.partition("</Key>")[0], None)
            return web.Response(text="<DeleteResult/>", content_type="application/xml")
        if request.method == "DELETE":
            self.objects.pop(key, None)
            return web.Response(status=204)
        data = self.objects.get(key)
        if data is None:
            code = "<Error><Code>NoSuchKey</Code><Message>none</Message></Error>"
            return web.Response(status=404, text=code, content_type="application/xml")
        headers = {"ETag": '"e"', "Last-Modified": "Wed, 25 Nov 2026 00:00:00 GMT"}
        wanted = request.headers.get("Range", "bytes=0-").removeprefix("bytes=")
        begin, _, end = wanted.partition("-")
        first = int(begin) if begin else max(len(data) - int(end), 0)
        last = int(end) + 1 if begin and end else len(data)
        return web.Response(body=data[first:last], headers=headers)

    def _listing(self, query: web.MultiMapping) -> web.Response:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token", "")
        found: dict[str, int | None] = {}
        for key in sorted(key for key in self.objects if key.startswith(prefix)):
            name, slash, _ = key[len(prefix) :].partition(delimiter or "\0")
            shown, size = prefix + name + slash, None if slash else len(self.objects[key])
            if shown > after:
                found.setdefault(shown, size)
        page = list(found.items())[:_PAGE]
        items = "".join(
            f"<CommonPrefixes><Prefix>{escape(key)}</Prefix></CommonPrefixes>"
            if size is None
            else f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size><ETag>e</ETag>"
            "<LastModified>2026-11-25T00:00:00Z</LastModified></Contents>"
            for key, size in page
        )
        more, token = len(found) > len(page), ""
        if more:
            token = f"<NextContinuationToken>{escape(page[-1][0])}</NextContinuationToken>"
        text = (
            f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>"
            f"{token}{items}</ListBucketResult>"
        )
        return web.Response(text=text, content_type="application/xml")


def serve(objects: dict[str, bytes], delay: float, port: int) -> None:
    """Answer until the process is ended."""
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", Store(objects, delay).answer)
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


def resume(shards: int = 30_000, delay: float = 0.02, port: int = 9123) -> Iterator[Row]:
    """A row for each step; `delay` is in seconds before each answer."""
    objects, identity = _run(shards)
    process = multiprocessing.Process(target=serve, args=(objects, delay, port))
    process.start()
    url = f"http://127.0.0.1:{port}"
    os.environ |= {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    time.sleep(3)
    layout = ScoreLayout(stores.location("s3://out/scores"))
    try:
        for step in ("go on from parts", "go on from the table"):
            begin = time.perf_counter()
            run = ScoreRun.open(layout, identity)
            yield _timed(step, begin, url)
            begin = time.perf_counter()
            finalize(run, calibrate(run, 0.2))
            yield _timed(f"{step}: write the table", begin, url)
            run.close()
    finally:
        process.kill()


def _timed(step: str, begin: float, url: str) -> Row:
    seconds = time.perf_counter() - begin
    with urllib.request.urlopen(f"{url}/requests") as answer:
        return {"step": step, "seconds": seconds, "requests": json.load(answer)}


def _run(shards: int) -> tuple[dict[str, bytes], RunIdentity]:
    """The objects of a run all of whose parts are in place, and its identity."""
    refs = [ShardRef(f"{n:05d}", f"s3://corpus/{n:05d}.tar", 10, "v1") for n in range(shards)]
    table, stats, distributions = result("aaa")
    place = table.schema.get_field_index("shard")
    model = {"model": "demo", "scale": "20.0"}
    identity = RunIdentity(model, {"seed": 0, "embeddings": None}, refs, "9")
    with tempfile.TemporaryDirectory() as folder:
        layout = ScoreLayout(UPath(folder) / "scores")
        ScoreRun.open(layout, identity).close()
        begun = {path.name: path.read_bytes() for path in layout.work.iterdir()}
        objects = {f"scores/.ncclean/{name}": data for name, data in begun.items()}
        part = UPath(folder) / "part.parquet"
        for ref in refs:
            names = pa.array([ref.name] * len(table))
            record = ShardRecord(ref.name, ref.size, ref.version, stats, distributions)
            write_part(part, table.set_column(place, "shard", names), record)
            objects[f"scores/.ncclean/{ref.part_name}"] = part.read_bytes()
    return objects, identity


if __name__ == "__main__":
    benchmark(resume)
