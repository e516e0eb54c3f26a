"""Sources that mean harm, one after the other: what commands make of them, and what it takes."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from reliability_jobs import Running

from tests.attacks import ATTACKS, Attack, tar
from tests.more_attacks import MORE_ATTACKS
from tests.table_attacks import TABLE_ATTACKS

# Beyond what the same command takes for an ordinary source; of a processor, as others use it, too.
MOST_BYTES, MOST_SECONDS = 2 << 30, 10.0
_LONGEST_SECONDS = 300
_POLL_SECONDS = 0.05
_MODEL = "--model demo --precision fp32 --shift 0.2"
# After `score`; FOLDER is the source, OUT the folder to write to.
_COMMANDS = {
    "score": f"score FOLDER --out OUT/s.parquet {_MODEL}",
    "select": "select OUT/s.parquet --out OUT/k.parquet --where true",
    "export": "export OUT/k.parquet --shards FOLDER --out OUT/x --scores OUT/s.parquet --workers 1",
    "report": "report OUT/s.parquet --shards FOLDER --out OUT/r.html --pairs 20",
    "inject-noise": "inject-noise FOLDER --out OUT/i --noise ncr=0.2 --workers 1",
    "finetune": "finetune --shards FOLDER --out OUT/f --method clip --model demo-noisy "
    "--batch-size 4 --steps 1 --precision fp32 --no-tensorboard",
}


def measure(folder: Path, count: int, done: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row for each attack: how every command ended. `count` is how many attacks, the first."""
    usual = run_all(Attack("ordinary", tar(), {"ok": 8}), folder)
    for attack in (*ATTACKS, *TABLE_ATTACKS, *MORE_ATTACKS)[:count]:
        if not any(row["attack"] == attack.name for row in done):
            yield judge(attack, run_all(attack, folder), usual)


def run_all(attack: Attack, folder: Path) -> dict[str, dict[str, Any]]:
    """How each command ended, with the statuses of the rows that `score` wrote."""
    source, out = folder / "source", folder / "out"
    for place in (source, out):
        subprocess.run(["rm", "-rf", str(place)], check=True)  # folders may be nested too deep
        place.mkdir()
    attack.write(source)
    ends: dict[str, dict[str, Any]] = {}
    for name, words in _COMMANDS.items():
        replaced = words.replace("FOLDER", str(source / attack.source)).replace("OUT", str(out))
        ends[name] = _run(replaced.split(), folder / "log")
        table = out / "s.parquet"
        if name == "score":
            statuses = pq.read_table(table, columns=["status"]) if table.exists() else None
            rows = statuses.column(0).to_pylist() if statuses is not None else []
            ends[name]["statuses"] = dict(Counter(rows))
    shutil.rmtree(out)
    subprocess.run(["rm", "-rf", str(source)], check=True)
    return ends


def judge(attack: Attack, ends: dict[str, dict[str, Any]], usual: dict[str, Any]) -> dict[str, Any]:
    """Rows lost, commands that did not end with a sentence, and the most that any of them took."""
    found, expected = Counter(ends["score"].pop("statuses")), Counter(attack.statuses)
    unsaid = [name for name in attack.failed if name not in ends["score"]["said"]]
    problems = [name for name, end in ends.items() if end["code"] not in (0, 1, 2)]
    problems += [name for name, end in ends.items() if _is_no_sentence(end["said"])]
    if not attack.statuses and attack.says not in ends["score"]["said"]:
        unsaid.append(attack.says)
    return {
        "attack": attack.name,
        "rows": expected.total(),
        "lost": (expected - found).total(),
        "others": (found - expected).total(),
        "unsaid": unsaid,
        "problems": sorted(set(problems)),
        "codes": {name: end["code"] for name, end in ends.items()},
        "said": {name: end["said"][-300:] for name, end in ends.items() if end["code"]},
        "megabytes": max((end["bytes"] - usual[name]["bytes"]) >> 20 for name, end in ends.items()),
        "seconds": round(
            max(end["seconds"] - usual[name]["seconds"] for name, end in ends.items()), 1
        ),
    }


def _is_no_sentence(text: str) -> bool:
    return "unexpected" in text.replace("unexpected end of data", "") or "Traceback" in text


def _run(words: list[str], log: Path) -> dict[str, Any]:
    running, most, seconds = Running(words, log), 0, 0.0
    while (code := running.wait(_POLL_SECONDS)) is None:
        size, used = _used(running.group)
        most, seconds = max(most, size), max(seconds, used)
        if time.monotonic() - running.begun > _LONGEST_SECONDS:
            running.kill()
            code = -1
            break
    said = log.read_text("utf-8", "replace")
    return {"code": code, "bytes": most, "seconds": seconds, "said": said}


def _used(group: int) -> tuple[int, float]:
    """Bytes of memory, and seconds of a processor, of the processes of a group that live."""
    pages, ticks = 0, 0
    for place in Path("/proc").glob("[0-9]*"):
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                pages += int((place / "statm").read_text().split()[1])
                ticks += sum(map(int, fields[11:15]))  # with those of children that have ended
        except OSError:  # it has ended
            continue
    return pages * os.sysconf("SC_PAGE_SIZE"), ticks / os.sysconf("SC_CLK_TCK")


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each attack, without what was said."""
    return [{name: value for name, value in row.items() if name != "said"} for row in rows]
