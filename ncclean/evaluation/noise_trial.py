"""Run a trial: score pairs without truth as they are, and with known wrong captions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from upath import UPath

from ncclean.base.config import CalibrationOptions, ScoreOptions
from ncclean.base.estimates import Estimate
from ncclean.base.progress import SILENT, Progress
from ncclean.data.counting import estimate_samples
from ncclean.data.embeddings.units import resolve_embeddings, vector_keys
from ncclean.data.shards import ShardRef
from ncclean.data.sources import are_embeddings
from ncclean.errors import InputError
from ncclean.evaluation.noise_evaluation import NoiseTrial
from ncclean.execution.embedding_encoder import EmbeddingRequest
from ncclean.execution.image_encoder import ImageRequest
from ncclean.execution.score_corpus import ScoreCorpus
from ncclean.models.request import ModelRequest
from ncclean.storage.noisy_copy import write_noisy_copy
from ncclean.storage.run_facts import RunFacts, read_facts


@dataclass(frozen=True, kw_only=True)
class TrialRequest:
    """A trial of the noise estimate: about `pairs` of the shards, a `share` with wrong captions.

    These are captions of each other, or of `donors`. `model` embeds images; for embeddings, `keys`
    are the names of their vectors, and `scale` multiplies their cosines or names a model that has
    the scale.
    """

    shards: Sequence[ShardRef]
    share: float
    donors: Sequence[ShardRef] = ()
    pairs: int = 20_000
    model: ModelRequest
    keys: tuple[str, str] | None = None
    scale: float | ModelRequest
    seed: int = 0

    def run(self, folder: Path, progress: Progress = SILENT) -> tuple[NoiseTrial, str]:
        """Score a sample as it is and with wrong captions; return the trial and its second table.

        Raises `InputError` if shards and donors are not both images, or both embeddings.
        """
        shards, donors = list(self.shards), list(self.donors)
        if donors and are_embeddings(donors) != are_embeddings(shards):
            raise InputError(
                f"of {shards[0].url} and the donors {donors[0].url} one holds embeddings, the "
                "other images: give both as images, or as embeddings of one model"
            )
        scale, calibration = self.scale, CalibrationOptions()
        if not are_embeddings(shards):
            if donors:
                wanted = math.ceil(self.share * self.pairs)
                _, donors = self._embedded(donors, wanted, folder / "donors", progress)
            facts, shards = self._embedded(shards, self.pairs, folder / "images", progress)
            scale = facts.scale if facts.scale is not None else scale
            calibration = CalibrationOptions(shift="auto" if facts.shift is None else facts.shift)
        copy = write_noisy_copy(
            shards,
            vector_keys(shards, self.keys),
            UPath(folder),
            share=self.share,
            pairs=self.pairs,
            seed=self.seed,
            donors=donors,
        )
        rates: dict[str, Estimate] = {}
        out = ""
        for name, source in (("before", copy.given), ("after", copy.noisy)):
            out = str(folder / f"{name}.parquet")
            embeddings = resolve_embeddings([source])
            request = EmbeddingRequest.of(embeddings, None, scale)
            corpus = ScoreCorpus(
                shards=embeddings, request=request, out=out, calibration=calibration
            )
            corpus.run()
            rates[name] = read_facts([out]).noise_rate
        noise = "donor" if donors else "ncr"
        return NoiseTrial(noise=noise, pairs=copy.pairs, moved=copy.moved, **rates), out

    def _embedded(
        self, shards: Sequence[ShardRef], pairs: int, folder: Path, progress: Progress
    ) -> tuple[RunFacts, list[ShardRef]]:
        """Facts of scoring every k-th shard, about `pairs` pairs in all; and their embeddings."""
        step = max(1, estimate_samples(shards) // pairs)
        table, embeddings = str(folder / "scores.parquet"), str(folder / "embeddings")
        ScoreCorpus(
            shards=shards[::step],
            request=ImageRequest(self.model),
            out=table,
            options=ScoreOptions(embeddings=embeddings),
        ).run(progress)
        return read_facts([table]), resolve_embeddings([embeddings])
