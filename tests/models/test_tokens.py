"""Tokens of captions."""

from ncclean.models.tokens import TokenCache, Tokenize
from tests.fed import letters


def test_tokens_are_those_of_the_captions_asked_for():
    """Of those that were seen before, some belong to samples that cannot be used."""
    cache = TokenCache(Tokenize(letters))
    cache.add(["unusable", "first"])
    tokens = cache.of(["second", "first", "second"])
    assert tokens.ids[tokens.places].tolist() == letters(["second", "first", "second"]).tolist()
