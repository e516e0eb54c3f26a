"""What the objectives do to a model that has learnt noise: the tables of docs/results.

    python tests/benchmarks repair.study --out runs/ [--table repair] [--corpora 3]
        [--noise ncr=0.4] [--arms REGEX] [--jobs 2] [--record docs/records/repair.json]

Corpus r is rendered with seed r and spoilt as `--noise` says. A small CLIP is trained on it from
random weights: the model to repair. Every arm of `repair.arms` goes on from that model with the
same number of optimiser steps, and all are measured on held-out scenes. Tables `robust`, `prior`
and `disncl` ask what noise does to a model that has none yet: they start from one that has learnt
from other, clean pairs. Seed r also belongs to both trainings, so that corpora, models and
orders of the pairs vary together. Table `released` has what single differences between papers and
released code do.

What is made on the way lies in `--out` under names with a hash of all that determines it. The
images are decoded once and kept in memory; all else is what `ncclean finetune` does. Runs that are
in `results.jsonl` already are not repeated, so that the command can be interrupted and extended.
With `--jobs` the models to repair are shared out among processes of one thread each, which for
models this small get half as much again out of two cores as one process of two threads.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

# OpenMP's workers spin while they wait, which takes the cores from others; `ncclean` sets it too.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import torch
from artefacts import digest
from open_clip.model import CLIP
from records import CODE_VERSION, make_record, now, write_record
from torch import nn

from ncclean.data.noise import parse_rates
from ncclean.data.weighted_loader import WeightedLoader
from ncclean.errors import InputError
from ncclean.models.heads import headed
from ncclean.models.text_tower import token_lengths
from ncclean.training.batches import CachedFeatures
from ncclean.training.objectives.options import NcuOptions, ObjectiveOptions
from ncclean.training.options import TrainOptions
from ncclean.training.trainer import Trainer
from repair import halves as repair_halves
from repair import train_demo
from repair.arms import TABLES, Arm, Setting, Table
from repair.corpora import (
    MODEL_CONFIG,
    Corpora,
    MemoryLoader,
    Pairs,
    estimator_of,
    judge_facts,
    load_model,
)
from repair.heldout import HeldOut
from repair.objectives import objective_of, shared_out
from repair.tables import metrics_table, noise_name

_TRAIN = TrainOptions(tensorboard=False, save_minutes=1e6)


@dataclass(frozen=True, kw_only=True)
class Run:
    """An arm on a corpus."""

    arm: Arm
    noise: Mapping[str, float]
    seed: int
    corpus: Mapping[str, Any]
    start: Mapping[str, Any]
    setting: Setting

    @property
    def key(self) -> str:
        """A hash of all that determines the outcome; the name of the arm is not part of it."""
        arm = dataclasses.asdict(self.arm)
        del arm["name"]
        held_out = self.setting.held_out
        facts: dict[str, Any] = {"start": self.start, "seed": self.seed, "held_out": held_out}
        if self.arm.method is not None:  # else nothing but the start matters
            setting = dataclasses.asdict(self.setting)
            judge = judge_facts(self.arm.judge, self.start)
            facts |= {"corpus": self.corpus, "arm": arm, "setting": setting, "judge": judge}
        return digest(facts)


def runs(
    table: Table, setting: Setting, noises: list[dict[str, float]], corpora: int, made: Corpora
) -> Iterator[Run]:
    """All runs of a table, corpus by corpus."""
    for seed in range(table.first_seed, table.first_seed + corpora):
        for noise in noises:
            for arm in table.arms:
                yield Run(
                    arm=arm,
                    noise=noise,
                    seed=seed,
                    corpus=made.corpus_facts(noise, seed),
                    start=made.start_facts(table.start, noise, seed),
                    setting=setting,
                )


def treat(run: Run, made: Corpora, folder: Path) -> tuple[nn.Module, dict[str, Any]]:
    """The start after the arm's training (DisNCL: in the invariant space), and facts about it."""
    arm, setting = run.arm, run.setting
    estimator = load_model(made.start(run.start))
    if arm.method is None:
        return estimator.model, {"steps": 0}
    pairs = made.for_arm(arm, run.start, run.corpus)
    forget = _forget_percent(run, made)
    options = ObjectiveOptions(
        learning_rate=arm.learning_rate or setting.learning_rate,
        ncu=NcuOptions(**{"forget_percent": forget, **arm.ncu}),
        **arm.options,
    )
    objective = objective_of(arm, options, estimator)
    objective.phases = shared_out(  # type: ignore[misc]
        objective.phases[:1] if arm.first_phase_alone else objective.phases,
        setting.steps - _steps_of_judge(arm),
        setting.first_share if arm.first_share is None else arm.first_share,
        len(pairs) // setting.batch_size,
    )
    loader = cast(WeightedLoader, MemoryLoader(pairs, setting.batch_size, run.seed))
    on_features = arm.method == "disncl" and options.disncl.freeze_towers
    position = Trainer(
        estimator,
        objective,
        CachedFeatures(estimator, loader, setting.batch_size, run.seed) if on_features else loader,
        dataclasses.replace(_TRAIN, seed=run.seed),
        folder,
    ).run()
    facts: dict[str, Any] = {"steps": position.total_steps, **_facts(pairs)}
    if arm.method in ("ncu", "gradient_ascent"):
        facts["forget_percent"] = round(forget, 2)
    if arm.method != "disncl":
        return estimator.model, facts
    objective.save(folder)
    return headed(estimator.model, folder, "invariant"), facts


def _steps_of_judge(arm: Arm) -> int:
    """Steps that the arm's judge has taken, which are part of the arm's own."""
    return 2 * repair_halves.STEPS if arm.judge == "halves" else 0


def _forget_percent(run: Run, made: Corpora) -> float:
    """What the arm forgets; 0 where the score table sees no noise."""
    if run.arm.forget == "truth":
        return 100 * made.pairs(run.corpus).noisy_share
    if run.arm.forget == "estimate":
        return 100 * (made.estimated_noise(run.arm.judge, run.start, run.corpus) or 0.0)
    return run.arm.forget


def _facts(pairs: Pairs) -> dict[str, Any]:
    return {"pairs": len(pairs), "noisy_share": round(pairs.noisy_share, 4)}


class ResultLog:
    """`results.jsonl`: the rows of finished runs by their keys."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self._rows = {row["key"]: row for row in map(json.loads, lines)}

    def __contains__(self, run: Run) -> bool:
        return run.key in self._rows

    def row(self, run: Run) -> dict[str, Any]:
        """The row under the arm's present name."""
        names = {"arm": run.arm.name, "noise": dict(run.noise), "corpus": run.seed}
        return {**names, **self._rows[run.key], **names}

    def rows(self, runs: Iterable[Run]) -> list[dict[str, Any]]:
        """The rows of runs that are all finished."""
        return [self.row(run) for run in runs]

    def add(self, run: Run, outcome: dict[str, Any]) -> None:
        """Keep a row, also in the file."""
        self._rows[run.key] = {"key": run.key, **outcome, **CODE_VERSION, "date": now()}
        with self._path.open("a") as stream:
            stream.write(json.dumps(self.row(run)) + "\n")


def carry_out(all_runs: list[Run], setting: Setting, folder: Path) -> None:
    """Do what is not done yet."""
    made, log = Corpora(folder, setting), ResultLog(folder / "results.jsonl")
    held_out: HeldOut | None = None
    for run in all_runs:
        if run in log:
            continue
        start, processor = time.perf_counter(), time.process_time()
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            model, facts = treat(run, made, Path(scratch))
        # Where others share the machine, the processor's time tells more than the clock's.
        facts["seconds"] = round(time.perf_counter() - start, 1)
        facts["processor_seconds"] = round(time.process_time() - processor, 1)
        held_out = held_out or HeldOut(run.setting.held_out)
        log.add(run, {**facts, **held_out.measure(estimator_of(model))})
        row = log.row(run)
        print(
            f"corpus {run.seed}, {noise_name(run.noise)}: {run.arm.name}: {row['steps']} steps in "
            f"{row['seconds']:.0f} s ({row['processor_seconds']:.0f} s of a core), rsum "
            f"{row['rsum']:.1f}, colour {row['colour']:.1%}",
            flush=True,
        )


def carry_out_in_processes(all_runs: list[Run], setting: Setting, folder: Path, jobs: int) -> None:
    """The same in processes of one thread; runs from one model stay together, to make it once."""
    groups: dict[str, list[Run]] = {}
    for run in all_runs:
        groups.setdefault(digest(run.start), []).append(run)
    with ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        for done in [pool.submit(carry_out, group, setting, folder) for group in groups.values()]:
            done.result()


def bundle(made: Corpora, noise: dict[str, float], out: Path) -> None:
    """Write the model to repair of corpus 0 as the bundled `demo-noisy`, with a card."""
    facts = made.start_facts("noisy", noise, 0)
    start = load_model(made.start(facts))
    model = cast(CLIP, start.model)
    tokens = start.tokenize(made.pairs(facts["corpus"]).captions)
    unused = torch.ones(len(model.token_embedding.weight), dtype=torch.bool)
    unused[tokens.unique()] = False
    with torch.no_grad():  # rows that training never touched: zeros compress to nothing
        model.token_embedding.weight[unused] = 0
        model.positional_embedding[int(token_lengths(tokens).max()) :] = 0
    pairs, samples = facts["corpus"]["pairs"], facts["samples"]
    train_demo.save(
        model.half().float(),
        out,
        train_demo.evaluate(model, seed=0),
        {
            "scenes": f"{pairs:,} of `ncclean synth`, one caption each",
            "noise": noise_name(noise),
            "samples seen": f"{samples:,}: enough to learn the noise by heart",
            "objective": "CLIP loss, batch 128, Muon and AdamW, bf16 autocast",
            "made by": "`python tests/benchmarks repair.study --bundle`",
            "vocabulary rows kept": int((~unused).sum()),
        },
        MODEL_CONFIG,
    )


def main() -> None:
    arguments = _parse()
    table = TABLES[arguments.table]
    changes = {field.name: getattr(arguments, field.name) for field in dataclasses.fields(Setting)}
    given = {name: value for name, value in changes.items() if value is not None}
    setting = dataclasses.replace(table.setting, **given)
    noises = arguments.noise or list(table.noises)
    arguments.out.mkdir(parents=True, exist_ok=True)
    made = Corpora(arguments.out, setting)
    if arguments.bundle is not None:
        bundle(made, noises[0], arguments.bundle)
        return
    wanted = re.compile(arguments.arms)
    wanted_runs = [
        run
        for run in runs(table, setting, noises, arguments.corpora, made)
        if wanted.search(run.arm.name) and arguments.corpus in (None, run.seed)
    ]
    if arguments.jobs == 1:
        carry_out(wanted_runs, setting, arguments.out)
    else:
        carry_out_in_processes(wanted_runs, setting, arguments.out, arguments.jobs)
    rows = ResultLog(arguments.out / "results.jsonl").rows(wanted_runs)
    print("\n".join(metrics_table(rows)))
    if arguments.record is not None:
        settings = {"table": arguments.table, "start": table.start, **dataclasses.asdict(setting)}
        seeds = sorted({run.seed for run in wanted_runs})
        write_record(arguments.record, make_record(rows, settings=settings, seeds=seeds))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of corpora and results")
    parser.add_argument("--table", choices=list(TABLES), default="repair")
    parser.add_argument("--corpora", type=int, default=3, help="seeds, mostly from 0 on")
    parser.add_argument("--corpus", type=int, help="this seed alone")
    parser.add_argument(
        "--noise",
        action="append",
        type=_noise,
        help="KIND=SHARE[,KIND=SHARE], or `none`; again for further corpora (default: the table's)",
    )
    parser.add_argument("--arms", default="", metavar="REGEX", help="only arms that match")
    parser.add_argument("--jobs", type=int, default=1, help="processes of one thread each")
    parser.add_argument("--record", type=Path, metavar="FILE.json", help="write a record of it all")
    parser.add_argument(
        "--bundle", type=Path, help="write the model to repair here instead, and its card"
    )
    for field in dataclasses.fields(Setting):
        kind = type(field.default)
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind)
    return parser.parse_args()


def _noise(text: str) -> dict[str, float]:
    try:
        return {} if text == "none" else parse_rates((), (), [text])
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


if __name__ == "__main__":
    main()
