"""Writes a model to a folder that open_clip, and so `--model local-dir:`, can load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn
from upath import UPath

from ncclean.atomic import published
from ncclean.errors import ModelError
from ncclean.models.checkpoint import CONFIG_NAME, WEIGHTS_NAME, ModelSource

# What a saved folder records; the size of an image belongs to the architecture.
_PREPROCESSING = ("mean", "std", "interpolation", "resize_mode")


def model_config(source: ModelSource) -> dict[str, Any]:
    """The architecture of a model, as open_clip's `model_cfg`.

    Raises `ModelError` for a model that open_clip builds without such a description.
    """
    import open_clip

    config = open_clip.get_model_config(source.name)
    if not config:
        raise ModelError(f"{source.label} has no open_clip configuration that could be saved")
    return dict(config)


def write_model(model: nn.Module, source: ModelSource, tokenizer: Any, folder: Path) -> None:
    """Write `open_clip_config.json` and `open_clip_model.safetensors`, each published whole.

    `source` names the architecture. The tokenizer is also written if open_clip needs its files.
    """
    import open_clip
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    state = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
    with published(UPath(folder / WEIGHTS_NAME)) as aside:
        save_file(state, aside)
        aside.chmod(0o644)  # it is written for its owner only
    if hasattr(tokenizer, "save_pretrained"):
        tokenizer.save_pretrained(folder)
    with published(UPath(folder / CONFIG_NAME)) as aside:
        preprocessing = open_clip.get_model_preprocess_cfg(model)
        config = {
            "model_cfg": model_config(source),
            "preprocess_cfg": {n: preprocessing[n] for n in _PREPROCESSING if n in preprocessing},
        }
        aside.write_text(json.dumps(config, indent=2) + "\n")
