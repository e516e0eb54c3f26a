"""Resolves the name a user gives a model to a source that open_clip can build."""

from __future__ import annotations

import dataclasses
import difflib
import logging
import pickle
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ncclean.errors import ModelError
from ncclean.models.model_config import read_config
from ncclean.models.open_clip_internals import read_state_dict

logger = logging.getLogger(__name__)

BUNDLED = ("demo", "demo-noisy")
# open_clip's names of the files of a model folder.
CONFIG_NAME = "open_clip_config.json"
WEIGHTS_NAME = "open_clip_model.safetensors"
_CONFIG_KEYS = ("embed_dim", "vision_cfg", "text_cfg")


@dataclass(frozen=True)
class ModelSource:
    """`name` and `pretrained` as open_clip takes them; `label` and `tag` as the table records them.

    `checkpoint` is a weights file to load into the architecture of a `local-dir:` name instead of
    the one that open_clip would pick from the folder. With `is_random` no weights are read.
    """

    name: str
    pretrained: str | None
    label: str
    tag: str
    checkpoint: str | None = None
    is_random: bool = False

    @property
    def folder(self) -> Path | None:
        """The folder of a `local-dir:` model, None for any other model."""
        prefix = "local-dir:"
        return Path(self.name.removeprefix(prefix)) if self.name.startswith(prefix) else None

    @property
    def weights(self) -> Path | None:
        """The model's largest weights file, in its folder or named with it, if any is read."""
        if self.is_random or self.folder is None:
            return None
        files = [Path(self.checkpoint)] if self.checkpoint else _weights_in(self.folder)
        return max(files, key=lambda file: file.stat().st_size)


def resolve(model: str, pretrained: str | None, *, is_random: bool = False) -> ModelSource:
    """Find configuration and weights by bundled name, `local-dir:`, `hf-hub:`, path or open_clip
    name.

    `is_random` asks for an architecture without weights: an open_clip name, a model's folder or a
    json file, which is a configuration as open_clip keeps it (`embed_dim`, `vision_cfg`,
    `text_cfg`) or the `open_clip_config.json` of a model.

    Raises `ModelError` with a suggestion if it is none of these.
    """
    if is_random:
        return _architecture(model)
    if model in BUNDLED:
        folder = Path(__file__).parent / model.replace("-", "_")
        if not (folder / CONFIG_NAME).is_file():
            raise ModelError(f"the bundled model {model!r} is not part of this installation")
        return ModelSource(f"local-dir:{folder}", None, model, "bundled")
    if model.startswith("local-dir:"):
        return _local_folder(Path(model.removeprefix("local-dir:")), model)
    if model.startswith("hf-hub:"):
        return ModelSource(model, None, model, "hub")
    path = Path(model)
    if path.is_dir():
        return _local_folder(path, model)
    if path.is_file():
        if (path.parent / CONFIG_NAME).is_file():
            return ModelSource(f"local-dir:{path.parent}", None, model, path.name, str(path))
        return ModelSource(infer_architecture(path), str(path), model, path.name)
    return _named(model, pretrained)


def _architecture(model: str) -> ModelSource:
    path = Path(model.removeprefix("local-dir:"))
    if path.name == CONFIG_NAME:
        path = path.parent
    if (path / CONFIG_NAME).is_file():
        return ModelSource(f"local-dir:{path}", None, model, "random", is_random=True)
    if model in BUNDLED:
        return dataclasses.replace(resolve(model, None), tag="random", is_random=True)
    name = _registered(path) if path.suffix == ".json" and path.is_file() else model
    _check_name(name)
    return ModelSource(name, None, model, "random", is_random=True)


def _registered(path: Path) -> str:
    """The name by which open_clip knows the configuration in a file from now on."""
    import open_clip

    config = read_config(path)
    missing = [key for key in _CONFIG_KEYS if key not in config]
    if missing:
        raise ModelError(f"{path} describes no open_clip model: it has no {missing[0]}")
    registered = open_clip.get_model_config(path.stem)
    if registered is not None and registered != config:
        raise ModelError(f"{path.stem} is another model of open_clip's: rename {path}")
    open_clip.add_model_config(path)
    return path.stem


def infer_architecture(checkpoint: Path) -> str:
    """Name of the open_clip architecture whose parameters are those of a bare checkpoint.

    Raises `ModelError` when none fits. Architectures may differ in something a checkpoint does
    not record (the activation); then the log names the choice, open_clip's default GELU variant.
    """
    import open_clip

    try:
        state = read_state_dict(checkpoint)
        shapes = {name: tuple(value.shape) for name, value in state.items()}
    except Exception as error:
        raise ModelError(f"{checkpoint} is not a readable checkpoint: {why(error)}") from error
    matches = [
        name
        for name in open_clip.list_models()
        if _could_match(open_clip.get_model_config(name), shapes) and _same_shapes(name, shapes)
    ]
    if not matches:
        raise ModelError(
            f"no open_clip architecture has the parameters of {checkpoint}; "
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
    return str(matches[0])


def why(error: BaseException) -> str:
    """The reason why a model cannot be loaded, in a line.

    torch advises to read pickles with `weights_only=False`, which runs what they hold.
    """
    if isinstance(error, pickle.UnpicklingError):
        return "the file does not hold tensors alone, and nothing else is read"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    shown = 2 if lines[0].startswith("Error(s) in loading state_dict") else 1
    reason = " ".join(line.strip() for line in lines[:shown])
    return textwrap.shorten(reason, 300, placeholder=" ...")


def _local_folder(folder: Path, label: str) -> ModelSource:
    if not (folder / CONFIG_NAME).is_file():
        if not folder.exists():
            raise ModelError(f"{folder} does not exist")
        raise ModelError(f"{folder} holds no {CONFIG_NAME}; a local model folder needs one")
    if not _weights_in(folder):
        # open_clip would only log a warning and go on with random weights.
        raise ModelError(f"{folder} holds no weights (open_clip_model.safetensors)")
    return ModelSource(f"local-dir:{folder}", None, label, "local")


def _weights_in(folder: Path) -> list[Path]:
    patterns = ("*.safetensors", "*.bin", "*.pth")
    return [file for pattern in patterns for file in folder.glob(pattern) if file.is_file()]


def _check_name(model: str) -> None:
    """Raise `ModelError` if open_clip has no such architecture."""
    import open_clip

    names = open_clip.list_models()
    if model not in names:
        close = difflib.get_close_matches(model, [*names, *BUNDLED], n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise ModelError(
            f"no model called {model!r}{hint} (also: local-dir:DIR, a checkpoint file)"
        )


def _named(model: str, pretrained: str | None) -> ModelSource:
    import open_clip

    _check_name(model)
    tags = open_clip.list_pretrained_tags_by_model(model)
    if not pretrained:
        raise ModelError(f"{model} needs --pretrained: a checkpoint file, or one of {_some(tags)}")
    if pretrained.lower() not in {tag.lower() for tag in tags} and not Path(pretrained).is_file():
        raise ModelError(
            f"--pretrained {pretrained} is neither a file nor a tag of {model}; "
            f"its tags are {_some(tags)}"
        )
    tag = Path(pretrained).name if Path(pretrained).is_file() else pretrained
    return ModelSource(model, pretrained, model, tag)


def _some(tags: list[str]) -> str:
    return ", ".join(tags[:8]) + (", ..." if len(tags) > 8 else "") if tags else "(none published)"


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
    expected = dict(_shapes_of(model))
    if "logit_bias" in shapes or "logit_bias" in expected:
        expected.setdefault("logit_bias", ())
    return all(shapes.get(key) == shape for key, shape in expected.items() if "logit" not in key)


def _shapes_of(model: torch.nn.Module) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, value in model.state_dict().items():
        yield name, tuple(value.shape)
