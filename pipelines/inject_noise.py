"""`ncclean inject-noise`: copy shards, with known noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

from ncclean.base.config import TaskOptions
from ncclean.base.formats import Table, counted
from ncclean.base.options import Option, Reads, Seed
from ncclean.data.options import SourceOptions
from ncclean.errors import InputError

from .command import Command, Result
from .display import Note, Shown
from .progress import SILENT, Progress
from .shared_options import CaptionKey, Donors, Overwrite, Shards

if TYPE_CHECKING:
    from ncclean.storage.injection import NoiseSummary


@dataclass(frozen=True, kw_only=True)
class InjectNoise(Command):
    """Write shards with known noise, to measure how well it is found.

    Permutes captions (ncr, per_batch), all captions of an image together (ncr_image) or images
    (decl), changes one word (hard), or replaces captions by boilerplate (junk) or by another
    corpus's (donor). All else is copied byte for byte. The truth is in each sample's json: is_noisy
    and noise_kind. Interrupted runs resume.

    Example: `ncclean inject-noise shards/ --out noisy/ --kind ncr --rate 0.2`
    """

    name = "inject-noise"
    summary = "Write shards with known noise."
    resume_hint = "run the same command again to resume; finished shards are kept"
    has_record = True

    shards: Shards
    out: Annotated[str, Option("Folder of the new shards.", flags=("-o",), inside="")]
    source_options: SourceOptions = field(default_factory=SourceOptions)
    kind: Annotated[
        Sequence[str],
        Option(
            "`ncr`, `ncr_image`, `decl`, `per_batch`, `hard`, `junk`, `donor`, "
            "`foreign_sentence` or `added_detail`; each needs a --rate."
        ),
    ] = ()
    rate: Annotated[
        Sequence[float],
        Option(
            "Share of the scorable pairs (`ncr_image`, `decl`: images) for the --kind at "
            "the same place."
        ),
    ] = ()
    noise: Annotated[
        Mapping[str, float] | Sequence[str],
        Option("Kinds and rates in one option: `ncr=0.2,hard=0.05`."),
    ] = ()
    donors: Donors = ()
    noise_file: Annotated[
        str | None,
        Option(
            "Noise file of NCR and others instead of --kind: an `.npy` with the "
            "image number of each caption.",
            reads=Reads.PATH,
        ),
    ] = None
    write_noise_file: Annotated[str | None, Option("Write the noise as such a file.")] = None
    batch_size: Annotated[int, Option("Pairs that `per_batch` permutes at a time.", low=2)] = 128
    caption_key: CaptionKey = None
    tasks: TaskOptions = field(default_factory=TaskOptions)
    overwrite: Overwrite = False
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if ("donor" in self.rates) != bool(self.donors):
            raise InputError(
                "--kind donor and --donors go together: --kind donor --rate 0.2 --donors SOURCE"
            )
        if (self.caption_key or "").lower() == "json":
            raise InputError(
                "--caption-key json names no caption: name a field of the json instead"
            )
        from ncclean.data.noise import PERMUTING

        others = self.rates.keys() - set(PERMUTING)
        if self.write_noise_file and others:
            raise InputError(
                f"--write-noise-file records how captions move, and {min(others)} changes them: "
                "leave one out"
            )

    @cached_property
    def rates(self) -> dict[str, float]:
        """Return the rates by kind. Raises `InputError` if kinds and rates do not match."""
        from ncclean.data.noise import check_rates, parse_rates

        noise = self.noise
        texts = [f"{k}={v}" for k, v in noise.items()] if isinstance(noise, Mapping) else noise
        rates = parse_rates(list(self.kind), list(self.rate), list(texts))
        if bool(rates) == (self.noise_file is not None):
            if rates:
                raise InputError("--noise-file says which captions move: leave out --kind")
            raise InputError(
                "name the noise to inject: --kind ncr --rate 0.2, --noise ncr=0.2,hard=0.05, or "
                "--noise-file FILE.npy"
            )
        check_rates(rates)
        return rates

    def run(self, progress: Progress = SILENT) -> Result[NoiseSummary]:
        """Write the shards with noise; see `ncclean.execution.inject_noise`."""
        from ncclean.base import stores
        from ncclean.base.output_mark import check_free
        from ncclean.data.noise_files import read_noise_file
        from ncclean.data.sources import resolve_pairs, resolve_sources
        from ncclean.execution.inject_noise import inject_noise
        from ncclean.storage.injection import InjectionIdentity

        check_free([self.write_noise_file], self.name, self.overwrite)
        identity = InjectionIdentity(
            rates=self.rates,
            seed=self.seed,
            batch_size=self.batch_size,
            caption_key=self.caption_key,
            shards=resolve_pairs(self.shards, self.source_options),
            donors=resolve_sources(self.donors) if self.donors else [],
            noise_file=read_noise_file(self.noise_file) if self.noise_file else None,
        )
        written = inject_noise(
            identity,
            stores.location(self.out),
            self.tasks,
            overwrite=self.overwrite,
            new_file=stores.location(self.write_noise_file) if self.write_noise_file else None,
            progress=progress,
        )
        noisy = sum(written.noisy.values()) + written.already_noisy
        figures = {"pairs": f"{written.pairs:,}", "noisy": f"{noisy:,}"}
        return self.result(written, _summary(written), figures=figures, made=[self.out])


def _summary(written: NoiseSummary) -> Iterator[Shown]:
    rows = []
    for kind, drawn in written.planned.items():
        stayed = written.left_in_place.get(kind, 0)
        cells = (drawn, written.noisy[kind], stayed, written.unchanged[kind])
        rows.append((kind, *(f"{cell:,}" for cell in cells)))
    yield Table("", ("kind", "drawn", "noisy", "left in place", "same content"), tuple(rows))
    noisy = sum(written.noisy.values()) + written.already_noisy
    part = f" ({noisy / written.pairs:.1%})" if written.pairs else ""
    yield f"{noisy:,} of {written.pairs:,} scorable pairs are noisy{part}"
    if written.already_noisy:
        yield f"{written.already_noisy:,} of them were in the input"
    for kind, missing in written.shortage.items():
        yield Note(
            f"{missing:,} pairs fewer with {kind} than asked for: the other captions have no word "
            "to change"
        )
    if written.json_replaced:
        yield f"{written.json_replaced:,} jsons could not be parsed and were replaced"
    speed = f" ({written.samples_per_second:,.0f}/s)" if written.samples_per_second else ""
    yield (
        f"{written.samples:,} samples in {counted(written.shards, 'shard')} "
        f"({written.shards_failed:,} failed) in {written.out}{speed}"
    )
