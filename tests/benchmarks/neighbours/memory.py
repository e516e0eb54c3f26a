"""Memory of the processes of `ncclean neighbours` at growing corpora, and bytes for each pair.

    python tests/benchmarks neighbours.memory --pairs 250_000 1_000_000 --commit 564bbf5

The embeddings of `neighbours.py`, of few dimensions: the process that runs the search holds what
grows with the number of pairs, not with their vectors. `--commit` measures that version as well.
Anonymous memory is what a process holds; mapped files the system takes back when it needs them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from records import ROOT, make_record, write_record

from neighbours.search import Simulation

_FEW = ("--index", "ivf", "--k", "5", "--recall", "0.5", "--workers", "2")
_EVERY = 0.05  # seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, nargs="+", default=[250_000, 1_000_000])
    parser.add_argument("--dim", type=int, default=96)
    parser.add_argument("--memory-limit", default="1GB")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commit", help="also measure this version")
    parser.add_argument("--most-before", type=int, default=1_000_000, help="pairs that it gets")
    parser.add_argument("--scratch", type=Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--json", type=Path, help="write a record")
    args = parser.parse_args()
    results: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="ncclean-memory-", dir=args.scratch) as name:
        versions = {"this": _linked(ROOT, Path(name) / "this")}
        if args.commit:
            versions[args.commit] = _linked(
                _checked_out(args.commit, Path(name) / "tree"), Path(name) / "before"
            )
        for pairs in args.pairs:
            folder = Path(name) / str(pairs)
            Simulation(pairs, args.dim, args.seed).write(folder / "embeddings")
            for version, packages in versions.items():
                if version == "this" or pairs <= args.most_before:
                    measured = measure(folder, packages, args.memory_limit)
                    results.append({"version": version, "pairs": pairs, **measured})
                    print(results[-1], flush=True)
    slopes = {version: slope(results, version) for version in versions}
    print(slopes)
    if args.json is not None:
        settings = {name: getattr(args, name) for name in ("dim", "memory_limit", "commit")}
        record = make_record(results, settings=settings, seeds=[args.seed], bytes_per_pair=slopes)
        write_record(args.json, record)


def slope(results: list[dict[str, object]], version: str) -> dict[str, float]:
    """Bytes that each further pair takes in the process that runs the search."""
    rows = [row for row in results if row["version"] == version]
    if len(rows) < 2:
        return {}
    pairs = float(rows[-1]["pairs"]) - float(rows[0]["pairs"])  # type: ignore[arg-type]
    return {
        kind: round(1e6 * (float(rows[-1][name]) - float(rows[0][name])) / pairs, 1)  # type: ignore[arg-type]
        for kind, name in (("held", "driver_mb"), ("with_mapped_files", "driver_mb_with_files"))
    }


def measure(folder: Path, packages: Path, limit: str) -> dict[str, object]:
    """One search of the embeddings, in processes of its own."""
    code = "from ncclean_cli.app import main; main()"
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", code, "neighbours", str(folder / "embeddings"), "--out",
         str(folder / "out.parquet"), "--memory-limit", limit, "--overwrite", *_FEW],
        env={**os.environ, "PYTHONPATH": str(packages), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    watch = Watch(process.pid)
    assert process.stderr is not None
    for line in process.stderr:
        watch.stage = line.strip()
    if process.wait():
        raise SystemExit(f"the search ended with {process.returncode}: {watch.stage}")
    return {
        "driver_mb": round(watch.driver, 1),
        "driver_mb_with_files": round(watch.driver_with_files, 1),
        "driver_stage": watch.driver_stage,
        "worker_mb": round(watch.worker, 1),
        "seconds": round(time.perf_counter() - begin, 1),
    }


class Watch:
    """The largest memory, in MB, of a process and of the largest of its children."""

    def __init__(self, pid: int) -> None:
        self.driver = self.driver_with_files = self.worker = 0.0
        self.stage = self.driver_stage = ""
        self._pid = pid
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while Path(f"/proc/{self._pid}").exists():
            held, files = _memory(self._pid)
            if held > self.driver:
                self.driver, self.driver_stage = held, self.stage
            self.driver_with_files = max(self.driver_with_files, held + files)
            children = Path(f"/proc/{self._pid}/task/{self._pid}/children")
            with contextlib.suppress(OSError):
                for child in children.read_text().split():
                    self.worker = max(self.worker, _memory(int(child))[0])
            time.sleep(_EVERY)


def _memory(pid: int) -> tuple[float, float]:
    """What a process holds and what it has mapped of files, in MB."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        sizes = {kind: int(size) / 1e3 for kind, size in re.findall(r"Rss(\w+):\s+(\d+)", status)}
        return sizes.get("Anon", 0.0), sizes.get("File", 0.0) + sizes.get("Shmem", 0.0)
    return 0.0, 0.0


def _checked_out(commit: str, folder: Path) -> Path:
    folder.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", commit, "ncclean", "cli", "pipelines"],
        capture_output=True,
        check=True,
    )
    subprocess.run(["tar", "x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


def _linked(root: Path, folder: Path) -> Path:
    """A folder from which Python imports the packages of a tree."""
    folder.mkdir(parents=True)
    for package, inside in (("ncclean", "ncclean"), ("ncclean_cli", "cli"),
                            ("ncclean_pipelines", "pipelines")):  # fmt: skip
        (folder / package).symlink_to(root / inside)
    return folder


if __name__ == "__main__":
    main()
