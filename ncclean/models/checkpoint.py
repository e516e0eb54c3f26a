"""Resolves the name a user gives a model to a source that open_clip can build."""

from __future__ import annotations

import dataclasses
import difflib
import json
import logging
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ncclean.base.config import DEFAULT_MODEL, DEFAULT_PRETRAINED
from ncclean.errors import ModelError
from ncclean.models.heads import WEIGHTS_NAME as HEADS_NAME
from ncclean.models.model_config import CONFIG_KEYS, CONFIG_NAME, read_config
from ncclean.models.weights import read_state_dict, some

logger = logging.getLogger(__name__)

BUNDLED = ("demo", "demo-noisy")
WEIGHTS_NAME = "open_clip_model.safetensors"
# The names that open_clip looks for in a folder, in order of preference.
_WEIGHTS_NAMES = (
    WEIGHTS_NAME,
    "open_clip_pytorch_model.safetensors",
    "open_clip_pytorch_model.bin",
    "open_clip_pytorch_model.pth",
    "model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.pth",
    "model.pth",
)
_WEIGHTS_ENDINGS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
FOLDER = "local-dir:"


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from: its `name` and `pretrained` for open_clip.

    Score tables record `label` and `tag`. `checkpoint` is a weights file to load into the
    architecture of `name`. `architectures` are the open_clip names that the architecture may have,
    if more than its configuration is known; `preprocessing` is what its configuration states, if
    open_clip does not read it. With `is_random` no weights are read.
    """

    name: str
    pretrained: str | None
    label: str
    tag: str
    checkpoint: str | None = None
    architectures: tuple[str, ...] = ()
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    is_random: bool = False

    @property
    def weights(self) -> str:
        """What messages call the weights: their file, or else the model."""
        return self.checkpoint or self.label

    @property
    def folder(self) -> Path | None:
        """The folder of a `local-dir:` model, None for any other model."""
        return Path(self.name.removeprefix(FOLDER)) if self.name.startswith(FOLDER) else None


def resolve(model: str, pretrained: str | None = None, *, is_random: bool = False) -> ModelSource:
    """Find configuration and weights of a model by its name or path.

    A name is a bundled one, or one of open_clip, `local-dir:` or `hf-hub:`. A path is a model's
    folder, a checkpoint file, or a json file with a configuration as open_clip keeps it
    (`embed_dim`, `vision_cfg`, `text_cfg`) or as a model has it (`model_cfg`). `pretrained` is a
    tag of an open_clip name, or a weights file for the architecture that `model` names. `is_random`
    requests only the architecture.

    Raises `ModelError` with a suggestion if it is none of these.
    """
    if model == DEFAULT_MODEL and not pretrained and not is_random:
        pretrained = DEFAULT_PRETRAINED
    has_own_weights = not pretrained and not is_random
    source = _resolved(model, has_own_weights)
    if is_random:
        return dataclasses.replace(source, checkpoint=None, tag="random", is_random=True)
    if not pretrained:
        return source
    path, tags = Path(pretrained), _tags(source.name)
    if pretrained.lower() in {tag.lower() for tag in tags}:
        return dataclasses.replace(source, pretrained=pretrained, tag=pretrained)
    if path.is_file():
        return dataclasses.replace(source, checkpoint=pretrained, tag=path.name)
    what = "a folder: name the weights file in it" if path.is_dir() else "neither a file nor a tag"
    raise ModelError(f"--pretrained {pretrained} is {what} of {model}{_listed(tags)}")


def _resolved(model: str, has_own_weights: bool) -> ModelSource:
    """Return the source for a name; without `has_own_weights` only its architecture."""
    if model in BUNDLED:
        folder = Path(__file__).parent / model.replace("-", "_")
        if not (folder / CONFIG_NAME).is_file():
            raise ModelError(f"the bundled model {model!r} is not part of this installation")
        return _folder(folder, model, "bundled", has_own_weights)
    if model.startswith("hf-hub:"):
        return ModelSource(model, None, model, "hub")
    path = Path(model.removeprefix(FOLDER))
    if path.name == CONFIG_NAME and path.is_file():
        path = path.parent
    if model.startswith(FOLDER) or path.is_dir():
        return _folder(path, model, "local", has_own_weights)
    if path.is_file() and path.suffix == ".json":
        if has_own_weights:
            raise ModelError(f"{model} describes an architecture: add --pretrained FILE")
        return _registered(path, model)
    if path.is_file():
        if (path.parent / CONFIG_NAME).is_file():
            return ModelSource(f"{FOLDER}{path.parent}", None, model, path.name, model)
        names = matching_architectures(path)
        return ModelSource(names[0], None, model, path.name, model, names)
    tags = _tags(model, is_checked=True)
    if has_own_weights:
        raise ModelError(f"{model} needs --pretrained: a checkpoint file or a tag{_listed(tags)}")
    return ModelSource(model, None, model, "", architectures=(model,))


def _folder(folder: Path, label: str, tag: str, has_own_weights: bool) -> ModelSource:
    if not (folder / CONFIG_NAME).is_file():
        if not folder.exists():
            raise ModelError(f"{folder} does not exist")
        raise ModelError(f"{folder} holds no {CONFIG_NAME}; a local model folder needs one")
    weights = str(_weights_in(folder)) if has_own_weights else None
    return ModelSource(f"{FOLDER}{folder}", None, label, tag, weights)


def _weights_in(folder: Path) -> Path:
    """The weights file of a model folder: one of open_clip's names, or the only one."""
    for name in _WEIGHTS_NAMES:
        if (folder / name).is_file():
            return folder / name
    files = sorted(
        path.name
        for path in folder.iterdir()
        if path.suffix in _WEIGHTS_ENDINGS and path.name != HEADS_NAME and path.is_file()
    )
    if not files:
        raise ModelError(f"{folder} holds no weights ({WEIGHTS_NAME}); or add --pretrained FILE")
    if len(files) > 1:
        raise ModelError(f"{folder} holds several weights files, {some(files)}: name one of them")
    logger.warning("%s: took the weights in %s", folder, files[0])
    return folder / files[0]


def _registered(path: Path, label: str) -> ModelSource:
    """The source of a configuration in a file, under the file's name in open_clip's registry."""
    import open_clip

    described = read_config(path)
    config = described.get("model_cfg", described)
    missing = [key for key in CONFIG_KEYS if not isinstance(config, dict) or key not in config]
    if missing:
        raise ModelError(f"{path} describes no open_clip model: it has no {missing[0]}")
    registered = open_clip.get_model_config(path.stem)
    if registered is not None and registered != config:
        raise ModelError(f"{path.stem} is another model of open_clip's: rename {path}")
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / path.name
        file.write_text(json.dumps(config))
        open_clip.add_model_config(file)
    preprocessing = described.get("preprocess_cfg", {})
    return ModelSource(path.stem, None, label, "", preprocessing=preprocessing)


def matching_architectures(checkpoint: Path) -> tuple[str, ...]:
    """Return names of open_clip architectures with the parameters of a bare checkpoint.

    The preferred one comes first: they may differ in something a checkpoint does not record (the
    activation); then the log names the choice, open_clip's default GELU variant. Raises
    `ModelError` if none fits.
    """
    import open_clip

    shapes = {name: tuple(value.shape) for name, value in read_state_dict(checkpoint).items()}
    matches = [
        name
        for name in open_clip.list_models()
        if _could_match(open_clip.get_model_config(name), shapes) and _same_shapes(name, shapes)
    ]
    if not matches:
        raise ModelError(
            f"no open_clip architecture has the parameters of {checkpoint} ({some(list(shapes))}); "
            f"name it: --model ARCHITECTURE --pretrained {checkpoint}"
        )
    matches.sort(key=lambda name: ("quickgelu" in name, len(name), name))
    if len(matches) > 1:
        logger.warning(
            "%s fits %s; taking %s. If that is wrong: --model ARCHITECTURE --pretrained %s",
            checkpoint,
            ", ".join(matches),
            matches[0],
            checkpoint,
        )
    return tuple(matches)


def _tags(model: str, *, is_checked: bool = False) -> list[str]:
    """The pretrained tags of an open_clip name; raises `ModelError` for another one if checked."""
    import open_clip

    names = open_clip.list_models()
    if is_checked and model not in names:
        close = difflib.get_close_matches(model, [*names, *BUNDLED], n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise ModelError(
            f"no model called {model!r}{hint} (also: local-dir:DIR, a checkpoint file)"
        )
    return list(open_clip.list_pretrained_tags_by_model(model))


def _listed(tags: list[str]) -> str:
    return f"; its tags are {', '.join(tags[:8])}{', ...' * (len(tags) > 8)}" if tags else ""


def _could_match(config: dict[str, Any] | None, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Compare two shapes of the text tower, which is cheap, before anything is built."""
    if config is None or "hf_model_name" in config.get("text_cfg", {}):
        return False
    text = config["text_cfg"]
    width = text.get("width", 512)
    for prefix in ("", "text."):
        if f"{prefix}token_embedding.weight" in shapes:
            expected = {
                f"{prefix}token_embedding.weight": (text.get("vocab_size", 49408), width),
                f"{prefix}text_projection": (width, config["embed_dim"]),
            }
            return all(shapes.get(name, shape) == shape for name, shape in expected.items())
    return False


def _same_shapes(name: str, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    import open_clip

    logging.disable(logging.WARNING)  # "initialized randomly": nothing is kept here
    try:
        with torch.device("meta"):
            model = open_clip.create_model(name, load_weights=False, device="meta")
    except Exception:  # an architecture that cannot be built here cannot be the one
        return False
    finally:
        logging.disable(logging.NOTSET)
    expected = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    if "logit_bias" in shapes or "logit_bias" in expected:
        expected.setdefault("logit_bias", ())
    return all(shapes.get(key) == shape for key, shape in expected.items() if "logit" not in key)
