"""Tokens by estimate, as counted, and the most that may be used."""

from ncclean.judging.budget import MOST_ANSWER_TOKENS, Budget, TokenEstimate, tokens_of
from ncclean.judging.prompt import Prompt
from ncclean.judging.reply import Judgement


def test_an_estimate_grows_with_the_picture_up_to_the_size_that_is_sent():
    estimate = TokenEstimate(Prompt.load("match"), 768)
    small, half, whole, larger = (
        estimate.of_request("a ball", *size)
        for size in ((28, 28), (768, 384), (768, 768), (7680, 7680))
    )
    assert small < half < whole == larger == estimate.of_request("a ball")
    assert whole - small == 753 - 1  # 768 x 768 / (28 x 28), rounded up
    assert estimate.of_request("a ball" * 100, 28, 28) - small == 600 // 4 - 2 + 1


def test_requests_under_way_are_set_aside():
    budget = Budget(most=2 * (2_000 + MOST_ANSWER_TOKENS))
    first, second = budget.reserve(1_000), budget.reserve(1_000)
    assert first == second == 2_000 + MOST_ANSWER_TOKENS
    assert budget.reserve(1_000) is None
    budget.settle(first, 1_000, Judgement("match", tokens_in=900, tokens_out=10))
    assert budget.used == 910
    assert budget.reserve(1_000) == 1_000 + MOST_ANSWER_TOKENS  # as the server has counted now
    assert budget.reserve(1_000) is None


def test_a_request_is_taken_to_be_as_large_as_the_largest():
    budget = Budget(most=10_000, used=500, largest=3_000)
    assert budget.reserve(1_000) == 3_000 + MOST_ANSWER_TOKENS
    assert Budget().reserve(10**9) is not None


def test_tokens_of_a_pair():
    assert tokens_of(Judgement("match", tokens_in=900, tokens_out=10), 500) == 910
    assert tokens_of(Judgement("match"), 500) == 500  # the server does not count
    assert tokens_of(Judgement("match", tokens_in=900, tokens_out=10, unreported=2), 500) == 1_910
    assert tokens_of(Judgement(reason="timeout", unreported=4, is_reply=False), 500) == 2_000
    assert tokens_of(Judgement.without_picture("none"), 500) == 0
