"""Numbers as text."""

import pytest

from ncclean.base.estimates import UNKNOWN, Estimate
from ncclean.base.formats import interval, on_workers, short_rate, stated_rate


def test_a_corpus_that_may_be_clean_is_not_called_noisy():
    """The most that it may be comes first; the rest of the intervals are as ever."""
    maybe = Estimate(0.071, 0.0, 0.123)
    assert short_rate(maybe) == "at most 12.3%"
    assert stated_rate(maybe).startswith("at most 12.3%")
    assert "7.1%" in stated_rate(maybe)
    for rate in (Estimate(0.2, 0.1, 0.3), Estimate(0.0, 0.0, 0.01), UNKNOWN):
        assert stated_rate(rate) == interval(rate)
        assert "most" not in short_rate(rate)


@pytest.mark.parametrize(("workers", "busy"), [(8, 8), (64, 8)])
def test_workers_without_work_are_named(workers, busy):
    text = on_workers(2.5, workers, busy)
    assert text.startswith(f"2.50 hours on {workers} workers")
    assert ("at most 8 can be busy" in text) == (busy < workers)
