"""Tables of the records of `study.py` and `judgements.py`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from record_tables import heading, line, percent

Record = Mapping[str, Any]
_KINDS = {"ncr": "single captions", "ncr_image": "all captions of an image"}
_JUDGED = {"expert": "Flickr8k-Expert", "crowdflower": "Flickr8k-CF"}
_SCORES = ("similarity", "neg_clip_loss", "noise_probability", "osa_weight", "clean_posterior")


def detection_table(record: Record) -> Iterator[str]:
    """What a model sees of the noise that it has learnt, mean over the seeds."""
    yield from heading(
        "captions that move", "share", "seeds", "AUROC, `similarity`", "AUROC, `neg_clip_loss`",
        "noise rate, estimated", "covers the truth", "calibration error",
    )  # fmt: skip
    for (kind, _), rows in _by_noise(row for row in record["rows"] if row["arm"] == "left alone"):
        truth = [row["noisy"] / row["pairs"] for row in rows]
        covered = sum(
            row["low"] <= share <= row["high"] for row, share in zip(rows, truth, strict=True)
        )
        rates = ", ".join(
            f"{percent(row['estimated'])} ({percent(row['low'])} to {percent(row['high'])})"
            for row in rows
        )
        yield line(
            _KINDS[kind],
            percent(float(np.mean(truth))),
            str(len(rows)),
            *(_mean(row["auroc"][name] for row in rows) for name in _SCORES[:2]),
            rates,
            f"{covered} of {len(rows)}",
            _mean(row["calibration_error"] for row in rows),
        )


def gains_table(record: Record) -> Iterator[str]:
    """Recall at 10 of each arm, and its gain over `clip` on all pairs, by kind of noise at 40 %."""
    yield from heading(
        "arm", *(f"{name}: {what}" for name in _KINDS.values() for what in ("recall", "gain"))
    )
    yield from _arms(record, [(kind, 0.4) for kind in _KINDS])


def rates_table(record: Record) -> Iterator[str]:
    """The arms that were tried at all rates."""
    noises = [(kind, rate) for kind in _KINDS for rate in (0.2, 0.6)]
    yield from heading(
        "arm",
        *(f"{_KINDS[kind]}, {percent(rate)}: {what}" for kind, rate in noises
          for what in ("recall", "gain")),
    )  # fmt: skip
    yield from _arms(record, noises)


def judgements_table(record: Record) -> Iterator[str]:
    """Kendall's tau of each column with people: each seed, and half of the first one's interval."""
    yield from heading("judgements", "score", "tau b", "tau c", "pairwise accuracy")
    for name, label in _JUDGED.items():
        rows = [row for row in record["rows"] if row["table"] == name]
        for score in _SCORES:
            there = [row["scores"][score] for row in rows if score in row["scores"]]
            if there:
                cells = (
                    ", ".join(f"{one[measure][0]:.3f}" for one in there)
                    + f" (± {(there[0][measure][2] - there[0][measure][1]) / 2:.3f})"
                    for measure in ("tau_b", "tau_c", "pairwise_accuracy")
                )
                yield line(label, f"`{score}`", *cells)


def _arms(record: Record, noises: list[tuple[str, float]]) -> Iterator[str]:
    gains = {(row["noise"], row["rate"], row["arm"]): row for row in record["gains"]}
    refused = {
        (row["noise"], row["rate"], row["arm"]) for row in record["rows"] if "refused" in row
    }
    for arm in dict.fromkeys(row["arm"] for row in record["rows"]):
        cells: list[str] = []
        for noise in noises:
            row = gains.get((*noise, arm))
            if row is None:
                cells += ["refused" if (*noise, arm) in refused else "", ""]
                continue
            gain, low, high, spread = (
                100 * (row[name] or 0) for name in ("gain", "low", "high", "over_seeds")
            )
            shown = f"{gain:+.2f} ({low:+.2f} to {high:+.2f}), sd {spread:.2f}"
            cells += [percent(row["recall"]), shown if low != high else ""]
        if any(cells):
            yield line(arm, *cells)


def _by_noise(rows: Any) -> list[tuple[tuple[str, float], list[Mapping[str, Any]]]]:
    groups: dict[tuple[str, float], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["noise"], row["rate"]].append(row)
    return sorted(groups.items())


def _mean(values: Any) -> str:
    return f"{np.mean(list(values)):.3f}"
