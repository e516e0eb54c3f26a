"""Time, peak memory and recall of `ncclean neighbours` on simulated embeddings.

    python tests/benchmarks neighbours.search [--pairs 1_000_000] [--dim 512] [--index auto]

The embeddings lie as those of CLIP do: images and captions in two cones apart from one another,
in concepts of Zipf sizes, with 20 % mismatched pairs. Planted are exact copies of pairs, images
with a cosine of about 0.98 to an earlier one, and captions that are used again and again. Half of
the near images differ from their source in the directions that images of the corpus differ in,
half in all directions alike, which is hard for whitening. The
command runs in a process of its own. Its peak memory is that of all its processes without mapped
files, and that of one with them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from records import make_record, write_record

_CONCEPTS, _TOPICS, _LATENT = 20_000, 200, 96
_SHARD = 50_000
_NOISE, _COPIES, _NEAR, _COMMON = 0.2, 0.01, 0.01, 0.05
_NEAR_NOISE = 0.2


def unit(values: np.ndarray) -> np.ndarray:
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


class Simulation:
    """A corpus of `pairs` pairs, written in shards; remembers what was planted."""

    def __init__(self, pairs: int, dim: int, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.pairs, self.dim = pairs, dim
        topics = unit(rng.standard_normal((_TOPICS, _LATENT), np.float32))
        own = unit(rng.standard_normal((_CONCEPTS, _LATENT), np.float32))
        self.concepts = unit(topics[rng.integers(0, _TOPICS, _CONCEPTS)] + 0.9 * own)
        weight = 1 / np.arange(1, _CONCEPTS + 1) ** 0.9
        self.chance = weight / weight.sum()
        self.basis = np.linalg.qr(rng.standard_normal((dim, _LATENT)))[0].astype(np.float32)
        self.cones = unit(rng.standard_normal((2, dim), np.float32))
        kind = rng.random(pairs)
        kind[: pairs // 10] = 1.0  # what is copied comes first
        self.copy = kind < _COPIES
        self.near = (kind >= _COPIES) & (kind < _COPIES + _NEAR)
        self.common = (kind >= _COPIES + _NEAR) & (kind < _COPIES + _NEAR + _COMMON)
        self.alike = np.arange(pairs) % 2 == 0
        self.source = np.where(self.copy | self.near, rng.integers(0, pairs // 10, pairs), -1)

    def _latent(self, count: int) -> np.ndarray:
        return self.rng.standard_normal((count, _LATENT), np.float32) / _LATENT**0.5

    def _embed(self, concept: np.ndarray, shared: np.ndarray, cone: np.ndarray) -> np.ndarray:
        own = self._latent(len(concept))
        rest = self.rng.standard_normal((len(concept), self.dim), np.float32) / self.dim**0.5
        inside = (self.concepts[concept] + 0.5 * shared + 0.45 * own) @ self.basis.T
        return unit(inside + 0.35 * rest + 0.9 * cone).astype(np.float16)

    def write(self, folder: Path) -> None:
        for name in ("img_emb", "text_emb", "metadata"):
            (folder / name).mkdir(parents=True)
        first: tuple[np.ndarray, np.ndarray] = (np.empty(0), np.empty(0))
        for number, start in enumerate(range(0, self.pairs, _SHARD)):
            here = slice(start, min(start + _SHARD, self.pairs))
            count = here.stop - start
            concept = self.rng.choice(_CONCEPTS, count, p=self.chance)
            noisy = self.rng.random(count) < _NOISE
            said = np.where(noisy, self.rng.choice(_CONCEPTS, count, p=self.chance), concept)
            shared = self._latent(count)
            image = self._embed(concept, shared, self.cones[0])
            text = self._embed(
                said, np.where(noisy[:, None], self._latent(count), shared), self.cones[1]
            )
            if number == 0:
                first = (image.copy(), text.copy())
            caption = np.char.add("caption ", np.arange(start, here.stop).astype(str))
            copied = np.flatnonzero(self.copy[here])
            source = self.source[here] % len(first[0])
            self.source[here] = np.where(self.source[here] >= 0, source, -1)
            image[copied], text[copied] = first[0][source[copied]], first[1][source[copied]]
            near = np.flatnonzero(self.near[here])
            noise = self.rng.standard_normal((len(near), self.dim), np.float32) / self.dim**0.5
            # Every other one differs from its source as images differ from one another.
            another = image[self.rng.integers(0, count, (2, len(near)))].astype(np.float32)
            alike = self.alike[here][near]
            noise[alike] = unit(another[0] - another[1])[alike]
            image[near] = unit(first[0][source[near]] + _NEAR_NOISE * noise)
            common = np.flatnonzero(self.common[here])
            again = np.minimum(self.rng.zipf(1.5, len(common)), len(first[1]) - 1)
            text[common] = first[1][again]
            caption[common] = np.char.add("caption ", again.astype(str))
            np.save(folder / f"img_emb/img_emb_{number:03d}.npy", image)
            np.save(folder / f"text_emb/text_emb_{number:03d}.npy", text)
            metadata = pa.table({
                "uid": [f"{i:032x}" for i in range(start, here.stop)],
                "shard": [f"{number:05d}"] * count,
                "key": [f"{i:09d}" for i in range(count)],
                "row": pa.array(range(count), pa.int32()),
                "caption": caption.tolist(),
            })  # fmt: skip
            pq.write_table(metadata, folder / f"metadata/metadata_{number:03d}.parquet")

    def report(self, file: Path) -> dict[str, float]:
        """Shares of what was planted that was found, and of other images that were grouped."""
        group = pq.read_table(file, columns=["image_group"]).column(0).to_pylist()
        uid = np.array([int(g, 16) if g is not None else -1 for g in group])
        planted = np.flatnonzero(self.source >= 0)
        found = (uid[planted] >= 0) & (uid[planted] == uid[self.source[planted]])
        involved = np.zeros(self.pairs, bool)
        involved[planted] = involved[self.source[planted]] = True
        return {
            "copies_found": float(found[self.copy[planted]].mean()),
            "near_found": float(found[(self.near & self.alike)[planted]].mean()),
            "near_found_isotropic": float(found[(self.near & ~self.alike)[planted]].mean()),
            "others_grouped": float((uid[~involved] >= 0).mean()),
        }


class Memory:
    """The largest memory of a process and its children together, looked at twice a second.

    Anonymous memory: mapped files that they share are given back when others need the memory.
    """

    def __init__(self, pid: int) -> None:
        self.anonymous = 0.0
        self._pid = pid
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while Path(f"/proc/{self._pid}").exists():
            sizes = [_anonymous(status) for status in Path("/proc").glob("[0-9]*/status")
                     if _is_of(status.parent, self._pid)]  # fmt: skip
            self.anonymous = max(self.anonymous, sum(sizes))
            time.sleep(0.5)


def _is_of(process: Path, pid: int) -> bool:
    with contextlib.suppress(OSError):
        parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        return pid in (parent, int(process.name))
    return False


def _anonymous(status: Path) -> float:
    """Gigabytes; 0 for a process that has ended."""
    with contextlib.suppress(OSError):
        for line in status.read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1e6
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--index", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--options", nargs="*", default=[], help="of the command, without dashes")
    parser.add_argument("--scratch", type=Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--json", type=Path, help="write a record")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ncclean-neighbours-", dir=args.scratch) as name:
        folder = Path(name)
        begin = time.perf_counter()
        simulation = Simulation(args.pairs, args.dim, args.seed)
        simulation.write(folder / "embeddings")
        print(f"simulated in {time.perf_counter() - begin:.0f} s", flush=True)
        out = folder / "neighbours.parquet"
        code = "from ncclean_cli.app import main; main()"
        process = subprocess.Popen(
            [sys.executable, "-c", code, "neighbours", str(folder / "embeddings"), "--out",
             str(out), "--index", args.index, "--json", *(f"--{name}" for name in args.options)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        memory = Memory(process.pid)
        output, _ = process.communicate()
        if process.returncode:
            raise SystemExit(process.returncode)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        results = {
            **{name: value for name, value in json.loads(output).items() if name != "out"},
            **simulation.report(out),
            "processor_seconds": round(used.ru_utime + used.ru_stime, 1),
            "peak_gb": round(used.ru_maxrss / 1e6, 2),
            "peak_gb_of_all": round(memory.anonymous, 2),
            "output_mb": round(out.stat().st_size / 1e6, 1),
        }
        print(json.dumps(results, indent=2))
        if args.json is not None:
            settings = {name: getattr(args, name) for name in ("pairs", "dim", "index", "options")}
            seeds = [args.seed]
            write_record(args.json, make_record([results], settings=settings, seeds=seeds))


if __name__ == "__main__":
    main()
