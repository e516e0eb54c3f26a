"""What an export reads of a shard in an object store: whole, header by header, or by an index.

    python tests/benchmarks scale.ranged_reads --json ranged-reads.json

A shard of samples as img2dataset writes them lies in moto's S3 server on this machine, which waits
before it answers each request, as a store does. It is read whole, as `export` does; header by
header, a range for each sample, to learn which ranges hold the selected samples; or those ranges
alone, side by side, as if an index had told them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from records import ROOT, make_record, write_record
from speed.export import write_shard

sys.path.insert(0, str(ROOT))


from ncclean.base import stores
from ncclean.data.samples import Sample
from ncclean.data.shards import ShardRef, resolve_shards
from ncclean.data.tar import LocatedSamples
from ncclean.data.tar_members import BLOCK, ordinary_header
from tests import object_store

_URL = "s3://corpus/shard.tar"
_SHARES = (0.05, 0.2, 0.8)
_AT_A_TIME = 32
_HEAD = 4096  # read at a header: the small members behind an image come with it
_BLOCK_BYTES = 8 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--image-bytes", type=int, default=25_000)
    parser.add_argument("--delay", type=float, default=0.02, help="seconds before each answer")
    parser.add_argument("--json", type=Path, help="write a record")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ncclean-") as name, object_store.s3() as store:
        shard = Path(name) / "shard.tar"
        write_shard(shard, 0, args.samples, args.image_bytes)
        object_store.filesystem().put_file(str(shard), "corpus/shard.tar")
        store.delay = args.delay
        rng = np.random.default_rng(0)
        order = rng.random(args.samples)
        every = [(min(begins), max(ends)) for begins, ends in map(_bounds, _located(shard))]
        ways: list[tuple[str, float | None, Callable[[], int]]] = [
            ("whole", None, lambda: _whole(shard.stat().st_size)),
            ("header by header", None, lambda: _headers(shard.stat().st_size)),
        ]
        for share in _SHARES:
            kept = [place for place, draw in zip(every, order, strict=True) if draw < share]
            ways.append(("ranges of an index", share, lambda kept=kept: _ranges(kept)))
        rows = []
        for way, kept_share, read in ways:
            store.requests.clear()
            begin = time.perf_counter()
            size = read()
            rows.append({
                "way": way, "kept": kept_share, "bytes": size, "requests": len(store.requests),
                "seconds": round(time.perf_counter() - begin, 2),
            })  # fmt: skip
            print(rows[-1], flush=True)
    if args.json is not None:
        settings = {name: getattr(args, name) for name in ("samples", "image_bytes", "delay")}
        settings |= {"shard_bytes": rows[0]["bytes"], "at_a_time": _AT_A_TIME}
        write_record(args.json, make_record(rows, settings=settings))


def _located(shard: Path) -> list[Sample]:
    return list(LocatedSamples(resolve_shards([str(shard)])[0]))


def _bounds(sample) -> tuple[list[int], list[int]]:  # type: ignore[no-untyped-def]
    begins, ends = zip(*((one.begin, one.end) for one in sample.members.values()), strict=True)
    return list(begins), list(ends)


def _whole(size: int) -> int:
    """As `export` copies it: block by block, the next one on its way."""
    read = 0
    with ShardRef("shard", _URL, size, "").open() as stream:
        while data := stream.read(_BLOCK_BYTES):
            read += len(data)
    return read


def _headers(size: int) -> int:
    """Where each sample lies: one range after the other, since each tells where the next begins."""
    position = read = 0
    while position + BLOCK <= size:
        head = stores.read_range(_URL, position, min(position + _HEAD, size))
        read += len(head)
        base, is_end = position, False
        while position - base + BLOCK <= len(head):
            ordinary = ordinary_header(head[position - base : position - base + BLOCK])
            if ordinary is None:
                is_end = True
                break
            position += BLOCK + ordinary[1] + -ordinary[1] % BLOCK
        if is_end:
            break
    return read


def _ranges(places: Sequence[tuple[int, int]]) -> int:
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        return sum(pool.map(lambda place: len(stores.read_range(_URL, *place)), places))


if __name__ == "__main__":
    main()
