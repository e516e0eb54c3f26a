"""The loop of a judge: send pairs in the sample's order, several at a time, and receive answers."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from ncclean.base.progress import Progress
from ncclean.judging.budget import Budget, TokenEstimate, tokens_of
from ncclean.judging.journal import Journal
from ncclean.judging.pictures import SamplePictures
from ncclean.judging.prompt import LONGEST_CAPTION
from ncclean.judging.reply import CANNOT_TELL, Judgement
from ncclean.judging.server import JudgeServer, JudgeStopped

# Consecutive failures of pairs that count as the server's fault.
_MOST_FAILURES = 8


@dataclass(frozen=True)
class _Request:
    row: int
    uid: str
    estimate: int
    reserved: int
    replies: int  # to others, when it was sent


@dataclass
class Asking:
    """Asks about the rows of a sample until all are judged or the budget is used up.

    A failed pair is journalled once the server has answered another one that was sent at the same
    time or later: if it answers none, the pair is not at fault.
    """

    server: JudgeServer
    journal: Journal
    pictures: SamplePictures
    estimate: TokenEstimate
    budget: Budget
    requests: int
    progress: Progress
    asked: int = 0
    _waiting: dict[Future[Judgement], _Request] = field(default_factory=dict)
    _failed: list[tuple[_Request, Judgement]] = field(default_factory=list)
    _unclear: int = 0
    _replies: int = 0

    def run(self) -> None:
        """Ask about the pairs.

        Raises `JudgeStopped` if the server does not answer; answers are kept.
        """
        total = len(self.journal.sample.rows)
        rows = [row for row in range(total) if row not in self.journal.judgements]
        self._unclear = sum(one.answer == CANNOT_TELL for one in self.journal.judgements.values())
        self._report()
        with ThreadPoolExecutor(self.requests, "ncclean-judge") as pool:
            try:
                self._send(rows, pool)
                while self._waiting:
                    self._receive()
                self._settle_failed(is_end=True)
            except BaseException:
                self.server.stop()
                pool.shutdown()  # requests in progress are already paid for
                self._keep_finished()
                raise

    def _send(self, rows: Sequence[int], pool: ThreadPoolExecutor) -> None:
        for row, pair, picture in self.pictures.read(rows):
            if picture.url is None:
                self._add(row, pair.uid, Judgement.without_picture(picture.reason))
                continue
            if len(pair.text) > LONGEST_CAPTION:
                reason = f"long caption: {len(pair.text):,} characters"
                self._add(row, pair.uid, Judgement(reason=reason))
                continue
            estimate = self.estimate.of_request(pair.text, picture.width, picture.height)
            while len(self._waiting) >= self.requests:
                self._receive()
            while (reserved := self.budget.reserve(estimate)) is None:
                if not self._waiting:
                    return
                self._receive()
            request = _Request(row, pair.uid, estimate, reserved, self._replies)
            self._waiting[pool.submit(self.server.ask, picture.url, pair.text)] = request

    def _receive(self) -> None:
        """Wait for a request, and keep its result."""
        done, _ = wait(self._waiting, return_when=FIRST_COMPLETED)
        for future in done:
            judgement = future.result()
            self._take(self._waiting.pop(future), judgement)

    def _take(self, request: _Request, judgement: Judgement) -> None:
        self.budget.settle(request.reserved, request.estimate, judgement)
        if not judgement.is_reply and self._replies == request.replies:
            self._failed.append((request, judgement))
            if len(self._failed) >= _MOST_FAILURES:
                raise self._no_answers()
            return
        self._replies += judgement.is_reply
        self._settle_failed()
        self._keep(request, judgement)

    def _settle_failed(self, is_end: bool = False) -> None:
        """Treat the failed pairs as unanswerable for the server."""
        answered = self.journal.judgements.values()
        is_silent = not self._replies and all(one.reason is not None for one in answered)
        if is_end and self._failed and is_silent:
            raise self._no_answers()
        for request, judgement in self._failed:
            self._keep(request, judgement)
        self._failed.clear()

    def _keep(self, request: _Request, judgement: Judgement) -> None:
        self.asked += 1
        tokens = tokens_of(judgement, request.estimate)
        self._add(request.row, request.uid, judgement, tokens)

    def _add(self, row: int, uid: str, judgement: Judgement, tokens: int = 0) -> None:
        self.journal.add(row, uid, judgement, tokens)
        self._unclear += judgement.answer == CANNOT_TELL
        self._report()

    def _keep_finished(self) -> None:
        for future, request in self._waiting.items():
            if future.done() and not future.cancelled() and future.exception() is None:
                judgement = future.result()
                if judgement.is_reply:
                    self._keep(request, judgement)

    def _no_answers(self) -> JudgeStopped:
        reason = self._failed[-1][1].reason
        return JudgeStopped(
            f"the judge at {self.server.url} answered none of the last {len(self._failed)} pairs "
            f"({reason})"
        )

    def _report(self) -> None:
        done, total = len(self.journal.judgements), len(self.journal.sample.rows)
        facts: dict[str, object] = {"tokens": f"{self.journal.tokens:,}"}
        if self._unclear:
            facts["cannot_tell"] = f"{self._unclear:,}"
        self.progress.advance(done, total, "pairs", **facts)
