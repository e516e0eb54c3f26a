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
from compare import tables as compare_tables  # noqa: E402
from disentangle import tables as halves  # noqa: E402
from flickr8k import tables as flickr8k_tables  # noqa: E402
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
        lines = [*self.render(*records), "", f"Record: {'; '.join(sources)}."]
        return "\n" + "\n".join(lines) + "\n\n"


def _source(name: str, record: Record) -> str:
    """Where the numbers of a record come from."""
    changed = " and changes" if record.get("dirty") else ""
    commit = (record["commit"] or "unknown")[:7]
    return f"`docs/records/{name}.json`, {record['date'][:10]}, commit {commit}{changed}"


def repair(record: Record) -> Iterable[str]:
    """All metrics, an arm a line."""
    return repair_tables.metrics_table(record["rows"])


def over_noise(metric: str) -> Callable[..., Iterable[str]]:
    """One metric, a noise a column; the rows of several records below one another."""

    def render(*records: Record) -> Iterable[str]:
        return repair_tables.noise_table(
            [row for record in records for row in record["rows"]], metric
        )

    return render


# A record that is measured anew takes the place of the old one; `make docs-figures` does the rest.
FIGURES = {
    "audit-coverage": Figure(("audit-coverage",), audit_tables.coverage_table),
    "audit-judges": Figure(("audit-judges",), audit_tables.judges_table),
    "benchmarks": Figure(("benchmarks",), tables.benchmark_table),
    "billion": Figure(billion.RECORDS, billion.billion_table),
    "calibrated-on": Figure(
        ("real-clip", "weak-estimators"),
        tables.calibrated_on_table,
    ),
    "breaks": Figure(("breaks",), reliability.breaks_table),
    "caption-parts": Figure(("caption-parts",), part_tables.detection_table),
    "caption-parts-calibration": Figure(("caption-parts",), part_tables.calibration_table),
    "caption-parts-photographs": Figure(
        ("caption-parts-photographs",), part_tables.photographs_table
    ),
    "caption-parts-speed": Figure(("caption-parts-speed",), part_tables.speed_table),
    "caption-parts-alternatives": Figure(
        ("caption-parts-alternatives",), part_tables.alternatives_table
    ),
    "causes": Figure(("causes",), cause_tables.causes_table),
    "causes-classes": Figure(("causes-classes",), cause_tables.classes_table),
    "causes-photographs": Figure(("causes-photographs",), cause_tables.photographs_table),
    "causes-sentences": Figure(("causes-sentences",), cause_tables.sentences_table),
    "causes-class-photographs": Figure(("causes-class-photographs",), cause_tables.classes_table),
    "causes-scale": Figure(("causes-scale",), cause_tables.scale_table),
    **{name: Figure(("compare",), render) for name, render in compare_tables.FIGURES.items()},
    "disentanglement-clip": Figure(("disentanglement-clip",), halves.evidence_table),
    "disentanglement-clip-facts": Figure(("disentanglement-clip",), halves.clip_facts_table),
    "disentanglement-compression": Figure(
        ("disentanglement-objectives",), halves.compression_table
    ),
    "disentanglement-contents": Figure(("disentanglement-objectives",), halves.contents_table),
    "disentanglement-evidence": Figure(("disentanglement-objectives",), halves.evidence_table),
    "disncl-colour": Figure(("disncl",), over_noise("colour")),
    "disncl-rsum": Figure(("disncl",), over_noise("rsum")),
    "draft": Figure(("draft",), tables.benchmark_table),
    "embeddings": Figure(("embeddings",), tables.benchmark_table),
    "evaluation-compare": Figure(("evaluation",), tables.printed("ncclean evaluate compare")),
    "evaluation-similarity": Figure(("evaluation",), tables.printed("ncclean evaluate similarity")),
    "export": Figure(("export",), tables.benchmark_table),
    "flickr8k-arms": Figure(("flickr8k",), flickr8k_tables.gains_table),
    "flickr8k-detection": Figure(("flickr8k",), flickr8k_tables.detection_table),
    "flickr8k-judgements": Figure(("flickr8k-judgements",), flickr8k_tables.judgements_table),
    "flickr8k-rates": Figure(("flickr8k",), flickr8k_tables.rates_table),
    "forgetting": Figure(("forgetting",), repair),
    "forgetting-search": Figure(("forgetting-search",), repair),
    "gpu": Figure(("gpu",), tables.gpu_table),
    "half-truths": Figure(("caption-parts-photographs",), part_tables.half_truth_table),
    "human-audits": Figure(("cifar10n",), audit_tables.human_audit_table),
    "human-judges": Figure(("cifar10n-judges",), audit_tables.human_judges_table),
    "human-near-misses": Figure(("cifar10n",), audit_tables.human_near_miss_table),
    "human-probe": Figure(("cifar10n-probe",), audit_tables.human_probe_table),
    "human-rates": Figure(("cifar10n",), audit_tables.human_rate_table),
    "human-repair": Figure(("cifar10n",), audit_tables.human_repair_table),
    "human-scores": Figure(("cifar10n",), audit_tables.human_scores_table),
    "joins": Figure(("joins", "joins-limited"), tables.join_table),
    "joins-struct": Figure(("joins-struct",), tables.joined_row_table),
    "mending": Figure(("mending",), part_tables.mending_table),
    "near-duplicates": Figure(("near-duplicates",), tables.near_duplicates_table),
    "near-miss-rate": Figure(("near-misses",), tables.near_miss_rate_table),
    "word-lists": Figure(("word-lists",), tables.word_list_table),
    "near-miss-scores": Figure(("near-misses",), tables.near_miss_score_table),
    "neighbour-detection": Figure(("neighbour-detection",), tables.detection_table),
    "neighbour-rules": Figure(("neighbour-detection",), tables.flagged_table),
    "neighbours-cost": Figure(("neighbours", "neighbours-3m"), scale_tables.neighbours_table),
    "neighbours-driver": Figure(("neighbours-memory",), scale_tables.driver_table),
    "neighbours-faiss": Figure(("neighbours-faiss",), scale_tables.faiss_table),
    "neighbours-plain": Figure(("neighbours-plain",), scale_tables.plain_table),
    "neighbours-equal": Figure(("neighbours-equal",), scale_tables.equal_table),
    "objective-memory": Figure(("objective-memory",), tables.memory_table),
    "prior": Figure(("prior",), repair),
    "ranged-reads": Figure(("ranged-reads",), scale_tables.ranged_reads_table),
    "donors": Figure(("donors",), tables.donors_table),
    "donors-rendered": Figure(("donors-rendered",), tables.donors_table),
    "few-captions": Figure(("few-captions",), tables.few_captions_table),
    "real-rate": Figure(("real-clip",), tables.real_rate_table),
    "swaps": Figure(("donors",), tables.swaps_table),
    "real-rules": Figure(("real-clip",), tables.real_rule_table),
    "real-scores": Figure(("real-clip",), tables.real_score_table),
    "reliability-attacks": Figure(("reliability-attacks",), reliability.attacks_table),
    "reliability-disk": Figure(("reliability-disk",), reliability.disk_table),
    "reliability-kills": Figure(("reliability-kills",), reliability.kills_table),
    "reliability-mutations": Figure(("reliability-mutations",), reliability.mutations_table),
    "reliability-nodes": Figure(("reliability-nodes",), reliability.nodes_table),
    "reliability-store": Figure(("reliability-store",), reliability.store_table),
    "review-speed": Figure(("review-speed",), scale_tables.review_table),
    "released": Figure(("released",), lambda record: repair_tables.released_table(record["rows"])),
    "repair": Figure(("repair",), repair),
    "robust-colour": Figure(("robust",), over_noise("colour")),
    "robust-rsum": Figure(("robust",), over_noise("rsum")),
    "score-candidates": Figure(("score-candidates",), tables.candidates_table),
    "score-choice": Figure(("score-candidates",), tables.rendered_half_table),
    "scale": Figure(("scale",), scale_tables.scale_table),
    "selection": Figure(("selection",), tables.selection_table),
    "training-steps": Figure(("training",), tables.training_table),
    "training-ways": Figure(("training-ways",), tables.benchmark_table),
    "weak-rate": Figure(("weak-estimators",), tables.weak_rate_table),
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
