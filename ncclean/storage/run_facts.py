"""Read the facts about a score table: the key-value metadata of its Parquet files."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow.parquet as pq

from ncclean.base.estimates import UNKNOWN, Estimate
from ncclean.data.samples import FurtherMembers
from ncclean.scoring.null import GroupRate, Histogram
from ncclean.scoring.recalibration import Audited
from ncclean.scoring.stats import unpack_histogram
from ncclean.scoring.vague_rate import is_usable
from ncclean.storage.tables import ROWS_BY_SHARD, local_tables, table_metadata

# All files of one run have the same of these.
_SAME_RUN = (
    "model", "pretrained", "weights_fingerprint", "preprocessing", "shift", "noise_rate",
    "mismatched_histogram",
)  # fmt: skip


@dataclass(frozen=True)
class RunFacts:
    """The facts of a run in a score table's metadata: model, calibration, versions, else None.

    `mismatched` is the histogram of known mismatches over the whole corpus. `groups` are those of
    `calibrate_by`, the largest first. `runs` is empty for files that were calibrated together; else
    it has for each file the number of the first file of the same run, and all else is None.
    `audited` is the correction by an audit. `captions_cut` counts captions with more tokens than
    `context_length`. `image_key` names the scored images, "" if they were chosen by their names,
    None for embeddings. `further` counts images and captions that belong to no row.
    `has_other_pairs` tells that rows were removed or added since: then what counts all scored pairs
    is None.
    """

    model: str | None = None
    pretrained: str | None = None
    weights_fingerprint: str | None = None
    precision: str | None = None
    preprocessing: str | None = None
    seed: str | None = None
    block_size: str | None = None
    forget_percent: str | None = None
    scale: float | None = None
    shift: float | None = None
    shift_source: str | None = None
    noise_rate: Estimate = UNKNOWN
    separation: float | None = None
    calibrated_on: str | None = None
    near_miss_rate: Estimate = UNKNOWN
    part_noise_rate: Estimate = UNKNOWN
    has_words: bool = False
    has_parts: bool = False
    ncclean_version: str | None = None
    schema_version: str | None = None
    mismatched: Histogram | None = None
    calibrate_by: str | None = None
    groups: tuple[GroupRate, ...] = ()
    runs: tuple[int, ...] = ()
    audited: Audited | None = None
    captions_cut: int | None = None
    context_length: int | None = None
    image_key: str | None = None
    further: FurtherMembers = field(default_factory=FurtherMembers)
    has_other_pairs: bool = False

    @property
    def several_runs(self) -> bool:
        """Whether the files of the table were not calibrated together."""
        return bool(self.runs)

    @property
    def tells_near_misses(self) -> bool:
        """Whether the share of captions with a wrong word is known, which needs `--words`."""
        return is_usable(self.near_miss_rate)

    @property
    def tells_parts(self) -> bool:
        """Whether the share of foreign caption parts is known, which needs `--caption-parts`."""
        return is_usable(self.part_noise_rate)

    @property
    def model_name(self) -> str | None:
        """The model and its pretrained tag as one name."""
        tag = f" / {self.pretrained}" if self.pretrained not in (None, "", "None") else ""
        return f"{self.model}{tag}" if self.model else None


def read_facts(paths: Sequence[str]) -> RunFacts:
    """Read what a score table's metadata says of its run: model, noise rate, shards and so on.

    Raises `InputError` if a file cannot be read.
    """
    files = local_tables(paths)
    metadata = [table_metadata(file) for file in files]
    first: dict[tuple[str | None, ...], int] = {}  # files by what their run states
    runs = [
        first.setdefault(tuple(fields.get(name) for name in _SAME_RUN), number)
        for number, fields in enumerate(metadata)
    ]
    if len(first) > 1:
        return RunFacts(runs=tuple(runs))
    facts = parse_facts(metadata[0])
    if not _has_other_pairs(files, metadata):
        return facts
    # pyarrow keeps the metadata of a table that it filters, or joins to another.
    return replace(
        facts,
        noise_rate=UNKNOWN,
        separation=None,
        groups=(),
        captions_cut=None,
        further=FurtherMembers(),
        has_other_pairs=True,
    )


def _has_other_pairs(files: Sequence[str], metadata: Sequence[Mapping[str, str]]) -> bool:
    """Check whether files have more or fewer rows together than were written of their shards."""
    written: dict[str, int] = {}
    try:
        for fields in metadata:
            written |= json.loads(fields[ROWS_BY_SHARD])
        rows = sum(written.values())
    except (KeyError, RecursionError, TypeError, ValueError):
        return False  # not stated
    return bool(sum(pq.read_metadata(file).num_rows for file in files) != rows)


def parse_facts(fields: dict[str, str]) -> RunFacts:
    """Parse a score table's metadata; an unreadable value counts as missing."""
    return RunFacts(
        model=fields.get("model"),
        pretrained=fields.get("pretrained"),
        weights_fingerprint=fields.get("weights_fingerprint"),
        precision=fields.get("precision"),
        preprocessing=fields.get("preprocessing"),
        seed=fields.get("seed"),
        block_size=fields.get("block_size"),
        forget_percent=fields.get("forget_percent"),
        scale=_number(fields.get("scale")),
        shift=_number(fields.get("shift")),
        shift_source=fields.get("shift_source"),
        noise_rate=Estimate.of_fields(fields, "noise_rate"),
        separation=_number(fields.get("separation")),
        calibrated_on=fields.get("calibrated_on"),
        part_noise_rate=Estimate.of_fields(fields, "part_noise_rate"),
        near_miss_rate=Estimate.of_fields(fields, "near_miss_rate"),
        has_words="words" in fields,
        has_parts="caption_parts" in fields,
        ncclean_version=fields.get("ncclean_version"),
        schema_version=fields.get("schema_version"),
        mismatched=_histogram(fields.get("mismatched_histogram")),
        calibrate_by=fields.get("calibrate_by"),
        groups=_groups(fields.get("noise_rates_by_group")),
        audited=Audited.of_json(fields.get("audited")),
        captions_cut=_count(fields.get("captions_cut")),
        context_length=_count(fields.get("context_length")),
        image_key=fields.get("image_key"),
        further=_further(fields),
    )


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 19 else None


def _further(fields: dict[str, str]) -> FurtherMembers:
    counts = {}
    for name in FurtherMembers.RECORDED:
        try:
            counts[name] = json.loads(fields.get(name, "null"))
        except (ValueError, RecursionError):
            continue
    try:
        return FurtherMembers.from_json({k: v for k, v in counts.items() if v is not None})
    except TypeError:
        return FurtherMembers()


def _histogram(text: str | None) -> Histogram | None:
    if text is None:
        return None
    try:
        histogram = unpack_histogram(json.loads(text))
    except (ValueError, KeyError, TypeError, RecursionError, zlib.error):
        return None
    return histogram if histogram.size else None


def _groups(text: str | None) -> tuple[GroupRate, ...]:
    try:
        groups = [GroupRate.of_json(fields) for fields in json.loads(text or "[]")]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return ()
    return tuple(sorted(groups, key=lambda group: -group.pairs))
