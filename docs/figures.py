"""Write the tables of measured numbers on the pages from the records in `docs/records`.

    make docs-figures

A block of a page between `<!-- figures: NAME -->` and `<!-- /figures -->` is what the figure of
that name makes of its records. A record is the JSON file of a benchmark (`tests/benchmarks`), with
the command that made it. tests/test_figures.py fails when a page is not what its records say, and
when a table of measured numbers stands outside a block.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
ROOT = DOCS.parent
RECORDS = DOCS / "records"
sys.path.insert(0, str(ROOT / "tests" / "benchmarks"))

import record_tables as tables  # noqa: E402
import reliability_tables as reliability  # noqa: E402
from audits import tables as audit_tables  # noqa: E402
from caption_parts import tables as part_tables  # noqa: E402
from causes import tables as cause_tables  # noqa: E402
from cifar10n import tables as cifar10n_tables  # noqa: E402
from compare import tables as compare_tables  # noqa: E402
from disentangle import tables as halves  # noqa: E402
from flickr8k import tables as flickr8k_tables  # noqa: E402
from noise import tables as noise_tables  # noqa: E402
from repair import tables as repair_tables  # noqa: E402
from scale import billion  # noqa: E402
from scale import tables as scale_tables  # noqa: E402

BLOCK = re.compile(
    r"^(?P<begin><!-- figures: (?P<name>[^>]*?) -->\n)(?P<content>.*?)(?P<end><!-- /figures -->)$",
    re.DOTALL | re.MULTILINE,
)

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """Names of records without `.json`, and what makes lines of Markdown of them, in this order."""

    records: tuple[str, ...]
    render: Callable[..., Iterable[str]]

    def content(self) -> str:
        """Markdown, with an empty line before and after: a table needs them."""
        records = [read_record(name) for name in self.records]
        sources = [_source(*named) for named in zip(self.records, records, strict=True)]
        lines = [*self.render(*records), "", f"Record: {', '.join(sources)}."]
        return "\n" + "\n".join(lines) + "\n\n"


def _source(name: str, record: Record) -> str:
    """Where the numbers of a record come from; the record has its command, date and commit."""
    changed = " (with uncommitted changes)" if record.get("dirty") else ""
    return f"`docs/records/{name}.json`{changed}"


def rsum_gains(*arms: str, metrics: tuple[str, ...] = ()) -> Callable[[Record], Iterable[str]]:
    """What these arms gain."""
    return lambda record: repair_tables.gains_table(record["rows"], arms, metrics)


def rsum_over_noise(*noises: str) -> Callable[[Record], Iterable[str]]:
    """An arm a line, a noise a column."""
    return lambda record: repair_tables.noise_table(record["rows"], "rsum", noises)


# The arms that decide what to use, and those that claims of papers are about.
REPAIRS = ("left alone", "clip, selected", "clip, selected by itself", "osa, weights by itself",
           "ncu", "oracle")  # fmt: skip
CLAIMED = ("ncu", "osa", "softclip", "gradient_ascent", "ncu, nothing to forget",
           "ncu, textual prefixes (V1)", "ncu, largest distance (V2)",
           "ncu, false negatives only (V3)", "ncu, false positives only (V4)",
           "clip, captions put right")  # fmt: skip
FORGETTING = ("left alone", "osa, weights by itself", "ncu, a fifth for the prompt, forget 40 %",
              "rematched, forget 0 %", "rematched, forget 40 %", "left out, 40 %",
              "oracle")  # fmt: skip
# What a user waits for.
SPEEDS = ("ViT-B-32 plain loop fp32", "ViT-B-32 score fp32", "ViT-B-32 score auto",
          "ViT-B-32 cosine difference, auto", "640x480 quality 75", "ViT-B-32 bf16",
          "peak, 50 shards", "to one file")  # fmt: skip
EXPORTS = ("100% of the samples, each further GB", "70% of the samples, each further GB")
DRAFTS = ("512x512 to 224", "640x480 to 224", "2048x1536 to 224")
PRIORS = {f"bayes, paper, a_neg = {shape}": f"shape {shape}" for shape in (1, 5, 10, 20)}
NOISES = ("none", "ncr 20 %", "ncr 40 %")
ROBUST = ("left alone", "oracle", "rince", "decl", "bayes, paper")

# A record that is measured anew takes the place of the old one; `make docs-figures` does the rest.
FIGURES = {
    "audit-coverage": Figure(("audit-coverage",), audit_tables.coverage_line),
    "audit-judges": Figure(("audit-judges",), audit_tables.judges_line),
    "benchmarks": Figure(("benchmarks",), tables.benchmark_lines(*SPEEDS)),
    "billion": Figure(billion.RECORDS, billion.billion_table),
    "breaks": Figure(("breaks",), reliability.breaks_line),
    "caption-parts": Figure(
        ("caption-parts", "caption-parts-photographs"), part_tables.detection_table
    ),
    "caption-parts-speed": Figure(("caption-parts-speed",), part_tables.speed_line),
    "captions-from-outside": Figure(("donors",), noise_tables.donors_table),
    "causes": Figure(("causes",), cause_tables.causes_lines),
    "causes-more": Figure(
        ("causes-sentences", "causes-classes", "causes-class-photographs", "causes-photographs"),
        cause_tables.further_lines,
    ),
    "causes-scale": Figure(("causes-scale", "causes-scale-100m"), cause_tables.scale_line),
    "causes-structured": Figure(("causes-structured",), cause_tables.structured_lines),
    **{name: Figure(("compare",), render) for name, render in compare_tables.FIGURES.items()},
    "cifar10n": Figure(("cifar10n",), cifar10n_tables.rate_table),
    "cifar10n-forgetting": Figure(("cifar10n-forgetting",), cifar10n_tables.forgetting_list),
    "cifar10n-judges": Figure(("cifar10n-judges",), cifar10n_tables.judges_table),
    "cifar10n-probe": Figure(("cifar10n-probe",), cifar10n_tables.probe_line),
    "cifar10n-repair": Figure(("cifar10n",), cifar10n_tables.repair_line),
    "cifar10n-scores": Figure(("cifar10n",), cifar10n_tables.scores_line),
    "coverage": Figure(("coverage", "weak-estimators"), noise_tables.coverage_lines),
    "disentanglement": Figure(
        ("disentanglement-objectives", "disentanglement-clip"), halves.evidence_table
    ),
    "disncl": Figure(("disncl",), rsum_over_noise("none", "ncr 40 %")),
    "draft": Figure(("draft",), tables.benchmark_line(*DRAFTS)),
    "embeddings": Figure(("embeddings",), tables.benchmark_line()),
    "evaluation-compare": Figure(("evaluation",), tables.printed("ncclean evaluate compare", 6)),
    "export": Figure(("export",), tables.benchmark_line(*EXPORTS)),
    "feed": Figure(("feed",), tables.benchmark_line()),
    "few-captions": Figure(("few-captions",), noise_tables.few_captions_line),
    "flickr8k-arms": Figure(("flickr8k",), flickr8k_tables.gains_lines),
    "flickr8k-detection": Figure(("flickr8k",), flickr8k_tables.detection_lines),
    "flickr8k-judgements": Figure(("flickr8k-judgements",), flickr8k_tables.judgements_line),
    "forgetting": Figure(
        ("forgetting",), lambda record: repair_tables.gains_lines(record["rows"], FORGETTING)
    ),
    "gpu": Figure(("gpu",), tables.gpu_table),
    "gpu-gains": Figure(("gpu-gains",), tables.gpu_gains_line),
    "gpu-train": Figure(("gpu-train",), tables.gpu_training_line),
    "joins": Figure(("joins", "joins-limited"), tables.join_lines),
    "mending": Figure(("mending",), part_tables.mending_lines),
    "near-duplicates": Figure(("near-duplicates",), tables.near_duplicates_table),
    "near-miss-scores": Figure(("near-misses",), noise_tables.near_miss_lines),
    "neighbour-detection": Figure(("neighbour-detection",), tables.detection_table),
    "neighbours-cost": Figure(("neighbours", "neighbours-3m"), scale_tables.neighbours_lines),
    "neighbours-faiss": Figure(("neighbours-faiss",), scale_tables.faiss_line),
    "neighbours-more": Figure(
        ("neighbours-plain", "neighbours-memory"), scale_tables.further_lines
    ),
    "objective-memory": Figure(("objective-memory",), tables.memory_lines),
    "prior": Figure(("prior",), lambda record: repair_tables.gains_line(record["rows"], PRIORS)),
    "real-rules": Figure(("real-clip",), noise_tables.real_rule_lines),
    "reliability-attacks": Figure(("reliability-attacks",), reliability.attacks_line),
    "reliability-disturbed": Figure(
        ("reliability-kills", "reliability-nodes", "reliability-store", "reliability-disk"),
        reliability.disturbed_line,
    ),
    "reliability-mutations": Figure(("reliability-mutations",), reliability.mutations_line),
    "repair": Figure(("repair",), rsum_gains(*REPAIRS)),
    "repair-arms": Figure(("repair",), rsum_gains(*CLAIMED, metrics=("colour",))),
    "review-speed": Figure(("review-speed",), scale_tables.review_lines),
    "released": Figure(("released",), lambda record: repair_tables.released_lines(record["rows"])),
    "robust": Figure(
        ("robust",), lambda record: repair_tables.noise_gains_table(record["rows"], ROBUST, NOISES)
    ),
    "resume": Figure(("resume",), scale_tables.resume_line),
    "scale": Figure(("scale",), scale_tables.scale_table),
    "score-candidates": Figure(("score-candidates",), noise_tables.candidates_lines),
    "selection": Figure(("selection",), tables.selection_table),
    "swaps": Figure(("donors",), noise_tables.swaps_line),
    "training-steps": Figure(("training",), tables.training_line),
    "whole": Figure(("whole",), tables.whole_line),
    "word-lists": Figure(("word-lists",), noise_tables.word_list_lines),
}


def read_record(name: str) -> Record:
    """A record by its name."""
    record: dict[str, Any] = json.loads((RECORDS / f"{name}.json").read_text("utf-8"))
    return record


def rewritten(text: str, figures: Mapping[str, Figure] = FIGURES) -> str:
    """The page with the content of its blocks made anew. Raises `KeyError` for unknown figures."""
    return BLOCK.sub(
        lambda block: block["begin"] + figures[block["name"]].content() + block["end"], text
    )


def pages() -> list[Path]:
    """All pages that may hold figures."""
    return [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


def main() -> None:
    for page in pages():
        text = page.read_text("utf-8")
        if (new := rewritten(text)) != text:
            page.write_text(new, encoding="utf-8")
            print(f"{page.relative_to(ROOT)} rewritten")


if __name__ == "__main__":
    main()
