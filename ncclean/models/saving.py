"""Writes a model to a folder that open_clip, and so `--model local-dir:`, can load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn
from upath import UPath

from ncclean.base.atomic import published
from ncclean.errors import ModelError
from ncclean.models.checkpoint import WEIGHTS_NAME
from ncclean.models.estimator import Estimator
from ncclean.models.model_config import CONFIG_NAME
from ncclean.models.preprocessing import as_config


def write_model(estimator: Estimator, folder: Path, trained: nn.Module | None = None) -> None:
    """Write `open_clip_config.json` and `open_clip_model.safetensors`, each published whole.

    The weights are those of `trained` in place of the estimator's own, if given. A tokenizer and a
    text tower of Hugging Face are written too, as far as open_clip needs their files. Raises
    `ModelError` for a model without open_clip's description of its architecture.
    """
    from safetensors.torch import save_file

    model = estimator.model if trained is None else trained
    if not estimator.architecture:
        label = estimator.identity.model
        raise ModelError(f"{label} has no open_clip configuration that could be saved")
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
    with published(UPath(folder / WEIGHTS_NAME)) as aside:
        save_file(state, aside)
        aside.chmod(0o644)  # it is written for its owner only
    tokenizer: Any = estimator.tokenizer
    if hasattr(tokenizer, "save_pretrained"):
        tokenizer.save_pretrained(folder)
    if tower := estimator.architecture["text_cfg"].get("hf_model_name"):
        text: Any = model.text
        text.config.save_pretrained(folder / tower)
    with published(UPath(folder / CONFIG_NAME)) as aside:
        config = {
            "model_cfg": dict(estimator.architecture),
            "preprocess_cfg": as_config(estimator.preprocessing),
        }
        aside.write_text(json.dumps(config, indent=2) + "\n")
