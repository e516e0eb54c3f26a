"""What `compare.py` measures of the tools that score pairs: speed, broken input, a kill."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from compare import process as compare_process
from compare.corpus import Corpora, truth_of, usable
from compare.models import ModelFiles
from compare.peers import Scorer
from compare.process import Finished

Row = dict[str, Any]
_KEY = re.compile(r"\b\d{9}\b")
_PROGRESS = re.compile(r"[^\n]*\r")


class Runs:
    """Runs commands below a folder, each with an output folder and a log of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Measured shifts of a model and modules of models are cached; not in the user's home.
        self._environment = {
            "NCCLEAN_CACHE": str(folder / "cache" / "ncclean"),
            "HF_HOME": str(folder / "cache" / "huggingface"),
            "HF_HUB_OFFLINE": "1",
        }

    def out(self, name: str) -> Path:
        return self.folder / "out" / _file_name(name)

    def run(
        self, scorer: Scorer, shards: Path, model: ModelFiles, name: str,
        *, fresh: bool = True, kill_after: float | None = None,
        kill_when: Callable[[], bool] | None = None,
    ) -> Finished:  # fmt: skip
        out = self.out(name)
        if fresh:
            shutil.rmtree(out, ignore_errors=True)
        return compare_process.run(
            scorer.command(shards, model, out),
            self.folder / "logs" / f"{_file_name(name)}.txt",
            environment=self._environment,
            kill_after=kill_after,
            kill_when=kill_when,
        )


def speed(runs: Runs, scorer: Scorer, model: ModelFiles, few: Path, many: Path) -> Row:
    """Whole commands on few and on many pairs.

    What further pairs cost is the difference: starting up and loading a model are left out. It is
    counted in processor time, which other jobs on the machine change less than the clock.
    """
    pairs = {which: len(truth_of(which)) for which in (few, many)}
    taken: dict[Path, Finished] = {}
    for which in pairs:
        name = f"speed {model.name} {scorer.name} {which.name}"
        finished = taken[which] = runs.run(scorer, which, model, name)
        if finished.exit:
            said = finished.output[-2000:]
            raise RuntimeError(f"{name} ended with {finished.exit}:\n{said}")
        print(f"{name}: {finished.processor_seconds:.1f} s of a core", flush=True)
    further = taken[many].processor_seconds - taken[few].processor_seconds
    return {
        "kind": "speed",
        "tool": scorer.name,
        "model": model.name,
        "pairs": pairs[many],
        "pairs_few": pairs[few],
        "seconds": taken[many].seconds,
        "seconds_few": taken[few].seconds,
        "processor_seconds": taken[many].processor_seconds,
        "processor_seconds_few": taken[few].processor_seconds,
        "pairs_per_core_second": (pairs[many] - pairs[few]) / further,
        "peak_mib": taken[many].peak_mib,
    }


def broken_input(runs: Runs, scorer: Scorer, model: ModelFiles, corpora: Corpora) -> Row:
    """The corpus with broken samples, a shard that is cut and one of random bytes."""
    finished = runs.run(scorer, corpora.broken, model, f"broken {scorer.name}")
    out = runs.out(f"broken {scorer.name}")
    truth = truth_of(corpora.broken)
    if scorer.name.startswith("data-juicer"):  # it reads files: no cut tar, no unreadable one
        truth = {key: facts for key, facts in truth.items() if key[:5] in ("00000", "00003")}
    good = usable(truth)
    scored = {key for key, _ in scorer.scores(out)} if scorer.published(out) else set()
    return {
        "kind": "broken",
        "tool": scorer.name,
        "exit": finished.exit,
        "usable": len(good),
        "usable_scored": len(scored & good),
        "unusable": len(truth) - len(good),
        "unusable_scored": len(scored & (truth.keys() - good)),
        "unusable_scored_kinds": dict(
            Counter(truth[key]["broken"] for key in sorted(scored & (truth.keys() - good)))
        ),
        "unusable_named": len(_named(out, finished.output) & (truth.keys() - good)),
        "said": _last_words(finished.output),
    }


def _named(out: Path, output: str) -> set[str]:
    """Keys of samples that the table gives a reason for, or that the output names."""
    table = out / "scores.parquet"
    if not table.exists():
        return set(_KEY.findall(output))
    rows = pq.read_table(table, columns=["key", "status"]).to_pylist()
    return {row["key"] for row in rows if row["status"] != "ok"}


def kill(runs: Runs, scorer: Scorer, model: ModelFiles, shards: Path, undisturbed: Row) -> Row:
    """SIGKILL to all processes in the middle, then the command again.

    A tool that keeps finished parts is killed when it has one, another one when 60 % of the pairs
    should be done, or earlier where it was done by then. `undisturbed` is its row of `speed`:
    its start is a run on few pairs.
    """
    name = f"kill {scorer.name}"
    start, out = undisturbed["seconds_few"], runs.out(name)
    if scorer.parts is None:
        for done in (0.6, 0.4, 0.2, 0.0):
            after = start + done * (undisturbed["seconds"] - start)
            killed = runs.run(scorer, shards, model, name, kill_after=after)
            if killed.exit < 0:
                break
    else:
        ripe = partial(_any, scorer.parts, out)
        killed = runs.run(scorer, shards, model, name, kill_when=ripe)
    visible = [path.name for path in scorer.published(runs.out(name))]
    parts = scorer.parts(out) if scorer.parts is not None else []
    in_parts = sum(pq.read_metadata(part).num_rows for part in parts)
    again = runs.run(scorer, shards, model, name, fresh=False)
    pairs = set(truth_of(shards))
    rows = scorer.scores(runs.out(name)) if scorer.published(runs.out(name)) else []
    keys = [key for key, _ in rows]
    return {
        "kind": "kill",
        "tool": scorer.name,
        "was_killed": killed.exit < 0,
        "killed_after": killed.seconds,
        "processor_undisturbed": undisturbed["processor_seconds"],
        "visible_after_kill": visible,
        "pairs_in_parts": in_parts,
        "exit_again": again.exit,
        "seconds_again": again.seconds,
        "processor_again": again.processor_seconds,
        "pairs": len(pairs),
        "missing": len(pairs - set(keys)),
        "doubled": len(keys) - len(set(keys)),
    }


def _any(list_files: Callable[[Path], list[Path]], out: Path) -> bool:
    return bool(list_files(out))


def found(
    truth: Mapping[str, Mapping[str, Any]],
    scores: Mapping[str, float],
    metrics: Callable[[list[float], list[bool]], Mapping[str, float]],
) -> Row:
    """How well low scores tell mismatched pairs; copies that were spoilt are left out."""
    keys = [key for key, facts in truth.items() if key in scores and "copy" not in facts]
    noisy = [bool(truth[key]["is_noisy"]) for key in keys]
    return {"pairs": len(keys), **metrics([-scores[key] for key in keys], noisy)}


def _last_words(output: str) -> str:
    """The last line that a command printed, without progress bars, paths and times."""
    lines = [line.strip() for line in _PROGRESS.sub("", output).splitlines() if line.strip()]
    return re.sub(r"/\S*/", "", lines[-1])[:300] if lines else ""


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name)
