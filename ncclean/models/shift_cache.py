"""Cache the noise shift of a model, so that it is estimated once per user.

`$NCCLEAN_CACHE` names the folder; an empty value turns the cache off. Otherwise it is
`$XDG_CACHE_HOME/ncclean` or `~/.cache/ncclean`. The cache only saves time: an entry that cannot be
read or written is logged at debug level and otherwise ignored.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
import os
from collections.abc import Callable
from pathlib import Path

from upath import UPath

from ncclean.base.atomic import published
from ncclean.errors import NccleanError
from ncclean.models.estimator import Estimator

logger = logging.getLogger(__name__)

FOLDER_VARIABLE = "NCCLEAN_CACHE"


def cache_folder() -> Path | None:
    """Return the folder of the user's cache, or None if the user turned it off or has no home."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen is not None:
        return Path(chosen) if chosen else None
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "ncclean"
    except RuntimeError:  # a user without a home
        return None


def cached_shift(
    estimator: Estimator, settings: dict[str, int | float], estimate: Callable[[], float]
) -> float:
    """Return a model's mean cosine on noise, from the cache or by `estimate`, which is then cached.

    The entry depends on everything that decides the embeddings: weights, modules (the activation is
    not a weight), preprocessing and precision.
    """
    folder = cache_folder()
    if folder is None:
        return estimate()
    key = {
        "weights": estimator.identity.fingerprint,
        "modules": hashlib.blake2b(repr(estimator.model).encode(), digest_size=8).hexdigest(),
        "preprocessing": dataclasses.asdict(estimator.preprocessing),
        "precision": estimator.precision,
        **settings,
    }
    digest = hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=16).hexdigest()
    path = folder / f"shift-{digest}.json"
    shift = _read(path)
    if shift is None:
        shift = estimate()
        _write(path, {"shift": shift, **key})
    return shift


def _read(path: Path) -> float | None:
    try:
        shift = float(json.loads(path.read_text("utf-8"))["shift"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        logger.debug("%s is ignored: %s", path, error)
        return None
    return shift if math.isfinite(shift) else None


def _write(path: Path, entry: dict[str, object]) -> None:
    try:
        with published(UPath(path)) as aside:
            aside.write_text(json.dumps(entry, indent=2) + "\n", "utf-8")
    except (OSError, NccleanError) as error:
        logger.debug("the shift is not kept in %s: %s", path, error)
