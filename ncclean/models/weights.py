"""Read the tensors of a checkpoint: unwrapped, named as in the model, and finite; write them."""

from __future__ import annotations

import logging
import pickle
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from upath import UPath

from ncclean.base.atomic import published
from ncclean.errors import ModelError

logger = logging.getLogger(__name__)

# Prefixes that DistributedDataParallel, torch.compile, FSDP, activation checkpointing and trainers
# add to the names of a wrapped model.
_WRAPPER = re.compile(
    r"^model\.|(?:^|(?<=\.))"
    r"(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)
# Tensors besides the parameters: of torch's AveragedModel, and of OpenAI's TorchScript models.
_BESIDE = frozenset(("n_averaged", "input_resolution", "context_length", "vocab_size"))
_OPEN_CLIPS_KEY = "state_dict"
_MOST_NAMES = 3  # in a message


def read_state_dict(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Read the tensors of a checkpoint by name, without executing anything from it.

    The names are those of the model: wrappers' prefixes are removed. Logs what was removed,
    omitted, or chosen among several. Raises `ModelError` for a file without a state dict, or with
    several, none of them called `state_dict`.
    """
    name, state = _only_state_dict(checkpoint, _load(checkpoint))
    tensors: dict[str, torch.Tensor] = {}
    prefixes: dict[str, None] = {}
    for wrapped, tensor in state.items():
        key = wrapped
        while (prefix := _WRAPPER.search(key)) is not None:
            prefixes.setdefault(prefix[0])
            key = key[: prefix.start()] + key[prefix.end() :]
        if key in tensors:
            raise ModelError(
                f"{checkpoint} has {key} twice, with and without the prefix of a wrapper: save one "
                "of the two models to a file of its own"
            )
        if isinstance(tensor, torch.Tensor) and key not in _BESIDE:
            tensors[key] = tensor
    if prefixes:
        logger.warning("%s: took %s off the names of its tensors", checkpoint, ", ".join(prefixes))
    if len(tensors) < len(state):
        count = len(state) - len(tensors)
        logger.warning("%s: left %d entries out that are not weights", checkpoint, count)
    if name not in ("", _OPEN_CLIPS_KEY):
        logger.warning("%s: took the tensors of %r", checkpoint, name)
    return tensors


def write_tensors(module: nn.Module, path: Path) -> None:
    """Write the parameters and buffers of a module as a safetensors file, whole or not at all."""
    from safetensors.torch import save_file

    state = {name: value.detach().cpu().clone() for name, value in module.state_dict().items()}
    with published(UPath(path)) as aside:
        save_file(state, aside)
        aside.chmod(0o644)  # it is readable only by its owner


def check_finite(tensors: Mapping[str, torch.Tensor], owner: object) -> None:
    """Raise `ModelError`, with names, if tensors of `owner` have numbers that are not finite."""
    broken = [
        name
        for name, tensor in tensors.items()
        if tensor.is_floating_point() and not _is_finite(tensor)
    ]
    if broken:
        raise ModelError(
            f"{owner} holds numbers that are not finite, in {some(broken)}: take a checkpoint "
            "from before its training diverged"
        )


def finite_embeddings(embeddings: torch.Tensor, what: str) -> torch.Tensor:
    """Return the (N, d) embeddings; raise `ModelError` if they have numbers that are not finite."""
    if not _is_finite(embeddings):
        raise ModelError(f"the model's embeddings of {what} are not finite; try --precision fp32")
    return embeddings


def _is_finite(tensor: torch.Tensor) -> bool:
    # Minimum and maximum reveal any NaN or infinity, faster than a mask; torch has none of 8 bits.
    seen = torch.stack(tensor.aminmax()) if tensor.numel() and tensor.itemsize > 1 else tensor
    return bool(seen.isfinite().all())


def why(error: BaseException) -> str:
    """Return on one line why a model cannot be loaded, from the error.

    torch advises reading pickles with `weights_only=False`, which runs their code.
    """
    text = str(error).strip()
    if "TorchScript" in text:
        return "it is a TorchScript archive, which is code: save its state_dict() to a file"
    if isinstance(error, pickle.UnpicklingError):
        return "the file does not hold tensors alone, and nothing else is read"
    if text.startswith("Error(s) in loading state_dict"):
        return "; ".join(_misfits(text))
    lines = text.splitlines() or [type(error).__name__]
    return textwrap.shorten(lines[0].strip(), 300, placeholder=" ...")


def some(names: Sequence[str]) -> str:
    """Return the first few of several names, and the number of the others."""
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def _load(checkpoint: Path) -> Any:
    try:
        if checkpoint.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(checkpoint)
        return torch.load(checkpoint, map_location="cpu", weights_only=True)
    except Exception as error:  # the formats' readers have their own exception families
        raise ModelError(f"{checkpoint} is not a readable checkpoint: {why(error)}") from error


def _only_state_dict(checkpoint: Path, values: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the only state dict of a checkpoint, with its key."""
    states = dict(_state_dicts(values))
    name = _OPEN_CLIPS_KEY if _OPEN_CLIPS_KEY in states else next(iter(states), None)
    if name is None:
        raise ModelError(f"{checkpoint} holds no state dict: no named tensors of weights")
    others = [other for other in states if other != name]
    if others and name not in ("", _OPEN_CLIPS_KEY):
        raise ModelError(
            f"{checkpoint} holds several state dicts, {some(list(states))}: save one of them to a "
            "file of its own"
        )
    if others:
        logger.warning("%s: the state dicts %s are not read", checkpoint, some(others))
    return name, states[name]


def _state_dicts(values: Any, name: str = "", depth: int = 3) -> Iterator[tuple[str, Any]]:
    """Return mappings of names to weights in a checkpoint, by their dotted keys."""
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        return
    if any(_is_weight(value) for value in values.values()):
        yield name, values
    elif depth:
        for key, inner in values.items():
            if not key.startswith("optim"):  # moments have the names of their parameters
                yield from _state_dicts(inner, f"{name}.{key}".lstrip("."), depth - 1)


def _is_weight(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim > 0


def _misfits(text: str) -> Iterator[str]:
    """Return the tensors that prevent loading a state dict, from torch's message."""
    for start, what in (
        ("Missing key(s)", "the file lacks"),
        ("Unexpected key(s)", "the architecture lacks"),
    ):
        for line in text.splitlines():
            if line.strip().startswith(start):
                names: list[str] = re.findall(r'"([^"]+)"', line)
                yield f"{what} {some(names)}"
    sizes = re.findall(r"size mismatch for (\S+): .*?\[([\d, ]*)\].*?\[([\d, ]*)\]", text)
    if sizes:
        name, saved, built = sizes[0]
        more = f", and {len(sizes) - 1:,} more sizes differ" if len(sizes) > 1 else ""
        yield f"{name} is ({saved}) in the file, ({built}) in the architecture{more}"
