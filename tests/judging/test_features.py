"""What requests ask for, once a server has answered one."""

from __future__ import annotations

from dataclasses import replace

from ncclean.judging.features import Negotiation


def test_a_late_answer_changes_nothing():
    negotiation = Negotiation()
    first = negotiation.current()
    negotiation.settle(first)
    negotiation.settle(replace(first, format=""))
    assert negotiation.current() == first
    assert negotiation.next(first, "temperature") == first
