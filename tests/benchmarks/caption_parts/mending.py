"""What captions without their wrong sentences are worth in training.

    python tests/benchmarks caption_parts.mending --out runs/mending
        [--record docs/records/mending.json]

Rendered pairs with captions of three sentences, of which one is another scene's in 60 % of them.
The bundled model that has learnt noise goes on with the same number of steps: on all captions;
without the
pairs that `--caption-parts` flags; on the mended captions; on captions that lost a sentence at
random where the mended ones lost one, as shorter captions may help by themselves; and on what the
truth leaves. The bundled estimator finds the sentences. Recall is that of matched pairs with
captions of one sentence, which no arm has seen.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any, cast

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from ncclean_pipelines.finetune import Finetune
from ncclean_pipelines.score import Score
from ncclean_pipelines.select import Select
from records import make_record, write_record

from caption_parts.measured import noisy_parts
from ncclean.base.config import ScoreOptions
from ncclean.data.caption_parts import parts_of, sentence_starts
from ncclean.data.decode import DecodedImage, ImageDecoder
from ncclean.data.options import CorpusOptions, LoaderOptions
from ncclean.data.reader import read_samples
from ncclean.data.shards import resolve_shards
from ncclean.data.synthetic.corpus import write_corpus
from ncclean.evaluation.ranking import recall_at_k
from ncclean.models.estimator import Estimator
from ncclean.selection.policy import Policy
from ncclean.training.objectives.options import ObjectiveOptions
from ncclean.training.options import TrainOptions

SHARE, SENTENCES = 0.6, 3
_TEST = 1000
_START, _RATE = "demo-noisy", 2e-4
_ALL = "all captions"


def selections(shards: Path, table: str, seed: int) -> dict[str, str]:
    """The selection of each arm."""
    folder = shards.with_name(f"{shards.name}-selections")
    folder.mkdir(exist_ok=True)

    def select(name: str, policy: Policy) -> str:
        out = str(folder / f"{name}.parquet")
        Select(scores=[table], out=out, policy=policy, overwrite=True).run()
        return out

    everything = select("all", Policy(where="true"))
    mended = select("mended", Policy(drop_parts=True))
    kept = select("kept", Policy(where="coalesce(part_noise_probability < 0.5, true)"))
    texts = dict(duckdb.sql(f"SELECT uid, text FROM '{table}'").fetchall())
    lost = dict(
        duckdb.sql(f"SELECT uid, caption FROM '{mended}' WHERE caption IS NOT NULL").fetchall()
    )
    rng = random.Random(seed)
    at_random = {uid: _without(texts[uid], None, rng) for uid in lost}
    truth = noisy_parts(shards)
    true = {uid: _without(texts[uid], part, rng) for uid, part in truth.items() if part is not None}
    return {
        _ALL: everything,
        "flagged pairs dropped": kept,
        "mended": mended,
        "a sentence dropped at random": _with_captions(everything, at_random),
        "the truth": _with_captions(everything, true),
    }


def _without(caption: str, part: int | None, rng: random.Random) -> str:
    parts = parts_of(caption, sentence_starts(caption))
    del parts[rng.randrange(len(parts)) if part is None else part]
    return " ".join(parts)


def _with_captions(selection: str, captions: dict[str, str]) -> str:
    """The selection with other captions, beside it."""
    table = pq.read_table(selection)
    new = [captions.get(uid) for uid in table.column("uid").to_pylist()]
    out = f"{selection}-{len(captions)}.parquet"
    pq.write_table(table.append_column("caption", pa.array(new, pa.string())), out)
    return out


class Test:
    """Matched pairs that no arm has seen."""

    def __init__(self, folder: Path) -> None:
        if not folder.exists():
            write_corpus(folder, CorpusOptions(pairs=_TEST, seed=987, duplicates=0.0))
        samples = [s for shard in resolve_shards([str(folder)]) for s in read_samples(shard)]
        self._bytes = [cast(bytes, sample.image) for sample in samples]
        self._captions = [cast(str, sample.caption) for sample in samples]

    def of(self, model: str) -> dict[str, float]:
        estimator = Estimator.load(model, None, precision="fp32")
        decode = ImageDecoder(estimator.preprocessing)
        pixels = torch.stack([cast(DecodedImage, decode(data)).pixels for data in self._bytes])
        image = torch.cat([estimator.encode_image(part) for part in pixels.split(250)])
        text = estimator.encode_text(self._captions)
        return recall_at_k(image, text, torch.arange(len(image)))


def of_seed(seed: int, arguments: argparse.Namespace, test: Test) -> list[dict[str, Any]]:
    out = arguments.out
    shards = out / f"pairs-{seed}"
    options = CorpusOptions(
        pairs=arguments.pairs, sentences=SENTENCES, noise={"foreign_sentence": SHARE}, seed=seed,
        duplicates=0.0,
    )  # fmt: skip
    if not shards.exists():
        write_corpus(shards, options)
    table = f"{shards}.parquet"
    Score(
        shards=[str(shards)], out=table, model="demo", precision="fp32",
        options=ScoreOptions(caption_parts="sentences"),
    ).run()  # fmt: skip
    rows = []
    for arm, selection in selections(shards, table, seed).items():
        model = out / f"{arm.replace(' ', '-')}-{seed}"
        Finetune(
            method="clip", shards=[str(shards)], selection=selection, out=str(model),
            model=_START, pretrained=None, batch_size=128,
            objective=ObjectiveOptions(learning_rate=_RATE),
            training=TrainOptions(steps=arguments.steps, tensorboard=False),
            loader=LoaderOptions(decode_threads=1), precision="bf16", seed=seed,
        ).run()  # fmt: skip
        pairs = duckdb.sql(f"SELECT count(*) FROM '{selection}'").fetchall()[0][0]
        rows.append({"arm": arm, "seed": seed, "pairs": pairs, **test.of(f"local-dir:{model}")})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--pairs", type=int, default=4000)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--record", type=Path, metavar="FILE.json")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    test = Test(arguments.out / "test")
    rows = [row for seed in arguments.seeds for row in of_seed(seed, arguments, test)]
    if arguments.record is not None:
        settings = {
            "pairs": arguments.pairs, "steps": arguments.steps, "rate": SHARE,
            "sentences": SENTENCES, "start": _START, "learning_rate": _RATE,
        }  # fmt: skip
        write_record(arguments.record, make_record(rows, settings=settings, seeds=arguments.seeds))


if __name__ == "__main__":
    main()
