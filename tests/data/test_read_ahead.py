"""Items come in order from a thread that is never far ahead, and that ends with its reader."""

import threading
import time

import pytest

from ncclean.data.read_ahead import ReadAhead


def test_items_come_in_order_and_errors_in_their_place():
    with ReadAhead(lambda stop: iter(range(100)), 3) as items:
        assert list(items) == list(range(100))

    def failing(stop):
        yield from (1, None, 2)
        raise KeyError("x")

    received = []
    with pytest.raises(KeyError), ReadAhead(failing, 1) as items:
        received.extend(items)
    with ReadAhead(failing, 1) as items:
        assert [next(items) for _ in range(3)] == [1, None, 2]


def test_no_more_than_asked_for_is_read_ahead():
    taken = []

    def counted(stop):
        for number in range(50):
            taken.append(number)
            yield number

    with ReadAhead(counted, 2) as items:
        for number in items:
            time.sleep(0.001)
            assert len(taken) <= number + 1 + 2 + 1  # in the queue, and one waiting for its place


def test_leaving_early_ends_the_thread():
    ended = threading.Event()

    def endless(stop):
        try:
            while not stop.is_set():
                yield 0
        finally:
            ended.set()

    with ReadAhead(endless, 1) as items:
        next(items)
    assert ended.wait(2)
