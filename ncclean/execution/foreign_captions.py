"""Find captions in languages that the model may not know: they look wrong but may be right."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ncclean.base import stores
from ncclean.data.languages import ENGLISH, shared_detector
from ncclean.data.samples import SkipReason
from ncclean.errors import InputError
from ncclean.scoring.vague_rate import ForeignLanguage
from ncclean.storage.tables import table_files

_CAPTIONS = 2_000  # in the sample
_PIECES, _ROWS = 32, 1_000  # row groups to sample, and rows read of each
_CONFIDENT = 0.6  # the detector is seldom wrong above this probability
_FEWEST, _LEAST_SHARE = 20, 0.05  # captions of a language
# Captions must look wrong this much more often; or this often if none are in English.
_MORE, _USUAL = 0.2, 0.3


def foreign_languages(table: str) -> list[ForeignLanguage]:
    """Return languages whose captions look wrong more often than English ones, frequent first.

    Returns none without a language detector, or if the table lacks captions and noise
    probabilities.
    """
    try:
        detector = shared_detector()
    except InputError:  # it is an extra
        return []
    texts, wrong = _sample(table)
    detected = detector(texts)
    score = np.array(detected["language_score"], dtype=float)
    language = np.where(score >= _CONFIDENT, np.array(detected["language"], dtype=object), "")
    is_english = language == ENGLISH
    english = float(wrong[is_english].mean()) if is_english.sum() >= _FEWEST else None
    fewest = max(_FEWEST, _LEAST_SHARE * len(texts))
    names, counts = np.unique(language.astype(str), return_counts=True)
    foreign = [
        ForeignLanguage(name, count / len(texts), float(wrong[language == name].mean()), english)
        for name, count in zip(names.tolist(), counts.tolist(), strict=True)
        if name not in ("", ENGLISH) and count >= fewest
    ]
    least = (_USUAL if english is None else english) + _MORE
    return sorted((one for one in foreign if one.wrong >= least), key=lambda one: -one.share)


def _sample(table: str) -> tuple[list[str], np.ndarray]:
    """Sample captions of scored pairs from all over a table, with their noise probabilities."""
    pieces = pa.concat_tables(_pieces(table), promote_options="default")
    pieces = pieces.take(
        np.linspace(0, max(len(pieces) - 1, 0), min(len(pieces), _CAPTIONS), dtype=int)
    )
    return pieces.column("text").to_pylist(), np.asarray(pieces.column("noise_probability"))


def _pieces(table: str) -> Iterator[pa.Table]:
    wanted = ["status", "text", "noise_probability"]
    yield pa.table(
        {"text": pa.array([], pa.string()), "noise_probability": pa.array([], pa.float32())}
    )
    files = table_files([table])
    for number in np.unique(np.linspace(0, len(files) - 1, _PIECES, dtype=int)):
        with stores.open_parquet(stores.location(files[number])) as file:
            if not {*wanted} <= {*file.schema_arrow.names}:
                return
            most = max(_PIECES // len(files), 1)
            groups = np.unique(np.linspace(0, file.num_row_groups - 1, most, dtype=int))
            for group in groups.tolist():
                batch = next(file.iter_batches(_ROWS, row_groups=[group], columns=wanted), None)
                if batch is not None:
                    rows = pa.Table.from_batches([batch]).drop_null()
                    ok = pc.equal(rows.column("status"), SkipReason.OK.value)
                    yield rows.filter(ok).select(wanted[1:])
