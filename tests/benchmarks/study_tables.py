"""Records of studies as Markdown: captions, causes, people's errors, noise and repair."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from record_tables import (
    Record,
    Row,
    chosen,
    groups,
    heading,
    interval,
    line,
    mean,
    percent,
    span,
    spread,
    total,
)
from scipy.stats import t

BASELINE = "clip on all"


def caption_parts_table(rendered: Record, photographs: Record) -> Iterator[str]:
    """Average precision of each score by kind of error, and what is flagged at one half."""
    scores = {
        "part_noise_probability": "`part_noise_probability`",
        "worst cosine": "least cosine",
        "whole cosine": "whole caption",
    }
    yield from heading(
        "corpus, what is wrong", *scores.values(), "`worst_part` is right", "of the flagged, wrong"
    )
    foreign, hard = "a sentence of another scene", "one fact, wherever it is named"
    of_rendered, of_photographs = rendered["rows"], chosen(photographs["rows"], what="detection")
    for corpus, rows in (
        (f"rendered, {foreign}", chosen(of_rendered, kind="foreign_sentence", sentences=5)),
        (f"rendered, {hard}", chosen(of_rendered, kind="hard", sentences=5)),
        (f"Flickr8k, {foreign}", chosen(of_photographs, sentences=5)),
    ):
        named = [row["named_of_all"] for row in rows if row.get("named_of_all") is not None]
        flagged = total(rows, "flagged")
        yield line(
            corpus,
            *(f"{mean(row['precision'][score] for row in rows):.3f}" for score in scores),
            percent(mean(named)) if named else "",
            percent((flagged - total(rows, "false")) / flagged) if flagged else "",
        )


def mending_lines(record: Record) -> Iterator[str]:
    """Recall of each arm, and its gain over all captions in points, with the range of the seeds."""
    first, base = record["rows"][0]["arm"], {}
    for arm, rows in groups(record["rows"], "arm"):
        recalls = {
            row["seed"]: 50 * (row["image_to_text_R@10"] + row["text_to_image_R@10"])
            for row in rows
        }
        base = base or recalls
        gains = [recall - base[seed] for seed, recall in recalls.items()]
        gain = interval(mean(gains), min(gains), max(gains))
        recall = percent(mean(recalls.values()) / 100)
        pairs = f"{round(mean(row['pairs'] for row in rows)):,}"
        yield f"- {arm}, {pairs} pairs: {recall if arm == first else gain}"


def caption_parts_speed_line(record: Record) -> Iterator[str]:
    """Pairs a second with and without parts."""
    rows = record["rows"]
    whole, parts = (
        ", ".join(f"{row['pairs'] / row['seconds'][name]:,.0f}" for row in rows)
        for name in ("whole", "parts")
    )
    counts = ", ".join(str(row["sentences"]) for row in rows)
    yield f"With {counts} sentences: {parts} pairs/s, and {whole} pairs/s without the option."


def causes_lines(record: Record) -> Iterator[str]:
    """How often each planted cause is found by each estimator, and what is reported beside them."""
    planted = sorted({cause for row in record["rows"] for cause in row["planted"]})
    yield f"- Planted: {', '.join(planted)}."
    for model, rows in groups(record["rows"], "model"):
        found: dict[str, list[float]] = defaultdict(list)
        for row in rows:
            for cause in set(row["planted"]).intersection(row["found"]):
                found[cause].append(row["covered"][cause])
        missed = [f"never “{cause}”" for cause in planted if cause not in found]
        partly = [
            f"{percent(float(np.mean(shares)))} of the pairs of “{cause}”"
            for cause, shares in sorted(found.items())
            if np.mean(shares) < 1
        ]
        but = f" ({', '.join([*missed, *partly])})" if missed or partly else ""
        planted_here = sum(len(row["planted"]) for row in rows)
        false, covered, reported = _reported(rows)
        yield (
            f"- `{model}`: {sum(map(len, found.values()))} of {planted_here} found{but}; "
            f"{false} of {reported} reported groups are no cause; {covered} of {reported} "
            "intervals hold the true share."
        )


def _reported(rows: Iterable[Row]) -> tuple[int, int, int]:
    """False causes, intervals that hold the truth, and all reported causes."""
    reported = [cause for row in rows for cause in row["reported"]]
    covered = sum(cause["low"] <= cause["truth"] <= cause["high"] for cause in reported)
    return sum(cause["false"] for cause in reported), covered, len(reported)


def structured_lines(record: Record) -> Iterator[str]:
    """What is called a cause where the estimator is only worse, and which causes are found."""
    names = [name for name, _ in groups(record["rows"], "structure")]
    yield f"- Harder groups, by their AUROC or the noise of their vectors: {'; '.join(names)}."
    for has_embeddings, name in ((True, "With embeddings"), (False, "From the table alone")):
        rows = chosen(record["rows"], embeddings=has_embeddings)
        without, planted = (chosen(rows, causes=has) for has in (False, True))
        unsure = sum(len(row["uncertain"]) for row in without)
        found = sum(len({cause["is"] for cause in row["reported"]} - {""}) for row in planted)
        _, covered, reported = _reported(planted)
        yield (
            f"- {name}: {_reported(rows)[0]} false causes in {len(rows)} corpora, {unsure} groups "
            f"listed apart in the {len(without)} without causes; {found} of "
            f"{sum(len(row['planted']) for row in planted)} planted causes found; {covered} of "
            f"{reported} intervals hold the true share."
        )


def further_causes_lines(
    sentences: Record, classes: Record, class_photographs: Record, photographs: Record
) -> Iterator[str]:
    """What is found of wrong sentences, of exchanged classes and of shifted captions."""
    planted = chosen(sentences["rows"], causes=True)
    told = []
    for has_embeddings, name in ((True, "with embeddings"), (False, "from the table alone")):
        rows = chosen(planted, embeddings=has_embeddings)
        found = sum(bool(row["found"]) for row in rows)
        apart = sum(bool(row["uncertain"]) for row in rows)
        told.append(f"{name} found in {found} of {len(rows)} corpora and listed apart in {apart}")
    yield (
        "- A host with one wrong sentence in each caption of three or five: "
        f"{', '.join(told)}; {_reported(sentences['rows'])[0]} false groups in all "
        f"{len(sentences['rows'])}."
    )
    exchanged = [row for row in classes["rows"] if row["exchanged"]]
    false = sum(len(row["reported"]) for row in classes["rows"] if not row["exchanged"])
    yield (
        "- Two of twelve rendered class folders exchanged: found in "
        f"{sum(bool(row['reported']) for row in exchanged)} of {len(exchanged)} "
        f"corpora; {false} false groups where none were."
    )
    names: dict[bool, list[str]] = {True: [], False: []}
    for row in class_photographs["rows"]:
        labels = " ".join(cause["label"] for cause in row["reported"])
        is_found = bool(row["exchanged"]) and all(name in labels for name in row["exchanged"])
        assert is_found or not row["reported"]
        names[is_found].append(" and ".join(row["exchanged"]) or "no exchange")
    yield (
        f"- Two of ten classes of CIFAR-10's photographs exchanged: named for "
        f"{', '.join(names[True])}; nothing reported for {', '.join(names[False])}."
    )
    for row in photographs["rows"]:
        is_changed = row["corpus"] != "as-it-is"
        name = "with 250 captions shifted, and “boy” for “dog”" if is_changed else "as it is"
        causes = ", ".join(f"{cause['kind']} `{cause['label']}`" for cause in row["reported"])
        proposals = (cause["proposal"] for cause in row["reported"] if cause["proposal"])
        told = [causes or "nothing reported", *(one.partition(":")[0] for one in proposals)]
        yield f"- Flickr8k {name}: {'; '.join(told)}."


def causes_scale_lines(*records: Record) -> Iterator[str]:
    """Time and memory of the largest corpus of each record."""
    for row in (record["rows"][-1] for record in records):
        yield (
            f"- {row['rows']:,} pairs, {row['tested']:,} groups: {row['processor_seconds']:,.0f} s "
            f"of processor, {row['peak_mib']:,} MiB."
        )


LABELS = ("worse", "random1", "aggregate")
# Arms that decide nothing: they are neither controls nor differ from `clip` on all.
_UNDECIDED = ("left alone", "clip, selected by itself", "clip, selected after 300 answers", "bayes")
# Weights of the record that gain less than those shown.
_ALIKE = (
    "1 - `noise_probability`",
    "drop `noise_probability` >= 0.5",
    "drop the lowest cosines, as many as estimated",
)


def scores_line(record: Record) -> Iterator[str]:
    """`cifar10n.study`: AUROC of each score by label set."""
    auroc = {(row["label"], row["score"]): row["auroc"] for row in record["detection"]}
    names = {
        "similarity": "`similarity`",
        "neg_clip_loss": "`neg_clip_loss`",
        "cleanlab": "cleanlab, same embeddings,",
    }
    scores = (
        f"{name} {', '.join(f'{auroc[label, score]:.3f}' for label in LABELS)}"
        for score, name in names.items()
    )
    yield f"On {', '.join(f'`{label}`' for label in LABELS)}: {'; '.join(scores)}."


def rate_table(record: Record) -> Iterator[str]:
    """`cifar10n.study`: the noise rate that random mismatches show, and what an audit mends."""
    yield from heading(
        "labels", "AUROC, `similarity`", "wrong", "noise rate, interval", "errors found at .5",
        "calibration error", "after 300 answers", "audits that hold the truth",
    )  # fmt: skip
    for label in LABELS:
        score, rate, found, audit = (
            chosen(record[name], label=label, **facts)[0]
            for name, facts in {
                "detection": {"score": "similarity"},
                "rows": {"calibrated_on": "similarity"},
                "near_misses": {"words": "of the captions"},
                "audits": {"answers": 300},
            }.items()
        )
        yield line(
            f"`{label}`",
            f"{score['auroc']:.3f}",
            percent(rate["true"]),
            f"{percent(rate['low'])} to {percent(rate['high'])}",
            percent(found["found_either"]),
            f"{audit['error_before']:.3f}",
            f"{audit['error_after']:.3f}",
            f"{audit['covered']['noise_rate']} of {audit['draws']}",
        )


def repair_line(record: Record) -> Iterator[str]:
    """`cifar10n.study`: zero-shot accuracy on photographs that no model has seen."""
    rows = (row for row in record["repair"] if row["arm"] not in _UNDECIDED)
    gains = (f"{row['arm']} {gain}" for row in rows if (gain := _gain(row)))
    yield f"Points over `clip` on all: {'; '.join(gains)}."


def forgetting_list(record: Record) -> Iterator[str]:
    """`cifar10n.repair`: the gain of each arm over `clip` on all, run by run."""
    for arm, rows in groups(filter(_gain, record["rows"]), "arm"):
        yield f"- {arm}: {', '.join(map(_gain, rows))}"


def probe_line(record: Record) -> Iterator[str]:
    """`cifar10n.probe`: what the weights of its images do to a probe on people's worst labels."""
    gains = (
        f"{row['weights']} {'refused: all weights are 0' if 'refused' in row else _gain(row)}"
        for row in chosen(record["rows"], labels=LABELS[0])
        if row["weights"] not in _ALIKE and ("refused" in row or _gain(row))
    )
    yield f"Points over equal weights: {'; '.join(gains)}."


def judges_table(record: Record) -> Iterator[str]:
    """`cifar10n.judges`: widths of the noise rate's intervals, the mean over single people."""
    yield from heading(
        "labels", "150 answers", "and 5,000 of the judge", "150 drawn by the judge",
        "300 answers",
    )  # fmt: skip
    for label, rows in groups(record["rows"], "label"):
        beside, drawn = (
            [row for row in chosen(rows, way=way) if row["judge"].startswith("random")]
            for way in ("people and judge", "people, drawn by the judge")
        )
        alone, more = (chosen(rows, way="people", people=people) for people in (150, 300))
        widths = (
            f"{100 * np.mean([row['width noise_rate'] for row in of_way]):.1f}"
            for of_way in (alone, beside, drawn, more)
        )
        yield line(f"`{label}`", *widths)


def _gain(row: Row) -> str:
    """In points, with its interval; nothing for the baseline."""
    if row["gain_low"] == row["gain_high"]:
        return ""
    return interval(*(100 * row[name] for name in ("gain", "gain_low", "gain_high")))


_MOVED = {"ncr": "single captions", "ncr_image": "all captions of an image"}


def flickr8k_detection_lines(record: Record) -> Iterator[str]:
    """What a model sees of the noise that it has learnt, mean over the seeds."""
    for kind, name in _MOVED.items():
        moved = chosen(record["rows"], arm="left alone", noise=kind)
        cells = (
            f"{mean(row['auroc']['similarity'] for row in rows):.3f} and "
            f"{percent(mean(row['estimated'] for row in rows))}"
            for _, rows in sorted(groups(moved, "rate"))
        )
        covered = sum(row["low"] <= row["noisy"] / row["pairs"] <= row["high"] for row in moved)
        yield f"- {name}: {', '.join(cells)}; {covered} of {len(moved)} intervals hold the truth"


def flickr8k_gains_lines(record: Record) -> Iterator[str]:
    """What arms gain in recall at 10 over `clip` on all pairs, by kind of noise at 40 %.

    Arms whose intervals include 0 with both kinds share a sentence.
    """
    alike, means = [], []
    for arm, rows in groups(chosen(record["gains"], rate=0.4), "arm"):
        of_kind = {
            row["noise"]: [100 * (row[name] or 0) for name in ("gain", "low", "high")]
            for row in rows
        }
        if arm == BASELINE:
            continue
        if all(low <= 0 <= high for _, low, high in of_kind.values()):
            alike.append(arm)
            means += [gain for gain, _, _ in of_kind.values()]
        else:
            cells = (interval(*of_kind[kind], digits=2) for kind in _MOVED)
            yield f"- {arm}: {', '.join(cells)}"
    yield ""
    yield (
        f"The others gain {min(means):+.2f} to {max(means):+.2f}, with intervals that include 0: "
        f"{'; '.join(alike)}."
    )


def judgements_line(record: Record) -> Iterator[str]:
    """Kendall's tau of the cosine with people, the mean and the range of the seeds."""
    agreement = []
    for name, measure, source in (
        ("expert", "tau_c", "Flickr8k-Expert"), ("crowdflower", "tau_b", "-CF"),
    ):  # fmt: skip
        rows = chosen(record["rows"], table=name)
        taus = [row["scores"]["similarity"][measure][0] for row in rows]
        seeds = f"{min(taus):.3f} to {max(taus):.3f}"
        tau = measure.replace("_", " ")
        agreement.append(f"{tau} {np.mean(taus):.3f} ({seeds}) on {source}")
    told = ", ".join(agreement)
    yield f"A small model trained on Flickr8k: {told}, mean and range of three seeds."


_CORPORA = {
    "fashion-fashionclip": "fashion photographs, FashionCLIP",
    "fashion-marqo": "fashion photographs, Marqo-FashionCLIP",
    "products-openai-b32": "product photographs, OpenAI ViT-B/32",
}
_SCORES = ("similarity", "neg_clip_loss", "auto")


def donors_table(record: Record) -> Iterator[str]:
    """`noise.donors`: pairs on the wrong side of one half, by score, at each share."""
    names = (f"by `{score}`" for score in _SCORES)
    yield from heading("photographs, model", *names)
    for corpus, rows in groups(chosen(record["rows"], noise="donor"), "corpus"):
        yield line(_CORPORA[corpus], *_wrong(rows))
    permuted = chosen(record["rows"], noise="permuted")
    yield line("captions permuted, mean of all three", *_wrong(permuted))


def _wrong(rows: Sequence[Row]) -> Iterator[str]:
    """Pairs on the wrong side of one half at the smallest share of wrong captions and so on."""
    shares: dict[float, list[Row]] = {}
    for row in rows:
        shares.setdefault(round(row["share"], 2), []).append(row)
    for score in _SCORES:
        means = (
            np.mean([row["wrong"][score] / row["pairs"] for row in of]) for of in shares.values()
        )
        yield ", ".join(f"{100 * share:.1f}" for share in means) + " %"


def coverage_lines(*records: Record) -> Iterator[str]:
    """`noise.donors`: what the noise rate is worth, by what the estimator knows."""
    kinds = {"donor": "from outside", "permuted": "of the corpus", "clean": "clean"}
    every = (
        {**row, "estimator": _estimator(row["corpus"])}
        for record in records
        for row in record["rows"]
        if row["noise"] in kinds
    )
    for estimator, rows in groups(every, "estimator"):
        of_kind = dict(groups(rows, "noise"))
        cells = [
            f"{name} {total(of_kind[kind], 'covered')} of {total(of_kind[kind], 'draws')}"
            for kind, name in kinds.items()
            if kind in of_kind
        ]
        noisy = [row for row in rows if row["noise"] != "clean"]
        widths, errors = (
            np.mean([100 * row[name] for row in noisy]) for name in ("width", "rate_error")
        )
        off = np.mean([row["rate"] - row["share"] for row in noisy]) * 100
        yield (
            f"- {estimator}: {', '.join(cells)}; {widths:.1f} points wide, the rate "
            f"{off:+.1f} ({errors:.1f}) off"
        )


def _estimator(corpus: str) -> str:
    if corpus.startswith("bundled"):
        return f"`{corpus.removeprefix('bundled-')}`, rendered"
    if corpus in _CORPORA:
        return "three pretrained CLIPs, photographs"
    return f"trained briefly, {corpus.rpartition('-')[0]}"


def swaps_line(record: Record) -> Iterator[str]:
    """`noise.donors`: which part of the noise the rate sees, over models and shares."""
    cluster, nearest = (
        [100 * row["rate"] / row["share"] for row in chosen(record["rows"], noise=kind)]
        for kind in ("cluster", "nearest")
    )
    yield (
        "Of captions that were exchanged within a cluster (k-means, 20 clusters), the noise rate "
        f"sees {min(cluster):.0f} to {max(cluster):.0f} %; of captions exchanged with the nearest "
        f"one, {min(nearest):.0f} to {max(nearest):.0f} %."
    )


def few_captions_line(record: Record) -> Iterator[str]:
    """`noise.few_captions`: intervals where captions are few."""
    captions = ", ".join(f"{count:,}" for count, _ in groups(record["rows"], "captions"))
    covered = (
        ", ".join(str(row["covered"]) for row in rows)
        + f" of {rows[0]['draws']} with {pairs:,} pairs"
        for pairs, rows in groups(record["rows"], "pairs")
    )
    yield f"Intervals that hold the truth with {captions} captions: {'; '.join(covered)}."


def real_rule_lines(record: Record) -> Iterator[str]:
    """`noise.real_clip`: which shares of the matched and of the mismatched pairs rules keep."""
    names = {
        "noise_probability >= 0.5": "`noise_probability < 0.5`",
        "not disncl_clean": "`disncl_clean`",
        "osa_noisy": "not `osa_noisy`",
    }
    rows = chosen(record["rows"], share=0.2)
    for rule, name in names.items():
        matched, mismatched = (
            span(map(percent, sorted(row["rules"][rule][kept]["mean"] for row in rows)))
            for kept in ("clean_kept", "noise_kept")
        )
        yield f"- {name}: {matched} of the matched, {mismatched} of the mismatched pairs"


def candidates_lines(record: Record) -> Iterator[str]:
    """`noise.real_clip --scores`: AUROC, the mean over the photographs and each rendered noise."""
    names = {
        "similarity": "`similarity`",
        "neg_clip_loss": "`neg_clip_loss`",
        "neg_clip_loss, pool": "pool",
        "canonical": "canonical",
    }
    kinds = {"ncr": "permuted", "hard": "one wrong word", "junk": "boilerplate"}
    all_find = [("rendered, demo", "ncr"), ("rendered, demo", "junk")]  # every AUROC is 1
    rows = (
        {**row, "column": row["corpus"] if row["corpus"] not in _CORPORA else "photographs"}
        for row in record["rows"]
        if (row["corpus"], row["noise"]) not in all_find
    )
    for (column, noise), of_column in groups(rows, "column", "noise"):
        cells = (
            f"{name} {np.mean([row['scores'][score]['auroc'] for row in of_column]):.3f}"
            for score, name in names.items()
            if score in of_column[0]["scores"]
        )
        yield f"- {column}, {kinds[noise]}: {', '.join(cells)}"


def near_miss_lines(record: Record) -> Iterator[str]:
    """`noise.near_misses`: AUROC of each score where a fifth of the scenes has a wrong fact."""
    for row in chosen(record["rows"], share=0.2, noise="scene"):
        scores = ", ".join(
            f"{row['scores'][score]['auroc']:.3f} by `{score}`"
            for score in ("near_miss_score", "similarity", "neg_clip_loss")
        )
        low, high = (100 * rate for rate in row["near_misses"][1:])
        yield (
            f"- `{row['model']}`: AUROC {scores}; estimated share {low:.0f} to {high:.0f} % "
            "(truth: 20 %)."
        )


def word_list_lines(record: Record) -> Iterator[str]:
    """`noise.word_lists`: AUROC by list, of classes that images tell apart, beside the cosine's."""
    told_apart = [row for row in record["rows"] if not row.get("every class")]
    for corpus, rows in groups(told_apart, "corpus"):
        lists = (
            f"{row['list']} {row['auroc']['near_miss_score']:.3f} ({percent(row['tried'])} of the "
            f"captions; cosine {row['auroc']['similarity']:.3f})"
            for row in rows
            if row["list"] in ("shipped", "of the corpus")
        )
        yield f"- {corpus}: {', '.join(lists)}"


def text_signal_lines(record: Record) -> Iterator[str]:
    """`noise.text_signals`: planted signs that are found, and signs of untouched captions."""
    for count, rows in groups(record["rows"], "count"):
        *planted, untouched = rows
        found = ", ".join(f"{row['kind']} {row['found']}" for row in planted)
        right = sum(row["found"] for row in planted)
        signs = ", ".join(f"{name} {n}" for name, n in untouched["signs"].items() if n)
        yield (
            f"- Each planted in {count} captions; found: {found}. Precision "
            f"{right / (right + untouched['found']):.3f}: of {untouched['captions']:,} other "
            f"captions {untouched['found']} have a sign ({signs})."
        )


Render = Callable[[Record], Iterator[str]]


def gains_table(*arms: str, metrics: Sequence[str] = ()) -> Render:
    """`repair.study`: what the rsum of arms has over `clip` on all, and other metrics."""

    def render(record: Record) -> Iterator[str]:
        yield from heading("arm", f"rsum over {BASELINE}", *(f"{metric}, %" for metric in metrics))
        for arm in arms if not metrics else (BASELINE, *arms):
            rows = chosen(record["rows"], arm=arm)
            cells = (spread(100 * row[metric] for row in rows) for metric in metrics)
            yield line(arm, spread(differences(record["rows"], arm), signed=True), *cells)

    return render


def gains_lines(*arms: str) -> Render:
    """The gains of arms as a list."""
    return lambda record: (
        f"- {arm}: {spread(differences(record['rows'], arm), signed=True)}" for arm in arms
    )


def gains_line(arms: Mapping[str, str]) -> Render:
    """The gains of arms in a sentence; `arms` names them."""

    def render(record: Record) -> Iterator[str]:
        gains = (
            f"{spread(differences(record['rows'], arm), signed=True)} with {name}"
            for arm, name in arms.items()
        )
        yield f"Points of rsum over {BASELINE}: {', '.join(gains)}."

    return render


def noise_gains_table(arms: Sequence[str], noises: Sequence[str]) -> Render:
    """An arm a line, a noise a column: what its rsum has over `clip` on all."""

    def render(record: Record) -> Iterator[str]:
        by_noise = _by_noise(record)
        yield from heading(f"rsum over {BASELINE}", *noises)
        for arm in arms:
            gains = (differences(by_noise[noise], arm) for noise in noises)
            yield line(arm, *(spread(gain, signed=True) for gain in gains))

    return render


def noise_table(*noises: str) -> Render:
    """An arm a line, a noise a column: the rsum."""

    def render(record: Record) -> Iterator[str]:
        by_noise = _by_noise(record)
        yield from heading("arm", *noises)
        for arm, _ in groups(record["rows"], "arm"):
            rows = (chosen(by_noise[noise], arm=arm) for noise in noises)
            yield line(arm, *(spread(row["rsum"] for row in of_noise) for of_noise in rows))

    return render


def _by_noise(record: Record) -> dict[str, list[Row]]:
    rows = ({**row, "name": noise_name(row["noise"])} for row in record["rows"])
    return dict(groups(rows, "name"))


def released_lines(record: Record) -> Iterator[str]:
    """What the released variant of a method adds to the published one.

    The interval is Student's, of the mean over the corpora.
    """
    rows = record["rows"]
    for method in ("ncu", "osa"):
        if gains := differences(rows, f"{method}, released", f"{method}, published"):
            average, deviation = statistics.mean(gains), statistics.stdev(gains)
            half = float(t.ppf(0.975, len(gains) - 1)) * deviation / len(gains) ** 0.5
            over = spread(differences(rows, f"{method}, published"), signed=True)
            yield (
                f"- `{method}`: released over published {average:+.1f} points of rsum (95 % "
                f"interval {average - half:+.1f} to {average + half:+.1f}); published over `clip` "
                f"on all pairs {over}."
            )


def differences(rows: Iterable[Row], arm: str, baseline: str = BASELINE) -> list[float]:
    """What the rsum of an arm has over the baseline, corpus by corpus; none for that arm."""
    before = {row["corpus"]: row["rsum"] for row in rows if row["arm"] == baseline}
    return [
        row["rsum"] - before[row["corpus"]]
        for row in rows
        if row["arm"] == arm != baseline and row["corpus"] in before
    ]


def noise_name(noise: Mapping[str, Any]) -> str:
    """`ncr 40 %, hard 10 %`; `none` without noise."""
    return ", ".join(f"{kind} {100 * share:g} %" for kind, share in noise.items()) or "none"
