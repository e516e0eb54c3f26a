"""What weights are worth to a linear probe that is trained on labels of people, some of them wrong.

    python tests/benchmarks cifar10n.probe --data FOLDER --out runs/cifar10n-probe
        [--record docs/records/cifar10n-probe.json]

FOLDER is as `cifar10n.corpora` says. The estimator of `cifar10n.study` scores photographs that it
has not seen, captioned by people's labels. A probe on its embeddings is trained on these labels,
each image counting alike, by what the scores say, less those that score lowest, and less those that
are wrong in truth, and measured on photographs that nobody has learnt, by `evaluate linear-probe`
and `evaluate compare`. What lies in --out is not made again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from corpora import image_reader, once
from ncclean_pipelines.evaluate_models import EvaluateLinearProbe
from ncclean_pipelines.score import Score
from records import Row, benchmark

import ncclean
from cifar10n import corpora
from cifar10n.corpora import CLASS_NAMES, LABELS, write_corpus
from ncclean.errors import InputError
from ncclean.evaluation.options import ProbeOptions

_NAMES = list(CLASS_NAMES)
_METRIC = "lp_acc1"
PROBE = ProbeOptions(solver="adamw", learning_rate=5e-3)


def write_split(folder: Path, data: Path, rows: Sequence[corpora.Row], label: str) -> None:
    """A split of a set in CyCLIP's layout, with a column of labels."""
    read = image_reader(data)
    lines = ["image,label"]
    folder.mkdir()
    for row in rows:
        name = Path(row["file"]).name
        (folder / name).write_bytes(read(row["file"]))
        lines.append(f"{name},{_NAMES.index(row[label])}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")


def weightings(estimated: float, true: float) -> dict[str, str | None]:
    """The SQL of each arm's weights; the shares are of pairs that are wrong."""
    return {
        "equal": None,
        "`osa_weight`": "osa_weight",
        "1 - `noise_probability`": "1 - noise_probability",
        "`clean_posterior`": "clean_posterior",
        "drop `noise_probability` >= 0.5": "(noise_probability < 0.5)::INT",
        "drop the lowest cosines, as many as estimated": _highest(estimated),
        "drop the lowest cosines, as many as are wrong": _highest(true),
        "drop what is wrong": "(NOT is_noisy)::INT",
    }


def _highest(dropped: float) -> str:
    return f"(rank(similarity) >= {dropped:.6f})::INT"


def study(data: Path, out: Path, passes: int = 8, seed: int = 0) -> Iterator[Row]:
    """A row for each set of labels and kind of weights, and what it adds to equal ones.

    An arm of weights that are all 0 is `refused`, with the reason.
    """
    photographs = corpora.Photographs.read(data, seed)
    model = photographs.estimator(data, out, passes, seed)
    for label in LABELS:

        def make(folder: Path, label: str = label) -> None:
            write_split(folder / "train", data, photographs.scored, label)
            write_split(folder / "test", data, photographs.held_out, "clean")
            (folder / "classnames.txt").write_text("\n".join(_NAMES))
            (folder / "zeroshot_classification_templates.txt").write_text("a photo of a {c}.")

        folder, table = once(out / f"set-{label}", make), str(out / f"{label}.parquet")
        write_corpus(photographs.scored, label, data, out / label, seed)
        scored = Score(shards=[str(out / label)], out=table, model=model, precision="fp32").run()
        wrong = sum(row[label] != row["clean"] for row in photographs.scored)
        arms = weightings(scored.summary.noise_rate.value, wrong / len(photographs.scored))
        for number, (name, sql) in enumerate(arms.items()):
            results, equal = (str(out / f"results-{label}-{place}") for place in (number, 0))
            arm = {"labels": label, "weights": name}
            try:
                EvaluateLinearProbe(
                    model=[model], data=[str(folder)], out=results, probe=PROBE, overwrite=True,
                    precision="fp32", scores=[table] if sql is not None else [], weights=sql,
                ).run()  # fmt: skip
            except InputError as error:
                yield {**arm, "refused": str(error)}
                continue
            (comparison,) = ncclean.evaluate_compare(equal, results).summary
            gain = next(metric for metric in comparison.metrics if metric.name == _METRIC)
            yield {
                **arm, "accuracy": gain.b, "gain": gain.difference, "gain_low": gain.low,
                "gain_high": gain.high,
            }  # fmt: skip
    return {"images": photographs.settings()}


if __name__ == "__main__":
    benchmark(study)
