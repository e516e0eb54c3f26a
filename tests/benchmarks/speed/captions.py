"""Two captions of each image, against one: the image is decoded and encoded once."""

from __future__ import annotations

import functools
import json
import tarfile
from pathlib import Path

from measure import Setting, take_turns
from results import Row, Target
from towers import random_vit_b_32

from ncclean.data.tar_members import add_member
from ncclean.models.estimator import Estimator
from speed.corpora import photographs, usual_captions
from speed.scoring import score_shards

_BATCH = 256
_KEYS = ("caption", "recaption")


def run(setting: Setting) -> list[Row]:
    towers = random_vit_b_32()
    estimator = towers.estimator("auto")
    estimator.seconds_per_batch(16)
    shard, images = _shard(setting)
    timings = take_turns(
        {
            str(count): functools.partial(_score, estimator, shard, count, setting.scratch)
            for count in (1, 2)
        },
        repeats=setting.choose(full=7, quick=1),
    )
    one, two = timings["1"], timings["2"]
    return [
        Row(
            name=f"{towers.name} {estimator.precision}, two captions",
            value=images / two.best,
            unit="images/s",
            ratio=two.best / one.best,
            target=Target("ratio", "<=", 1.3),
            note=f"time over that of one caption, {images / one.best:,.0f} images/s; {two.spread}",
        )
    ]


def _score(estimator: Estimator, shard: Path, captions: int, scratch: Path) -> None:
    out = scratch / f"captions-{captions}.parquet"
    keys = _KEYS[:captions]
    score_shards(estimator, [shard], out, batch_size=_BATCH, shift=0.0, caption_key=keys)


def _shard(setting: Setting) -> tuple[Path, int]:
    count = setting.choose(full=512, quick=64)
    path = setting.scratch / "captions.tar"
    images = photographs(count, (640, 480), quality=90)
    captions = usual_captions(2 * count)
    with tarfile.open(path, "w") as tar:
        for number, image in enumerate(images):
            record = dict(zip(_KEYS, captions[2 * number :][:2], strict=True))
            add_member(tar, f"{number:09d}.jpg", image)
            add_member(tar, f"{number:09d}.json", json.dumps(record).encode())
    return path, count
