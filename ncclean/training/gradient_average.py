"""Means of gradients over the ranks, exchanged while the backward pass still runs.

That pays where the exchange waits for a network or a GPU. On the cores of one machine it takes from
the pass what it saves and more, so there gradients are exchanged at its end.

Gradients are exchanged in buckets: a bucket is sent as soon as the pass has come past all its
parameters, and those before it have been sent. The first step shows in which order the pass
reaches parameters; the following ones fill their buckets in that order.

With embeddings gathered with gradients (`distributed`) each rank holds the gradient of the global
loss times the number of ranks, of its own share of the embeddings: the mean is the gradient.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import distributed, nn

from ncclean.training.process_group import Ranks

_BUCKET_BYTES = 25 << 20  # as in torch's own DistributedDataParallel


def average_gradients(parameters: Iterable[nn.Parameter], ranks: Ranks) -> None:
    """Replace the gradient of each parameter by its mean over the ranks."""
    if ranks.size > 1:
        _Exchange(_buckets(parameters), ranks).finish()


class GradientAverage:
    """Averages the gradients of `parameters`, which come in the same order on every rank."""

    def __init__(self, parameters: Sequence[nn.Parameter], ranks: Ranks) -> None:
        self.parameters, self._ranks = parameters, ranks
        self._reached: list[nn.Parameter] | None = None  # in the order of the first pass
        # Set by torchrun and Ray Train.
        is_one_machine = os.environ.get("LOCAL_WORLD_SIZE") == str(ranks.size)
        self._overlaps = not is_one_machine or any(one.is_cuda for one in parameters)

    @contextlib.contextmanager
    def during(self) -> Iterator[None]:
        """Replace gradients by their means in the course of a backward pass, the last of a step.

        What the pass does not come to, and has a gradient from a pass before, follows at the end.
        """
        if self._ranks.size == 1 or not self._overlaps:
            yield
            average_gradients(self.parameters, self._ranks)
            return
        exchange = _Exchange(_buckets(self._reached or ()), self._ranks)
        reached: list[nn.Parameter] = []

        def note(parameter: nn.Parameter) -> None:
            reached.append(parameter)
            exchange.send_what_is_ready(parameter)

        hooks = [
            parameter.register_post_accumulate_grad_hook(note)
            for parameter in self.parameters
            if parameter.requires_grad
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        exchange.finish()
        left = set(self.parameters) - set(self._reached or ())
        average_gradients([one for one in self.parameters if one in left], self._ranks)
        if self._reached is None:
            self._reached = self._of_first_rank(reached)

    def _of_first_rank(self, reached: list[nn.Parameter]) -> list[nn.Parameter]:
        """The first rank's order for all: ranks that sent unlike buckets would add them up."""
        places = {parameter: place for place, parameter in enumerate(self.parameters)}
        order = [places[parameter] for parameter in reached]
        missing = [-1] * (len(places) - len(order))
        shared = torch.tensor(order + missing, device=self.parameters[0].device)
        distributed.broadcast(shared, src=0)
        return [self.parameters[place] for place in shared.tolist() if place >= 0]


class _Exchange:
    """The exchange of one step's gradients, bucket by bucket."""

    def __init__(self, buckets: list[list[nn.Parameter]], ranks: Ranks) -> None:
        self._buckets, self._ranks = buckets, ranks
        self._waits_for = [set(bucket) for bucket in buckets]
        self._bucket_of = {one: number for number, bucket in enumerate(buckets) for one in bucket}
        self._sent: list[tuple[list[torch.Tensor], torch.Tensor, Any]] = []

    def send_what_is_ready(self, parameter: nn.Parameter) -> None:
        """Note that the gradient of a parameter is complete."""
        number = self._bucket_of.get(parameter)
        if number is None:
            return
        self._waits_for[number].discard(parameter)
        while len(self._sent) < len(self._buckets) and not self._waits_for[len(self._sent)]:
            self._send(self._buckets[len(self._sent)])

    def finish(self) -> None:
        """Send the rest, and put the means in place of the gradients."""
        for bucket in self._buckets[len(self._sent) :]:
            self._send(bucket)
        for gradients, flat, work in self._sent:
            if work is not None:
                work.wait()
            flat /= self._ranks.size
            means = flat.split([gradient.numel() for gradient in gradients])
            for gradient, mean in zip(gradients, means, strict=True):
                gradient.copy_(mean.view_as(gradient))

    def _send(self, bucket: list[nn.Parameter]) -> None:
        gradients = [one.grad for one in bucket if one.grad is not None]
        flat = torch.cat([one.flatten() for one in gradients]) if gradients else torch.empty(0)
        work = distributed.all_reduce(flat, async_op=True) if gradients else None
        self._sent.append((gradients, flat, work))


def _buckets(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """The parameters in their order, some megabytes of one dtype to a bucket."""
    done: list[list[nn.Parameter]] = []
    filling: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        bucket = filling.setdefault(parameter.dtype, [])
        bucket.append(parameter)
        if sum(one.numel() * one.element_size() for one in bucket) >= _BUCKET_BYTES:
            done.append(filling.pop(parameter.dtype))
    return done + list(filling.values())
