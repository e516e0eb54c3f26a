"""Five captions of people in a row, one of them about another photograph: Flickr8k.

    python tests/benchmarks caption_parts.photographs --data FOLDER --out runs/photographs
        [--record docs/records/caption-parts-flickr8k.json]

FOLDER is that of `flickr8k.study`. Small CLIPs learn the training photographs with single captions;
2,000 others, whose captions are put in a row, are then scored whole and sentence by sentence. A
fifth of them has a sentence of another photograph. Then half truths: a caption of another
photograph is added to right ones, and each score says which of both it prefers.
"""

from __future__ import annotations

import argparse
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
from flickr8k.study import JSON, MODEL_CONFIG, estimator, small_images
from ncclean_pipelines.inject_noise import InjectNoise
from ncclean_pipelines.score import Score
from ncclean_pipelines.synth import Synth
from records import make_record, write_record

from caption_parts.measured import detected, noisy_parts
from ncclean.base.config import ScoreOptions
from ncclean.data.options import CorpusOptions, SourceOptions
from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_sources
from ncclean.data.tar_members import add_member

RATE = 0.2


def captions_in_a_row(data: Path, out: Path, count: int, splits: tuple[str, ...]) -> Path:
    """A table of photographs with their first `count` captions as one."""
    table = out / f"{'-'.join(splits)}-{count}.jsonl"
    if not table.exists():
        images = json.loads((data / JSON).read_text())["images"]
        lines = [
            {
                "uid": image["filename"],
                "file_name": image["filename"],
                "text": " ".join(_sentence(one["raw"]) for one in image["sentences"][:count]),
            }
            for image in images
            if image["split"] in splits
        ]
        table.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return table


def _sentence(caption: str) -> str:
    text = caption.strip().rstrip(" .")
    return text[:1].upper() + text[1:] + "."


def spoilt(table: Path, images: Path, kind: str, rate: float, seed: int) -> Path:
    """The pairs of a table as shards with noise."""
    out = table.with_name(f"{table.stem}-{kind}-{rate:g}-{seed}")
    source = SourceOptions(image_root=str(images))
    InjectNoise(
        shards=[str(table)], out=str(out), kind=[kind], rate=[rate], seed=seed,
        source_options=source,
    ).run()  # fmt: skip
    return out


def scored(shards: Path, model: str, name: str) -> str:
    """The score table of a folder of shards."""
    table = str(shards.with_name(f"{shards.name}-{name}.parquet"))
    options = ScoreOptions(caption_parts="sentences")
    Score(shards=[str(shards)], out=table, model=model, precision="fp32", options=options).run()
    return table


def half_truths(source: Path, longer: Path, model: str, images: Path | None) -> dict[str, Any]:
    """How often a caption that says something wrong as well is preferred to the right one.

    Both are captions of one image, and scored together. A tie counts half.
    """
    folder = longer.with_name(f"{longer.name}-both")
    if not folder.exists():
        _write_both(source, longer, folder, images)
    table = scored(folder, model, "both")
    cleaner = {
        "whole cosine": "similarity",
        "mean cosine": "mean_part_similarity",
        "worst cosine": "list_min(part_similarities)",
        "part_noise_probability": "-part_noise_probability",
        "part_noise_probability, at .5": "-(part_noise_probability >= 0.5)::INT",
    }
    columns = ", ".join(
        f"avg(CASE WHEN a.v{n} = b.v{n} THEN 0.5 ELSE (b.v{n} > a.v{n})::INT END)"
        for n in range(len(cleaner))
    )
    values = ", ".join(f"{sql} AS v{n}" for n, sql in enumerate(cleaner.values()))
    scores = f"(SELECT uid, caption_number, {values} FROM '{table}' WHERE status = 'ok')"
    found = duckdb.sql(
        f"SELECT {columns}, count(*) FROM {scores} a JOIN {scores} b USING (uid) "
        "WHERE a.caption_number = 0 AND b.caption_number = 1"
    ).fetchall()[0]
    return {"pairs": found[-1], "wins": dict(zip(cleaner, map(float, found[:-1]), strict=True))}


def _write_both(source: Path, longer: Path, folder: Path, images: Path | None) -> None:
    """Shards in which each image has the right caption and the longer one."""
    root = SourceOptions(image_root=str(images) if images is not None else None)
    right = {
        sample.metadata["uid"]: sample.caption
        for shard in resolve_sources([str(source)], "auto", root)
        for sample in read_samples(shard)
    }
    folder.mkdir(parents=True)
    with tarfile.open(folder / "00000.tar", "w") as tar:
        for shard in resolve_sources([str(longer)]):
            for sample in read_samples(shard):
                uid = sample.metadata["uid"]
                if sample.image is None or sample.caption == right[uid]:
                    continue
                record = {"uid": uid, "caption": [right[uid], sample.caption]}
                add_member(tar, f"{sample.key}.jpg", sample.image)
                add_member(tar, f"{sample.key}.json", json.dumps(record).encode())


def of_photographs(seed: int, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of one estimator."""
    data, out = arguments.data, arguments.out
    images = small_images(data, out)
    model = estimator(data, images, out, arguments.steps, seed)
    five = captions_in_a_row(data, out, 5, ("val", "test"))
    noisy = spoilt(five, images, "foreign_sentence", RATE, seed)
    found = detected(scored(noisy, model, str(seed)), noisy_parts(noisy))
    yield {"corpus": "Flickr8k", "what": "detection", "sentences": 5, "seed": seed, **found}
    for sentences in (1, 4):
        table = captions_in_a_row(data, out, sentences, ("val", "test"))
        longer = spoilt(table, images, "added_detail", 1.0, seed)
        found = half_truths(table, longer, model, images)
        yield _half_truth("Flickr8k", sentences, seed, found)


def of_scenes(seed: int, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Half truths of rendered scenes, by the bundled estimator."""
    for sentences in (1, 4):
        corpus = CorpusOptions(pairs=2000, sentences=sentences, duplicates=0.0)
        folders = [arguments.out / f"scenes-{sentences}-{rate}-{seed}" for rate in (0, 1)]
        for rate, folder in enumerate(folders):
            Synth(
                out=str(folder), corpus=corpus, noise=rate, kind="added_detail", held_out=0,
                seed=seed,
            ).run()  # fmt: skip
        yield _half_truth("rendered", sentences, seed, half_truths(*folders, "demo", None))


def _half_truth(corpus: str, sentences: int, seed: int, found: dict[str, Any]) -> dict[str, Any]:
    return {"corpus": corpus, "what": "half truth", "sentences": sentences, "seed": seed, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--record", type=Path, metavar="FILE.json")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for seed in arguments.seeds:
        for of_corpus in (of_photographs, of_scenes):
            for row in of_corpus(seed, arguments):
                rows.append(row)
                print(json.dumps(row), flush=True)
    if arguments.record is not None:
        settings = {"steps": arguments.steps, "model": MODEL_CONFIG, "rate": RATE}
        write_record(arguments.record, make_record(rows, settings=settings, seeds=arguments.seeds))


if __name__ == "__main__":
    main()
