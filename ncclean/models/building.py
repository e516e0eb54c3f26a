"""Builds open_clip models, with errors that say what to do."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ncclean.data.decode import Preprocessing
from ncclean.errors import ModelError
from ncclean.models.checkpoint import ModelSource
from ncclean.models.model_config import (
    check_config,
    check_fits,
    config_file,
    text_tower_folder,
    without_remote_code,
)
from ncclean.models.open_clip_internals import checkpoints_read_by
from ncclean.models.preprocessing import choose_preprocessing, preprocessing_of
from ncclean.models.weights import check_finite, read_state_dict, why

logger = logging.getLogger(__name__)

Tokenizer = Callable[[list[str]], torch.Tensor]


class BuiltModel(NamedTuple):
    """A model with its tokenizer and preprocessing; `architecture` is open_clip's `model_cfg`."""

    network: nn.Module
    tokenizer: Tokenizer
    preprocessing: Preprocessing
    architecture: dict[str, Any]


def build(source: ModelSource, seed: int = 0, preprocess: str | None = None) -> BuiltModel:
    """Build a model with its tokenizer and preprocessing; `seed` is for random weights.

    `preprocess` names released weights to preprocess images as, `TAG` or `ARCHITECTURE/TAG`. A
    configuration that names code, or needs more memory than its weights take, is refused before
    building. Raises `ModelError`.
    """
    import open_clip

    try:
        with _quiet(), without_remote_code():
            architecture, stated = check_config(source.name, source.preprocessing)
            chosen = choose_preprocessing(source, architecture, stated, preprocess)
            preprocessing_of(stated | chosen, source.label)  # refused before minutes of loading
            network = _network(source, architecture, chosen, seed)
    except ModelError:
        raise
    except Exception as error:  # hub clients raise their own families
        raise ModelError(_explain(source, error)) from error
    config = open_clip.get_model_preprocess_cfg(network)
    size = config["size"]
    size = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    preprocessing = preprocessing_of(config, source.label, size)
    return BuiltModel(network, _tokenizer(source, architecture), preprocessing, architecture)


def _network(
    source: ModelSource, architecture: Mapping[str, Any], preprocessing: dict[str, Any], seed: int
) -> nn.Module:
    """Build the towers and load their weights, which must be finite and of the same lengths."""
    import open_clip

    name, has_own_weights = source.name, source.checkpoint is None and not source.is_random
    if name.startswith("hf-hub:") and not has_own_weights:
        name = f"local-dir:{Path(config_file(name) or '').parent}"  # fetches no weights
    overrides = {}
    if (tower := text_tower_folder(name, architecture)) is not None:
        text = {**architecture["text_cfg"], "hf_model_name": str(tower)}
        overrides["text_cfg"] = {**text, "hf_model_pretrained": False}
    if source.checkpoint is not None and not source.architectures:
        check_fits(name, Path(source.checkpoint), **overrides)
    positions: dict[str, int] = {}

    def read(path: Path) -> dict[str, torch.Tensor]:
        state = read_state_dict(path)
        for key in [key for key in state if key.endswith(_POSITIONS)]:
            positions[key] = len(state[key])
            state[key] = state[key].float()  # half precision cannot be interpolated on a CPU
        return state

    with torch.random.fork_rng(), _initial_weights(source), checkpoints_read_by(read):
        torch.manual_seed(seed)
        network: nn.Module = open_clip.create_model(
            name,
            pretrained=source.pretrained,
            require_pretrained=has_own_weights,
            load_weights=has_own_weights,
            pretrained_text=False,  # the weights of the whole model hold those of its parts
            weights_only=True,
            force_preprocess_cfg=preprocessing,
            **overrides,
        )
        if source.checkpoint is not None:
            open_clip.load_checkpoint(network, source.checkpoint)
    check_finite(network.state_dict(), source.weights)
    _check_positions(source, network, positions)
    return network


@functools.lru_cache(maxsize=2)
def _open_clip_tokenizer(name: str, text: str) -> Tokenizer:
    """Return open_clip's own tokenizer of a model with this text configuration, read once."""
    import open_clip

    tokenizer: Tokenizer = open_clip.get_tokenizer(name)
    return tokenizer


def _tokenizer(source: ModelSource, architecture: Mapping[str, Any]) -> Tokenizer:
    import open_clip

    text = architecture["text_cfg"]
    tokenizer: Tokenizer
    try:
        with _quiet(), without_remote_code():
            if text.get("hf_tokenizer_name"):  # whose files may change
                tokenizer = open_clip.get_tokenizer(source.name, trust_remote_code=False)
            else:
                tokenizer = _open_clip_tokenizer(source.name, json.dumps(text, sort_keys=True))
    except Exception as error:
        if "custom code" in str(error):
            raise ModelError(
                f"the tokenizer of {source.label} is Python code that comes with the model, which "
                "is never run: take a tokenizer that transformers knows"
            ) from error
        needed = ""
        if text.get("tokenizer_type") == "tiktoken":
            needed = ": it needs `pip install tiktoken`, and offline the files in tiktoken's cache"
        elif text.get("hf_tokenizer_name"):
            needed = (
                ": it needs `pip install transformers sentencepiece`, and offline its files in the "
                "folder of local-dir:"
            )
        raise ModelError(
            f"the tokenizer of {source.label} cannot be loaded ({why(error)}){needed}"
        ) from error
    return tokenizer


# Position embeddings of the images (of open_clip's own towers) and of the captions.
_POSITIONS = "positional_embedding"


def _check_positions(source: ModelSource, model: nn.Module, read: Mapping[str, int]) -> None:
    """Check for position embeddings that open_clip has stretched to the architecture's length.

    Images of another size are common, so they are only logged; captions raise `ModelError`.
    """
    state = model.state_dict()
    for name, count in read.items():
        target = name if name in state else f"text.{name}"
        if target not in state or len(state[target]) == count:
            continue
        if name.startswith("visual."):
            logger.warning(
                "%s was trained on images of %d patches, and %s takes %d: its position embeddings "
                "are interpolated", source.weights, count - 1, source.label, len(state[target]) - 1,
            )  # fmt: skip
        else:
            raise ModelError(
                f"the text tower of {source.label} reads {len(state[target])} tokens "
                f"(context_length), but its weights were trained on {count}: set context_length to "
                f"{count}"
            )


def _explain(source: ModelSource, error: Exception) -> str:
    reason = why(error)
    is_fetched = source.pretrained is not None or source.name.startswith("hf-hub:")
    if not is_fetched or source.checkpoint is not None or "Error(s) in loading" in str(error):
        weights = f" with {source.checkpoint}" if source.checkpoint else ""
        return f"{source.label} cannot be loaded{weights}: {reason}"
    return (
        f"the weights {source.tag} of {source.label} cannot be fetched ({reason}). Offline, copy "
        "them from a machine that has them and pass --pretrained FILE, or use --model "
        "local-dir:DIR; --model demo is bundled, for trying out"
    )


def weights_fingerprint(model: nn.Module) -> str:
    """Return a fingerprint of a model's weights, 32 hex digits.

    It covers the names, shapes and bytes of all parameters and buffers.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _initial_weights(source: ModelSource) -> contextlib.AbstractContextManager[object]:
    """Skip random weights if a file replaces them all (.7 s for a ViT-B/32)."""
    return contextlib.nullcontext() if source.is_random else _WithoutInitialization()


class _WithoutInitialization(TorchFunctionMode):
    """Leave new parameters as they are allocated: `torch.nn.init` and in-place draws do nothing."""

    _DRAWS = (torch.Tensor.normal_, torch.Tensor.uniform_, torch.Tensor.erfinv_)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in self._DRAWS or getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence open_clip and the hub, which log every retry; failures arrive as exceptions.

    ncclean's own messages are still shown.
    """
    from huggingface_hub.utils import logging as hub

    root, ours = logging.getLogger(), logging.getLogger("ncclean")
    level, own_level, hub_level = root.level, ours.level, hub.get_verbosity()
    ours.setLevel(ours.getEffectiveLevel())
    root.setLevel(logging.CRITICAL)
    hub.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.setLevel(level)
        ours.setLevel(own_level)
        hub.set_verbosity(hub_level)
