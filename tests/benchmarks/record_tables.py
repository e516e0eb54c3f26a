"""Records of detection and scale as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Record = Mapping[str, Any]
_KINDS = {"ncr": "permuted", "hard": "one wrong word", "junk": "boilerplate"}


def selection_table(record: Record) -> Iterator[str]:
    """`detection.py selection`: what policies keep; OSA weights and does not filter."""
    kinds = {"clean": "clean", "ncr": "permuted", "hard": "one wrong word"}
    yield from heading("policy", *kinds.values(), "expected mismatched", "true")
    for row in record["rows"]:
        if "clean_posterior" in row["policy"] or "osa" in row["policy"]:
            continue
        kept, pairs = row["kept_by_kind"], row["pairs_by_kind"]
        shares = (percent(kept[kind] / pairs[kind]) for kind in kinds)
        expected = f"{row['expected_mismatched']:,.0f}"
        yield line(row["policy"], *shares, expected, f"{row['mismatched']:,}")


def detection_table(record: Record) -> Iterator[str]:
    """`detection.py neighbours`: AUROC of columns by kind, average precision in parentheses."""
    noisy = record["noisy"]
    yield from heading("score", *(f"{name} ({noisy[kind]:,})" for kind, name in _KINDS.items()))
    rows = record["rows"]
    for column in ("noise_probability", "better_captions", "lemon_score"):
        by_kind = {row["kind"]: row for row in rows if row["column"] == column}
        cells = [
            f"{by_kind[kind]['auroc']:.4f} ({by_kind[kind]['average_precision']:.3f})"
            for kind in _KINDS
        ]
        yield line(f"`{column}`", *cells)


def join_lines(*records: Record) -> Iterator[str]:
    """`scale.joins`: what a selection by ranks, one of them of a joined table, takes."""
    for record in records:
        for row in (row for row in record["rows"] if row["step"] == "mixture"):
            yield (
                f"- `--memory-limit {record['settings']['memory_limit']}`: {row['seconds']:.0f} s, "
                f"{row['peak_gb']:.2f} GB, {row['temporary_gb']:.1f} GB of temporary files."
            )


def training_line(record: Record) -> Iterator[str]:
    """`training.py`: the time of a step, relative to `clip`."""
    ratios = {
        row["name"].removeprefix("step, "): row["ratio"]
        for row in record["rows"]
        if row["name"].startswith("step, ")
    }
    slowest = max(ratios, key=lambda name: ratios[name])
    others = [ratio for name, ratio in ratios.items() if name not in (slowest, "clip")]
    yield (
        f"ViT-B-32 with random weights, batch 64, bf16 on two cores: a step of `{slowest}` takes "
        f"{ratios[slowest]:.2f} times as long as one of `clip`, the steps of all other objectives "
        f"{min(others):.2f} to {max(others):.2f} times. Differences of 4 % are noise."
    )


def memory_lines(record: Record) -> Iterator[str]:
    """`objective_memory.py`: GB of a loss and its backward pass, for those that differ most."""
    fit, blocked, large = (f"{pairs:,}" for pairs in record["settings"]["pairs"])
    for row in (row for row in record["rows"] if row["objective"] in ("clip", "ncu UL")):
        yield (
            f"- {row['objective']}: {row['whole_gb']:.1f} GB for {fit} pairs, "
            f"{row['blocks_gb']:.1f} in blocks ({row['slower']:.1f}x the time), "
            f"{row['blocked_gb']:.1f} for {blocked}, {row['large_gb']:.1f} for {large}"
        )


_SHOWN_THRESHOLDS = {True: (0.8, 0.9), False: (0.96,)}  # by whitened or not
_SHOWN_COPIES = ("JPEG quality 40", "cropped by 8 %")


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


def benchmark_lines(*names: str) -> Callable[[Record], Iterator[str]]:
    """`run.py`: the measurements of these names, one a line."""

    def render(record: Record) -> Iterator[str]:
        for row in (row for row in record["rows"] if row["name"] in names):
            ratio = f" ({row['ratio']:.2f}x)" if row["ratio"] is not None else ""
            value = f"{short(row['value'])} {row['unit']}".rstrip()
            yield f"- {row['benchmark']}: {row['name']}: {value}{ratio}"

    return render


def benchmark_line(*names: str) -> Callable[[Record], Iterator[str]]:
    """`run.py`: the same in a sentence."""

    def render(record: Record) -> Iterator[str]:
        rows = [row for row in record["rows"] if not names or row["name"] in names]
        ratios = (f" ({row['ratio']:.2f}x)" if row["ratio"] is not None else "" for row in rows)
        values = (f"{row['name']}: {short(row['value'])} {row['unit']}" for row in rows)
        yield "; ".join(map("".join, zip(values, ratios, strict=True))) + "."

    return render


def gpu_table(record: Record) -> Iterator[str]:
    """`gpu.py`: pairs/s of each model, and where its images are decoded."""
    columns = ("decoders_alone", "model_alone", "score", "arithmetic_limit")
    yield from heading("model", "decoders", *(column.replace("_", " ") for column in columns))
    for row in record["rows"]:
        where = f"{row['decoders']}{', JPEGs on the GPU' * (row['decode_on'] == 'device')}"
        yield line(row["model"], where, *(f"{row[column]:,.0f}" for column in columns))


def whole_line(record: Record) -> Iterator[str]:
    """`whole.py`: seconds of each command over those of the model alone."""
    seconds = {row["way"]: row["seconds"] for row in record["rows"]}
    alone = seconds["model alone"]
    named = (
        f"{way} {taken:.1f} s ({taken / alone:.2f} times)"
        for way, taken in seconds.items()
        if way != "model alone"
    )
    pairs, precision = (record["settings"][name] for name in ("pairs", "precision"))
    yield (
        f"{pairs:,} photographs, ViT-B-32 with random weights: the model alone, in {precision}, "
        f"{alone:.1f} s; {'; '.join(named)}."
    )


def gpu_gains_line(record: Record) -> Iterator[str]:
    """`gpu_gains.py`: how many times as fast each measure is."""
    gains = (f"{row['measure']} {row['gain']:.2f}" for row in record["rows"])
    yield f"{record['settings']['device']}, ViT-B-32, times as fast: {'; '.join(gains)}."


def gpu_training_line(record: Record) -> Iterator[str]:
    """`gpu_train.py`: pairs/s of each way."""
    rows = record["rows"]
    rates = (f"{row['way']} {row['pairs_per_second']:,.0f}" for row in rows)
    waits = max(row["waits_per_step"] for row in rows)
    yield (
        f"{rows[0]['device']}, {rows[0]['model']}, batch {record['settings']['batch_size']}, "
        f"pairs/s: {'; '.join(rates)}. The host waits for the device "
        f"{rows[0]['waits_per_step']:.0f} times a step as it is, {waits:.0f} times unpinned."
    )


def printed(command: str, lines: int) -> Callable[[Record], Iterator[str]]:
    """`printed.py`: what the first command of a page that begins like this one prints."""

    def render(record: Record) -> Iterator[str]:
        row = next(row for row in record["rows"] if row["command"].startswith(command))
        shown = [text.rstrip() for text in row["printed"][:lines]]
        yield from ("```text", *shown, *["..."] * (len(shown) < len(row["printed"])), "```")

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
