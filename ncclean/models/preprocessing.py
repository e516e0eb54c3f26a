"""The preprocessing of a model's images, which belongs to the weights, not to their file.

Released weights state mean, deviation, interpolation and resize mode, as does the configuration of
a model. A bare file of weights states nothing: it gets the values on which the released weights of
its architecture agree.
"""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ncclean.data.decode import Preprocessing
from ncclean.errors import ModelError
from ncclean.models.checkpoint import ModelSource
from ncclean.models.weights import some

logger = logging.getLogger(__name__)

_FIELDS = ("mean", "std", "interpolation", "resize_mode")
# open_clip's default, used wherever nothing else is stated.
OPENAI: dict[str, Any] = {
    "mean": [0.48145466, 0.4578275, 0.40821073],
    "std": [0.26862954, 0.26130258, 0.27577711],
    "interpolation": "bicubic",
    "resize_mode": "shortest",
}
# open_clip tags, `ARCHITECTURE/TAG`, by the preprocessing of their weights.
Released = dict[Preprocessing, list[str]]


def choose_preprocessing(
    source: ModelSource, config: Mapping[str, Any], stated: Mapping[str, Any], tag: str | None
) -> dict[str, Any]:
    """Choose what overrides open_clip's preprocessing of a model; empty if open_clip knows it.

    `config` is the model's architecture and `stated` the preprocessing of its configuration, if
    any. `tag` names released weights to preprocess as. Raises `ModelError` for an unknown tag, and,
    without one, for an architecture whose released weights disagree.
    """
    architectures = source.architectures or _named_alike(config)
    if tag is not None:
        return _of_tag(tag, architectures)
    if stated or source.pretrained is not None:
        return {name: value for name, value in stated.items() if name != "size"}  # of the towers
    released = _released(architectures)
    if len(released) == 1:
        chosen = as_config(next(iter(released)))
        if chosen != OPENAI:
            logger.warning(
                "images are preprocessed as for the released weights of %s: %s",
                some(architectures), describe(chosen),
            )  # fmt: skip
        return chosen
    if source.is_random:  # any will do: it is saved with the model
        return {}
    if released:
        raise ModelError(
            f"the released weights of {some(architectures)} differ in their preprocessing, and "
            f"{source.weights} does not say which is its own: name weights trained alike with "
            f"--preprocess, such as {_examples(released)}"
        )
    logger.warning(
        "%s: its architecture has no released weights that tell how images are preprocessed. "
        "Taking %s; if %s was trained otherwise, name weights trained alike with --preprocess",
        source.label, describe(OPENAI), source.weights,
    )  # fmt: skip
    return {}


def preprocessing_of(
    config: Mapping[str, Any], owner: str, size: tuple[int, int] = (0, 0)
) -> Preprocessing:
    """Convert open_clip's `preprocess_cfg` to `Preprocessing`, filling in its defaults.

    Raises `ModelError`, naming the `owner`, for values that cannot preprocess images.
    """
    config = OPENAI | {name: value for name, value in config.items() if value is not None}
    mean, std = _triple(config["mean"]), _triple(config["std"])
    interpolation, resize_mode = config["interpolation"], config["resize_mode"]
    for name, value, is_right in (
        ("mean", mean, all(map(math.isfinite, mean))),
        ("std", std, all(0 < value < math.inf for value in std)),
        ("interpolation", interpolation, interpolation in ("bicubic", "bilinear", "random")),
        ("resize_mode", resize_mode, resize_mode in ("shortest", "longest", "squash")),
    ):
        if not is_right:
            raise ModelError(f"{owner}: no image can be preprocessed with {name} {value!r}")
    return Preprocessing(
        size=size,
        mean=mean,
        std=std,
        # open_clip's `random` is for training; evaluation uses the other mode.
        interpolation="bilinear" if interpolation == "bilinear" else "bicubic",
        resize_mode=resize_mode,
        fill_color=int(config.get("fill_color") or 0),
    )


def as_config(preprocessing: Preprocessing) -> dict[str, Any]:
    """Return a `Preprocessing` as open_clip's `preprocess_cfg`, without the image size."""
    config: dict[str, Any] = {
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
        "interpolation": preprocessing.interpolation,
        "resize_mode": preprocessing.resize_mode,
    }
    return config | ({"fill_color": fill} if (fill := preprocessing.fill_color) else {})


def describe(config: Mapping[str, Any]) -> str:
    """Describe the preprocessing of a `preprocess_cfg` in words."""
    values = [
        f"{name} {' '.join(dict.fromkeys(f'{value:.3g}' for value in config[name]))}"
        for name in ("mean", "std")
    ]
    return ", ".join((*values, config["interpolation"], config["resize_mode"]))


def _of_tag(tag: str, architectures: Iterable[str]) -> dict[str, Any]:
    """Return the preprocessing of a tag's weights, of these architectures or else of any."""
    import open_clip

    architecture, _, name = tag.rpartition("/")
    candidates = [architecture] if architecture else list(architectures)
    released = _released(candidates, name)
    if not released and not architecture:
        released = _released(open_clip.list_models(), name)
    if not released:
        tags = {tag for _, tag in open_clip.list_pretrained()}
        close = difflib.get_close_matches(name, sorted(tags), n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise ModelError(f"--preprocess {tag} names no released weights of open_clip{hint}")
    if len(released) > 1:
        raise ModelError(f"--preprocess {tag} means different things: write {_examples(released)}")
    return as_config(next(iter(released)))


def _released(architectures: Iterable[str], tag: str | None = None) -> Released:
    """Return the released weights of architectures, of one tag or all, by their preprocessing."""
    import open_clip

    released: Released = {}
    for name in architectures:
        for released_tag in [tag] if tag else open_clip.list_pretrained_tags_by_model(name):
            config = open_clip.get_pretrained_cfg(name, released_tag)
            if all(field in config for field in _FIELDS):  # those of audio have none
                preprocessing = preprocessing_of(config, f"{name}/{released_tag}")
                released.setdefault(preprocessing, []).append(f"{name}/{released_tag}")
    return released


def _named_alike(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The open_clip architectures with this configuration."""
    import open_clip

    return tuple(n for n in open_clip.list_models() if open_clip.get_model_config(n) == config)


def _examples(released: Released) -> str:
    """Return one tag for each preprocessing."""
    return " or ".join(tags[0] for tags in released.values())


def _triple(value: object) -> tuple[float, float, float]:
    try:
        values = np.broadcast_to(np.asarray(value, dtype=float), 3)
    except (TypeError, ValueError):
        return (math.nan,) * 3
    return float(values[0]), float(values[1]), float(values[2])
