"""Wall time of `ncclean score` as a user runs it: start, model, shift, scoring, final file."""

from __future__ import annotations

from command import run_ncclean
from measure import Setting, take_turns
from results import Row

from speed.corpora import demo_corpus


def run(setting: Setting) -> list[Row]:
    folder = demo_corpus(setting)[0].parent
    out = setting.scratch / "command.parquet"
    arguments = ("score", str(folder), "--out", str(out), "--model", setting.demo_model)
    timings = take_turns(
        {"score": lambda: run_ncclean(*arguments, "--overwrite")},
        repeats=setting.choose(full=2, quick=1),
    )
    run = min(timings["score"].results, key=lambda run: run.seconds)
    return [
        Row(
            name="ncclean score, demo model",
            value=run.seconds,
            unit="s",
            note=f"{run.output['rows']:,} pairs, scored at "
            f"{run.output['samples_per_second']:,.0f} pairs/s, {timings['score'].spread}",
        )
    ]
