"""Records of detection and scale as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Record = Mapping[str, Any]
_KINDS = {"ncr": "permuted", "hard": "one wrong word", "junk": "boilerplate"}


def selection_table(record: Record) -> Iterator[str]:
    """`detection.py selection`: what each policy keeps."""
    kinds = {"clean": "clean", "ncr": "permuted", "hard": "one wrong word"}
    yield from heading("policy", *kinds.values(), "expected mismatched", "true")
    for row in record["rows"]:
        kept, pairs = row["kept_by_kind"], row["pairs_by_kind"]
        shares = (percent(kept[kind] / pairs[kind]) for kind in kinds)
        expected = f"{row['expected_mismatched']:,.0f}"
        yield line(row["policy"], *shares, expected, f"{row['mismatched']:,}")


def detection_table(record: Record) -> Iterator[str]:
    """`detection.py neighbours`: AUROC of each column by kind, average precision in parentheses."""
    noisy = record["noisy"]
    yield from heading("score", *(f"{name} ({noisy[kind]:,})" for kind, name in _KINDS.items()))
    rows = record["rows"]
    for column in dict.fromkeys(row["column"] for row in rows):
        by_kind = {row["kind"]: row for row in rows if row["column"] == column}
        cells = [
            f"{by_kind[kind]['auroc']:.4f} ({by_kind[kind]['average_precision']:.3f})"
            for kind in _KINDS
        ]
        yield line(f"`{column}`", *cells)


# What the embeddings of `real_clip.py` are, by the names of their files.
_REAL_CORPORA = {
    "products-openai-b32": "product photographs, OpenAI ViT-B/32",
    "fashion-fashionclip": "fashion photographs, FashionCLIP",
    "fashion-marqo": "fashion photographs, Marqo-FashionCLIP",
    "bundled-demo": "rendered, `demo`",
    "bundled-demo-noisy": "rendered, `demo-noisy`",
}
_NEAR = 1.1


def mean_and_deviation(figure: Mapping[str, float]) -> str:
    """`5.3 % ± 0.5`."""
    return f"{percent(figure['mean'])} ± {100 * figure['deviation']:.1f}"


def real_rate_table(record: Record) -> Iterator[str]:
    """`real_clip.py`: the estimated noise rate, and how often its interval covers the truth."""
    yield from heading(
        "photographs, model", "pairs", "permuted", "estimated", "width", "covered", "Storey"
    )
    for row in record["rows"]:
        estimated = row["estimated"]
        yield line(
            _REAL_CORPORA.get(row["corpus"], row["corpus"]),
            f"{row['pairs']:,}",
            percent(row["true"]),
            mean_and_deviation(estimated),
            f"{100 * row['width']:.1f}",
            f"{row['covered']} of {row['draws']}",
            mean_and_deviation(row["storey"]),
        )
    varied = [row for row in record["rows"] if row["share"]]
    covered, draws = (sum(row[name] for row in varied) for name in ("covered", "draws"))
    yield line("**all with permuted captions**", "", "", "", "", f"{covered} of {draws}", "")


def weak_rate_table(record: Record) -> Iterator[str]:
    """`real_clip.py` on the files of `weak_estimators.py`: rates, and what stays among the kept."""
    yield from heading(
        "pairs, samples trained on",
        "separation",
        "permuted",
        "estimated",
        "width",
        "covered",
        "Storey",
        "kept: expected",
        "mismatched",
    )
    for row in record["rows"]:
        world, samples = row["corpus"].rsplit("-", 1)
        estimated, kept = row["estimated"], row["at_half"]["auto"]
        yield line(
            f"{world}, {int(samples):,}",
            f"{row['separation']:.3f}",
            percent(row["true"]),
            mean_and_deviation(estimated),
            f"{100 * row['width']:.1f}",
            f"{row['covered']} of {row['draws']}",
            mean_and_deviation(row["storey"]),
            percent(kept["expected"]["mean"]),
            percent(kept["mismatched"]["mean"]),
        )
    varied = [row for row in record["rows"] if row["share"]]
    covered, draws = (sum(row[name] for row in varied) for name in ("covered", "draws"))
    total = f"{covered} of {draws}"
    yield line("**all with permuted captions**", "", "", "", "", total, "", "", "")


def calibrated_on_table(*records: Record) -> Iterator[str]:
    """`real_clip.py`: pairs on the wrong side of one half, by the score calibrated on."""
    yield from heading(
        "pairs",
        "permuted",
        "`similarity`: wrong",
        "`neg_clip_loss`: wrong",
        "`auto`: wrong",
        "kept: expected",
        "mismatched",
        "takes `neg_clip_loss`",
    )
    for row in (row for record in records for row in record["rows"] if row["share"]):
        name = _corpus(row["corpus"])
        halves = row["at_half"]
        wrong = (halves[score]["error"] for score in ("similarity", "neg_clip_loss", "auto"))
        kept = (halves["auto"][figure] for figure in ("expected", "mismatched"))
        figures = (percent(figure["mean"]) for figure in (*wrong, *kept))
        taken = f"{row['auto_takes']['neg_clip_loss']} of {row['draws']}"
        yield line(name, percent(row["true"]), *figures, taken)


def donors_table(record: Record) -> Iterator[str]:
    """`donors.py`: pairs on the wrong side of one half by score, captions from outside first."""
    yield from heading(
        "wrong captions", "pairs, model", "pairs", "share", "`similarity`: wrong pairs",
        "`neg_clip_loss`: wrong pairs", "difference", "`auto`: wrong pairs",
        "takes `neg_clip_loss`", "rate covered",
    )  # fmt: skip
    names = {"donor": "from outside", "permuted": "of the corpus"}
    for kind, name in names.items():
        rows = [row for row in record["rows"] if row["noise"] == kind]
        for row in rows:
            wrong = row["wrong"]
            yield line(
                name,
                _corpus(row["corpus"]),
                f"{row['pairs']:,}",
                percent(row["share"]),
                f"{wrong['similarity']:.1f}",
                f"{wrong['neg_clip_loss']:.1f}",
                f"{row['difference']:+.1f} ± {row['difference_error']:.1f}",
                f"{wrong['auto']:.1f}",
                f"{row['takes_neg_clip_loss']} of {row['draws']}",
                f"{row['covered']} of {row['draws']}",
            )
        covered, draws = (sum(row[figure] for row in rows) for figure in ("covered", "draws"))
        told = [row for row in rows if abs(row["difference"]) > 2 * row["difference_error"]]
        near = sum(
            row["wrong"]["auto"]
            <= _NEAR * min(row["wrong"][score] for score in ("similarity", "neg_clip_loss"))
            for row in told
        )
        what = f"{near} of {len(told)} with a difference of two errors within {_NEAR} of the better"
        yield line(f"**all {name}**", "", "", "", "", "", "", what, "", f"{covered} of {draws}")


def few_captions_table(record: Record) -> Iterator[str]:
    """`few_captions.py`: intervals where captions are few, counted once in a block or at all."""
    yield from heading(
        "captions", "pairs", "mean error", "width", "covered", "if each counts once in the corpus"
    )
    for row in record["rows"]:
        yield line(
            f"{row['captions']:,}",
            f"{row['pairs']:,}",
            f"{100 * row['error']:+.2f}",
            f"{100 * row['width']:.1f}",
            f"{row['covered']} of {row['draws']}",
            f"{row['covered_counted_once']} of {row['draws']}",
        )


def _corpus(name: str) -> str:
    """A corpus of `real_clip.py` or `weak_estimators.py` in words."""
    if name in _REAL_CORPORA:
        return _REAL_CORPORA[name]
    world, _, samples = name.rpartition("-")
    return f"{world}, {int(samples):,}"


def swaps_table(record: Record) -> Iterator[str]:
    """`donors.py`: how much of the noise the rate sees, by how near the wrong caption is."""
    yield from heading("wrong captions", "photographs, model", "share", "estimated", "seen")
    names = {"cluster": "of the same cluster", "nearest": "the nearest one"}
    for kind, name in names.items():
        for row in (row for row in record["rows"] if row["noise"] == kind):
            yield line(
                name,
                _REAL_CORPORA.get(row["corpus"], row["corpus"]),
                percent(row["share"]),
                percent(row["rate"]),
                f"{row['rate'] / row['share']:.0%}",
            )


def real_score_table(record: Record) -> Iterator[str]:
    """`real_clip.py`: AUROC of each score by corpus, average precision in parentheses, at 20 %."""
    rows = [row for row in record["rows"] if row["share"] == 0.2]
    yield from heading("score", *(_REAL_CORPORA.get(row["corpus"], "") for row in rows))
    for column in rows[0]["scores"]:
        cells = [
            f"{row['scores'][column]['auroc']['mean']:.4f} "
            f"({row['scores'][column]['average_precision']['mean']:.3f})"
            for row in rows
        ]
        yield line(f"`{column}`", *cells)


def candidates_table(record: Record) -> Iterator[str]:
    """`score_candidates.py`: AUROC by corpus and noise, average precision in parentheses."""
    rows = record["rows"]
    yield from heading(
        "score",
        *(
            f"{_REAL_CORPORA.get(row['corpus'], row['corpus'])}: {_KINDS[row['noise']]}"
            for row in rows
        ),
    )
    for name in dict.fromkeys(name for row in rows for name in row["scores"]):
        found = [row["scores"].get(name) for row in rows]
        cells = [
            f"{each['auroc']:.4f} ({each['average_precision']:.3f})" if each else "-"
            for each in found
        ]
        yield line(name, *cells)


def rendered_half_table(record: Record) -> Iterator[str]:
    """`score_candidates.py`: which share of the pairs is on the wrong side of one half."""
    yield from heading(
        "estimator", "noise", "`similarity`: wrong", "`neg_clip_loss`: wrong", "`auto`: wrong"
    )
    for row in record["rows"]:
        if "at_half" in row:
            wrong = {score: percent(found["error"]) for score, found in row["at_half"].items()}
            name = row["corpus"].removeprefix("rendered, ")
            shown = (wrong[score] for score in ("similarity", "neg_clip_loss", "auto"))
            yield line(f"`{name}`", _KINDS[row["noise"]], *shown)


def real_rule_table(record: Record) -> Iterator[str]:
    """`real_clip.py`: shares of the matched and of the mismatched pairs that each rule keeps."""
    rows = [row for row in record["rows"] if row["share"] == 0.2]
    yield from heading("dropped", *(_REAL_CORPORA.get(row["corpus"], "") for row in rows))
    for rule in rows[0]["rules"]:
        cells = [
            f"{percent(row['rules'][rule]['clean_kept']['mean'])}, "
            f"{percent(row['rules'][rule]['noise_kept']['mean'])}"
            for row in rows
        ]
        yield line(f"`{rule}`", *cells)


def near_miss_rate_table(record: Record) -> Iterator[str]:
    """`near_misses.py`: the share of captions with a wrong word, as it is estimated."""
    yield from heading("estimator", "noise", "wrong", "noise rate", "near misses", "interval")
    for row in record["rows"]:
        rate, low, high = row["near_misses"]
        yield line(
            f"`{row['model']}`",
            row["noise"],
            percent(row["share"]),
            percent(row["noise_rate"]),
            percent(rate),
            f"{100 * low:.1f} to {100 * high:.1f}",
        )


def word_list_table(record: Record) -> Iterator[str]:
    """`word_lists.py`: AUROC of each score by list, average precision in parentheses."""
    scores = list(record["rows"][0]["auroc"])
    yield from heading(
        "corpus", "classes", "tried", "captions with a word", *(f"`{score}`" for score in scores),
        "flagged", "right",
    )  # fmt: skip
    for row in record["rows"]:
        ranking = (f"{row['auroc'][one]:.3f} ({row['precision'][one]:.3f})" for one in scores)
        yield line(
            row["corpus"],
            row["list"],
            "all" if row["every class"] else "told apart",
            percent(row["tried"]),
            *ranking,
            f"{row['flagged']:,}" if row["flagged"] else "cannot tell",
            percent(row["right"]) if row["flagged"] else "",
        )


def near_miss_score_table(record: Record) -> Iterator[str]:
    """`near_misses.py`: AUROC of each score, average precision in parentheses."""
    rows = [row for row in record["rows"] if row["scores"]]
    scores = list(rows[0]["scores"])
    yield from heading("estimator", "noise", "wrong", *(f"`{score}`" for score in scores))
    for row in rows:
        cells = (
            f"{row['scores'][score]['auroc']:.3f} ({row['scores'][score]['average_precision']:.3f})"
            for score in scores
        )
        yield line(f"`{row['model']}`", row["noise"], percent(row["share"]), *cells)


_JOIN_STEPS = {
    "column": "`--score dfn.similarity`, joined",
    "rank": "`--score` with two ranks, no join",
    "mixture": "`--score` with two ranks, one of them joined",
}


def join_table(*records: Record) -> Iterator[str]:
    """`scale.joins`: what each selection takes."""
    yield from heading("rows", "joined", "best 30 % by", "limit", "time", "peak memory", "disk")
    for record in records:
        settings = record["settings"]
        for row in record["rows"]:
            yield line(
                f"{settings['rows']:,}",
                f"{settings['joined']:,}" if row["step"] != "rank" else "",
                _JOIN_STEPS[row["step"]],
                settings["memory_limit"],
                f"{row['seconds']:.0f} s",
                f"{row['peak_gb']:.2f} GB",
                f"{row['temporary_gb']:.1f} GB",
            )


_JOINED_BY = {
    "query": "ncclean: the columns that the query reads, joined, in a file",
    "struct": "a view with the joined row as a STRUCT",
    "struct-file": "that view in a file, with all columns",
}


def joined_row_table(record: Record) -> Iterator[str]:
    """`scale.joins`: one query with joined columns, and with the joined row as a STRUCT."""
    yield from heading("joined as", "time", "peak memory", "disk")
    for row in record["rows"]:
        yield line(
            _JOINED_BY[row["step"]],
            f"{row['seconds']:.0f} s",
            f"{row['peak_gb']:.2f} GB",
            f"{row['temporary_gb']:.1f} GB",
        )


def training_table(record: Record) -> Iterator[str]:
    """`training.py`: the time of a step, relative to `clip`."""
    yield from heading("objective", "ratio", "target")
    for row in record["rows"]:
        if row["name"].startswith("step, "):
            ratio = f"{row['ratio']:.2f}"
            yield line(row["name"].removeprefix("step, "), ratio, row["target"] or "")


def memory_table(record: Record) -> Iterator[str]:
    """`objective_memory.py`: GB of each objective's loss and backward pass."""
    sizes = record["settings"]["pairs"]
    fit, blocked, large = (f"{pairs:,}" for pairs in sizes)
    yield from heading(
        "objective", f"{fit}, whole", f"{fit}, blocks", "time", f"{blocked}, blocks",
        f"{large}, blocks", "computed", "computed whole",
    )  # fmt: skip
    for row in record["rows"]:
        if row["objective"] == "ncu UL":  # float32 and a byte of each value
            growth = 5e-9 * (sizes[2] ** 2 - sizes[1] ** 2)
        else:
            step = max(row["blocked_gb"] - row["blocks_gb"], 0.0)
            growth = step * (sizes[2] - sizes[1]) / (sizes[1] - sizes[0])
        measured = "" if row["large_gb"] is None else f"{row['large_gb']:.1f}"
        yield line(
            row["objective"], f"{row['whole_gb']:.1f}", f"{row['blocks_gb']:.1f}",
            f"{row['slower']:.1f}x", f"{row['blocked_gb']:.1f}", measured,
            f"{row['blocked_gb'] + growth:.1f}",
            f"{row['whole_gb'] * (sizes[2] / sizes[0]) ** 2:.0f}",
        )  # fmt: skip


_SHOWN_THRESHOLDS = {True: (0.7, 0.8, 0.9), False: (0.96, 0.98)}  # by whitened or not
_SHOWN_COPIES = ("JPEG quality 40", "cropped by 3 %", "cropped by 8 %")


def near_duplicates_table(record: Record) -> Iterator[str]:
    """`near_duplicates.py`: what each threshold groups, and which altered copies reach it."""
    yield from heading(
        "space, threshold", "redrawn scenes grouped", "other images dropped", *_SHOWN_COPIES
    )
    for row in record["rows"]:
        if row["threshold"] not in _SHOWN_THRESHOLDS[row["whitened"]]:
            continue
        space = "whitened" if row["whitened"] else "cosine"
        shares = [row["redrawn_grouped"], row["others_dropped"]]
        shares += [row["altered"][name] for name in _SHOWN_COPIES]
        name = f"{space}, {row['threshold']:.2f}" + " (default)" * row["is_default"]
        yield line(name, *map(percent, shares))


def benchmark_table(record: Record) -> Iterator[str]:
    """`run.py`: every measurement; `met` says whether it reaches its target."""
    yield from heading("benchmark", "measured", "value", "ratio", "target", "met")
    met = {True: "yes", False: "**no**", None: ""}
    for row in record["rows"]:
        ratio = f"{row['ratio']:.2f}x" if row["ratio"] is not None else ""
        yield line(
            row["benchmark"], row["name"], f"{short(row['value'])} {row['unit']}", ratio,
            row["target"] or "", met[row["passed"]],
        )  # fmt: skip


def gpu_table(record: Record) -> Iterator[str]:
    """`gpu.py`: pairs/s of each model."""
    columns = ("decode_only", "model_only", "end_to_end", "arithmetic_limit")
    yield from heading("model", *(column.replace("_", " ") for column in columns))
    for row in record["rows"]:
        yield line(row["model"], *(f"{row[column]:,.0f}" for column in columns))


def printed(command: str) -> Callable[[Record], Iterator[str]]:
    """`printed.py`: what the first command of a page that begins like this one prints."""

    def render(record: Record) -> Iterator[str]:
        row = next(row for row in record["rows"] if row["command"].startswith(command))
        yield from ("```text", *(text.rstrip() for text in row["printed"]), "```")

    return render


def percent(share: float) -> str:
    """Two digits after the point where it is near 0 or 1, else one."""
    digits = 2 if min(share, 1 - share) < 0.05 and 0 < share < 1 else 1
    return f"{100 * share:.{digits}f} %"


def short(value: float) -> str:
    """Three significant digits, none after the point from 1,000 on."""
    return f"{value:,.0f}" if value == 0 or abs(value) >= 1000 else f"{value:.3g}"


def heading(*names: str) -> Iterator[str]:
    """The first two lines of a table."""
    yield line(*names)
    yield "|" + "---|" * len(names)


def line(*cells: str) -> str:
    """A line of a table."""
    return "| " + " | ".join(cells) + " |"
