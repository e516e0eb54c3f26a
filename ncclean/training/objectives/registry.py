"""The objectives by name, as the trainer takes them."""

from __future__ import annotations

from ncclean.errors import InputError
from ncclean.training.objectives import baselines, bayes, clip, decl, disncl, ncu, osa, siglip
from ncclean.training.objectives.base import Objective, Tokenizer
from ncclean.training.objectives.options import METHODS, ObjectiveOptions

_FACTORIES = {
    "clip": clip.make,
    "osa": osa.make,
    "ncu": ncu.make,
    "bayes": bayes.make,
    "disncl": disncl.make,
    "gradient_ascent": baselines.make_gradient_ascent,
    "softclip": baselines.make_softclip,
    "cyclip": baselines.make_cyclip,
    "rince": baselines.make_rince,
    "decl": decl.make,
    "siglip": siglip.make,
}


def make_objective(
    name: str, options: ObjectiveOptions | None = None, tokenizer: Tokenizer | None = None
) -> Objective:
    """Create a training objective by name. Raises `InputError` for an unknown one."""
    if name not in _FACTORIES:
        raise InputError(f"--method takes {', '.join(METHODS)}, got {name!r}")
    return _FACTORIES[name](options or ObjectiveOptions(), tokenizer)
