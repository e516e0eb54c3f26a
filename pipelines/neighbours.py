"""`ncclean neighbours`: find near-duplicates, better matches and agreement with neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from ncclean.base.config import DRY_RUN, TaskOptions, parse_keys, parse_memory
from ncclean.base.formats import counted, facts, file_size, hours, share
from ncclean.base.options import Option, Reads
from ncclean.errors import InputError
from ncclean.neighbour_search.options import NeighbourOptions

from .command import Command, Result
from .display import Note, Shown
from .progress import SILENT, Progress
from .shared_options import EmbeddingKeys, PricePerHour

if TYPE_CHECKING:
    from ncclean.neighbour_search.plan import NeighboursPlan
    from ncclean.neighbour_search.table import NeighboursSummary


@dataclass(frozen=True, kw_only=True)
class Neighbours(Command):
    """Find near-duplicates and false negatives over the whole corpus.

    Writes a row per pair, to join with the score table by uid: groups of near-duplicates by image,
    by caption and by both, how many other captions and images fit better, and LEMoN's score. The
    corpus may be larger than memory. Interrupted runs resume.

    Example: `ncclean neighbours embeddings/ --out neighbours.parquet`
    """

    name = "neighbours"
    summary = "Find near-duplicates and false negatives."
    resume_hint = "run the same command again to go on; what is done is kept"

    embeddings: Annotated[
        Sequence[str],
        Option(
            "Embeddings: folders, files, globs or URLs.",
            argument=True,
            metavar="EMBEDDINGS",
            reads=Reads.SOURCE,
        ),
    ]
    embedding_keys: EmbeddingKeys = None
    out: Annotated[
        str, Option("Parquet file to write.", inside="neighbours.parquet", endings=(".parquet",))
    ]
    reference: Annotated[
        Sequence[str],
        Option(
            "Embeddings or `.npy` vectors of other images, such as an evaluation set.",
            reads=Reads.SOURCE,
        ),
    ] = ()
    options: NeighbourOptions = field(default_factory=NeighbourOptions)
    memory_limit: Annotated[
        str | None,
        Option(
            "Memory to use, such as `8GB` (default: half of the machine's); on Ray, per task.",
            is_idle=True,
        ),
    ] = None
    tasks: TaskOptions = field(default_factory=TaskOptions)
    overwrite: Annotated[
        bool, Option("Replace existing output instead of resuming or refusing.", in_recipes=False)
    ] = False
    dry_run: Annotated[bool, Option(DRY_RUN, in_recipes=False)] = False
    price_per_hour: PricePerHour = None

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_memory(self.memory_limit)
        if self.options.contamination_threshold is not None and not self.reference:
            raise InputError("--contamination-threshold needs --reference")

    def run(
        self, progress: Progress = SILENT
    ) -> Result[NeighboursSummary] | Result[NeighboursPlan]:
        """Search the whole corpus; see `ncclean.neighbour_search.run`."""
        keys, memory = parse_keys(self.embedding_keys), parse_memory(self.memory_limit)
        if self.dry_run:
            from ncclean.neighbour_search.plan import plan_search

            estimate = plan_search(
                self.embeddings, keys=keys, options=self.options, tasks=self.tasks,
                memory_limit=memory, progress=progress,
            )  # fmt: skip
            return self.planned(estimate, _plan_lines(estimate), estimate.hours * estimate.workers)
        from ncclean.neighbour_search.run import run_search

        searched = run_search(
            self.embeddings, self.out, keys=keys, reference=self.reference, options=self.options,
            tasks=self.tasks, memory_limit=memory, overwrite=self.overwrite, progress=progress,
        )  # fmt: skip
        figures = {
            "pairs": f"{searched.pairs:,}",
            "near-duplicates": f"{searched.pair_duplicates:,}",
        }
        summary = _summary(searched, self.options.recall)
        return self.result(searched, summary, figures=figures, made=[self.out])

    def table_columns(self) -> frozenset[str]:
        from ncclean.base import schema

        return frozenset(schema.NEIGHBOURS.names)


def _summary(searched: NeighboursSummary, wanted_recall: float) -> Iterator[Shown]:
    rows = [("pairs", f"{searched.pairs:,}")]
    for name, groups, duplicates in (
        ("images", searched.image_groups, searched.image_duplicates),
        ("captions", searched.text_groups, searched.text_duplicates),
        ("pairs, by both", searched.pair_groups, searched.pair_duplicates),
    ):
        count = f"{duplicates:,} beside the {groups:,} first ones"
        rows.append((f"near-duplicate {name}", count))
    if searched.reference_images is not None and searched.contaminated is not None:
        contamination = (
            f"{searched.contaminated:,} images of the reference's {searched.reference_images:,}"
        )
        rows.append(("contaminated", contamination))
    mutual = share(searched.mutual_nearest / searched.pairs)
    rows.append(("clusters of images", f"{searched.clusters:,}"))
    rows.append(("mutual nearest", f"{searched.mutual_nearest:,} ({mutual})"))
    recalls = {
        "image": searched.image_recall,
        "text": searched.text_recall,
        "image to text": searched.image_to_text_recall,
        "text to image": searched.text_to_image_recall,
    }
    rows += [("image index", searched.index_image), ("text index", searched.index_text)]
    rows.append(("recall", ", ".join(f"{name} {share(value)}" for name, value in recalls.items())))
    if searched.left_out:
        rows.append(("left out", f"{searched.left_out:,} pairs without usable embeddings"))
    if searched.repeated_uids:
        count = f"{searched.repeated_uids:,}: join by uid, shard and key"
        rows.append(("repeated uids", count))
    yield facts([*rows, ("time", f"{searched.seconds:,.1f} s"), ("written to", searched.out)])
    for name, recall in recalls.items():
        if recall < wanted_recall:
            yield Note(f"the recall of {name} stays below {wanted_recall:.0%}: try --index flat")


def _plan_lines(plan: NeighboursPlan) -> Iterator[Shown]:
    yield f"{counted(plan.shards, 'shard')}, {file_size(plan.bytes)}, about {plan.pairs:,} pairs"
    lists = f"{plan.lists:,} lists" if plan.index == "ivf" else "everything compared"
    yield f"{plan.dim:,} dimensions, {plan.index} index ({lists}), {plan.tasks:,} tasks"
    yield f"{plan.comparisons_per_second / 1e6:,.0f} million comparisons/s by one core (one list)"
    yield f"{_span(plan.processor_hours_low, plan.processor_hours)} of a core"
    if plan.workers > 1:
        yield f"{_span(plan.hours_low, plan.hours)} on {plan.workers:,} processes"
    if plan.hours_low < plan.hours:
        yield "the more lists it takes to reach the recall, the longer"
    yield (
        f"{file_size(plan.bytes_read)} to read, at most {file_size(plan.working_bytes)} in the "
        f"working folder, about {file_size(plan.bytes_written)} to write"
    )
    yield f"{file_size(plan.memory_bytes)} of memory, {file_size(plan.task_bytes)} of it for a task"


def _span(low: float, high: float) -> str:
    if low == high:
        return f"about {hours(high)}"
    return f"{hours(low)} to {hours(high)}"
