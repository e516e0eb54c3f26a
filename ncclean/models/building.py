"""Builds open_clip models, with errors that say what to do."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ncclean.data.decode import Preprocessing
from ncclean.errors import ModelError
from ncclean.models.checkpoint import ModelSource, why
from ncclean.models.model_config import check_config, check_fits, without_remote_code


def build(
    source: ModelSource, seed: int = 0
) -> tuple[nn.Module, Callable[[list[str]], torch.Tensor], Preprocessing]:
    """Build a model with its tokenizer and preprocessing; `seed` is for random weights.

    A configuration that names code, or asks for more memory than its weights take, is refused
    before anything is built of it. Raises `ModelError`.
    """
    import open_clip

    try:
        with _quiet(), without_remote_code(), torch.random.fork_rng(), _initial_weights(source):
            config = check_config(source.name)
            if source.weights is not None:
                check_fits(source.name, source.weights)
            torch.manual_seed(seed)
            model = open_clip.create_model(
                source.name,
                pretrained=source.pretrained,
                require_pretrained=source.checkpoint is None and not source.is_random,
                load_weights=source.checkpoint is None and not source.is_random,
                pretrained_text=False,  # the weights of the whole model hold those of its parts
                weights_only=True,
            )
            if source.checkpoint is not None:
                open_clip.load_checkpoint(model, source.checkpoint)
    except ModelError:
        raise
    except Exception as error:  # hub clients raise their own families
        raise ModelError(_explain(source, error)) from error
    try:
        has_files = bool(config["text_cfg"].get("hf_tokenizer_name"))
        safely = {"trust_remote_code": False} if has_files else {}
        with _quiet(), without_remote_code():
            tokenizer = open_clip.get_tokenizer(source.name, **safely)
    except Exception as error:
        if "custom code" in str(error):
            raise ModelError(
                f"the tokenizer of {source.label} is Python code that comes with the model, which "
                "is never run: take a tokenizer that transformers knows"
            ) from error
        raise ModelError(
            f"the tokenizer of {source.label} cannot be loaded ({why(error)}); models with "
            "a Hugging Face tokenizer need `pip install transformers sentencepiece`, and offline "
            "their tokenizer files in the folder of local-dir:"
        ) from error
    config = open_clip.get_model_preprocess_cfg(model)
    size = config["size"]
    preprocessing = Preprocessing(
        size=(size, size) if isinstance(size, int) else (int(size[0]), int(size[1])),
        mean=_triple(config["mean"]),
        std=_triple(config["std"]),
        interpolation="bilinear" if config.get("interpolation") == "bilinear" else "bicubic",
        resize_mode=config.get("resize_mode") or "shortest",
        fill_color=int(config.get("fill_color") or 0),
    )
    return model, tokenizer, preprocessing


def _explain(source: ModelSource, error: Exception) -> str:
    reason = why(error)
    fetches = source.name.startswith("hf-hub:") or (
        source.pretrained is not None and source.pretrained == source.tag
    )
    if not fetches:
        return f"{source.label} cannot be loaded: {reason}"
    return (
        f"the weights {source.tag} of {source.label} cannot be fetched ({reason}). Offline, copy "
        "them from a machine that has them and pass --pretrained FILE, or use --model "
        "local-dir:DIR; --model demo is bundled, for trying out"
    )


def _triple(value: float | Sequence[float]) -> tuple[float, float, float]:
    values = np.broadcast_to(np.asarray(value, dtype=float), 3)
    return float(values[0]), float(values[1]), float(values[2])


def weights_fingerprint(model: nn.Module) -> str:
    """32 hex digits over the names, shapes and bytes of all parameters and buffers."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _initial_weights(source: ModelSource) -> contextlib.AbstractContextManager[object]:
    """Skip random weights where a file with all of them replaces them (.7 s of a ViT-B/32)."""
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
    """Silence open_clip and the hub, which log every retry; failures arrive as exceptions."""
    from huggingface_hub.utils import logging as hub

    root = logging.getLogger()
    level, hub_level = root.level, hub.get_verbosity()
    root.setLevel(logging.CRITICAL)
    hub.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.setLevel(level)
        hub.set_verbosity(hub_level)
