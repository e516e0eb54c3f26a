"""Items come in order from a thread that is never far ahead, and that ends with its reader."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ncclean.data.decode import ImageDecoder, Preprocessing
from ncclean.data.gate import Gate
from ncclean.data.read_ahead import ReadAhead
from tests import hostile


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


# How much several threads hold at a time.


def test_what_is_larger_than_the_bound_enters_alone():
    gate = Gate(10)
    entering = threading.Thread(target=gate.enter, args=(25,), daemon=True)
    entering.start()
    entering.join(10)
    assert not entering.is_alive()


def test_never_more_than_its_bound_but_for_one_alone():
    gate, lock, held, most = Gate(10), threading.Lock(), [], []

    def work(size):
        with gate.hold(size):
            with lock:
                held.append(size)
                most.append(list(held))
            time.sleep(0.001)
            with lock:
                held.remove(size)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [3, 4, 25, 5, 1, 10, 2, 7] * 20))
    assert all(sum(sizes) <= 10 or len(sizes) == 1 for sizes in most)
    assert max(map(len, most)) > 1


def test_decoders_share_a_bound_on_pixels(monkeypatch):
    decoder = ImageDecoder(Preprocessing((8, 8), (0.0,), (1.0,)))
    decoder.gate = Gate(90 * 70)  # one photo at a time
    running, most = 0, 0
    inner = decoder._pixels

    def counted(*args):
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.005)
        running -= 1
        return inner(*args)

    monkeypatch.setattr(decoder, "_pixels", counted)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(decoder, [hostile.JPEG] * 12))
    assert most == 1
