"""Both noises of the field on Flickr8k: what is detected, and what the trainers make of it.

    python tests/benchmarks flickr8k.study --data FOLDER --out runs/flickr8k [--seeds 0 1 2]
        [--record docs/records/flickr8k.json]

FOLDER is as `flickr8k.corpora` says. For each kind of noise (`ncr` moves single captions,
`ncr_image` all captions of an image), rate and seed, a small CLIP learns the noisy training split
from random weights. It then scores that split itself, and each arm goes on from it with the same
number of steps. Recall is that of the 1,000 test images with five captions. All is small enough for
two cores, so recalls are far below those of pretrained models: differences between arms are what it
shows. What lies in --out is not made again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arms import CLEAN, CLIP_ON_ALL, LEFT_ALONE, ORACLE, SELECTED, WEIGHTED, Arm, selected
from corpora import encoded_images
from ncclean_pipelines.evaluate_noise import EvaluateNoise
from ncclean_pipelines.score import Score
from records import Row, benchmark
from scipy.stats import sem

from flickr8k.corpora import JSON, MODEL_CONFIG, learnt, photographs_of, source, spoilt, training
from ncclean.errors import InputError
from ncclean.evaluation.ranking import recall_at_k, retrieval_depths
from ncclean.models.estimator import Estimator
from ncclean.selection.policy import Policy

KINDS, RATES = ("ncr", "ncr_image"), (0.4, 0.2, 0.6)
_RELEASED = {"variant": "released"}
_BEST = "clip, best cosines, share known"
ARMS = (
    Arm(name=CLIP_ON_ALL),
    Arm(name="clip, selected", policy=SELECTED),
    Arm(name=_BEST),
    Arm(name="osa", method="osa", policy=WEIGHTED),
    Arm(name="osa, released", method="osa", ncu=_RELEASED),
    Arm(name="ncu", method="ncu"),
    Arm(name="ncu, released", method="ncu", ncu=_RELEASED),
    Arm(name="ncu, rematched", method="ncu", ncu={"negative": "none"}),
    Arm(name="bayes", method="bayes"),
    Arm(name="disncl", method="disncl"),
    Arm(name="rince", method="rince"),
    Arm(name="decl", method="decl"),
    Arm(name=ORACLE, policy=CLEAN),
)
_AT_ALL_RATES = (CLIP_ON_ALL, "clip, selected", _BEST, ORACLE)  # others are tried at 40 % alone


Hits = dict[tuple[str, float, str], dict[int, np.ndarray]]  # by noise, rate and arm; by seed


class Retrieval:
    """Recall of the test images."""

    def __init__(self, data: Path, images: Path) -> None:
        test = photographs_of(data, "test")
        self._images = [(images / image["filename"]).read_bytes() for image in test]
        self._captions = [one["raw"] for image in test for one in image["sentences"]]
        counts = torch.tensor([len(image["sentences"]) for image in test])
        self._image_of = torch.repeat_interleave(torch.arange(len(test)), counts)

    def of(self, model: str) -> tuple[dict[str, float], np.ndarray]:
        """Recalls of a model, and for each image the mean of its hits at 10 in both directions."""
        estimator = Estimator.load(model, None, precision="fp32")
        image = encoded_images(estimator, self._images)
        text = estimator.encode_text(self._captions)
        depths = retrieval_depths(image, text, self._image_of)
        of_caption = np.bincount(self._image_of, (depths.caption < 10).double())
        hits = ((depths.image < 10).numpy() + of_caption / np.bincount(self._image_of)) / 2
        return recall_at_k(image, text, self._image_of), hits


def detected(table: str, shards: Path, model: str) -> dict[str, Any]:
    """What the start's own scores tell about the pairs that it has learnt."""
    summary = Score(shards=[str(shards)], out=table, model=model, precision="fp32").run().summary
    evaluation = EvaluateNoise(scores=[table]).run().summary
    auroc = {score.column: score.kinds[0].report.auroc for score in evaluation.scores}
    rate, noisy = summary.noise_rate, sum(evaluation.noisy.values())
    return {
        "pairs": evaluation.clean + noisy,
        "noisy": noisy,
        "auroc": {name: auroc[name] for name in ("similarity", "neg_clip_loss", "clean_posterior")},
        "estimated": rate.value,
        "low": rate.low,
        "high": rate.high,
    }


def study(
    data: Path, out: Path, seeds: tuple[int, ...] = (0, 1, 2), start_steps: int = 200,
    steps: int = 60,
) -> Iterator[Row]:  # fmt: skip
    """A row for each noise, seed and arm; further facts are the gains over all seeds."""
    options = source(data, out)
    test = Retrieval(data, Path(str(options.image_root)))
    hits: Hits = {}
    for seed, rate, kind in itertools.product(seeds, RATES, KINDS):
        folder = out / f"{kind}-{rate:g}-{seed}"
        facts = {"noise": kind, "rate": rate, "seed": seed}
        shards = spoilt(data / JSON, {kind: rate}, folder / "shards", seed, options)
        start = learnt(shards, folder / "start", start_steps, seed)
        table = str(folder / "scores.parquet")
        found = detected(table, shards, start)
        truth = found["noisy"] / found["pairs"]
        recalls, of_start = test.of(start)
        hits.setdefault((kind, rate, LEFT_ALONE), {})[seed] = of_start
        yield {**facts, "arm": LEFT_ALONE, **found, **recalls}
        for arm in (arm for arm in ARMS if rate == 0.4 or arm.name in _AT_ALL_RATES):
            policy, selection, kept = arm.policy, None, {}
            if arm.name == _BEST:  # what the share of noise alone is worth
                policy = Policy(score="similarity", keep_fraction=1 - truth)
            try:
                if policy is not None:
                    path = folder / "selections" / f"{arm.file_name}.parquet"
                    selection, kept = selected(policy, table, path)
            except InputError as refused:  # scores that cannot tell matched pairs from others
                yield {**facts, "arm": arm.name, "refused": str(refused).partition(": ")[2]}
                continue
            model = training(steps).train(
                arm, start, shards, folder / arm.file_name, seed, selection=selection
            )
            recalls, of_arm = test.of(model)
            hits.setdefault((kind, rate, arm.name), {})[seed] = of_arm
            yield {**facts, "arm": arm.name, **kept, **recalls}
    return {"gains": [gained(*key, hits) for key in hits]}


def gained(kind: str, rate: float, arm: str, hits: Hits) -> dict[str, Any]:
    """An arm over `clip on all`, in recall at 10, with a 95 % interval over the test images.

    The hits of an image are means over the seeds, so that the interval is of the images; how far
    seeds differ is `over_seeds`, the standard deviation of their gains.
    """
    by_seed, baseline = hits[kind, rate, arm], hits[kind, rate, CLIP_ON_ALL]
    of_arm = np.array(list(by_seed.values()))
    differences = of_arm - np.array([baseline[seed] for seed in by_seed])
    mean = differences.mean(axis=0)
    gain, half = float(mean.mean()), 1.96 * float(sem(mean))
    return {
        "noise": kind, "rate": rate, "arm": arm, "seeds": len(of_arm),
        "recall": float(of_arm.mean()), "gain": gain, "low": gain - half, "high": gain + half,
        "over_seeds": float(differences.mean(axis=1).std(ddof=1)) if len(of_arm) > 1 else None,
    }  # fmt: skip


if __name__ == "__main__":
    benchmark(study, model=MODEL_CONFIG)
