"""Records of speed, scale and reliability as Markdown, and the parts that tables are made of."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
Row = Mapping[str, Any]


def percent(share: float) -> str:
    """Two digits after the point where it is near 0 or 1, else one."""
    digits = 2 if min(share, 1 - share) < 0.05 and 0 < share < 1 else 1
    return f"{100 * share:.{digits}f} %"


def short(value: float) -> str:
    """Three significant digits, none after the point from 1,000 on."""
    return f"{value:,.0f}" if value == 0 or abs(value) >= 1000 else f"{value:.3g}"


def spread(values: Iterable[float], *, signed: bool = False, digits: int = 1) -> str:
    """Mean and standard deviation; empty without values."""
    numbers = list(values)
    if not numbers:
        return ""
    mean = f"{statistics.mean(numbers):{'+' if signed else ''}.{digits}f}"
    return mean if len(numbers) == 1 else f"{mean} ± {statistics.stdev(numbers):.{digits}f}"


def interval(value: float, low: float, high: float, digits: int = 1) -> str:
    """A gain with its interval."""
    return f"{value:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def span(values: Iterable[str]) -> str:
    """The first and the last of sorted values, or one where both read alike."""
    first, *_, last = [*values] * 2
    return first if first == last else f"{first} to {last}"


def mean(values: Iterable[float]) -> float:
    """The mean of values."""
    return statistics.fmean(values)


def groups(rows: Iterable[Row], *names: str) -> Iterable[tuple[Any, list[Row]]]:
    """Rows by the value of one field, or the values of several, in order of appearance."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        key = tuple(row[name] for name in names)
        found.setdefault(key if len(names) > 1 else key[0], []).append(row)
    return found.items()


def chosen(rows: Iterable[Row], **facts: Any) -> list[Row]:
    """The rows that have these facts."""
    return [row for row in rows if all(row.get(name) == fact for name, fact in facts.items())]


def total(rows: Iterable[Row], *names: str) -> int:
    """The sum of numbers of rows, 0 where a row lacks one."""
    return sum(int(row.get(name, 0)) for row in rows for name in names)


def heading(*names: str) -> Iterator[str]:
    """The first two lines of a table."""
    yield line(*names)
    yield "|" + "---|" * len(names)


def line(*cells: str) -> str:
    """A line of a table."""
    return "| " + " | ".join(cells) + " |"


def benchmark_lines(*names: str) -> Callable[[Record], Iterator[str]]:
    """`run.py`: the measurements of these names, one a line."""
    return lambda record: (
        f"- {row['benchmark']}: {_measured(row)}" for row in record["rows"] if row["name"] in names
    )


def benchmark_line(*names: str) -> Callable[[Record], Iterator[str]]:
    """`run.py`: the same in a sentence, of all measurements unless some are named."""

    def render(record: Record) -> Iterator[str]:
        rows = (row for row in record["rows"] if not names or row["name"] in names)
        yield "; ".join(map(_measured, rows)) + "."

    return render


def _measured(row: Row) -> str:
    ratio = f" ({row['ratio']:.2f}x)" if row["ratio"] is not None else ""
    return f"{row['name']}: {short(row['value'])} {row['unit']}".rstrip() + ratio


def training_line(record: Record) -> Iterator[str]:
    """`run.py --only training`: the time of a step, relative to `clip`."""
    ratios = {
        row["name"].removeprefix("step, "): row["ratio"]
        for row in record["rows"]
        if row["name"].startswith("step, ")
    }
    *others, slowest = sorted(ratios.keys() - {"clip"}, key=lambda name: ratios[name])
    yield (
        f"ViT-B-32 with random weights, batch 64, bf16 on two cores: a step of `{slowest}` takes "
        f"{ratios[slowest]:.2f} times as long as one of `clip`, the steps of all other objectives "
        f"{ratios[others[0]]:.2f} to {ratios[others[-1]]:.2f} times. Differences of 4 % are noise."
    )


def memory_lines(record: Record) -> Iterator[str]:
    """`speed.objective_memory`: GB of a loss and its backward pass, for those that differ most."""
    fit, blocked, large = (f"{pairs:,}" for pairs in record["settings"]["pairs"])
    for row in (row for row in record["rows"] if row["objective"] in ("clip", "ncu UL")):
        yield (
            f"- {row['objective']}: {row['whole_gb']:.1f} GB for {fit} pairs, "
            f"{row['blocks_gb']:.1f} in blocks ({row['slower']:.1f}x the time), "
            f"{row['blocked_gb']:.1f} for {blocked}, {row['large_gb']:.1f} for {large}"
        )


def gpu_table(record: Record) -> Iterator[str]:
    """`scale.gpu`: pairs/s of each model, and where its images are decoded."""
    columns = ("decoders_alone", "model_alone", "score", "arithmetic_limit")
    yield from heading("model", "decoders", *(column.replace("_", " ") for column in columns))
    for row in record["rows"]:
        where = f"{row['decoders']}{', JPEGs on the GPU' * (row['decode_on'] == 'device')}"
        yield line(row["model"], where, *(f"{row[column]:,.0f}" for column in columns))


def gpu_gains_line(record: Record) -> Iterator[str]:
    """`scale.gpu_gains`: how many times as fast each measure is."""
    gains = (f"{row['measure']} {row['gain']:.2f}" for row in record["rows"])
    yield f"{record['settings']['device']}, ViT-B-32, times as fast: {'; '.join(gains)}."


def gpu_training_line(record: Record) -> Iterator[str]:
    """`scale.gpu_train`: pairs/s of each way."""
    rows = record["rows"]
    rates = (f"{row['way']} {row['pairs_per_second']:,.0f}" for row in rows)
    waits = max(row["waits_per_step"] for row in rows)
    yield (
        f"{rows[0]['device']}, {rows[0]['model']}, batch {record['settings']['batch_size']}, "
        f"pairs/s: {'; '.join(rates)}. The host waits for the device "
        f"{rows[0]['waits_per_step']:.0f} times a step as it is, {waits:.0f} times unpinned."
    )


def whole_line(record: Record) -> Iterator[str]:
    """`speed.whole`: seconds of each command over those of the model alone."""
    seconds = {row["way"]: row["seconds"] for row in record["rows"]}
    alone = seconds.pop("model alone")
    ways = (f"{way} {taken:.1f} s ({taken / alone:.2f} times)" for way, taken in seconds.items())
    pairs, precision = (record["settings"][name] for name in ("pairs", "precision"))
    yield (
        f"{pairs:,} photographs, ViT-B-32 with random weights: the model alone, in {precision}, "
        f"{alone:.1f} s; {'; '.join(ways)}."
    )


def printed(command: str, lines: int) -> Callable[[Record], Iterator[str]]:
    """`printed.py`: what the first command of a page that begins like this one prints."""

    def render(record: Record) -> Iterator[str]:
        row = next(row for row in record["rows"] if row["command"].startswith(command))
        shown = [text.rstrip() for text in row["printed"][:lines]]
        yield from ("```text", *shown, *["..."] * (len(shown) < len(row["printed"])), "```")

    return render


def join_lines(*records: Record) -> Iterator[str]:
    """`scale.joins`: what a selection by ranks, one of them of a joined table, takes."""
    for record in records:
        for row in chosen(record["rows"], step="mixture"):
            yield (
                f"- `--memory-limit {record['settings']['memory_limit']}`: {row['seconds']:.0f} s, "
                f"{row['peak_gb']:.2f} GB, {row['temporary_gb']:.1f} GB of temporary files."
            )


def scale_table(record: Record) -> Iterator[str]:
    """`scale.rows`: what each step takes of a core, without the queries that take a second."""
    yield from heading("step", "time", "peak memory")
    for row in record["rows"]:
        used, step = row["processor_seconds"], row["step"]
        if step.startswith(("write", "query")):
            continue
        if "list_mb" in row:
            step += f", {row['list_mb']:.0f} MB, read again in {row['load_seconds']:.0f} s"
        if "bytes_per_shard" in row:  # the step also makes the files
            used = row["seconds"] + row["plan_seconds"]
        yield line(step, f"{used:.1f} s", f"{row['peak_gb']:.2f} GB")


def resume_line(record: Record) -> Iterator[str]:
    """`scale.resume`: how long a run of many shards in a store takes to go on."""
    seconds = [row["seconds"] for row in record["rows"]]
    delay = 1000 * record["settings"]["delay"]
    yield (
        f"A run of {record['settings']['shards']:,} shards in a store that answers after "
        f"{delay:.0f} ms goes on after {seconds[0]:.0f} s from parts, one request each, and after "
        f"{seconds[2]:.0f} s once they are in the table; one process writes the table of these "
        f"parts in {seconds[1] / 60:.1f} minutes. The store ran on the same two cores."
    )


def review_lines(record: Record) -> Iterator[str]:
    """`speed.review`: seconds until a page is there, and the memory of its server."""
    for row in record["rows"]:
        scroll, jump = (
            f"{row[f'{name}_median']:.2f} s (at most {row[f'{name}_worst']:.2f} s)"
            for name in ("scroll", "jump")
        )
        yield (
            f"- {row['source']}, {row['pairs']:,} pairs: first view {row['first_view']:.2f} s, "
            f"scroll {scroll}, jump {jump}, {row['peak_mb']:,} MB."
        )


def own_loop_line(record: Record) -> Iterator[str]:
    """`speed.own_loop`: what the stage costs in a pipeline, and that `finetune` sees the same."""
    *rounds, equal = record["rows"]
    ratios = [row["selected_processor"] / row["plain_processor"] for row in rounds]
    yield (
        f"Reading and decoding {rounds[0]['plain_pairs']:,} photographs with the stage takes "
        f"{statistics.median(ratios):.3f} times the processor time without it (median of "
        f"{len(ratios)} rounds, {min(ratios):.3f} to {max(ratios):.3f}). Of a selection of three "
        f"in four, captions and weights of {equal['compared']:,} pairs are those of `finetune`, "
        "on two ranks and after a resume."
    )


def review_search_lines(record: Record) -> Iterator[str]:
    """`speed.review_search`: seconds until the first rows of a search are there, and memory."""
    settings, [row] = record["settings"], record["rows"]
    kinds = (
        ("words", "words, all pairs in their order"),
        ("words_of_suspects", "words, the suspects"),
        ("like", "more like this, all pairs"),
        ("proposals", "the closest captions"),
        ("decisions_beside", "a decision meanwhile"),
    )
    for name, what in kinds:
        median, worst = row[f"{name}_median"], row[f"{name}_worst"]
        yield f"- {what}: {median:.2f} s (at most {worst:.2f} s)."
    yield f"- Words in all pairs take a processor {row['words_processor_seconds']:.2f} s."
    yield (
        f"- The first search also reads the embeddings, {row['first_seconds']:.0f} s, and the "
        f"first words load the model, {row['first_words_seconds']:.0f} s ({settings['model']}). "
        f"The server held {row['server_mb']:,} MB, the process that searches "
        f"{row['search_mb']:,} MB, mapped files left out."
    )


_EXTRAPOLATED, _CORES = 10_000_000, 2


def neighbours_lines(*records: Record) -> Iterator[str]:
    """`neighbours.search`: what searches take and find, and what a larger corpus would take."""
    for record in records:
        row = record["rows"][0]
        recalls = ("image", "text", "image_to_text", "text_to_image")
        lowest = percent(min(row[f"{name}_recall"] for name in recalls))
        yield (
            f"- {record['settings']['pairs']:,} pairs: {row['processor_seconds'] / 60:.1f} "
            f"minutes, {row['peak_gb_of_all']:.1f} GB, recall {lowest}; near-duplicates found: "
            f"{percent(row['near_found'])} of those changed as images differ, "
            f"{percent(row['near_found_isotropic'])} of those changed in all ways."
        )
    small, large = ((record["settings"]["pairs"], record["rows"][0]) for record in records[-2:])
    hours, powers = {}, {}
    for name in ("processor_seconds", "seconds"):
        powers[name] = math.log(large[1][name] / small[1][name]) / math.log(large[0] / small[0])
        hours[name] = large[1][name] * (_EXTRAPOLATED / large[0]) ** powers[name] / 3600
    yield ""
    yield (
        f"The processor time grows with the power {powers['processor_seconds']:.2f} of the pairs. "
        f"By that, {_EXTRAPOLATED:,} take {hours['processor_seconds'] / _CORES:.1f} hours of "
        f"{_CORES} cores, {hours['seconds']:.1f} by the clock; that is **extrapolated**."
    )


def further_lines(plain: Record, memory: Record) -> Iterator[str]:
    """`neighbours.search` without matrix tiles, and `neighbours.memory`."""
    row = plain["rows"][0]
    yield (
        f"- Without matrix tiles, {plain['settings']['pairs']:,} pairs took "
        f"{row['processor_seconds'] / 60:.1f} minutes of processor time and "
        f"{row['peak_gb_of_all']:.1f} GB."
    )
    small, *_, large = chosen(memory["rows"], version="this")
    yield (
        f"- The process that runs a search held {small['driver_mb']:,.0f} MB with "
        f"{small['pairs']:,} pairs and {large['driver_mb']:,.0f} MB with {large['pairs']:,} "
        "(96 dimensions, a limit of 1 GB)."
    )


def faiss_line(record: Record) -> Iterator[str]:
    """`neighbours.equal`: processor time of the command and of FAISS alone."""
    settings, run = record["settings"], record["command_run"]
    yield (
        f"For {settings['pairs']:,} pairs of {settings['dim']} dimensions and {settings['k']} "
        f"neighbours the command takes {run['processor_seconds']:.1f} s of a core without matrix "
        f"tiles, {run['start_seconds']:.1f} of them for its start, at a recall of at least "
        f"{percent(run['lowest_recall'])}; `IndexIVFFlat` alone, in memory and for the four "
        f"searches only, takes {run['faiss_seconds']:.1f} s."
    )


_SHOWN_THRESHOLDS = {True: (0.8, 0.9), False: (0.96,)}  # by whitened or not
_SHOWN_COPIES = ("JPEG quality 40", "cropped by 8 %")


def near_duplicates_table(record: Record) -> Iterator[str]:
    """`neighbours.near_duplicates`: what thresholds group, and which altered copies reach them."""
    yield from heading(
        "space, threshold", "redrawn scenes grouped", "other images dropped", *_SHOWN_COPIES
    )
    for row in record["rows"]:
        if row["threshold"] in _SHOWN_THRESHOLDS[row["whitened"]]:
            space = "whitened" if row["whitened"] else "cosine"
            shares = [row["redrawn_grouped"], row["others_dropped"]]
            shares += [row["altered"][name] for name in _SHOWN_COPIES]
            name = f"{space}, {row['threshold']:.2f}" + " (default)" * row["is_default"]
            yield line(name, *map(percent, shares))


_ENDS = {
    "rows": "had all rows read or named",
    "failed unit": "were reported as failed shards",
    "refused": "were refused",
    "crash": "ended in a crash",
    "hang": "took more than 20 s",
}


def disturbed_line(kills: Record, nodes: Record, store: Record, disk: Record) -> Iterator[str]:
    """What was disturbed how often, and what differed in the end, over all commands."""
    answers = [{**row, "failed": sum(row["faults"].values())} for row in store["rows"]]
    disturbed = (
        ("times SIGKILL to all processes", kills["rows"], "kills"),
        ("lost nodes of a Ray cluster", nodes["rows"], "losses"),
        ("failed answers of a store", answers, "failed"),
        ("full disks", disk["rows"], "full"),
    )
    counts = (
        f"{total(rows, how_often):,} {name} ({total(rows, 'rows'):,} rows compared)"
        for name, rows, how_often in disturbed
    )
    every = [row for _, rows, _ in disturbed for row in rows]
    yield (
        f"{', '.join(counts)}. Rows lost, doubled or different: "
        f"{total(every, 'lost', 'doubled', 'different')}. Files half-written, "
        f"missing or left: {total(every, 'half_written', 'files_missing', 'files_left')}."
    )


def mutations_line(record: Record) -> Iterator[str]:
    """How mutated files ended, over all sources."""
    rows = record["rows"]
    ends = sum((Counter(row["outcomes"]) for row in rows), Counter())
    lost = sum(count for end, count in ends.items() if end not in _ENDS)
    yield (
        f"Of {total(rows, 'mutations'):,} mutated files, "
        + ", ".join(f"{ends[end]:,} {meaning}" for end, meaning in _ENDS.items())
        + f", and {lost} lost a row. The slowest read took "
        f"{max(row['slowest'] for row in rows):.1f} s."
    )


def attacks_line(record: Record) -> Iterator[str]:
    """What sources that mean harm came to, and what the dearest ones cost."""
    rows = record["rows"]
    unsaid, problems = (sum(len(row[name]) for row in rows) for name in ("unsaid", "problems"))
    large, slow = (max(rows, key=lambda row: row[cost]) for cost in ("megabytes", "seconds"))
    yield (
        f"{len(rows)} attacks, {total(rows, 'rows'):,} rows. Rows lost: {total(rows, 'lost')}; "
        f"with an unexpected status: {total(rows, 'others')}; failed shards that were not named: "
        f"{unsaid}; commands that ended with a traceback: {problems}. Beyond an ordinary source, "
        f"the most memory was {large['megabytes']:,.0f} MB ({large['attack']}), the most processor "
        f"time {slow['seconds']:.1f} s ({slow['attack']})."
    )


def breaks_line(record: Record) -> Iterator[str]:
    """How many breaks of meaning the tests noticed, of those that nobody chose by the tests."""
    planted, later, unseen = (
        chosen(record["rows"], set=name) for name in ("planted", "later", "unseen")
    )
    first, now = (len(chosen(planted, **{when: "caught"})) for when in ("first", "verdict"))
    yield (
        f"Of {len(planted)} mistakes the tests noticed {first} at first, and notice "
        f"{now} now. Of {len(later)} more, planted later, they noticed "
        f"{len(chosen(later, first='caught'))}. Of {len(unseen)} by somebody who had seen the "
        f"code alone, they noticed {len(chosen(unseen, first='caught'))} at first: expect that of "
        "new code."
    )


def selection_table(record: Record) -> Iterator[str]:
    """`noise.detection`: what policies keep; OSA weights and does not filter."""
    kinds = {"clean": "clean", "ncr": "permuted", "hard": "one wrong word"}
    yield from heading("policy", *kinds.values(), "expected mismatched", "true")
    for row in record["rows"]:
        if "clean_posterior" not in row["policy"] and "osa" not in row["policy"]:
            kept, pairs = row["kept_by_kind"], row["pairs_by_kind"]
            shares = (percent(kept[kind] / pairs[kind]) for kind in kinds)
            expected = f"{row['expected_mismatched']:,.0f}"
            yield line(row["policy"], *shares, expected, f"{row['mismatched']:,}")


def detection_table(record: Record) -> Iterator[str]:
    """`noise.detection --table neighbours`: AUROC by kind, average precision in parentheses."""
    kinds = {"ncr": "permuted", "hard": "one wrong word", "junk": "boilerplate"}
    names = (f"{name} ({record['noisy'][kind]:,})" for kind, name in kinds.items())
    yield from heading("score", *names)
    for column in ("noise_probability", "better_captions", "lemon_score"):
        by_kind = {row["kind"]: row for row in chosen(record["rows"], column=column)}
        cells = (
            f"{by_kind[kind]['auroc']:.4f} ({by_kind[kind]['average_precision']:.3f})"
            for kind in kinds
        )
        yield line(f"`{column}`", *cells)


def speed_lines(record: Record) -> Iterator[str]:
    """`compare.study`: pairs for each second of a core, and the ratio to ncclean in fp32."""
    rows = chosen(record["rows"], kind="speed", model="ViT-B-32")
    names = {"ncclean": "ncclean, fp32", "ncclean, auto precision": "ncclean, default precision"}
    ours = chosen(rows, tool="ncclean")[0]["pairs_per_core_second"]
    for row in rows:
        speed = row["pairs_per_core_second"]
        yield (
            f"- {names.get(row['tool'], row['tool'])}: {speed:,.1f} pairs/s and core "
            f"({speed / ours:.2f}x), {row['peak_mib']:,.0f} MiB"
        )


def broken_table(record: Record) -> Iterator[str]:
    """`compare.study`: what broken samples and shards cost."""
    yield from heading("tool", "usable pairs scored", "unusable samples named", "unusable scored")
    for row in chosen(record["rows"], kind="broken"):
        counts = {"usable_scored": "usable", "unusable_named": "unusable",
                  "unusable_scored": "unusable"}  # fmt: skip
        yield line(row["tool"], *(f"{row[name]} of {row[of]}" for name, of in counts.items()))


def kill_line(record: Record) -> Iterator[str]:
    """`compare.study`: SIGKILL in the middle, and the same command again."""
    rows = chosen(record["rows"], kind="kill")
    tools = []
    for row in rows:
        visible = ", ".join(row["visible_after_kill"])
        tools.append(
            f"{row['tool']} had kept {row.get('pairs_in_parts', 0):,} of {row['pairs']:,} pairs "
            f"and took {row['processor_again']:.0f} core seconds to finish "
            f"({row['processor_undisturbed']:.0f} undisturbed)"
            + f" and left part of its result in place ({visible})"
            * bool(visible)
        )
    wrong = total(rows, "missing", "doubled")
    yield f"{'; '.join(tools)}. Pairs missing or doubled: {wrong}."


def kept_table(record: Record) -> Iterator[str]:
    """`compare.study`: what each tool's own rule keeps."""
    yield from heading("tool", "rule", "matched lost", "mismatched kept")
    for row in chosen(record["rows"], kind="kept"):
        lost = 1 - (row["kept"] - row["kept_noisy"]) / (row["pairs"] - row["noisy"])
        kept = row["kept_noisy"] / row["noisy"]
        yield line(row["tool"], row["rule"], percent(lost), percent(kept))


def duplicates_lines(record: Record) -> Iterator[str]:
    """`compare.study`: which known copies are found."""
    for row in chosen(record["rows"], kind="duplicates"):
        copies = ", ".join(f"{count} {kind}" for kind, (count, _) in row["copies"].items())
        yield (
            f"- {row['tool']}: {copies}; {row['alone_flagged']} of {row['alone']:,} images without "
            f"a copy flagged; {row['processor_seconds']:.0f} core seconds"
        )


def coverage_line(record: Record) -> Iterator[str]:
    """`audits.coverage`: how many intervals hold the truth, at the worst noise rate."""
    counts = (
        f"{min(row['covered'] for row in chosen(rows, figure='noise_rate'))} and "
        f"{min(row['covered'] for row in rows)} with {answers} answers"
        for answers, rows in groups(record["rows"], "answers")
    )
    draws = record["rows"][0]["draws"]
    yield f"Of {draws} intervals of the noise rate, and of the worst figure: {', '.join(counts)}."


def judges_line(record: Record) -> Iterator[str]:
    """`audits.coverage --judges`: widths of the noise rate's intervals over people's alone."""
    judges = ("right", "right in 90 %", "useless", "as the estimator")
    rows = [row for row in record["rows"] if row["judge"] in judges]
    shown = []
    for judge in judges:
        widths = sorted(
            row["width_judged"] / row["width_alone"]
            for row in chosen(rows, judge=judge, figure="noise_rate")
            if row["rate"] in (0.01, 0.2)
        )
        shown.append(f"{judge}: {span(f'{width:.2f}' for width in widths)}")
    fewest = min(row[f"covered_{way}"] for row in rows for way in ("judged", "drawn"))
    covered = f"{fewest} of {rows[0]['draws']}"
    yield f"Judge {'; '.join(shown)}. At least {covered} intervals hold the truth."


def evidence_table(simulated: Record, demo: Record) -> Iterator[str]:
    """DisNCL's evidence, MINE and retrieval, with a map fitted between the exclusive halves."""
    yield from heading("features, `--disentangle`", "MINE, image", "recall at 1, fitted map, %")
    for name, record in (("simulated", simulated), ("`demo`", demo)):
        for objective in ("information", "none"):
            rows: Sequence[Row] = [r["values"] for r in chosen(record["rows"], arm=objective)]
            recalls = (100 * row["recall/exclusive, fitted"] for row in rows)
            information = spread((row["information/image"] for row in rows), digits=2)
            yield line(f"{name}, `{objective}`", information, spread(recalls))
