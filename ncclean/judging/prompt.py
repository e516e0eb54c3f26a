"""Prompts: files that say what a judge is asked, identified by their hash."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from ncclean.auditing.answers import ANSWERS
from ncclean.base.text_files import load_yaml, read_text
from ncclean.errors import InputError

PACKAGED = ("match", "words")
PLACEHOLDER = "{caption}"
LONGEST_CAPTION = 20_000  # characters


@dataclass(frozen=True)
class Prompt:
    """A prompt: `system` is the instruction; `user`, with the caption, goes with the image."""

    name: str
    hash: str
    system: str
    user: str
    asks_words: bool

    @classmethod
    def load(cls, name: str) -> Prompt:
        """Load a packaged prompt by name, or a YAML file. Raises `InputError` for another file."""
        if name in PACKAGED:
            file = resources.files("ncclean.judging").joinpath(f"prompts/{name}.yaml")
            text = file.read_text("utf-8")
        else:
            text = read_text(name)
        fields = _fields(text, name)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        called = name if name in PACKAGED else name.rsplit("/", 1)[-1]
        return cls(called, digest, fields["system"], fields["user"], fields.get("words", False))

    def messages(self, picture: str, caption: str) -> list[dict[str, Any]]:
        """The messages of one request; `picture` is a data URL.

        The caption is one JSON string in a separate part. `<` and `[` are escaped, so that no
        caption contains the marks that chat templates put around messages and images.
        """
        quoted = json.dumps(caption, ensure_ascii=False)
        quoted = quoted.replace("<", "\\u003c").replace("[", "\\u005b")
        return [
            {"role": "system", "content": self.system},
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": picture}},
                    {"type": "text", "text": self.user.replace(PLACEHOLDER, quoted)},
                ],
            },
        ]

    def schema(self) -> dict[str, Any]:
        """The JSON schema of an answer."""
        properties: dict[str, Any] = {"answer": {"type": "string", "enum": list(ANSWERS)}}
        if self.asks_words:
            words = {"type": "array", "items": {"type": "string"}}
            properties = {"words": words, **properties}  # reasons first, then the verdict
        return {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }


def _fields(text: str, name: str) -> dict[str, Any]:
    """Parse and check the fields of a prompt file."""
    fields = load_yaml(text, name)
    kinds = {"system": str, "user": str, "words": bool}
    if not isinstance(fields, dict):
        raise InputError(
            f"{name} is not a prompt: it needs `system`, the instruction, and `user`, the text "
            f"with {PLACEHOLDER} in it. Packaged prompts: {', '.join(PACKAGED)}"
        )
    for field, value in fields.items():
        if field not in kinds:
            raise InputError(f"{name}: a prompt has no field {field!r}, only {', '.join(kinds)}")
        if not isinstance(value, kinds[field]):
            kind = "text" if kinds[field] is str else "true or false"
            raise InputError(f"{name}: {field} must be {kind}")
    for field in ("system", "user"):
        if not fields.get(field, "").strip():
            raise InputError(f"{name}: a prompt needs `{field}`")
    if fields["user"].count(PLACEHOLDER) != 1:
        raise InputError(f"{name}: `user` must contain {PLACEHOLDER}, the caption's place, once")
    if PLACEHOLDER in fields["system"]:
        raise InputError(
            f"{name}: {PLACEHOLDER} belongs in `user`: a caption is data, and `system` instructs"
        )
    return fields
