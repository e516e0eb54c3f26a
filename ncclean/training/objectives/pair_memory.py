"""A few numbers of every pair, remembered from step to step and saved in the checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

_FIRST_ROOM = 1024


def pair_keys(uids: Sequence[str]) -> torch.Tensor:
    """(N,) int64 hashes of uids, which ranks can exchange."""
    digests = (hashlib.blake2b(uid.encode(), digest_size=8).digest() for uid in uids)
    return torch.tensor([int.from_bytes(digest, "little", signed=True) for digest in digests])


class PairMemory(nn.Module):
    """(n, width) float32 values by the int64 keys of pairs; grows with the pairs it has seen.

    A module without parameters, so that it is saved and restored with the objective's own. All
    ranks see the global batch and so hold the same memory.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width
        self._rows: dict[int, int] = {}
        self._values = torch.empty(_FIRST_ROOM, width)

    def __len__(self) -> int:
        return len(self._rows)

    def recall(self, keys: torch.Tensor) -> torch.Tensor:
        """Remembered values of (N,) keys -> (N, width), NaN for a pair not seen before."""
        rows = torch.tensor([self._rows.get(key, -1) for key in keys.tolist()], dtype=torch.long)
        values = torch.full((len(keys), self._width), float("nan"))
        values[rows >= 0] = self._values[rows[rows >= 0]]
        return values.to(keys.device)

    def remember(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Remember (N, width) values by key; of a repeated key, the last."""
        wanted = keys.tolist()
        for key in wanted:
            self._rows.setdefault(key, len(self._rows))
        if len(self._rows) > len(self._values):
            room = torch.empty(2 * len(self._rows), self._width)
            room[: len(self._values)] = self._values
            self._values = room
        last = {self._rows[key]: place for place, key in enumerate(wanted)}
        rows, places = torch.tensor(list(last)), torch.tensor(list(last.values()))
        self._values[rows] = values.detach().float().cpu()[places]

    def get_extra_state(self) -> dict[str, torch.Tensor]:
        """Keys and values of the memory, for checkpoints."""
        keys = torch.tensor(list(self._rows), dtype=torch.int64)
        return {"keys": keys, "values": self._values[: len(keys)].clone()}

    def set_extra_state(self, state: Any) -> None:
        """Restore keys and values of the memory from a checkpoint."""
        self._rows = {key: row for row, key in enumerate(state["keys"].tolist())}
        self._values = state["values"].clone()
