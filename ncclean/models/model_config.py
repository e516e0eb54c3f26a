"""Check a model's configuration: sizes and choices of an architecture pass, never code.

A configuration comes with the weights, so it may be anyone's. open_clip passes on parts of it as
keyword arguments, of which Hugging Face's `trust_remote_code` runs a Python file of the model's
folder, and it treats some names as places to load more from.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ncclean.base.text_files import parse_json, read_text
from ncclean.errors import InputError, ModelError

CONFIG_NAME = "open_clip_config.json"
CONFIG_KEYS = ("embed_dim", "vision_cfg", "text_cfg")
_LARGEST = 1 << 20  # bytes of a configuration
# Fields in configurations of open_clip 3 and 4. A new name is added when its use is known.
_TOP = frozenset((
    "embed_dim", "vision_cfg", "text_cfg", "multimodal_cfg", "custom_text", "quick_gelu",
    "init_logit_scale", "init_logit_bias", "nonscalar_logit_scale", "output_dict",
))  # fmt: skip
_TOWER = frozenset((
    "layers", "width", "mlp_ratio", "ls_init_value", "final_ln_after_pool", "pool_type",
    "output_tokens", "act_kwargs", "norm_kwargs", "block_type", "qk_norm", "scaled_cosine_attn",
    "scale_heads", "scale_attn_inner", "scale_attn", "scale_fc",
))  # fmt: skip
_VISION = _TOWER.union((
    "head_width", "patch_size", "image_size", "patch_dropout", "attentional_pool",
    "attn_pooler_queries", "attn_pooler_heads", "no_ln_pre", "pos_embed_type", "timm_model_name",
    "timm_model_pretrained", "timm_pool", "timm_proj", "timm_proj_bias", "timm_drop",
    "timm_drop_path", "timm_model_kwargs", "image_seq_len",
))  # fmt: skip
_TEXT = _TOWER.union((
    "context_length", "vocab_size", "heads", "embed_cls", "pad_id", "eos_id", "no_causal_mask",
    "proj_bias", "proj_type", "hf_model_name", "hf_model_pretrained", "hf_proj_type",
    "hf_pooler_type", "hf_model_config", "hf_tokenizer_name", "tokenizer_mode", "tokenizer_kwargs",
    "tokenizer_type", "tiktoken_name", "text_arch", "variable_text", "bos_id", "attention_mode",
    "pos_embed", "rope_temperature", "mlp_type", "norm_type", "norm_eps", "norm_placement",
    "attn_gated", "pre_norm", "zero_init_residual", "reg_tokens", "value_residual",
    "attention_bias", "mlp_bias", "gate_bias",
))  # fmt: skip
_MULTIMODAL = _TEXT.union(("dim_head", "n_queries", "attn_pooler_heads"))
_PREPROCESSING = frozenset((
    "size", "mode", "mean", "std", "interpolation", "resize_mode", "fill_color",
))  # fmt: skip
_KEYWORDS = {
    "act_kwargs": frozenset(("approximate",)),
    "norm_kwargs": frozenset(("eps", "elementwise_affine", "bias")),
    "tokenizer_kwargs": frozenset(("clean", "strip_sep_token", "language", "reduction_mask")),
    "timm_model_kwargs": frozenset((
        "attn_pool_mlp_ratio", "depth", "embed_dim", "mlp_ratio", "num_heads", "patch_size",
        "pos_embed_grid_size", "swiglu_mlp",
    )),
    "hf_model_config": frozenset((
        "attention_probs_dropout_prob", "hidden_dropout_prob", "max_position_embeddings",
    )),
}  # fmt: skip
# Features of open_clip 4 models without embeddings of images and captions to compare.
_OTHER_KINDS = {
    "audio_cfg": "reads sound instead of images",
    "audio_naflex_cfg": "reads sound instead of images",
    "genlap_cfg": "writes captions of sound",
    "genlip_cfg": "writes captions and has no embeddings of them",
}
# A timm model by its name only, not `hf-hub:...`; a model of Hugging Face's hub, not a folder.
_NAMES = {
    "timm_model_name": re.compile(r"\w[\w.-]*"),
    "hf_model_name": re.compile(r"\w[\w.-]*(/\w[\w.-]*)?"),
    "hf_tokenizer_name": re.compile(r"\w[\w.-]*(/\w[\w.-]*)?"),
    "tiktoken_name": re.compile(r"\w+"),
}
_LARGEST_SIDE = 4096  # pixels
_MOST_LAYERS = 1000


class ModelConfig(NamedTuple):
    """The architecture of a model, as open_clip's `model_cfg`, and its stated preprocessing."""

    architecture: dict[str, Any]
    preprocessing: dict[str, Any]


def check_config(name: str, preprocessing: Mapping[str, Any] | None = None) -> ModelConfig:
    """Read a model's configuration and check that it states sizes and choices only.

    `preprocessing` is what it states, if open_clip does not keep it. A model without its own
    weights is checked alike. Raises `ModelError` for anything else, for a model that compares no
    images with captions, and for features missing from the installed open_clip.
    """
    import open_clip

    path = config_file(name)
    if path is None:
        described, where = {"model_cfg": open_clip.get_model_config(name)}, name
    else:
        described, where = read_config(path), str(path)
    config = described.get("model_cfg")
    preprocessing = described.get("preprocess_cfg") or preprocessing or {}
    if not isinstance(config, Mapping) or not config:
        raise ModelError(f"{where} describes no open_clip model: it has no model_cfg")
    for part, does in _OTHER_KINDS.items():
        if part in config:
            raise ModelError(f"{where} describes a model that {does}: it cannot score pairs")
    missing = [key for key in CONFIG_KEYS if key not in config]
    if missing:
        raise ModelError(f"{where} describes no open_clip model: it has no {missing[0]}")
    _check(where, "model_cfg", config, _TOP, ("vision_cfg", "text_cfg", "multimodal_cfg"))
    for part, names, kind in (
        ("vision_cfg", _VISION, open_clip.CLIPVisionCfg),
        ("text_cfg", _TEXT, open_clip.CLIPTextCfg),
        ("multimodal_cfg", _MULTIMODAL, None),
    ):
        if part in config:
            _check(where, part, config[part], names, tuple(_KEYWORDS))
            if kind is not None:
                _check_installed(where, part, config[part], kind)
    _check(where, "preprocess_cfg", preprocessing, _PREPROCESSING)
    return ModelConfig(dict(config), dict(preprocessing))


def text_tower_folder(name: str, config: Mapping[str, Any]) -> Path | None:
    """Return the folder, in a model's, of a Hugging Face text tower's own configuration, if any.

    It is named after the tower, so that `hf_model_name` names it here and on the hub.
    """
    schema, _, folder = name.partition(":")
    tower = config["text_cfg"].get("hf_model_name")
    if schema != "local-dir" or not tower:
        return None
    tower_folder = Path(folder, str(tower))
    return tower_folder if (tower_folder / "config.json").is_file() else None


def config_file(name: str) -> Path | None:
    """Return the configuration path of a `local-dir:` or `hf-hub:` model, None for others."""
    schema, _, address = name.partition(":")
    if schema == "local-dir":
        return Path(address) / CONFIG_NAME
    if schema == "hf-hub":
        import huggingface_hub

        return Path(huggingface_hub.hf_hub_download(address, CONFIG_NAME))
    return None


def read_config(path: Path) -> dict[str, Any]:
    """Read a model's configuration file. Raises `ModelError` if it is missing or not a mapping."""
    try:
        config = parse_json(read_text(path, _LARGEST), path)
    except InputError as error:
        raise ModelError(str(error)) from error
    if not isinstance(config, dict):
        raise ModelError(f"{path} describes no open_clip model: it is no JSON object")
    return config


def check_fits(name: str, weights: Path, **overrides: Any) -> None:
    """Raise `ModelError` for an architecture with more parameters than its weights have bytes.

    Otherwise it would be built in memory before the weights turned out not to fit. `overrides`
    replace parts of the configuration, as in open_clip.
    """
    import open_clip

    with torch.device("meta"):
        model = open_clip.create_model(
            name, load_weights=False, pretrained_text=False, device="meta", **overrides
        )
    parameters = sum(value.numel() for value in model.parameters())
    size = weights.stat().st_size
    if parameters > size:
        raise ModelError(
            f"{config_file(name) or name} describes {parameters:,} parameters, but {weights} has "
            f"only {size:,} bytes: they do not belong together"
        )


@contextlib.contextmanager
def without_remote_code() -> Iterator[None]:
    """Make transformers refuse a model with Python files, rather than ask on the terminal.

    It asks unless `trust_remote_code` is set; a time-out of 0 s is its own way to disable that.
    """
    try:
        from transformers import dynamic_module_utils
    except ImportError:
        yield
        return
    before = dynamic_module_utils.TIME_OUT_REMOTE_CODE
    dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0
    try:
        yield
    finally:
        dynamic_module_utils.TIME_OUT_REMOTE_CODE = before


def _check(
    where: str, part: str, values: Any, names: frozenset[str], mappings: tuple[str, ...] = ()
) -> None:
    if not isinstance(values, Mapping):
        raise ModelError(f"{where}: {part} must be an object, got {_short(values)}")
    for name, value in values.items():
        if name not in names:
            raise ModelError(
                f"{where}: {part} has {name}, which is not a setting of open_clip that ncclean "
                "knows. It is refused, as settings can load code: take it out if the model works "
                "without it"
            )
        if name in mappings:
            if name in _KEYWORDS and value is not None:
                _check(where, f"{part}.{name}", value, _KEYWORDS[name])
            continue
        several = value if isinstance(value, list) and len(value) <= 16 else [value]
        if not all(v is None or isinstance(v, str | int | float) for v in several):
            raise ModelError(f"{where}: {part}.{name} must be plain, got {_short(value)}")
        _check_value(where, f"{part}.{name}", name, several)


def _check_installed(where: str, part: str, values: Mapping[str, Any], kind: type) -> None:
    """Raise `ModelError` for a setting that needs a newer open_clip."""
    names = {field.name for field in dataclasses.fields(kind)}
    missing = [name for name in values if name not in names]
    if missing:
        raise ModelError(
            f"{where}: {part} has {missing[0]}, which the installed open_clip does not know: pip "
            "install -U open_clip_torch"
        )


def _check_value(where: str, what: str, name: str, values: list[Any]) -> None:
    for value in values:
        if isinstance(value, str) and name in _NAMES and not _NAMES[name].fullmatch(value):
            raise ModelError(
                f"{where}: {what} is {_short(value)}; only the plain name of a published model is "
                "taken, since a place to load from could bring code"
            )
        most = {"size": _LARGEST_SIDE, "image_size": _LARGEST_SIDE, "layers": _MOST_LAYERS}
        if isinstance(value, int | float) and value > most.get(name, float("inf")):
            raise ModelError(f"{where}: {what} is {value}, at most {most[name]:,} are taken")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
