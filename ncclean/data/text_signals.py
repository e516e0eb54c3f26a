r"""Compute signals of a caption that need no model: `score --signals text`.

A word is a run of letters, marks and digits, in lower case, with all numbers alike. Boilerplate is
text shared by the captions of this corpus, in any language: repeated whole captions, and phrases at
their beginning or end ("stock photo", "click to enlarge") that hardly occur elsewhere and whose
removal leaves a plausible caption. ALIGN (Jia et al. 2021) drops texts that more than ten images
share; Conceptual Captions (Sharma et al. 2018) cuts such phrases off, by a list.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import duckdb
import pyarrow as pa

TYPES: Mapping[str, pa.DataType] = {
    "text_words": pa.int32(),
    "text_digits": pa.float32(),
    "text_repetition": pa.float32(),
    "text_url": pa.bool_(),
    "text_file_name": pa.bool_(),
    "text_boilerplate": pa.string(),
}
VERSION = "1"
CAPTIONS = 40_000  # to learn boilerplate from
_LONGEST = 2_000  # characters of a caption that count
_FEWEST = 10  # captions that share a text
_LENGTHS = range(2, 7)  # words and signs of a phrase
# A phrase must begin or end this share of the captions with its rarest word, and the rests without
# it must be ends of captions about as often as in other captions.
_TIED, _SEPARABLE = 0.9, 0.6
Phrase = tuple[str, ...]

_SIGNS = "|:–—•»"

_TEXT = f"left(text, {_LONGEST})"
_TOKENS = (
    rf"regexp_extract_all(regexp_replace(replace(lower({_TEXT}), ' - ', ' | '), '\pN+', '0', 'g'), "
    rf"'[\pL\pM\pN]+|[{_SIGNS}]')"
)
_URL = (
    r"(?i)\b(https?://|www\.)\S|\b[a-z0-9-]+\.(com|net|org|edu|gov|info|biz|io|co|de|fr|uk|ru|cn|jp)"
    r"(/|\b[^.\w]|$)"
)
_FILE_NAME = (
    r"(?i)\S\.(jpe?g|png|gif|webp|bmp|tiff?|hei[cf]|svg|avif|psd|raw|cr2|nef|arw|mp4|mov|pdf)\b"
    r"|(^|[^\pL\pN])(_?img|dsc[fn]?|_?mg|p|pict?|mvi|gopr|pxl|cimg|sam|imag|dji|hpim|kif|vid"
    r"|screen ?shot ?|photo|image|scan|untitled)[-_]?[0-9]{3,}(\b|_)"
    r"|(^|[^\pL\pN])[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}([^\pL\pN]|$)"
)
# All texts of a caption that may be boilerplate, in the form of `learn_boilerplate`.
_CANDIDATES = f"""[array_to_string(tokens, ' ')]
    || ['… ' || array_to_string(tokens[-n:], ' ') FOR n IN {_LENGTHS} IF n < len(tokens)]
    || [array_to_string(tokens[:n], ' ') || ' …' FOR n IN {_LENGTHS} IF n < len(tokens)]"""
_QUERY = rf"""
SELECT len(words), length(regexp_replace(text, '[^\pN]', '', 'g')) /
        greatest(length(regexp_replace(text, '[^\pL\pN]', '', 'g')), 1),
    CASE WHEN len(two) = 0 THEN 0 ELSE 1 - len(list_distinct(two)) / len(two) END,
    regexp_matches(text, $url), regexp_matches(text, $file_name),
    CASE WHEN text IS NOT NULL
    THEN list_filter({_CANDIDATES}, lambda one: list_contains($boilerplate::VARCHAR[], one))[1] END
FROM (SELECT *, [words[n] || ' ' || words[n + 1] FOR n IN range(1, len(words))] AS two
    FROM (SELECT number, {_TEXT} AS text, {_TOKENS} AS tokens,
        [word FOR word IN tokens IF NOT contains('{_SIGNS}', word)] AS words FROM captions))
ORDER BY number"""


class TextSignals:
    """Computes the text signals of captions, the columns of `TYPES`.

    `boilerplate` are texts of `learn_boilerplate`.
    """

    def __init__(self, boilerplate: Sequence[str]) -> None:
        self._parameters = {
            "url": _URL, "file_name": _FILE_NAME, "boilerplate": list(boilerplate)
        }  # fmt: skip

    def __call__(self, captions: Sequence[str | None]) -> dict[str, pa.Array]:
        """(n,) columns, null where there is no caption."""
        columns = _queried(_QUERY, captions, self._parameters).columns
        typed = zip(TYPES.items(), columns, strict=True)
        return {name: column.combine_chunks().cast(kind) for (name, kind), column in typed}


def learn_boilerplate(captions: Iterable[str]) -> list[str]:
    """Learn the boilerplate of a corpus from its first `CAPTIONS` captions, most frequent first.

    A whole caption is given in words; `… stock photo` is an end of captions, and `image of …` a
    beginning. Among phrases with the same end or beginning, the shortest counts.
    """
    texts = list(itertools.islice(captions, CAPTIONS))
    rows = _queried(f"SELECT {_TOKENS} FROM captions ORDER BY number", texts, {})
    tokens = [row for row in rows.column(0).to_pylist() if row]
    frequent = Counter({t: n for t, n in Counter(map(" ".join, tokens)).items() if n >= _FEWEST})
    tokens = [row for row in tokens if " ".join(row) not in frequent]
    backwards = [row[::-1] for row in tokens]
    words = Counter(itertools.chain.from_iterable(map(set, tokens)))
    ends, beginnings = (Counter(itertools.chain(*map(_ends, rows))) for rows in (tokens, backwards))
    for phrase in _boilerplate(tokens, _tied(ends, beginnings, words), words):
        frequent[f"… {' '.join(phrase)}"] = ends[phrase]
    for phrase in _boilerplate(backwards, _tied(beginnings, ends, words), words):
        frequent[f"{' '.join(phrase[::-1])} …"] = beginnings[phrase]
    return [text for text, _ in frequent.most_common()]


def _ends(caption: Sequence[str]) -> Iterator[Phrase]:
    """Yield the phrases that end a caption but are not all of it, the shortest first."""
    return (tuple(caption[-n:]) for n in _LENGTHS if n < len(caption))


def _tied(ends: Counter[Phrase], others: Counter[Phrase], words: Counter[str]) -> set[Phrase]:
    """Return frequent phrases whose rarest word hardly occurs elsewhere than at either end.

    `words` counts the captions with a word; `others` counts phrases, backwards, at the other end.
    """
    return {
        phrase
        for phrase, count in ends.items()
        if count >= _FEWEST
        and count + others[phrase[::-1]] >= _TIED * min(words[word] for word in phrase)
    }


def _boilerplate(
    captions: Sequence[Sequence[str]], tied: set[Phrase], words: Counter[str]
) -> Iterator[Phrase]:
    """Yield the tied phrases whose removal leaves a plausible caption, shortest first."""
    before: defaultdict[Phrase, Counter[str]] = defaultdict(Counter)
    last: Counter[str] = Counter()  # words that end captions, or their rests
    for caption in captions:
        word = caption[-1]
        for phrase in filter(tied.__contains__, _ends(caption)):
            rest = reversed(caption[: -len(phrase)])
            word = next((token for token in rest if token not in _SIGNS), "")
            before[phrase][word] += 1
        last[word] += 1
    share = {word: last[word] / max(words[word], 1) for word in last}
    usual = sum(n * share[word] for word, n in last.items()) / max(len(captions), 1)
    chosen: set[Phrase] = set()
    for phrase in sorted(tied, key=lambda phrase: (len(phrase), phrase)):
        is_longer = any(phrase[n:] in chosen for n in range(1, len(phrase)))
        # After one single word, it is part of a longer phrase.
        is_part = max(before[phrase].values()) >= _TIED * before[phrase].total()
        fit = sum(n * share.get(word, 0) for word, n in before[phrase].items())
        if not is_longer and not is_part and fit >= _SEPARABLE * usual * before[phrase].total():
            chosen.add(phrase)
            yield phrase


def _queried(
    query: str, captions: Sequence[str | None], parameters: Mapping[str, object]
) -> pa.Table:
    """Query the table `captions`, with the columns `number` and `text`."""
    with duckdb.connect(config={"threads": 1}) as connection:
        numbers = pa.array(range(len(captions)), pa.int64())
        table = pa.table({"number": numbers, "text": pa.array(captions, pa.string())})
        connection.register("captions", table)
        return connection.sql(query, params=dict(parameters)).to_arrow_table()
