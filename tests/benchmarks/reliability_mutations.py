"""One file of a source changed at random: what becomes of its rows, and of those beside it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from corpora import unit, write_embeddings
from records import Row
from reliability_jobs import summed

from ncclean.data.embeddings.pairs import embedding_dim, read_pairs
from ncclean.data.embeddings.units import vector_keys
from ncclean.data.reader import read_samples
from ncclean.data.samples import Caption, SkipReason
from ncclean.data.shards import ShardRef
from ncclean.data.sources import are_embeddings, resolve_sources
from ncclean.errors import NccleanError, ShardError
from tests.data import test_mutated_sources as generator

_SECONDS = 20  # of one source; more counts as a hang
_BATCH = 500  # mutations a line of the log
_FEWER = {"Lance": 50}  # whose library reads in a process of its own, which takes a second
_PAIRS = 6  # of each of two units
_DIM = 8

Pairs = Sequence[tuple[str, bytes, str]]
Unit = list[tuple[Any, ...]]  # a row each: number, key, status, caption


def measure(folder: Path, count: int, done: list[Row]) -> Iterator[Row]:
    """A row for each few hundred mutations, `count` of them over all sources."""
    with _quiet_and_alarmed():
        for name, write in SOURCES.items():
            mine = sum(row["mutations"] for row in done if row["source"] == name)
            wanted = -(-count // len(SOURCES) // _FEWER.get(name, 1))
            while mine < wanted:
                batch = min(_BATCH, wanted - mine)
                yield mutate(name, write, folder / "source", range(mine, mine + batch))
                mine += batch


def mutate(name: str, write: Callable[[Path], None], folder: Path, numbers: range) -> Row:
    """Mutate files of the first unit of a source, one at a time."""
    shutil.rmtree(folder, ignore_errors=True)
    write(folder)
    captions = ("caption", "recaption") if name == "recaptioned" else None
    whole = read_all(folder, captions)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and _is_first(path, folder))
    tables = [path for path in files if path.suffix != ".jpg"] or files
    counts: Counter[str] = Counter()
    statuses: Counter[str] = Counter()
    problems: list[str] = []
    slowest = 0.0
    for number in numbers:
        rng = random.Random(f"{name} {number}")
        file = rng.choice(tables if rng.random() < 0.8 else files)
        original = file.read_bytes()
        file.write_bytes(generator.mutated(rng, original))
        begin = time.perf_counter()
        signal.alarm(_SECONDS)
        try:
            at_least = _records(file) if file in tables else None
            outcome = judge(whole, read_all(folder, captions), statuses, at_least)
        except _Hang:
            outcome = "hang"
        except NccleanError:
            outcome = "refused"
        except Exception as error:
            outcome = "crash"
            problems.append(f"{number}: {type(error).__name__}: {error}"[:200])
        finally:
            signal.alarm(0)
            slowest = max(slowest, time.perf_counter() - begin)
            file.write_bytes(original)
        if outcome not in ("rows", "failed unit", "refused", "crash"):
            problems.append(f"{number}: {outcome}")
        counts[outcome] += 1
    return {
        "source": name, "mutations": len(numbers), "outcomes": dict(counts),
        "statuses": dict(statuses), "slowest": round(slowest, 3), "problems": problems,
    }  # fmt: skip


def _records(file: Path) -> int | None:
    """How many rows there are in a file now; None for those that tell how many they had."""
    if file.suffix == ".tar":
        return len(set(re.findall(rb"(\d{5})\.(?:jpg|txt)\0", file.read_bytes())))
    if file.suffix == ".json":
        try:
            return sum(len(image["sentences"]) for image in json.loads(file.read_bytes())["images"])
        except (ValueError, KeyError, TypeError):
            return None
    if file.suffix not in (".csv", ".jsonl"):
        return None
    data = file.read_bytes()
    if file.suffix == ".csv" and b'"' in data:  # it may span lines
        return 0
    lines = re.split(rb"\r\n|\r|\n", data)
    if file.suffix == ".csv":
        return sum(line != b"" for line in lines[1:])
    return sum(line.decode("utf-8", "replace").strip() != "" for line in lines)


def judge(
    whole: list[Unit], found: list[Unit], statuses: Counter[str], at_least: int | None = None
) -> str:
    """`rows` or `failed unit` where every row is accounted for, else what is wrong.

    There are `at_least` so many rows in the mutated file, as many as before unless said.
    """
    if not at_least and found == whole[1:]:  # a table without rows has no unit
        return "rows" if at_least == 0 else "a unit is gone"
    if len(found) != 2:
        return "a unit is gone"
    if found[1] != whole[1]:
        return "rows of the other file changed"
    rows = [row for row in found[0] if row[0] is not None]
    has_failed = len(rows) < len(found[0])
    numbers = [(row[0], row[4]) for row in rows]
    images = {row[0] for row in rows}
    if len(set(numbers)) < len(numbers) or images != set(range(len(images))):
        return "row numbers with gaps or twice"
    statuses.update(row[2] for row in rows)
    if has_failed:
        return "failed unit"
    least = _count(whole[0]) if at_least is None else at_least
    if _count(rows) == _count(whole[0]) and all(row[2] == "caption_missing" for row in rows):
        return "rows"  # of a table nothing was left that names a file: the images have no captions
    return "rows" if _count(rows) >= least else "fewer rows without a word"


def _count(rows: Unit) -> int:
    return len({(row[0], row[4]) for row in rows})


def read_all(folder: Path, captions: tuple[str, ...] | None) -> list[Unit]:
    """The rows of each unit as a run takes them in; a row of None is a failure of the unit."""
    named = [*folder.glob("*.lance"), *folder.glob("*.json")]  # each a source itself
    shards = resolve_sources([str(place) for place in sorted(named) or [folder]])
    if are_embeddings(shards):
        return list(_embedded(shards))
    return [_samples(shard, captions) for shard in shards]


def _samples(shard: ShardRef, captions: tuple[str, ...] | None) -> Unit:
    rows: Unit = []
    try:
        for sample in read_samples(shard, captions):
            status = sample.status.value
            if sample.image is not None:
                decoded = generator._DECODER.decode_or_reject(sample.image)
                status = getattr(decoded, "reason", sample.status).value
            for caption in sample.captions or [Caption()]:
                bad = status if caption.status is SkipReason.OK else caption.status.value
                rows.append((sample.row, sample.key, bad, caption.text, caption.number))
    except ShardError as error:
        rows.append((None, str(error)))
    return rows


def _embedded(shards: Sequence[ShardRef]) -> Iterator[Unit]:
    keys = vector_keys(shards, None)
    dim = embedding_dim(shards, keys)
    for shard in shards:
        try:
            pairs = read_pairs(shard, keys, dim=dim)
        except ShardError as error:
            yield [(None, str(error))]
            continue
        if len(pairs.image) != pairs.ok.sum() or len(pairs.text) != pairs.ok.sum():
            raise AssertionError("vectors and pairs differ in number")
        yield [
            (row, facts["key"], "ok" if ok else pairs.problems[row][0].value, facts["text"], 0)
            for row, (facts, ok) in enumerate(zip(pairs.facts.to_pylist(), pairs.ok, strict=True))
        ]


def _is_first(path: Path, folder: Path) -> bool:
    """Whether a file belongs to the first unit."""
    inner = path.relative_to(folder)
    return Path(inner.parts[0]).stem == "0" or path.stem in (
        "0",
        "metadata_000",
        "img_emb_000",
        "text_emb_000",
    )


def _images(layout: str) -> Callable[[Path], None]:
    write = generator.ALL[layout]

    def both(folder: Path) -> None:
        pairs = generator._pairs(2 * _PAIRS)
        for number, some in enumerate((pairs[:_PAIRS], pairs[_PAIRS:])):
            made = write(some, folder / str(number))
            if made.is_file():  # a table of paths: both in one folder
                text = made.read_text("utf-8").replace("images/", f"{number}/images/")
                text = text.replace('"filepath": "images"', f'"filepath": "{number}/images"')
                (folder / f"{number}{made.suffix}").write_text(text, "utf-8")
                made.unlink()
            elif made.suffix == ".lance":
                made.rename(folder / f"{number}.lance")
            elif [path.name for path in made.iterdir()] in (["c.tar"], ["c.parquet"]):
                (file,) = made.iterdir()
                file.rename(folder / f"{number}{file.suffix}")
                made.rmdir()

    return both


def _lines(folder: Path) -> None:
    """JSON lines that name images, beside one another."""
    _images("imagefolder")(folder)
    for number in (0, 1):
        inner = folder / str(number) / "c"
        rows = (inner / "metadata.jsonl").read_text("utf-8")
        named = rows.replace('"file_name": "', f'"path": "{number}/c/')
        (folder / f"{number}.jsonl").write_text(named, "utf-8")
        (inner / "metadata.jsonl").unlink()


def _units(folder: Path, write: Callable[[Path, int, pa.Table, list[np.ndarray]], None]) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in (0, 1):
        names = [f"{number}-{row}" for row in range(_PAIRS)]
        table = pa.table({"uid": names, "key": names, "caption": names})
        sides = [unit(rng.standard_normal((_PAIRS, _DIM), np.float32)) for _ in range(2)]
        write(folder, number, table, sides)


def _clip_retrieval(folder: Path, number: int, table: pa.Table, sides: list[np.ndarray]) -> None:
    write_embeddings(folder, *sides, table, number)


def _datacomp(folder: Path, number: int, table: pa.Table, sides: list[np.ndarray]) -> None:
    pq.write_table(table, folder / f"{number}.parquet")
    np.savez(folder / f"{number}.npz", l14_img=sides[0], l14_txt=sides[1])


def _vectors(folder: Path, number: int, table: pa.Table, sides: list[np.ndarray]) -> None:
    kind = pa.list_(pa.float32(), _DIM)
    for name, side in zip(("image_embedding", "text_embedding"), sides, strict=True):
        table = table.append_column(name, pa.array(side.tolist(), kind))
    pq.write_table(table, folder / f"{number}.parquet", row_group_size=2)


SOURCES: dict[str, Callable[[Path], None]] = {
    "embeddings, clip-retrieval": lambda folder: _units(folder, _clip_retrieval),
    "embeddings, DataComp": lambda folder: _units(folder, _datacomp),
    "embeddings, Parquet": lambda folder: _units(folder, _vectors),
    **{layout: _images(layout) for layout in generator.ALL},
    "json lines of paths": _lines,
}


class _Hang(BaseException):
    pass


def _hang(*_: object) -> None:
    raise _Hang


@contextlib.contextmanager
def _quiet_and_alarmed() -> Iterator[None]:
    """libjpeg writes of every broken image to stderr; a source that takes too long is a hang."""
    before = signal.signal(signal.SIGALRM, _hang)
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
        signal.signal(signal.SIGALRM, before)


def summary(rows: list[Row]) -> list[Row]:
    """A row for each source: how its mutations ended."""
    return summed(
        rows,
        key="source",
        sums=("mutations",),
        outcomes=lambda some: dict(sum((Counter(row["outcomes"]) for row in some), Counter())),
        statuses=lambda some: dict(sum((Counter(row["statuses"]) for row in some), Counter())),
        slowest=lambda some: max(row["slowest"] for row in some),
    )
