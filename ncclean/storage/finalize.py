"""Parts to the final table: fix the shift, fit the null, fill the calibrated columns.

Needs no model and no images; repeatable with another shift or weight. Reads the parts of a run, and
the final table itself for shards whose parts are gone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from ncclean import schema
from ncclean.atomic import published
from ncclean.config import WeightFunction
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError
from ncclean.scoring.mixture import LossMixture, pair_losses
from ncclean.scoring.null import GroupRate, NullModel
from ncclean.scoring.osa import cleanliness_weight
from ncclean.scoring.stats import Distributions, pack_histogram
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.made_files import remove_with_leftovers
from ncclean.storage.manifest import Manifest, RunIdentity
from ncclean.storage.parts import ROW_GROUP_ROWS, table_writer
from ncclean.storage.row_sources import RowSources, existing, read_ahead
from ncclean.stores import open_parquet

_THREADS = 4
_RATES = ("noise_rate", "noise_rate_low", "noise_rate_high")


# A group of fewer pairs, or of fewer known mismatches, has the null of all.
_FEWEST_PAIRS, _FEWEST_MISMATCHES = 2_000, 1_000


@dataclass(frozen=True)
class Calibration:
    """What depends on the whole corpus: shift, null and mixture, None where none can be fitted.

    `scale` is the estimator's, in which the losses of the mixture are. `groups` are the nulls of
    the groups that have one of their own, `group_rates` the noise of every group.
    """

    shift: float
    shift_source: str
    null: NullModel | None
    mixture: LossMixture | None
    scale: float
    osa_function: WeightFunction = "high_degree"
    groups: Mapping[str, NullModel] = field(default_factory=dict)
    group_rates: Sequence[GroupRate] = ()

    @property
    def noise(self) -> tuple[float | None, float | None, float | None]:
        """The noise rate of the corpus and its 95 % interval; with groups, that of their sum."""
        if self.null is None:
            return None, None, None
        whole = self.null.noise_rate, self.null.noise_rate_low, self.null.noise_rate_high
        parts = [
            (group.pairs, group.noise_rate, group.noise_rate_low, group.noise_rate_high)
            for group in self.group_rates
            if group.noise_rate is not None
        ]
        if not self.groups or not parts:
            return whole
        pairs, rates, lows, highs = (
            np.array(column, dtype=float) for column in zip(*parts, strict=True)
        )
        shares = pairs / pairs.sum()
        rate = float(shares @ rates)
        # The groups err independently of one another.
        below, above = (
            float(np.sqrt(np.square(shares * (ends - rates)).sum())) for ends in (lows, highs)
        )
        return rate, max(rate - below, 0.0), min(rate + above, 1.0)

    def metadata(self, manifest: Manifest) -> dict[str, str]:
        """The key-value metadata of the final files."""
        identity, distributions = manifest.identity, manifest.distributions
        fields: dict[str, object] = {
            **identity.model,
            **{name: value for name, value in identity.options.items() if value is not None},
            "shift": self.shift,
            "shift_source": self.shift_source,
            "osa_function": self.osa_function,
            **{
                name: math.nan if value is None else value
                for name, value in zip(_RATES, self.noise, strict=True)
            },
            # Readers of the table alone can draw the null, and fit it anew.
            "matched_histogram": json.dumps(pack_histogram(distributions.matched)),
            "mismatched_histogram": json.dumps(pack_histogram(distributions.mismatched)),
            **self._group_metadata(),
            "ncclean_version": identity.version,
            "schema_version": schema.SCHEMA_VERSION,
        }
        return {name: str(value) for name, value in fields.items()}

    def _group_metadata(self) -> dict[str, str]:
        if not self.group_rates:
            return {}
        return {"noise_rates_by_group": json.dumps([asdict(rate) for rate in self.group_rates])}


def calibrate(
    manifest: Manifest, shift: str | float, osa_function: WeightFunction = "high_degree"
) -> Calibration:
    """From the histograms of all parts, fit what depends on the whole corpus.

    `osa_function` is the one of `ncclean.scoring.osa.cleanliness_weight` that weighs the pairs.
    Raises `InputError` if the shift asked for needs the estimator and was never estimated.
    """
    matched, mismatched = manifest.distributions.matched, manifest.distributions.mismatched
    seed = int(manifest.identity.options["seed"])
    fitted = matched.size > 0 and mismatched.size > 0
    value, source = _shift(manifest, shift)
    losses = manifest.distributions.losses
    means = manifest.distributions.image_means, manifest.distributions.caption_means
    null = NullModel.fit(matched, mismatched, seed, means) if fitted else None
    groups, rates = _groups(manifest.distributions, null, seed)
    return Calibration(
        shift=value,
        shift_source=source,
        osa_function=osa_function,
        null=null,
        mixture=LossMixture.fit_histogram(losses) if losses.size > 1 else None,
        scale=float(manifest.identity.model["scale"]),
        groups=groups,
        group_rates=rates,
    )


def _groups(
    distributions: Distributions, pooled: NullModel | None, seed: int
) -> tuple[dict[str, NullModel], list[GroupRate]]:
    """The nulls of the groups that are large enough, and the noise of every group."""
    nulls: dict[str, NullModel] = {}
    rates: list[GroupRate] = []
    for name, group in sorted(distributions.groups.items()):
        pairs = group.matched.size
        if not pairs:
            continue
        own = pairs >= _FEWEST_PAIRS and group.mismatched.size >= _FEWEST_MISMATCHES
        model = None
        if own:
            means = group.image_means, group.caption_means
            model = nulls[name] = NullModel.fit(group.matched, group.mismatched, seed, means)
        elif pooled is not None:
            model = NullModel.fit(group.matched, distributions.mismatched, seed)
        figures = {each: getattr(model, each) if model is not None else None for each in _RATES}
        rates.append(GroupRate(group=name, pairs=pairs, own_null=own, **figures))
    return nulls, rates


def asks_for_noise(shift: str | float, identity: RunIdentity) -> bool:
    """Whether a shift is the model's cosine on noise. Embeddings may come without a model."""
    has_model = identity.model.get("weights_fingerprint") != ""
    return shift == "noise" or (shift == "auto" and has_model)


def _shift(manifest: Manifest, shift: str | float) -> tuple[float, str]:
    """The shift to use and where it comes from."""
    mismatched = manifest.distributions.mismatched
    if isinstance(shift, float):
        return shift, "given"
    asks_model = asks_for_noise(shift, manifest.identity)
    if not asks_model and mismatched.size:
        return mismatched.mean, "shuffled"
    if manifest.noise_shift is None and not asks_model:
        return 0.0, "none"  # neither a model nor two pairs
    if manifest.noise_shift is None:
        raise InputError(
            f"the shift {shift!r} is not known: the run was scored with another --shift. Give that "
            "one, or score again without --finalize-only, which estimates it and keeps what is done"
        )
    # A corpus of one pair has no mismatches to take a shift from; the estimator's is the next best.
    return manifest.noise_shift, "noise"


def finalize(layout: ScoreLayout, manifest: Manifest, calibration: Calibration) -> None:
    """Write the final file or files, each published atomically.

    Parts are removed only when all shards are done and every final file is in place, so it can
    be killed anywhere and run again.
    """
    shards = manifest.done_shards()
    metadata = calibration.metadata(manifest)
    if layout.is_single_file:
        rows = [manifest.done[shard.name].rows for shard in shards]
        finalize_file(layout, shards, rows, calibration, metadata)
    else:
        finalize_parts(layout, shards, calibration, metadata)
    remove_parts(layout, manifest)


def finalize_file(
    layout: ScoreLayout,
    shards: Sequence[ShardRef],
    rows: Sequence[int],
    calibration: Calibration,
    metadata: dict[str, str],
) -> None:
    """Write the one final file, the shards in this order, each with so many `rows`.

    They come from the parts, and from the file itself for shards whose parts are gone.
    """
    sources = RowSources(layout, shards)
    pieces = (
        (None, [piece])
        for shard, count in zip(shards, rows, strict=True)
        for piece in sources.pieces(shard, count)
    )
    tables = (
        table
        for _, found in read_ahead(pieces, lambda rows: fill_calibrated(rows, calibration))
        for table in found
    )
    with published(layout.out) as aside, table_writer(aside, metadata) as writer:
        for table in _row_groups(tables):
            writer.write_table(table, row_group_size=ROW_GROUP_ROWS)


def finalize_parts(
    layout: ScoreLayout,
    shards: list[ShardRef],
    calibration: Calibration,
    metadata: dict[str, str],
) -> None:
    """Write the final files of some shards of a folder; any machine may do any of them."""
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda s: _finalize_part(layout, s, calibration, metadata), shards))


def remove_parts(layout: ScoreLayout, manifest: Manifest) -> None:
    """Remove what the final files make superfluous; every one must be in place.

    That is the files of dropped shards, and the parts if all shards are done.
    """
    manifest.flush()
    if dropped := manifest.dropped_files(layout):
        remove_with_leftovers(dropped)
        manifest.record_removed()
    if not manifest.pending():
        remove_with_leftovers(layout.part(shard) for shard in manifest.done_shards())


def fill_calibrated(table: pa.Table, calibration: Calibration) -> pa.Table:
    """The table with the columns that depend on the whole corpus filled."""
    similarity, mask = _scored(table, "similarity")
    weight = cleanliness_weight(similarity, calibration.shift, calibration.osa_function)
    values: dict[str, torch.Tensor | None] = {
        "osa_weight": weight,
        "osa_noisy": weight == 0,
        "noise_probability": None,
        "null_p_value": None,
        "clean_posterior": None,
    }
    if calibration.null is not None:
        probability = calibration.null.noise_probability(similarity)
        p_value = calibration.null.p_value(similarity)
        for group, null in calibration.groups.items():
            label = pc.fill_null(pc.equal(table.column("calibration_group"), group), False)
            rows = torch.from_numpy(np.flatnonzero(label.to_numpy()))
            probability[rows] = null.noise_probability(similarity[rows])
            p_value[rows] = null.p_value(similarity[rows])
        values["noise_probability"], values["null_p_value"] = probability, p_value
    if calibration.mixture is not None:
        losses = pair_losses(_scored(table, "neg_clip_loss")[0], calibration.scale)
        values["clean_posterior"] = calibration.mixture.clean_posterior(losses)
    for name, filled in values.items():
        kind = schema.SCORES.field(name).type
        array = (
            pa.nulls(len(table), kind)
            if filled is None
            else pa.array(filled.numpy(), kind, mask=mask)
        )
        table = table.set_column(table.schema.get_field_index(name), name, array)
    return table


def _scored(table: pa.Table, name: str) -> tuple[torch.Tensor, np.ndarray]:
    """A column as a tensor with 0 for null, and where it is null."""
    column = table.column(name).combine_chunks()
    return torch.from_numpy(column.fill_null(0.0).to_numpy().copy()), np.asarray(column.is_null())


def _row_groups(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Join small pieces so that row groups hold about `ROW_GROUP_ROWS` rows."""
    held: list[pa.Table] = []
    rows = 0
    for table in tables:
        held.append(table)
        rows += len(table)
        if rows >= ROW_GROUP_ROWS:
            yield pa.concat_tables(held)
            held, rows = [], 0
    if held:
        yield pa.concat_tables(held)


def _finalize_part(
    layout: ScoreLayout, shard: ShardRef, calibration: Calibration, metadata: dict[str, str]
) -> None:
    part, final = layout.part(shard), layout.final(shard)
    source = part if part.exists() else existing(final)
    with (
        published(final) as aside,
        table_writer(aside, metadata) as writer,
        open_parquet(source) as file,
    ):
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, use_threads=False).cast(schema.SCORES)
            writer.write_table(fill_calibrated(table, calibration), row_group_size=ROW_GROUP_ROWS)
