"""Ask a model about a sample, from the score table to the table of its answers."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ncclean.auditing.sample import Sample, draw_sample
from ncclean.auditing.table import AuditTable
from ncclean.base import stores
from ncclean.base.progress import SILENT, Progress
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError
from ncclean.judging.asking import Asking
from ncclean.judging.budget import Budget, TokenEstimate
from ncclean.judging.journal import JUDGED, Journal
from ncclean.judging.judged import Judged, JudgePlan, counts, same_parts, same_words
from ncclean.judging.options import JudgeOptions
from ncclean.judging.pictures import SamplePictures
from ncclean.judging.prompt import Prompt
from ncclean.judging.server import JudgeServer, JudgeStopped
from ncclean.storage.same_corpus import as_scored

_ROWS_AT_A_TIME = 4_096


@dataclass(frozen=True, kw_only=True)
class JudgeSample:
    """Draw a sample, ask a model about its pairs, and write `judge.parquet` to the folder `out`.

    The same run resumes an earlier one that was interrupted or reached its budget.
    """

    scores: Sequence[str]
    shards: Sequence[ShardRef]
    out: str
    options: JudgeOptions
    pairs: int = 300
    seed: int = 0
    memory_limit: str | None = None
    overwrite: bool = False

    def plan(self, progress: Progress = SILENT) -> JudgePlan:
        """Count the requests and estimate their tokens; ask and write nothing."""
        prompt = Prompt.load(self.options.judge_prompt)
        server = self._server(prompt)
        server.close()
        rows = self._sample(progress).rows
        estimate = TokenEstimate(prompt, self.options.judge_image_size)
        columns = (rows.column(name).to_pylist() for name in ("text", "width", "height"))
        tokens = sum(
            estimate.of_request(text or "", width, height)
            for text, width, height in zip(*columns, strict=True)
        )
        answers = len(rows) * estimate.of_answer
        return JudgePlan(len(rows), tokens, answers, self._facts(server, prompt))

    def run(self, progress: Progress = SILENT) -> Judged:
        """Ask about every pair that has no answer yet.

        Raises `InputError` for a table without noise probabilities, shards of another corpus, and
        an unusable server: answers so far are kept for the next run.
        """
        prompt = Prompt.load(self.options.judge_prompt)
        server = self._server(prompt)
        try:
            sample = self._sample(progress)
            shards = as_scored(self.scores, self.shards, progress.say)
            folder = stores.location(self.out)
            identity = self._identity(sample, prompt)
            journal = Journal.open(folder, identity, sample, overwrite=self.overwrite)
            return self._ask(journal, server, prompt, shards, progress)
        finally:
            server.close()

    def _ask(
        self,
        journal: Journal,
        server: JudgeServer,
        prompt: Prompt,
        shards: Sequence[ShardRef],
        progress: Progress,
    ) -> Judged:
        """Ask about pairs missing from the journal, and write their answers to the table."""
        asking = Asking(
            server=server,
            journal=journal,
            pictures=SamplePictures(
                journal.sample.rows, shards, self.options.judge_image_size, say=progress.say
            ),
            estimate=TokenEstimate(prompt, self.options.judge_image_size),
            budget=Budget(self.options.judge_tokens, journal.tokens, journal.largest_request),
            requests=self.options.judge_requests,
            progress=progress,
        )
        facts = self._facts(server, prompt)
        begin = time.monotonic()
        is_written = False
        try:
            asking.run()
            seconds = time.monotonic() - begin
            if journal.judgements:
                journal.write(self.seed, facts)
            is_written = True
        except JudgeStopped as stopped:
            raise self._with_advice(stopped, journal) from stopped
        finally:
            journal.close(remove=is_written or not journal.judgements)
        return self._summary(journal, asking, facts, seconds)

    def _with_advice(self, stopped: JudgeStopped, journal: Journal) -> JudgeStopped:
        answered, pairs = len(journal.judgements), len(journal.sample.rows)
        if not answered:
            return stopped
        return JudgeStopped(
            f"{stopped}. {answered:,} of {pairs:,} pairs are answered: the same command goes on "
            "with the others"
        )

    def _summary(
        self, journal: Journal, asking: Asking, facts: dict[str, Any], seconds: float
    ) -> Judged:
        rows = journal.sample.rows
        answers, reasons = counts(journal.judgements.values())
        named = {}
        if any(judgement.words is not None for judgement in journal.judgements.values()):
            words = [judgement.words for _, judgement in sorted(journal.judgements.items())]
            numbers = sorted(journal.judgements)
            suspects = rows.column("suspect_word").take(numbers).to_pylist()
            parts = self._worst_parts(journal, numbers)
            named = {
                "suspect_word": same_words(zip(words, suspects, strict=True)),
                "worst_part": same_parts(zip(words, parts, strict=True)),
            }
            named = {name: both for name, both in named.items() if both.checked}
        return Judged(
            pairs=len(rows),
            answers=answers,
            reasons=reasons,
            asked=asking.asked,
            not_asked=len(rows) - len(journal.judgements),
            tokens=journal.tokens,
            seconds=seconds,
            judge=facts,
            path=f"{self.out.rstrip('/')}/{JUDGED}",
            missing_shards=sorted(asking.pictures.missing_shards),
            failed_shards=asking.pictures.failed_shards,
            **named,
        )

    def _worst_parts(self, journal: Journal, numbers: Sequence[int]) -> list[str | None]:
        """Return the worst part of each caption by the table; None if it has none."""
        keys = journal.sample.rows.select(["uid", "caption_number"]).take(numbers).to_pylist()
        with AuditTable.open(self.scores, memory_limit=self.memory_limit) as table:
            rows = table.connection.execute(
                "SELECT uid, caption_number, worst_part FROM pairs "
                "WHERE uid IN (SELECT unnest(?)) AND worst_part IS NOT NULL",
                [[key["uid"] for key in keys]],
            ).fetchall()
        parts = {(uid, number): part for uid, number, part in rows}
        return [parts.get((key["uid"], key["caption_number"])) for key in keys]

    def _sample(self, progress: Progress) -> Sample:
        progress.say("drawing the sample")
        with AuditTable.open(self.scores, memory_limit=self.memory_limit) as table:
            return draw_sample(table, self.pairs, self.seed)

    def _server(self, prompt: Prompt) -> JudgeServer:
        options = self.options
        if options.judge is None or options.judge_model is None:
            raise InputError("a judge needs its server, --judge, and the name of its --judge-model")
        return JudgeServer(
            options.judge, options.judge_model, prompt, timeout=options.judge_timeout
        )

    def _facts(self, server: JudgeServer, prompt: Prompt) -> dict[str, Any]:
        """Return the facts about the judge that are kept with its answers."""
        return {
            "model": self.options.judge_model,
            "url": server.url,
            "prompt": prompt.name,
            "prompt_hash": prompt.hash,
            "image_size": self.options.judge_image_size,
        }

    def _identity(self, sample: Sample, prompt: Prompt) -> dict[str, Any]:
        """Return what the answers depend on; not the server's address, as a model may move."""
        hashed = hashlib.sha256(json.dumps(sample.design.to_json()).encode())
        # A picture that changed has another probability.
        rows = sample.rows.select(["uid", "caption_number", "text", "noise_probability"])
        for batch in rows.to_batches(max_chunksize=_ROWS_AT_A_TIME):
            for row in batch.to_pylist():
                hashed.update(json.dumps(list(row.values())).encode())
        return {
            "judge_model": self.options.judge_model,
            "judge_prompt": f"{prompt.name} ({prompt.hash})",
            "judge_image_size": self.options.judge_image_size,
            "pairs": self.pairs,
            "seed": self.seed,
            "sample": hashed.hexdigest()[:16],
        }
