"""Weights of training images out of a score table, for a probe that is fitted to noisy labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import torch

from ncclean.errors import InputError
from ncclean.storage.catalog import first_line
from ncclean.storage.joined import JoinedScores


@dataclass(frozen=True)
class SampleWeights:
    """The column, or SQL, of a score table that says how much each image counts."""

    scores: tuple[str, ...]
    weights: str

    def of(self, keys: Sequence[str], sample_keys: Sequence[str]) -> torch.Tensor:
        """(N,) weights of images; see `read_sample_weights`."""
        return torch.from_numpy(read_sample_weights(self.scores, self.weights, keys, sample_keys))


def read_sample_weights(
    scores: Sequence[str], weights: str, keys: Sequence[str], sample_keys: Sequence[str]
) -> np.ndarray:
    """(N,) weights with mean 1 of images known by `shard/key`, or by the key alone.

    The key alone is taken where no row has the `shard/key` of an image: the images may have been
    scored as shards of another name. `weights` is a column or SQL. An image without a row, without
    scores or without a value has NaN. Raises `InputError` for weights that are negative or all
    zero, for several rows of an image, and where no image has a row.
    """
    with JoinedScores.open(scores) as table:
        lacking = [name for name in ("shard", "key") if name not in table.names.types]
        if lacking:
            raise InputError(f"{scores[0]} has no column {lacking[0]} to know the images by")
        expression = table.expression(weights, "--weights")
        table.prepare(("shard", "key", "status"), [expression])
        ok = "status = 'ok'" if "status" in table.names.types else "true"
        try:
            rows = table.connection.execute(
                f"SELECT shard || '/' || key, key, ({expression.sql})::DOUBLE FROM scores "
                f"WHERE {ok}"
            ).fetchnumpy()
        except duckdb.Error as error:
            raise InputError(f"--weights {weights}: {first_line(error)}") from error
    whole, alone, values = rows.values()
    values = np.ma.filled(values, np.nan)
    found = _joined(whole, values, keys, scores[0], is_needed=False)
    if found is None:
        found = _joined(alone, values, sample_keys, scores[0], is_needed=True)
    assert found is not None
    there = found[~np.isnan(found)]
    if len(there) and not (np.isfinite(there).all() and there.min() >= 0 and there.max() > 0):
        raise InputError(
            f"--weights {weights}: weights are numbers from 0 on, not all of them 0; these lie "
            f"from {there.min():g} to {there.max():g}"
        )
    if not len(there):
        raise InputError(f"--weights {weights}: no training image has a value")
    scaled: np.ndarray = found / there.mean()
    return scaled


def _joined(
    names: np.ndarray, values: np.ndarray, keys: Sequence[str], path: str, *, is_needed: bool
) -> np.ndarray | None:
    """(N,) values by key; None if no key has one, unless that `is_needed`."""
    by_name: dict[str, float] = {}
    wanted = set(keys)
    for name, value in zip(names.tolist(), values.tolist(), strict=True):
        if name not in wanted:
            continue
        if name in by_name:
            raise InputError(f"{path} has several rows of the image {name}: keep one")
        by_name[name] = value
    if not by_name:
        if is_needed:
            raise InputError(f"{path} has no row of the training images, such as {keys[0]}")
        return None
    return np.array([by_name.get(key, np.nan) for key in keys])
