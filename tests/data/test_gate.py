"""How much several threads hold at a time."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from ncclean.data.decode import ImageDecoder, Preprocessing
from ncclean.data.gate import Gate
from tests import hostile


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
