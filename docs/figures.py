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
import study_tables as studies  # noqa: E402
from scale import billion  # noqa: E402

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
    """The source of the numbers of a record, which has its command, date and commit."""
    changed = " (with uncommitted changes)" if record.get("dirty") else ""
    return f"`docs/records/{name}.json`{changed}"


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
    "audit-coverage": Figure(("audit-coverage",), tables.coverage_line),
    "audit-judges": Figure(("audit-judges",), tables.judges_line),
    "benchmarks": Figure(("benchmarks",), tables.benchmark_lines(*SPEEDS)),
    "billion": Figure(billion.RECORDS, billion.billion_table),
    "breaks": Figure(("breaks",), tables.breaks_line),
    "caption-parts": Figure(
        ("caption-parts", "caption-parts-photographs"), studies.caption_parts_table
    ),
    "caption-parts-speed": Figure(("caption-parts-speed",), studies.caption_parts_speed_line),
    "captions-from-outside": Figure(("donors",), studies.donors_table),
    "causes": Figure(("causes",), studies.causes_lines),
    "causes-more": Figure(
        ("causes-sentences", "causes-classes", "causes-class-photographs", "causes-photographs"),
        studies.further_causes_lines,
    ),
    "causes-scale": Figure(("causes-scale", "causes-scale-100m"), studies.causes_scale_lines),
    "causes-structured": Figure(("causes-structured",), studies.structured_lines),
    "cifar10n": Figure(("cifar10n",), studies.rate_table),
    "cifar10n-forgetting": Figure(("cifar10n-forgetting",), studies.forgetting_list),
    "cifar10n-judges": Figure(("cifar10n-judges",), studies.judges_table),
    "cifar10n-probe": Figure(("cifar10n-probe",), studies.probe_line),
    "cifar10n-repair": Figure(("cifar10n",), studies.repair_line),
    "cifar10n-scores": Figure(("cifar10n",), studies.scores_line),
    "compare-broken": Figure(("compare",), tables.broken_table),
    "compare-duplicates": Figure(("compare",), tables.duplicates_lines),
    "compare-kept": Figure(("compare",), tables.kept_table),
    "compare-kill": Figure(("compare",), tables.kill_line),
    "compare-speed": Figure(("compare",), tables.speed_lines),
    "coverage": Figure(("coverage", "weak-estimators"), studies.coverage_lines),
    "disentanglement": Figure(
        ("disentanglement-objectives", "disentanglement-clip"), tables.evidence_table
    ),
    "disncl": Figure(("disncl",), studies.noise_table("none", "ncr 40 %")),
    "draft": Figure(("draft",), tables.benchmark_line(*DRAFTS)),
    "embeddings": Figure(("embeddings",), tables.benchmark_line()),
    "evaluation-compare": Figure(("evaluation",), tables.printed("ncclean evaluate compare", 6)),
    "export": Figure(("export",), tables.benchmark_line(*EXPORTS)),
    "feed": Figure(("feed",), tables.benchmark_line()),
    "few-captions": Figure(("few-captions",), studies.few_captions_line),
    "flickr8k-arms": Figure(("flickr8k",), studies.flickr8k_gains_lines),
    "flickr8k-detection": Figure(("flickr8k",), studies.flickr8k_detection_lines),
    "flickr8k-judgements": Figure(("flickr8k-judgements",), studies.judgements_line),
    "forgetting": Figure(("forgetting",), studies.gains_lines(*FORGETTING)),
    "gpu": Figure(("gpu",), tables.gpu_table),
    "gpu-gains": Figure(("gpu-gains",), tables.gpu_gains_line),
    "gpu-train": Figure(("gpu-train",), tables.gpu_training_line),
    "joins": Figure(("joins", "joins-limited"), tables.join_lines),
    "mending": Figure(("mending",), studies.mending_lines),
    "near-duplicates": Figure(("near-duplicates",), tables.near_duplicates_table),
    "near-miss-scores": Figure(("near-misses",), studies.near_miss_lines),
    "neighbour-detection": Figure(("neighbour-detection",), tables.detection_table),
    "neighbours-cost": Figure(("neighbours", "neighbours-3m"), tables.neighbours_lines),
    "neighbours-faiss": Figure(("neighbours-faiss",), tables.faiss_line),
    "neighbours-more": Figure(("neighbours-plain", "neighbours-memory"), tables.further_lines),
    "objective-memory": Figure(("objective-memory",), tables.memory_lines),
    "own-loop": Figure(("own-loop",), tables.own_loop_line),
    "prior": Figure(("prior",), studies.gains_line(PRIORS)),
    "real-rules": Figure(("real-clip",), studies.real_rule_lines),
    "reliability-attacks": Figure(("reliability-attacks",), tables.attacks_line),
    "reliability-disturbed": Figure(
        ("reliability-kills", "reliability-nodes", "reliability-store", "reliability-disk"),
        tables.disturbed_line,
    ),
    "reliability-mutations": Figure(("reliability-mutations",), tables.mutations_line),
    "repair": Figure(("repair",), studies.gains_table(*REPAIRS)),
    "repair-arms": Figure(("repair",), studies.gains_table(*CLAIMED, metrics=("colour",))),
    "review-search": Figure(("review-search",), tables.review_search_lines),
    "review-speed": Figure(("review-speed",), tables.review_lines),
    "released": Figure(("released",), studies.released_lines),
    "robust": Figure(("robust",), studies.noise_gains_table(ROBUST, NOISES)),
    "resume": Figure(("resume",), tables.resume_line),
    "scale": Figure(("scale",), tables.scale_table),
    "score-candidates": Figure(("score-candidates",), studies.candidates_lines),
    "selection": Figure(("selection",), tables.selection_table),
    "swaps": Figure(("donors",), studies.swaps_line),
    "text-signals": Figure(("text-signals",), studies.text_signal_lines),
    "training-steps": Figure(("training",), tables.training_line),
    "whole": Figure(("whole",), tables.whole_line),
    "word-lists": Figure(("word-lists",), studies.word_list_lines),
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
