"""Time, peak memory and recall of `ncclean neighbours` on simulated embeddings.

    python tests/benchmarks neighbours.search [--pairs 1_000_000] [--dim 512] [--index auto]

The embeddings lie as those of CLIP do: images and captions in two cones apart from one another,
in concepts of Zipf sizes, with 20 % mismatched pairs. Planted are exact copies of pairs, images
with a cosine of about 0.98 to an earlier one, and captions that are used again and again. Half of
the near images differ from their source in the directions that images of the corpus differ in,
half in all directions alike, which is hard for whitening. Memory is without mapped files:
`peak_gb_of_all` that of all processes, `driver_mb` that of the first one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from corpora import unit, write_embeddings
from process import run_ncclean
from records import Row, benchmark

_CONCEPTS, _TOPICS, _LATENT = 20_000, 200, 96
_SHARD = 50_000
_NOISE, _COPIES, _NEAR, _COMMON = 0.2, 0.01, 0.01, 0.05
_NEAR_NOISE = 0.2


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
            columns = {
                "uid": [f"{i:032x}" for i in range(start, here.stop)],
                "shard": [f"{number:05d}"] * count,
                "key": [f"{i:09d}" for i in range(count)],
                "row": pa.array(range(count), pa.int32()),
                "caption": caption.tolist(),
            }
            write_embeddings(folder, image, text, columns, number)

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


def searched(simulation: Simulation, folder: Path, *options: object) -> Row:
    """Write a corpus and search it with these options of the command: what it took and found."""
    simulation.write(folder / "embeddings")
    out = folder / "neighbours.parquet"
    run = run_ncclean("neighbours", folder / "embeddings", "--out", out, "--overwrite", *options)
    return {
        **{name: value for name, value in run.json().items() if name != "out"},
        **simulation.report(out),
        "seconds": round(run.seconds, 1),
        "processor_seconds": round(run.processor_seconds, 1),
        "peak_gb_of_all": round(run.anonymous_mib / 1e3, 2),
        "driver_mb": round(run.first_mib, 1),
        "output_mb": round(out.stat().st_size / 1e6, 1),
    }


def search(
    pairs: int = 1_000_000, dim: int = 512, index: str = "auto", options: tuple[str, ...] = (),
    seed: int = 0, scratch: Path | None = None,
) -> Iterator[Row]:  # fmt: skip
    """One search; `options` are those of the command, without dashes."""
    with tempfile.TemporaryDirectory(prefix="ncclean-neighbours-", dir=scratch) as name:
        words = [f"--{option}" for option in options]
        yield searched(Simulation(pairs, dim, seed), Path(name), "--index", index, *words)


if __name__ == "__main__":
    benchmark(search)
