"""`score` against the plain loop on the same shards, weights and batch size.

The models are loaded; everything that `score` does per sample is timed, writing included. What
it does once, the estimation of the noise shift, is a row of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from measure import Setting, take_turns
from results import Row, Target
from towers import Towers, demo_towers, random_vit_b_32

from ncclean.models.estimator import Estimator
from ncclean.scoring.osa import estimate_shift
from speed.plain_loop import plain_loop
from speed.scoring import cosines_of, cosines_of_equal_pixels, score_shards

_PLAIN = "plain loop fp32"
_BATCH = 256
_SHIFT_TOLERANCE = 1e-3  # what `ncclean score` asks for


def run(setting: Setting) -> list[Row]:
    photographs, scenes = setting.photographs(), setting.demo_corpus()
    # With random weights the cosines scatter more than a trained model's, so that the shift
    # would take thousands of pairs; a trained ViT-B-32 needs a few hundred.
    large, demo = random_vit_b_32(), demo_towers(setting.demo_model)
    return [
        *_compare(large, photographs, setting, shift_pairs=128, repeats=2),
        *_compare(demo, scenes, setting, shift_pairs=4096, repeats=3),
    ]


def _compare(
    towers: Towers, shards: list[Path], setting: Setting, *, shift_pairs: int, repeats: int
) -> list[Row]:
    exact, auto = towers.estimator("fp32"), towers.estimator("auto")
    start = time.perf_counter()
    shift = estimate_shift(auto, shift_pairs, tolerance=_SHIFT_TOLERANCE)
    shift_seconds = time.perf_counter() - start

    def scored(estimator: Estimator, name: str) -> Callable[[], dict[str, float]]:
        def score() -> dict[str, float]:
            out = setting.scratch / f"{towers.name}-{name}.parquet"
            return cosines_of(score_shards(estimator, shards, out, batch_size=_BATCH, shift=shift))

        return score

    timings = take_turns(
        {
            _PLAIN: lambda: plain_loop(towers, shards, _BATCH),
            "fp32": scored(exact, "fp32"),
            "auto": scored(auto, "auto"),
        },
        repeats=setting.choose(full=repeats, quick=1),
    )
    plain = timings[_PLAIN]
    expected = plain.results[-1]
    pairs = len(expected)
    rows = [
        Row(
            name=f"{towers.name} {_PLAIN}",
            value=pairs / plain.best,
            unit="pairs/s",
            note=f"{pairs:,} pairs, {plain.spread}",
        )
    ]
    # Where the processor has no bf16, `auto` is fp32 and its target cannot be meant.
    targets = {"fp32": 1.4, "auto": 3.0 if auto.precision != "fp32" else 1.4}
    for name, bound in targets.items():
        timing = timings[name]
        rows.append(
            Row(
                name=f"{towers.name} score {name}",
                value=pairs / timing.best,
                unit="pairs/s",
                ratio=plain.best / timing.best,
                target=Target("ratio", ">=", bound),
                note=timing.spread + (f", auto is {auto.precision}" if name == "auto" else ""),
            )
        )
    equal = cosines_of_equal_pixels(exact, shards[0], _BATCH)
    return [
        *rows,
        _difference(towers, "fp32, equal pixels", equal, expected, 1e-4),
        _difference(towers, "fp32", timings["fp32"].results[-1], expected, 3e-3),
        _difference(towers, "auto", timings["auto"].results[-1], expected, None),
        Row(
            name=f"{towers.name} noise shift",
            value=shift_seconds,
            unit="s",
            note=f"once a run, at most {shift_pairs:,} pairs, {auto.precision}",
        ),
    ]


def _difference(
    towers: Towers,
    name: str,
    found: Mapping[str, float],
    expected: Mapping[str, float],
    bound: float | None,
) -> Row:
    """The largest difference in cosine over the keys of `found`."""
    return Row(
        name=f"{towers.name} cosine difference, {name}",
        value=max(abs(cosine - expected[key]) for key, cosine in found.items()),
        unit="",
        target=Target("value", "<=", bound) if bound is not None else None,
        note=f"largest of {len(found):,} pairs",
    )
