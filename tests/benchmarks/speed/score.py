"""`score` against the plain loop on the same shards, weights and batch size.

The models are loaded; everything that `score` does per sample is timed, writing included, but not
what it does once, the estimation of the noise shift.
"""

from __future__ import annotations

from collections.abc import Mapping

from measure import Row, Setting, Target, take_turns
from towers import Towers, plain_loop, random_vit_b_32

from ncclean.models.estimator import Estimator
from speed.scoring import cosines_of, cosines_of_equal_pixels, score_shards

_PLAIN = "plain loop fp32"
_BATCH = 256


def run(setting: Setting) -> list[Row]:
    towers, shards = random_vit_b_32(), setting.photographs()
    exact, auto = towers.estimator("fp32"), towers.estimator("auto")

    def score(estimator: Estimator, name: str) -> dict[str, float]:
        out = setting.scratch / f"{name}.parquet"
        return cosines_of(score_shards(estimator, shards, out, batch_size=_BATCH))

    timings = take_turns(
        {
            _PLAIN: lambda: plain_loop(towers, shards, _BATCH),
            "fp32": lambda: score(exact, "fp32"),
            "auto": lambda: score(auto, "auto"),
        },
        repeats=setting.choose(full=2, quick=1),
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
