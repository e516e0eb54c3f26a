"""Columns beside those of the scores: a user's functions, heads on embeddings, and signals.

All of them are values of the pairs that can be scored. One that cannot be computed is null and
counted; it costs neither the pair's scores nor the shard.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from ncclean import schema
from ncclean.columns import ColumnFunction, Declared, PairBatch, declared_columns
from ncclean.config import ScoreOptions
from ncclean.data import image_signals, languages
from ncclean.data.word_classes import WordClasses
from ncclean.errors import InputError
from ncclean.execution.word_checks import WordChecks
from ncclean.models.embedding_head import EmbeddingHead
from ncclean.scoring.stats import ColumnFailures

logger = logging.getLogger(__name__)

Values = dict[str, pa.Array]
_LONGEST_REASON = 300


@dataclass(frozen=True)
class _Function:
    """A function of `--columns`, by the name it was given."""

    name: str
    call: ColumnFunction
    declared: Declared

    def __call__(self, batch: PairBatch, failures: ColumnFailures) -> Values:
        """(n,) values of each column; pair by pair where the batch as a whole fails."""
        try:
            return self._values(batch)
        except Exception:
            logger.debug("%s failed on a batch", self.name, exc_info=True)
        rows = [self._of_one(batch.only(row), failures) for row in range(len(batch))]
        return {
            name: pa.concat_arrays([values[name] for values in rows])
            for name in self.declared.types
        }

    def _of_one(self, pair: PairBatch, failures: ColumnFailures) -> Values:
        try:
            return self._values(pair)
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            failures.add(self.name, reason[:_LONGEST_REASON])
            return {name: pa.nulls(1, kind) for name, kind in self.declared.types.items()}

    def _values(self, batch: PairBatch) -> Values:
        returned = self.call(batch)
        if not isinstance(returned, Mapping) or set(returned) != set(self.declared.types):
            names = ", ".join(self.declared.types)
            raise TypeError(f"it must return a mapping with values for {names}")
        values = {name: _array(returned[name], kind) for name, kind in self.declared.types.items()}
        for name, array in values.items():
            if len(array) != len(batch):
                raise ValueError(f"{name} has {len(array)} values for {len(batch)} pairs")
        return values


class FurtherColumns:
    """What `--columns`, `--head`, `--signals`, `--words` and `--canonical` add to a run's table.

    Travels to workers with everything that it needs. Raises `InputError` for what cannot be loaded,
    and for names that are taken.
    """

    def __init__(self, options: ScoreOptions) -> None:
        self._functions = [_load_function(name) for name in options.columns or ()]
        heads = [_load_head(text) for text in options.head or ()]
        self._heads = dict(heads)
        self._signals = tuple(options.signals or ())
        self._languages = languages.LanguageDetector() if "language" in self._signals else None
        self.words = _word_checks(options)
        self.types: dict[str, pa.DataType] = {}
        for function in self._functions:
            self._add(function.name, function.declared.types)
        for name, _ in heads:
            self._add("--head", {name: pa.float32()})
        if self.has_image_signals:
            self._add("--signals", image_signals.TYPES)
        if self._languages is not None:
            self._add("--signals", languages.TYPES)
        if self.words is not None:
            self._add("--words", schema.WORD_TYPES)
        if options.canonical:
            self._add("--canonical", {schema.CANONICAL.name: schema.CANONICAL.type})

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_languages": self._languages is not None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if state["_languages"]:  # fastText's model cannot be pickled
            self._languages = languages.LanguageDetector()
        else:
            self._languages = None

    @property
    def modules(self) -> list[Any]:
        """The modules of the functions."""
        return [sys.modules[function.call.__module__] for function in self._functions]

    @property
    def has_functions(self) -> bool:
        return bool(self._functions)

    @property
    def has_image_signals(self) -> bool:
        return "image" in self._signals

    @property
    def fields(self) -> list[pa.Field]:
        """The columns in their order."""
        return [pa.field(name, kind) for name, kind in self.types.items()]

    def identity(self) -> dict[str, Any]:
        """What the values depend on, by the name of the option; None for one that is not given."""
        signals = {"image": image_signals.VERSION}
        if self._languages is not None:
            signals["language"] = self._languages.version
        return {
            "columns": [f"{one.name} {one.declared.version}" for one in self._functions] or None,
            "head": [f"{name}={head.fingerprint}" for name, head in self._heads.items()] or None,
            "signals": [f"{name} {signals[name]}" for name in sorted(self._signals)] or None,
            "words": self.words.version if self.words is not None else None,
            "words_per_caption": self.words.per_caption if self.words is not None else None,
            "word_classes": None,  # `words` is the version of the list
        }

    def check_dim(self, dim: int) -> None:
        """Raise `InputError` if a head is for embeddings of another width."""
        for name, head in self._heads.items():
            if head.dim != dim:
                raise InputError(
                    f"--head {name} takes {head.dim} dimensions, the embeddings have {dim}: it "
                    "was made for another model"
                )

    def of_batch(self, batch: PairBatch, failures: ColumnFailures) -> Values:
        """The columns of the functions."""
        values: Values = {}
        for function in self._functions:
            values |= function(batch, failures)
        return values

    def of_pairs(
        self,
        image: torch.Tensor,
        captions: Sequence[str | None],
        signals: Sequence[Mapping[str, Any] | None] | None,
    ) -> Values:
        """The columns of heads and signals, of (m, d) embeddings, captions and image signals."""
        values = {name: _array(head(image), pa.float32()) for name, head in self._heads.items()}
        if self.has_image_signals and signals is not None:
            for name, kind in image_signals.TYPES.items():
                measurements = [None if one is None else one[name] for one in signals]
                values[name] = pa.array(measurements, kind)
        if self._languages is not None:
            for name, column in self._languages(captions).items():
                values[name] = pa.array(column, languages.TYPES[name])
        return values

    def _add(self, source: str, types: Mapping[str, pa.DataType]) -> None:
        for name, kind in types.items():
            if name.lower() in schema.SCORES.names or name in self.types:
                raise InputError(f"{source}: the table has a column {name} already")
            self.types[name] = kind


@dataclass
class BatchColumns:
    """The columns of functions, batch after batch, of pairs in any order."""

    further: FurtherColumns
    failures: ColumnFailures = field(default_factory=ColumnFailures)
    _places: list[np.ndarray] = field(default_factory=list)
    _values: list[Values] = field(default_factory=list)

    def add(self, places: Sequence[int], batch: PairBatch) -> None:
        """Compute those of a batch; `places` are numbers by which the pairs are put in order."""
        if self.further.has_functions and len(batch):
            self._places.append(np.asarray(places, dtype=np.int64))
            self._values.append(self.further.of_batch(batch, self.failures))

    def in_order(self) -> Values:
        """The columns of all pairs so far, by their places."""
        if not self._values:
            return {}
        order = pa.array(np.argsort(np.concatenate(self._places), kind="stable"))
        return {
            name: pa.concat_arrays([values[name] for values in self._values]).take(order)
            for name in self._values[0]
        }


def batches(count: int, size: int) -> Iterator[slice]:
    """Slices of `size` that cover `count`."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _word_checks(options: ScoreOptions) -> WordChecks | None:
    if not options.words:
        return None
    path = options.word_classes
    classes = WordClasses.bundled() if path is None else WordClasses.load(path)
    return WordChecks(classes, options.words_per_caption, options.seed)


def _load_head(text: str) -> tuple[str, EmbeddingHead]:
    name, equals, path = text.partition("=")
    if not (equals and name.isidentifier() and path):
        raise InputError(f"--head takes NAME=FILE.safetensors, got {text}")
    return name, EmbeddingHead.load(path)


def _load_function(name: str) -> _Function:
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise InputError(f"--columns takes package.module:function, got {name}")
    call: Callable[[PairBatch], Any]
    try:
        call = getattr(_imported(module), attribute)
    except AttributeError as error:
        raise InputError(f"--columns {name}: {module} has no {attribute}") from error
    except Exception as error:  # a module may raise anything when it is imported
        raise InputError(f"--columns {name}: {type(error).__name__}: {error}") from error
    declared = declared_columns(call)
    if declared is None or not declared.types:
        raise InputError(
            f"--columns {name}: it does not declare its columns; put "
            "`@ncclean.columns.columns(name=pyarrow.float32())` above the function"
        )
    return _Function(name, call, declared)


def _imported(module: str) -> Any:
    """The module; the working folder counts, as it does for `python -m`."""
    here = os.getcwd()
    if here in sys.path or "" in sys.path:
        return importlib.import_module(module)
    sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    finally:
        sys.path.remove(here)


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    """Values of any sort as an Arrow array of a type. Raises what Arrow raises where none fits."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        return values.cast(kind)
    return pa.array(values, kind)
