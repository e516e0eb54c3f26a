"""Pairs per second of rendering a corpus in one process, as `ncclean synth --workers 1` does."""

from __future__ import annotations

import shutil

from measure import Setting, take_turns
from results import Row, Target

from ncclean.data.synthetic import CorpusOptions, write_corpus


def run(setting: Setting) -> list[Row]:
    options = CorpusOptions(pairs=setting.choose(full=5000, quick=2000), noise={"ncr": 0.2})
    folder = setting.scratch / "synth"

    def render() -> None:
        write_corpus(folder, options, workers=1)
        shutil.rmtree(folder)

    timing = take_turns({"render": render}, repeats=setting.choose(full=3, quick=2))["render"]
    return [
        Row(
            name="one process",
            value=options.pairs / timing.best,
            unit="pairs/s",
            target=Target("value", ">=", 1500),
            note=f"{options.pairs:,} pairs, {timing.spread}",
        )
    ]
