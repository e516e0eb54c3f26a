"""What captions without their wrong sentences are worth in training.

    python tests/benchmarks caption_parts.mending --out runs/mending
        [--record docs/records/mending.json]

Rendered pairs with captions of three sentences, of which one is another scene's in 60 % of them.
The bundled model that has learnt noise goes on with the same number of steps: on all captions;
without the pairs that `--caption-parts` flags; on the mended captions; on captions that lost a
sentence at random where the mended ones lost one, as shorter captions may help by themselves; and
on what the truth leaves. The bundled estimator finds the sentences. Recall is that of matched pairs
with captions of one sentence, which no arm has seen.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from arms import Arm, Training, selected
from corpora import encoded_images, rendered, samples_of
from records import Row, benchmark

from caption_parts.detect import noisy_parts, scored
from ncclean.data.caption_parts import parts_of, sentence_starts
from ncclean.evaluation.ranking import recall_at_k
from ncclean.models.estimator import Estimator
from ncclean.selection.policy import Policy

SHARE, SENTENCES, START = 0.6, 3, "demo-noisy"
_TEST = {"pairs": 1000, "seed": 987}


def selections(shards: Path, table: str, seed: int) -> dict[str, str]:
    """The selection of each arm."""
    folder = shards.with_name(f"{shards.name}-selections")
    policies = {
        "all captions": Policy(where="true"),
        "flagged pairs dropped": Policy(where="coalesce(part_noise_probability < 0.5, true)"),
        "mended": Policy(drop_parts=True),
    }
    chosen = {
        name: selected(policy, table, folder / f"{name}.parquet")[0]
        for name, policy in policies.items()
    }
    texts = dict(duckdb.sql(f"SELECT uid, text FROM '{table}'").fetchall())
    mended = duckdb.sql(f"SELECT uid FROM '{chosen['mended']}' WHERE caption IS NOT NULL")
    rng = random.Random(seed)
    at_random = {uid: _without(texts[uid], None, rng) for (uid,) in mended.fetchall()}
    truth = {
        uid: _without(texts[uid], part, rng)
        for uid, part in noisy_parts(shards).items()
        if part is not None
    }
    others = {"a sentence dropped at random": at_random, "the truth": truth}
    everything = pq.read_table(chosen["all captions"])
    for name, captions in others.items():
        chosen[name] = _with_captions(everything, captions, folder / f"{name}.parquet")
    return chosen


def _without(caption: str, part: int | None, rng: random.Random) -> str:
    parts = parts_of(caption, sentence_starts(caption))
    del parts[rng.randrange(len(parts)) if part is None else part]
    return " ".join(parts)


def _with_captions(selection: pa.Table, captions: Mapping[str, str], path: Path) -> str:
    """Write a selection with other captions."""
    new = [captions.get(uid) for uid in selection.column("uid").to_pylist()]
    pq.write_table(selection.append_column("caption", pa.array(new, pa.string())), path)
    return str(path)


def recalls(model: str, test: Path) -> dict[str, float]:
    """Recalls among matched pairs that no arm has seen."""
    estimator = Estimator.load(model, None, precision="fp32")
    samples = list(samples_of(test))
    image = encoded_images(estimator, (sample.image for sample in samples))
    text = estimator.encode_text([sample.caption for sample in samples])
    return recall_at_k(image, text, torch.arange(len(image)))


def mend(
    out: Path, pairs: int = 4000, steps: int = 60, seeds: tuple[int, ...] = (0, 1, 2)
) -> Iterator[Row]:
    """A row for each seed and arm."""
    test = rendered(out / "test", **_TEST)
    training = Training(
        steps=steps, batch_size=128, learning_rate=2e-4, precision="bf16", loader={}
    )
    for seed in seeds:
        noise = {"foreign_sentence": SHARE}
        options = {"pairs": pairs, "sentences": SENTENCES, "noise": noise, "seed": seed}
        shards = rendered(out / f"pairs-{seed}", **options)
        for name, selection in selections(shards, scored(shards, "demo"), seed).items():
            arm = Arm(name=name)
            folder = out / f"{arm.file_name}-{seed}"
            model = training.train(arm, START, shards, folder, seed, selection=selection)
            count = pq.read_metadata(selection).num_rows
            yield {"arm": name, "seed": seed, "pairs": count, **recalls(model, test)}


if __name__ == "__main__":
    benchmark(mend, rate=SHARE, sentences=SENTENCES, start=START)
