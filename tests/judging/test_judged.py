"""The words that a judge calls wrong, beside those of the table."""

from ncclean.judging.judged import NamedWords, counts, same_parts, same_words
from ncclean.judging.reply import Judgement


def test_suspect_words():
    pairs = [
        (["red"], "red"),
        (["The Red ball"], "red"),
        (["redder"], "red"),
        (["blue", "red."], "Red"),
        ([], "red"),
        (None, "red"),
        (["red"], None),
    ]
    assert same_words(pairs) == NamedWords(checked=4, same=3)


def test_worst_parts():
    part = "A dog sleeps on the sofa."
    pairs = [
        (["a dog sleeps on the sofa"], part),
        (["dog"], part),
        (["a cat sleeps on the sofa"], part),
        (["the cat", "sofa"], part),
        (["!"], part),
    ]
    assert same_parts(pairs) == NamedWords(checked=5, same=3)


def test_counts_name_the_kinds_of_reasons():
    answers, reasons = counts(
        [
            Judgement("match"),
            Judgement(reason="no JSON: oui"),
            Judgement(reason="no JSON: non"),
            Judgement(reason="empty"),
        ]
    )
    assert answers == {"cannot tell": 3, "match": 1, "partly": 0, "mismatch": 0}
    assert reasons == {"no JSON": 2, "empty": 1}
