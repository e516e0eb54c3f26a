"""Records of audits as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from record_tables import heading, line, percent

Record = Mapping[str, Any]


def coverage_lines(record: Record) -> Iterator[str]:
    """`audit_coverage.py`: how many intervals hold the truth, at the worst noise rate."""
    groups: dict[int, list[Any]] = {}
    for row in record["rows"]:
        groups.setdefault(row["answers"], []).append(row)
    for answers, rows in groups.items():
        noise_rate = min(row["covered"] for row in rows if row["figure"] == "noise_rate")
        fewest, draws = min(row["covered"] for row in rows), rows[0]["draws"]
        yield (
            f"- {answers} answers: {noise_rate} of {draws} intervals of the noise rate; "
            f"{fewest} of the worst of all figures."
        )


_LABELS = {"worse": "`worse`", "random1": "`random1`", "aggregate": "`aggregate`"}


def human_scores_table(record: Record) -> Iterator[str]:
    """`cifar10n.py`: AUROC of each score by label set, average precision in parentheses."""
    rows = record["detection"]
    labels = list(dict.fromkeys(row["label"] for row in rows))
    yield from heading("score", *(_LABELS[label] for label in labels))
    for score in dict.fromkeys(row["score"] for row in rows):
        of_score = {row["label"]: row for row in rows if row["score"] == score}
        cells = [
            f"{of_score[label]['auroc']:.3f} ({of_score[label]['average_precision']:.3f})"
            for label in labels
        ]
        yield line("cleanlab, same embeddings" if score == "cleanlab" else f"`{score}`", *cells)


def human_rate_table(record: Record) -> Iterator[str]:
    """`cifar10n.py`: the noise rate that random mismatches let one see."""
    yield from heading(
        "labels", "calibrated on", "true", "estimated (95 % interval)", "calibration error",
        "kept at .5: expected wrong", "wrong",
    )  # fmt: skip
    for row in record["rows"]:
        estimated = f"{percent(row['estimated'])} ({percent(row['low'])} to {percent(row['high'])})"
        yield line(
            _LABELS[row["label"]],
            f"`{row['calibrated_on']}`",
            percent(row["true"]),
            estimated,
            f"{row['calibration_error']:.3f}",
            f"{row['expected_kept']:,.0f}",
            f"{row['mismatched_kept']:,}",
        )


def human_audit_table(record: Record) -> Iterator[str]:
    """`cifar10n.py`: audits by the true labels."""
    yield from heading(
        "labels", "answers", "true", "interval holds it", "its width in points",
        "calibration error before", "after", "worst tenth of the draws",
    )  # fmt: skip
    for row in record["audits"]:
        yield line(
            _LABELS[row["label"]],
            f"{row['answers']:,}",
            percent(row["true"]),
            f"{row['covered']['noise_rate']} of {row['draws']}",
            f"{100 * row['width']['noise_rate']:.1f}",
            f"{row['error_before']:.3f}",
            f"{row['error_after']:.3f}",
            f"from {row['error_after_90']:.3f}",
        )


def human_near_miss_table(record: Record) -> Iterator[str]:
    """`cifar10n.py`: what `--words` sees of people's errors, beside the first null."""
    rows = record["near_misses"]
    scores = [f"`{score}`" for score in rows[0]["ranking"]]
    yield from heading(
        "labels", "word list", "captions with a word", *scores, "wrong", "wrong words, estimated",
        "errors found at .5",
    )  # fmt: skip
    for row in rows:
        ranking = (
            f"{score['auroc']:.3f} ({score['average_precision']:.3f})"
            for score in row["ranking"].values()
        )
        rate, low, high = row["near_misses"]
        yield line(
            _LABELS[row["label"]],
            row["words"],
            percent(row["tried"]),
            *ranking,
            percent(row["true"]),
            f"{percent(rate)} ({percent(low)} to {percent(high)})"
            if row["can_tell"]
            else "cannot tell",
            percent(row["found_either"]),
        )


def human_repair_table(record: Record) -> Iterator[str]:
    """`cifar10n.py`: zero-shot accuracy on photographs that no model has seen."""
    yield from heading("arm", "pairs", "wrong", "accuracy", "over `clip` on all", "95 % interval")
    for row in record["repair"]:
        trained = row["pairs"] > 0
        yield line(
            row["arm"],
            f"{row['pairs']:,}" if trained else "",
            percent(row["noisy_share"]) if trained else "",
            percent(row["accuracy"]),
            f"{100 * row['gain']:+.1f}" if row["gain_low"] != row["gain_high"] else "",
            f"{100 * row['gain_low']:+.1f} to {100 * row['gain_high']:+.1f}"
            if row["gain_low"] != row["gain_high"]
            else "",
        )


def human_probe_table(record: Record) -> Iterator[str]:
    """`cifar10n.probe`: the accuracy of a probe on people's labels by the weights of its images."""
    yield from heading(
        "labels", "weights", "images that count", "wrong, by weight", "accuracy",
        "over equal weights", "95 % interval",
    )  # fmt: skip
    for row in record["rows"]:
        if "refused" in row:
            cells = ["none", "", "refused: all weights are 0", "", ""]
        else:
            cells = [percent(row[name]) for name in ("kept", "wrong", "accuracy")]
            is_other = row["gain_low"] != row["gain_high"]
            gains = [f"{100 * row[name]:+.1f}" for name in ("gain", "gain_low", "gain_high")]
            cells += [gains[0], " to ".join(gains[1:])] if is_other else ["", ""]
        yield line(f"`{row['labels']}`", row["weights"], *cells)


_SHOWN_RATES = (0.01, 0.2)
_SHOWN_JUDGES = ("right", "right in 90 %", "useless", "as the estimator")


def judges_table(record: Record) -> Iterator[str]:
    """`audits.judged`: widths of the noise rate's intervals over those by people alone."""
    rows = record["rows"]
    corpora = list(dict.fromkeys(row["corpus"] for row in rows))
    yield from heading(
        "judge", *(f"{name}, {percent(rate)}" for name in corpora for rate in _SHOWN_RATES),
        "fewest that hold the truth",
    )  # fmt: skip
    for judge in _SHOWN_JUDGES:
        mine = [row for row in rows if row["judge"] == judge]
        noise = {(r["corpus"], r["rate"]): r for r in mine if r["figure"] == "noise_rate"}
        shown = (noise[corpus, rate] for corpus in corpora for rate in _SHOWN_RATES)
        ratios = (
            f"{row['width_judged'] / row['width_alone']:.2f}, "
            f"{row['width_drawn'] / row['width_alone']:.2f}"
            for row in shown
        )
        fewest = min(row[f"covered_{way}"] for row in mine for way in ("judged", "drawn"))
        yield line(judge, *ratios, f"{fewest} of {mine[0]['draws']}")


def human_judges_table(record: Record) -> Iterator[str]:
    """`cifar10n.judges`: widths of the noise rate's intervals, in points."""
    yield from heading(
        "labels", "wrong", "judge", "right in", "150 people alone", "and 5,000 of the judge",
        "150 drawn by the judge", "300 people", "1,000 people", "fewest of 200 hold it",
    )  # fmt: skip
    rows = record["rows"]
    for label in dict.fromkeys(row["label"] for row in rows):
        mine = [row for row in rows if row["label"] == label]
        alone = {row["people"]: row for row in mine if row["way"] == "people"}
        for judge in dict.fromkeys(row["judge"] for row in mine if row["judge"]):
            ways = {row["way"]: row for row in mine if row["judge"] == judge}
            shown = [alone[150], ways["people and judge"], ways["people, drawn by the judge"]]
            shown += [alone[300], alone[1_000]]
            widths = (f"{100 * row['width noise_rate']:.1f}" for row in shown)
            fewest = min(row["covered noise_rate"] for row in shown)
            right = percent(shown[1]["agrees"])
            yield line(_LABELS[label], percent(mine[0]["true"]), judge, right, *widths, str(fewest))
