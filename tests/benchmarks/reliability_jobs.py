"""The commands that the reliability measurements interrupt, and the corpora that they read.

Every command writes into a folder of its own. Commands are forked from a process that has imported
what they need: a kill at a random moment would mostly hit imports otherwise.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from records import Row

from ncclean.data.synthetic import CorpusOptions, write_corpus

_IMPORTED = (
    "__main__", "duckdb", "faiss", "ncclean_cli.app", "ncclean_pipelines.recipe.run", "open_clip",
    "pandas", "pyarrow.dataset", "pyarrow.parquet", "scipy.stats", "sklearn.mixture", "torch",
    "torchvision", "ncclean.execution.local_engine", "ncclean.storage.finalize",
    "ncclean.storage.merge", "ncclean.training.trainer", "ncclean.exporting.export",
    "ncclean.selection.select", "ncclean.models.estimator", "ncclean.neighbour_search.search",
    "torch._dynamo",
)  # fmt: skip
_CONTEXT = multiprocessing.get_context("forkserver")
_TEMPORARY = "RELIABILITY_TMPDIR"  # not TMPDIR: the parent keeps a socket there
EXISTS = "exists; use --overwrite"
FIGURES = ("rows", "lost", "doubled", "different", "files_missing", "files_left")
_DEMO = " --model demo --precision fp32 --shift 0.2"

RECIPE = """\
about: From a corpus to a model.
stages:
  score:
    shards: {shards}
    model: demo
    precision: fp32
    shift: 0.2
  clean:
    command: select
    scores: ${{score}}
    method: noise-probability
  kept:
    command: export
    selection: ${{clean}}
    shards: {shards}
    samples_per_shard: 40
    workers: 1
  repaired:
    command: finetune
    method: clip
    shards: {shards}
    selection: ${{clean}}
    model: demo-noisy
    precision: fp32
    batch_size: 40
    steps: 6
    learning_rate: 1e-4
    save_steps: 2
    tensorboard: false
"""


# By name; CORPUS is where the input lies, OUT the folder to write to.
COMMANDS = {
    "score, one file": "score CORPUS/shards --out OUT/s.parquet" + _DEMO,
    "score, parts and embeddings": "score CORPUS/shards --out OUT/s --embeddings OUT/e" + _DEMO,
    "score embeddings": "score CORPUS/embeddings --out OUT/s.parquet --shift 0.2",
    "merge": "merge CORPUS/a CORPUS/b --out OUT/m --shift 0.2",
    "select": "select CORPUS/scores.parquet --out OUT/k.parquet --method noise-probability",
    "export": "export CORPUS/selection.parquet --shards CORPUS/shards --out OUT/x "
    "--scores CORPUS/scores.parquet --samples-per-shard 10 --workers 1",
    "neighbours": "neighbours CORPUS/embeddings --out OUT/n.parquet --index ivf --k 10 "
    "--memory-limit 4MB --workers 1",
    "finetune": "finetune --shards CORPUS/shards --selection CORPUS/selection.parquet "
    "--out OUT/f --model demo-noisy --batch-size 40 --steps 12 --save-steps 2 "
    "--learning-rate 1e-4 --precision fp32 --no-tensorboard",
    "inject-noise": "inject-noise CORPUS/shards --out OUT/i --noise ncr=0.2,decl=0.1 --seed 5 "
    "--workers 1",
    "run": "run CORPUS/r.yaml --out OUT/r",
}
REPORT = {
    "report": "report CORPUS/scores.parquet --shards CORPUS/shards --out OUT/r.html --pairs 2"
}


def words_of(name: str, corpus: Path | str, out: Path | str) -> list[str]:
    """A command's words, without `ncclean`."""
    words = [*{**COMMANDS, **REPORT}[name].split(), "--quiet"]
    return [word.replace("CORPUS", str(corpus)).replace("OUT", str(out)) for word in words]


def write_corpora(folder: Path, pairs: int = 600) -> Path:
    """Shards with broken samples, their scores, halves to merge, a selection, embeddings."""
    corpus = folder / "corpus"
    if (corpus / "done").exists():
        return corpus
    shutil.rmtree(corpus, ignore_errors=True)
    options = CorpusOptions(
        pairs=pairs, shard_size=pairs // 20, noise={"ncr": 0.2}, broken=0.02, seed=4
    )
    write_corpus(corpus / "shards", options, 1)
    shards = sorted(map(str, (corpus / "shards").glob("*.tar")))
    for name, some in {"a": shards[:10], "b": shards[10:]}.items():
        finish(["score", *some, "--out", f"{corpus / name}", *_DEMO.split(), "--quiet"])
    everything = ["--out", f"{corpus}/scores.parquet", "--embeddings", f"{corpus}/embeddings"]
    finish(["score", *shards, *everything, *_DEMO.split(), "--quiet"])
    finish(words_of("select", corpus, corpus))
    (corpus / "k.parquet").rename(corpus / "selection.parquet")
    (corpus / "r.yaml").write_text(RECIPE.format(shards=corpus / "shards"))
    (corpus / "done").touch()
    return corpus


def emptied(folder: Path) -> Path:
    """The folder, with nothing in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def uninterrupted(name: str, folder: Path) -> tuple[Path, float]:
    """What a command writes when nothing disturbs it, and its seconds."""
    expected = emptied(folder / "expected" / name)
    return expected, finish(words_of(name, folder / "corpus", expected), folder / "log")


def disturbed(
    folder: Path, count: int, done: Iterable[Row],
    hits: Callable[[Row], int], trial: Callable[[str, Path, Path, float, list[Row]], Row],
) -> Iterator[Row]:  # fmt: skip
    """A row for each disturbed run, until every command has been hit `count` times.

    A trial takes the command, the folder, what the command writes undisturbed and in how many
    seconds, and the earlier rows of the command.
    """
    write_corpora(folder)
    for name in COMMANDS:
        rows = [row for row in done if row["command"] == name]
        if sum(map(hits, rows)) < count:
            expected, seconds = uninterrupted(name, folder)
        while sum(map(hits, rows)) < count and len(rows) < 8 * count:
            rows.append(trial(name, folder, expected, seconds, rows))
            yield rows[-1]


def finish_again(words: list[str], log: Path) -> None:
    """Run it to its end; `neighbours` ends with 2 where its table was finished already."""
    running = Running(words, log)
    code = running.wait()
    if code and not (code == 2 and EXISTS in log.read_text("utf-8")):
        raise RuntimeError(f"ncclean {' '.join(words)} ended with {code}: {log.read_text()}")


def summed(
    rows: list[Row], key: str = "command", sums: Sequence[str] = FIGURES,
    **figures: Callable[[list[Row]], Any],
) -> list[Row]:  # fmt: skip
    """A row for each command: its further figures, and sums of numbers or of lengths of lists."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    return [
        {
            key: name,
            **{figure: compute(group) for figure, compute in figures.items()},
            **{figure: sum(_count(row[figure]) for row in group) for figure in sums},
        }
        for name, group in groups.items()
    ]


def _count(value: int | list[Any]) -> int:
    return len(value) if isinstance(value, list) else value


class Running:
    """A command at work in a process group of its own; it prints to `log`."""

    def __init__(
        self, words: Sequence[str], log: Path | str = os.devnull, temporary: Path | None = None
    ) -> None:
        """Temporary files go to `temporary`, else to the folder of `prepare`."""
        self.log = Path(log)
        # The process that is forked has the environment of the first command's start.
        variables = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        variables["TMPDIR"] = str(temporary or os.environ[_TEMPORARY])
        self._process = _CONTEXT.Process(target=_command, args=(list(words), str(log), variables))
        self._process.start()
        self.begun = time.monotonic()

    @property
    def group(self) -> int:
        """The number of its process group."""
        return self._process.pid or 0

    def wait(self, seconds: float | None = None) -> int | None:
        """The exit code, or None if it has not ended by then."""
        self._process.join(seconds)
        return self._process.exitcode

    def kill(self) -> None:
        """SIGKILL for it and all that it started."""
        pid = self._process.pid
        assert pid is not None
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:  # not a group yet
            self._process.kill()
        self._process.join()


def finish(words: Sequence[str], log: Path | str = os.devnull) -> float:
    """Run a command to its end; its seconds. Raises `RuntimeError` if it fails."""
    running = Running(words, log)
    if code := running.wait():
        text = running.log.read_text() if running.log.is_file() else ""
        raise RuntimeError(f"ncclean {' '.join(words)} ended with {code}: {text[-2000:]}")
    return time.monotonic() - running.begun


def _command(words: list[str], log: str, variables: Mapping[str, str]) -> None:
    os.setpgrp()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(variables)
    tempfile.tempdir = None
    sys.argv = ["ncclean", *words]
    from ncclean_cli.app import main

    main()


def prepare(folder: Path) -> None:
    """Settings of all commands that are started from now on; before the first one."""
    for name in ("tmp", "cache"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["NCCLEAN_CACHE"] = str(folder / "cache")
    os.environ[_TEMPORARY] = str(folder / "tmp")
    _CONTEXT.set_forkserver_preload(list(_IMPORTED))
