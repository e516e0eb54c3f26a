r"""The kinds of groups: SQL for a pair's value, and the condition that selects a value.

A token is the longest run of letters, marks and digits, in lower case; a phrase is two consecutive
tokens, whatever is between them. Tokens never contain regular expression syntax, so conditions use
them unescaped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ncclean.base.formats import threshold_text
from ncclean.storage.quoting import identifier, quoted

# What a group consists of: its captions, its images, or both. It decides which evidence counts.
TEXT, IMAGE, PAIR = "text", "image", "pair"
_TOKEN = r"\pL\pM\pN"
TOKENS = f"regexp_extract_all(lower(text), '[{_TOKEN}]+')"
_HOST = r"lower(regexp_extract(url, '^[^:/?#]+://(?:[^/?#@]*@)?([^/?#:]+)', 1))"
_FOLDER = r"regexp_extract(url, '^[^:/?#]+://[^/?#]*/([^/?#]+)/', 1)"
_ENDING = r"lower(regexp_extract(url, '\.([A-Za-z0-9]{2,5})(?:[?#]|$)', 1))"
_LONGEST = 80  # characters of a shape
# Runs of letters of one case become one letter, and numbers one digit; runs of lower-case words
# count once.
SHAPE = (
    r"left(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace("
    r"text, '\pN+', '0', 'g'), '\p{Lu}[\p{Ll}\pM]+', 'Xx', 'g'), '\p{Lu}+', 'X', 'g'), "
    r"'[\p{Ll}\p{Lo}\p{Lm}\pM]+', 'x', 'g'), 'x([ ]+x\b)+', 'x…', 'g'), "
    f"{_LONGEST})"
)
# Longer captions have more possibly wrong tokens, shorter ones lower cosines.
LENGTHS = ((0, 2), (3, 4), (5, 7), (8, 12), (13, 20), (21, 40), (41, None))
LENGTH = "length of the caption"
# Signs of `score --signals text`: a caption with one rarely describes an image. None of Flickr8k's
# 39,995 captions repeats more than three in ten pairs of words.
TEXT_SIGNS = {
    "a URL": ("text_url", "text_url"),
    "a file name": ("text_file_name", "text_file_name"),
    "words that repeat": ("text_repetition", "text_repetition > 0.4"),
    "mostly digits": ("text_digits", "text_digits >= 0.5"),
}
EXCHANGED = "exchanged words"


@dataclass(frozen=True)
class Kind:
    """A way to group pairs, such as by shard, host or word; each of its values is a group.

    `value` is SQL over the columns of the pairs for the value of a pair, a list if `several`.
    `columns` are the columns needed. `condition` returns the SQL over the score table that selects
    a value, `label` the value's description for people. `made_of` tells whether groups are selected
    by image, text or pair; `is_by` marks a kind of `--by`. If two kinds give the same pairs, the
    first is preferred.
    """

    name: str
    made_of: str
    value: str
    columns: tuple[str, ...]
    condition: Callable[[str], str]
    label: Callable[[str], str] = str
    several: bool = False
    is_by: bool = False


def _equals(expression: str) -> Callable[[str], str]:
    return lambda value: f"{expression} = {quoted(value)}"


def word_condition(word: str) -> str:
    """Return SQL that is true for captions with a word, or a phrase of words with blanks between.

    >>> word_condition("red")
    "regexp_matches(lower(text), '(^|[^\\\\pL\\\\pM\\\\pN])red([^\\\\pL\\\\pM\\\\pN]|$)')"
    """
    other = f"[^{_TOKEN}]"
    pattern = f"(^|{other}){f'{other}+'.join(word.split(' '))}({other}|$)"
    return f"regexp_matches(lower(text), {quoted(pattern)})"


def _signs() -> str:
    """Return SQL for the names of the signs that a caption has."""
    signs = ", ".join(f"CASE WHEN {sql} THEN '{name}' END" for name, (_, sql) in TEXT_SIGNS.items())
    return f"list_filter([{signs}], lambda name: name IS NOT NULL)"


def _length_condition(value: str) -> str:
    low, high = LENGTHS[int(value)]
    return f"len({TOKENS}) " + (f">= {low}" if high is None else f"BETWEEN {low} AND {high}")


def _length_label(value: str) -> str:
    low, high = LENGTHS[int(value)]
    if high is None:
        return f"{low} or more words"
    return f"{low} to {high} words" if low else f"at most {high} words"


def _size_condition(value: str) -> str:
    width, height = value.split(" x ")
    return f"width = {int(width)} AND height = {int(height)}"


def length_class(count: str) -> str:
    """Return SQL for the class of a caption's length, from 0 to `len(LENGTHS)` - 1.

    `count` is SQL for its number of tokens; null is in class 0.
    """
    cases = "".join(
        f"WHEN {count} <= {high} THEN {number} "
        for number, (_, high) in enumerate(LENGTHS)
        if high is not None
    )
    return f"(CASE WHEN {count} IS NULL THEN 0 {cases}ELSE {len(LENGTHS) - 1} END)"


_PHRASES = (
    "list_distinct(list_transform(range(1, len(tokens)), "
    "lambda place: tokens[place] || ' ' || tokens[place + 1]))"
)


# Columns of the pairs besides those of the table, each computed once, as regular expressions take
# most of the time.
DERIVED = {
    "tokens": ("text", TOKENS),
    "shape": ("text", f"nullif({SHAPE}, '')"),
    "host": ("url", f"nullif({_HOST}, '')"),
    "folder": ("url", f"nullif({_HOST}, '') || '/' || nullif({_FOLDER}, '')"),
    "ending": ("url", f"nullif({_ENDING}, '')"),
}


def kinds_of(
    columns: Iterable[str], clusters: Mapping[str, str] | None = None, by: Sequence[Kind] = ()
) -> tuple[Kind, ...]:
    """Return the kinds of groups that pairs with these columns have, the preferred ones first.

    `clusters` is the SQL of the columns `cluster` and `region`, if there are any; `by` are the
    kinds of `--by`.
    """
    present = set(columns)
    words = "list_distinct(tokens)"
    kinds = [
        Kind("shard", PAIR, "shard", ("shard",), _equals("shard")),
        Kind("host", PAIR, "host", ("host",), _equals(_HOST)),
        Kind("caption key", TEXT, "caption_key", ("caption_key",), _equals("caption_key")),
        Kind("language", TEXT, "language", ("language",), _equals("language")),
        Kind("text with", TEXT, _signs(), tuple(column for column, _ in TEXT_SIGNS.values()),
             lambda name: TEXT_SIGNS[name][1], several=True),
        Kind("boilerplate", TEXT, "text_boilerplate", ("text_boilerplate",),
             _equals("text_boilerplate")),
        *by,
        Kind("phrase", TEXT, _PHRASES, ("tokens",), word_condition, several=True),
        Kind("word", TEXT, words, ("tokens",), word_condition, several=True),
        Kind("folder of the url", PAIR, "folder", ("folder",),
             _equals(f"{_HOST} || '/' || {_FOLDER}")),
        Kind("ending of the url", PAIR, "ending", ("ending",), _equals(_ENDING)),
        Kind("shape of the caption", TEXT, "shape", ("shape",), _equals(SHAPE)),
        Kind(LENGTH, TEXT, "CASE WHEN text IS NOT NULL THEN stratum::VARCHAR END", ("text",),
             _length_condition, _length_label),
        Kind("image size", IMAGE, "width || ' x ' || height", ("width", "height"), _size_condition),
    ]  # fmt: skip
    for name, sql in (clusters or {}).items():
        kinds += _image_kinds(name, sql)
    names = {EXCHANGED, *(kind.name for kind in kinds if not kind.is_by)}
    return tuple(
        dataclasses.replace(kind, name=f"{kind.name} of --by")
        if kind.is_by and kind.name in names
        else kind
        for kind in kinds
        if set(kind.columns) <= present
    )


def _image_kinds(name: str, sql: str) -> list[Kind]:
    """Return image clusters or regions, and words in them; `sql` is the table's number."""

    def condition(value: str) -> str:
        number, _, word = value.partition(":")
        return f"{sql} = {int(number)} AND {word_condition(word)}"

    def label(value: str) -> str:
        number, _, word = value.partition(":")
        return f"“{word}” in {name} {number}"

    words = f"list_transform(list_distinct(tokens), lambda word: {name} || ':' || word)"
    return [
        Kind(f"image {name}", IMAGE, f"{name}::VARCHAR", (name,),
             lambda value: f"{sql} = {int(value)}"),
        Kind(f"word in a {name}", PAIR, words, ("tokens", name), condition, label, several=True),
    ]  # fmt: skip


def by_values(name: str, expression: str, column: str) -> Kind:
    """Return the kind of `--by` whose groups are the values of an SQL expression.

    The pairs have its value in `column`.
    """
    condition = _equals(f"({expression})::VARCHAR")
    return Kind(name, PAIR, f"{identifier(column)}::VARCHAR", (column,), condition, is_by=True)


def by_ranges(name: str, expression: str, column: str, bounds: Sequence[float]) -> Kind:
    """Return the kind of `--by` whose groups are ranges of a number, cut at `bounds`.

    A range includes its lower bound. The pairs have the value of `expression` in `column`. NaN,
    which DuckDB takes for the largest number, is in no range.
    """
    largest = "'infinity'::DOUBLE"

    def ends(value: str) -> tuple[float | None, float | None]:
        number = int(value)
        low = bounds[number - 1] if number else None
        return low, bounds[number] if number < len(bounds) else None

    def condition(value: str) -> str:
        low, high = ends(value)
        parts = [f"({expression}) >= {low!r}"] if low is not None else []
        upper = f"< {high!r}" if high is not None else f"<= {largest}"
        return " AND ".join([*parts, f"({expression}) {upper}"])

    def label(value: str) -> str:
        low, high = ends(value)
        if low is None:
            return f"below {threshold_text(bounds[0])}"
        upper = "or more" if high is None else f"to {threshold_text(high)}"
        return f"{threshold_text(low)} {upper}"

    steps = "".join(f" + ({identifier(column)} >= {bound!r})::INT" for bound in bounds)
    value = f"CASE WHEN {identifier(column)} <= {largest} THEN (0{steps})::VARCHAR END"
    return Kind(name, PAIR, value, (column,), condition, label, is_by=True)
