"""Records of the detection of noise as Markdown. The records have every corpus and every share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from record_tables import heading, line, percent

Record = Mapping[str, Any]
Row = Mapping[str, Any]
KINDS = {"ncr": "permuted", "hard": "one wrong word", "junk": "boilerplate"}
_CORPORA = {
    "fashion-fashionclip": "fashion photographs, FashionCLIP",
    "fashion-marqo": "fashion photographs, Marqo-FashionCLIP",
    "products-openai-b32": "product photographs, OpenAI ViT-B/32",
    "bundled-demo": "rendered, `demo`",
    "bundled-demo-noisy": "rendered, `demo-noisy`",
}
_SCORES = ("similarity", "neg_clip_loss", "auto")
_CANDIDATES = {
    "similarity": "`similarity`",
    "neg_clip_loss": "`neg_clip_loss`",
    "neg_clip_loss, pool": "pool",
    "canonical": "canonical",
}
_RULES = {
    "noise_probability >= 0.5": "`noise_probability < 0.5`",
    "not disncl_clean": "`disncl_clean`",
    "osa_noisy": "not `osa_noisy`",
}
_ALL_FIND = {("rendered, demo", "ncr"), ("rendered, demo", "junk")}  # every AUROC is 1
_WHOLE_MISMATCHES = "Flickr8k"  # in word_lists.py: there the cosine is ahead of any list
_DONORS = {"donor": "from outside", "permuted": "of the corpus"}


def donors_table(record: Record) -> Iterator[str]:
    """`donors.py`: pairs on the wrong side of one half, by score, at each share of wrong ones."""
    names = (f"by `{score}`" for score in _SCORES)
    yield from heading("photographs, model", *names)
    for corpus, rows in _grouped(_of(record, noise="donor"), "corpus"):
        yield line(_CORPORA[corpus], *_wrong(rows))
    yield line("captions permuted, mean of all three", *_wrong(_of(record, noise="permuted")))


def coverage_lines(*records: Record) -> Iterator[str]:
    """`donors.py`: what the noise rate is worth, by what the estimator knows."""
    groups: dict[str, list[Row]] = {}
    for row in (row for record in records for row in record["rows"]):
        if row["noise"] in (*_DONORS, "clean"):
            groups.setdefault(_estimator(row["corpus"]), []).append(row)
    for estimator, rows in groups.items():
        cells = [
            f"{name} {_covered(of_kind)}"
            for noise, name in (*_DONORS.items(), ("clean", "clean"))
            if (of_kind := [row for row in rows if row["noise"] == noise])
        ]
        noisy = [row for row in rows if row["noise"] != "clean"]
        widths, errors = (
            np.mean([100 * row[name] for row in noisy]) for name in ("width", "rate_error")
        )
        yield (
            f"- {estimator}: {', '.join(cells)}; {widths:.1f} points wide, the rate "
            f"{np.mean(_errors(noisy)) * 100:+.1f} ({errors:.1f}) off"
        )


def swaps_line(record: Record) -> Iterator[str]:
    """`donors.py`: which part of the noise the rate sees, over models and shares."""
    seen = {
        kind: [row["rate"] / row["share"] for row in _of(record, noise=kind)]
        for kind in ("cluster", "nearest")
    }
    cluster, nearest = (
        f"{100 * min(shares):.0f} to {100 * max(shares):.0f} %" for shares in seen.values()
    )
    yield (
        "Of captions that were exchanged within a cluster (k-means, 20 clusters), the noise rate "
        f"sees {cluster}; of captions exchanged with the nearest one, {nearest}."
    )


def few_captions_line(record: Record) -> Iterator[str]:
    """`few_captions.py`: intervals where captions are few."""
    captions = ", ".join(f"{count:,}" for count, _ in _grouped(record["rows"], "captions"))
    covered = (
        ", ".join(str(row["covered"]) for row in rows)
        + f" of {rows[0]['draws']} with {pairs:,} pairs"
        for pairs, rows in _grouped(record["rows"], "pairs")
    )
    yield f"Intervals that hold the truth with {captions} captions: {'; '.join(covered)}."


def real_rule_lines(record: Record) -> Iterator[str]:
    """`real_clip.py`: which shares of the matched and of the mismatched pairs some rules keep."""
    rows = _of(record, share=0.2)
    for rule, name in _RULES.items():
        matched, mismatched = (
            _range([row["rules"][rule][kept]["mean"] for row in rows])
            for kept in ("clean_kept", "noise_kept")
        )
        yield f"- {name}: {matched} of the matched, {mismatched} of the mismatched pairs"


def candidates_lines(record: Record) -> Iterator[str]:
    """`score_candidates.py`: AUROC, the mean over the photographs and each rendered noise."""
    columns: dict[str, list[Row]] = {}
    for row in record["rows"]:
        if (row["corpus"], row["noise"]) in _ALL_FIND:
            continue
        name = row["corpus"] if row["corpus"] not in _CORPORA else "photographs"
        columns.setdefault(f"{name}, {KINDS[row['noise']]}", []).append(row["scores"])
    for column, found in columns.items():
        cells = (
            f"{name} {np.mean([one[score]['auroc'] for one in found]):.3f}"
            for score, name in _CANDIDATES.items()
            if score in found[0]
        )
        yield f"- {column}: {', '.join(cells)}"


def near_miss_lines(record: Record) -> Iterator[str]:
    """`near_misses.py`: AUROC of each score where a fifth of the scenes has a wrong fact."""
    for row in _of(record, share=0.2, noise="scene"):
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
    """`word_lists.py`: AUROC by list, of classes that images tell apart, beside the cosine's."""
    for corpus, rows in _grouped(record["rows"], "corpus"):
        if corpus == _WHOLE_MISMATCHES:
            continue
        lists = (
            f"{row['list']} {row['auroc']['near_miss_score']:.3f} ({percent(row['tried'])} of the "
            f"captions; cosine {row['auroc']['similarity']:.3f})"
            for row in rows
            if not row["every class"] and row["list"] in ("shipped", "of the corpus")
        )
        yield f"- {corpus}: {', '.join(lists)}"


def _of(record: Record, **facts: Any) -> list[Row]:
    return [row for row in record["rows"] if all(row[name] == facts[name] for name in facts)]


def _grouped(rows: Iterable[Row], name: str) -> Iterable[tuple[str, list[Row]]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[name], []).append(row)
    return groups.items()


def _range(shares: Sequence[float]) -> str:
    low, high = percent(min(shares)), percent(max(shares))
    return low if low == high else f"{low} to {high}"


def _covered(rows: Sequence[Row]) -> str:
    covered, draws = (sum(row[name] for row in rows) for name in ("covered", "draws"))
    return f"{covered} of {draws}"


def _errors(rows: Sequence[Row]) -> list[float]:
    """The estimated rate less the true one, of the rows of either script."""
    return [
        row["rate"] - row["share"] if "rate" in row else row["estimated"]["mean"] - row["true"]
        for row in rows
    ]


def _wrong(rows: Sequence[Row]) -> Iterator[str]:
    """Pairs on the wrong side of one half at the smallest share of wrong captions and so on."""
    shares: dict[float, list[Row]] = {}
    for row in rows:
        shares.setdefault(round(row["share"], 2), []).append(row)
    for score in _SCORES:
        means = (
            np.mean([row["wrong"][score] / row["pairs"] for row in of]) for of in shares.values()
        )
        yield ", ".join(f"{100 * mean:.1f}" for mean in means) + " %"


def _estimator(corpus: str) -> str:
    if corpus.startswith("bundled"):
        return f"`{corpus.removeprefix('bundled-')}`, rendered"
    if corpus in _CORPORA:
        return "three pretrained CLIPs, photographs"
    return f"trained briefly, {corpus.rpartition('-')[0]}"
