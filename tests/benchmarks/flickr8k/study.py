"""Both noises of the field on Flickr8k: what is detected, and what the trainers make of it.

    python tests/benchmarks flickr8k.study --data FOLDER --out runs/flickr8k [--seeds 0 1 2]
        [--record docs/records/flickr8k.json]

FOLDER holds Flickr8k: `dataset_flickr8k.json` in Karpathy's layout and `images.zip`. For each kind
of noise (`ncr` moves single captions, `ncr_image` all captions of an image), rate and seed, a small
CLIP learns the noisy training split from random weights. It then scores that split itself, and each
arm goes on from it with the same number of steps. Recall is that of the 1,000 test images with five
captions. All is small enough for two cores, so recalls are far below those of pretrained models:
differences between arms are what it shows.

What is done lies in --out and is not done again. Seeds may run in several processes; the record is
made of all seeds that are complete.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

# OpenMP's workers spin while they wait, which takes the cores from others; `ncclean` sets it too.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import duckdb
import numpy as np
import torch
from ncclean_pipelines.evaluate_noise import EvaluateNoise
from ncclean_pipelines.finetune import Finetune
from ncclean_pipelines.inject_noise import InjectNoise
from ncclean_pipelines.score import Score
from ncclean_pipelines.select import Select
from PIL import Image
from records import make_record, write_record

from ncclean.base.config import ScoreOptions
from ncclean.data.decode import DecodedImage, ImageDecoder
from ncclean.data.options import LoaderOptions, SourceOptions
from ncclean.errors import InputError
from ncclean.evaluation.ranking import recall_at_k, retrieval_depths
from ncclean.models.estimator import Estimator
from ncclean.selection.policy import Policy
from ncclean.training.objectives.options import NcuOptions, ObjectiveOptions
from ncclean.training.options import TrainOptions

JSON = "dataset_flickr8k.json"
SIDE = 64
MODEL_CONFIG = {
    "embed_dim": 128,
    "vision_cfg": {
        "image_size": SIDE,
        "layers": 3,
        "width": 128,
        "head_width": 32,
        "patch_size": 16,
    },
    "text_cfg": {"context_length": 32, "vocab_size": 49408, "width": 128, "heads": 4, "layers": 2},
}
KINDS, RATES = ("ncr", "ncr_image"), (0.2, 0.4, 0.6)
LEFT_ALONE, CLIP_ON_ALL, ORACLE = "left alone", "clip on all", "oracle"
_BATCH, _START_RATE, _RATE = 256, 2e-3, 5e-4


@dataclass(frozen=True, kw_only=True)
class Arm:
    """An objective on all pairs, or on those of a policy; `forget` is NCU's share, None for 10 %.

    `keep_truth` keeps the best pairs by the cosine, as many as are clean in truth: what the share
    of noise alone is worth.
    """

    name: str
    method: str = "clip"
    policy: Policy | None = None
    keep_truth: bool = False
    options: dict[str, Any] = field(default_factory=dict)


START = Arm(name="start", options={"learning_rate": _START_RATE})
_REMATCHED = {"negative": "none"}
ARMS = (
    Arm(name=CLIP_ON_ALL),
    Arm(name="clip, selected", policy=Policy(method="noise-probability")),
    Arm(name="clip, best cosines, share known", keep_truth=True),
    Arm(name="osa", method="osa", policy=Policy(weights="osa_weight")),
    Arm(name="osa, released", method="osa", options={"ncu": NcuOptions(variant="released")}),
    Arm(name="ncu", method="ncu", options={"ncu": NcuOptions()}),
    Arm(name="ncu, released", method="ncu", options={"ncu": NcuOptions(variant="released")}),
    Arm(name="ncu, rematched", method="ncu", options={"ncu": NcuOptions(**_REMATCHED)}),  # type: ignore[arg-type]
    Arm(name="bayes", method="bayes"),
    Arm(name="disncl", method="disncl"),
    Arm(name="rince", method="rince"),
    Arm(name="decl", method="decl"),
    Arm(name=ORACLE, policy=Policy(where="NOT is_noisy")),
)
# The others are tried at 40 % alone.
AT_ALL_RATES = (CLIP_ON_ALL, "clip, selected", "clip, best cosines, share known", ORACLE)


class Retrieval:
    """Recall of the test images, of a model's folder."""

    def __init__(self, data: Path, images: Path) -> None:
        listed = json.loads((data / JSON).read_text())["images"]
        test = [image for image in listed if image["split"] == "test"]
        self._bytes = [(images / image["filename"]).read_bytes() for image in test]
        self._captions = [one["raw"] for image in test for one in image["sentences"]]
        counts = torch.tensor([len(image["sentences"]) for image in test])
        self._image_of = torch.repeat_interleave(torch.arange(len(test)), counts)
        self._pixels: torch.Tensor | None = None

    def of(self, model: str) -> dict[str, Any]:
        """Recalls, and for each image the mean of the hits at 10, in both directions alike."""
        estimator = Estimator.load(model, None, precision="fp32")
        if self._pixels is None:
            decode = ImageDecoder(estimator.preprocessing)
            decoded = (cast(DecodedImage, decode(data)).pixels for data in self._bytes)
            self._pixels = torch.stack(list(decoded))
        image = torch.cat([estimator.encode_image(part) for part in self._pixels.split(250)])
        pieces = range(0, len(self._captions), 500)
        text = torch.cat([estimator.encode_text(self._captions[p : p + 500]) for p in pieces])
        depths = retrieval_depths(image, text, self._image_of)
        hits = (depths.image < 10).double()
        by_caption = (depths.caption < 10).double()
        counts = torch.bincount(self._image_of)
        of_captions = torch.zeros(len(hits), dtype=torch.double)
        of_captions.index_add_(0, self._image_of, by_caption)
        each = (hits + of_captions / counts) / 2
        return {**recall_at_k(image, text, self._image_of), "hits": each.tolist()}


def small_images(data: Path, out: Path) -> Path:
    """The photographs at the size that the models see."""
    folder = out / "images"
    if not folder.exists():
        aside = out / "images.tmp"
        aside.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(data / "images.zip") as archive:
            for name in archive.namelist():
                if name.endswith(".jpg"):
                    image = Image.open(io.BytesIO(archive.read(name))).convert("RGB")
                    small = image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
                    small.save(aside / Path(name).name, quality=95)
        aside.rename(folder)
    return folder


def trained(arm: Arm, shards: Path, out: Path, steps: int, seed: int, **options: Any) -> str:
    """Train by an arm; the model's name."""
    settings = {"learning_rate": _RATE, **arm.options}
    Finetune(
        method=arm.method,  # type: ignore[arg-type]
        shards=[str(shards)],
        out=str(out),
        batch_size=_BATCH,
        objective=ObjectiveOptions(**settings),
        training=TrainOptions(steps=steps, tensorboard=False),
        loader=LoaderOptions(decode_threads=1, captions="sample"),
        precision="bf16",
        seed=seed,
        **options,
    ).run()
    return f"local-dir:{out}"


def estimator(data: Path, images: Path, out: Path, steps: int, seed: int) -> str:
    """Train a small CLIP on the clean training split, or take that of an earlier run; its name."""
    folder, config = out / f"estimator-{seed}", out / "model.json"
    if folder.exists():
        return f"local-dir:{folder}"
    config.write_text(json.dumps(MODEL_CONFIG))
    return trained(
        START, data / JSON, folder, steps, seed, model=str(config), init="random",
        source_options=SourceOptions(image_root=str(images), split=["train"]),
    )  # fmt: skip


def selected(arm: Arm, table: Path, truth: float, out: Path) -> tuple[str | None, dict[str, Any]]:
    """The selection of an arm, how many pairs it keeps, and how many of these are noisy."""
    policy = arm.policy
    if arm.keep_truth:
        policy = Policy(score="similarity", keep_fraction=1 - truth)
    if policy is None:
        return None, {}
    path = out / f"{_file_name(arm.name)}.parquet"
    Select(scores=[str(table)], out=str(path), policy=policy, overwrite=True).run()
    # The oracle needs no table of its own to be counted.
    kept, noisy = duckdb.execute(
        "SELECT count(*), count(*) FILTER (is_noisy) FROM read_parquet(?) JOIN read_parquet(?) "
        "USING (uid, caption_number)",
        [str(path), str(table)],
    ).fetchone()  # type: ignore[misc]
    return str(path), {"pairs": kept, "noisy": noisy}


def detected(table: Path, shards: Path, model: str) -> dict[str, Any]:
    """What the start's own scores tell about the pairs that it has learnt."""
    summary = Score(
        shards=[str(shards)], out=str(table), model=model, precision="fp32", options=ScoreOptions()
    ).run().summary  # fmt: skip
    evaluation = EvaluateNoise(scores=[str(table)]).run().summary
    auroc = {score.column: score.kinds[0].report.auroc for score in evaluation.scores}
    rate, calibration = summary.noise_rate, evaluation.calibration
    noisy = sum(evaluation.noisy.values())
    return {
        "pairs": evaluation.clean + noisy,
        "noisy": noisy,
        "auroc": {name: auroc[name] for name in ("similarity", "neg_clip_loss", "clean_posterior")},
        "estimated": rate.value,
        "low": rate.low,
        "high": rate.high,
        "calibration_error": calibration.expected_error if calibration is not None else None,
    }


def of_noise(
    kind: str, rate: float, seed: int, arguments: argparse.Namespace, test: Retrieval
) -> Iterator[dict[str, Any]]:
    """The rows of one noisy training split: the start, what it detects, and its arms."""
    folder = arguments.out / f"{kind}-{rate:g}-{seed}"
    source = SourceOptions(image_root=str(arguments.out / "images"), split=["train"])
    noise = {kind: rate} if rate else {"ncr": 0.0}
    InjectNoise(
        shards=[str(arguments.data / JSON)], out=str(folder / "shards"), noise=noise,
        source_options=source, seed=seed,
    ).run()  # fmt: skip
    config = arguments.out / "model.json"
    start = trained(
        START, folder / "shards", folder / "start", arguments.start_steps, seed,
        model=str(config), init="random",
    )  # fmt: skip
    table = folder / "scores.parquet"
    facts = {"noise": kind, "rate": rate, "seed": seed}
    found = detected(table, folder / "shards", start)
    yield {**facts, "arm": LEFT_ALONE, **found, **test.of(start)}
    for arm in ARMS:
        if rate and (rate == 0.4 or arm.name in AT_ALL_RATES):
            truth = found["noisy"] / found["pairs"]
            try:
                selection, kept = selected(arm, table, truth, folder)
            except InputError as refused:  # scores that cannot tell matched pairs from others
                yield {**facts, "arm": arm.name, "refused": str(refused).partition(": ")[2]}
                continue
            model = trained(
                arm, folder / "shards", folder / _file_name(arm.name), arguments.steps, seed,
                model=start, pretrained=None, selection=selection,
            )  # fmt: skip
            yield {**facts, "arm": arm.name, **kept, **test.of(model)}


def main() -> None:
    arguments = _parse()
    out = arguments.out
    images = small_images(arguments.data, out)
    config = out / "model.json"
    if not config.exists():
        config.write_text(json.dumps(MODEL_CONFIG))
    test = Retrieval(arguments.data, images)
    for seed in arguments.seeds:
        done = out / f"done-{seed}"
        done.mkdir(exist_ok=True)
        for kind, rate in ((kind, rate) for rate in (0.4, 0.2, 0.6) for kind in KINDS):
            path = done / f"{kind}-{rate:g}.json"
            if path.exists():
                continue
            rows = []
            for row in of_noise(kind, rate, seed, arguments, test):
                rows.append(row)
                shown = {name: value for name, value in row.items() if name != "hits"}
                print(json.dumps(shown), flush=True)
            path.write_text(json.dumps(rows))
    if arguments.record is not None:
        found = {int(path.name[5:]): path for path in sorted(out.glob("done-*"))}
        rows = [
            row for path in found.values() for file in sorted(path.glob("*.json"))
            for row in json.loads(file.read_text())
        ]  # fmt: skip
        settings = {
            "start_steps": arguments.start_steps, "steps": arguments.steps, "batch_size": _BATCH,
            "learning_rate": _RATE, "model": MODEL_CONFIG,
        }  # fmt: skip
        gains = list(gained(rows))
        for row in rows:
            row.pop("hits", None)
        record = make_record(rows, settings=settings, seeds=list(found), gains=gains)
        write_record(arguments.record, record)


def gained(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each arm over `clip on all`, in recall at 10, with a 95 % interval over the test images.

    The hits of an image are means over the seeds, so that the interval is of the images; how far
    seeds differ is `over_seeds`, the standard deviation of their gains.
    """
    hits: dict[tuple[str, float], dict[str, dict[int, np.ndarray]]] = {}
    for row in (row for row in rows if "hits" in row):
        of_noise = hits.setdefault((row["noise"], row["rate"]), {})
        of_noise.setdefault(row["arm"], {})[row["seed"]] = np.array(row["hits"])
    for (kind, rate), arms in hits.items():
        for name, of_arm in arms.items():
            seeds = sorted(of_arm.keys() & arms[CLIP_ON_ALL].keys())
            differences = np.array([of_arm[seed] - arms[CLIP_ON_ALL][seed] for seed in seeds])
            mean, by_seed = differences.mean(axis=0), differences.mean(axis=1)
            half = 1.96 * float(mean.std(ddof=1)) / len(mean) ** 0.5
            gain = float(mean.mean())
            yield {
                "noise": kind, "rate": rate, "arm": name, "seeds": len(seeds),
                "recall": float(np.mean([of_arm[seed].mean() for seed in seeds])),
                "gain": gain, "low": gain - half, "high": gain + half,
                "over_seeds": float(by_seed.std(ddof=1)) if len(seeds) > 1 else None,
            }  # fmt: skip


def _file_name(name: str) -> str:
    return name.replace(",", "").replace(" ", "-")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--start-steps", type=int, default=200)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--record", type=Path, metavar="FILE.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
