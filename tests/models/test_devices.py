"""What feeds a device: batches that fit it, and memory that it reads from."""

import contextlib

import pytest
import torch

from ncclean.models.devices import Uploads, fastest_batch, pin
from ncclean.models.estimator import Estimator


def card(overhead, a_pair, most):
    """Seconds of a batch on a card that takes `most` pairs."""
    tried = []

    def seconds(size):
        tried.append(size)
        if size > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return overhead + size * a_pair

    return seconds, tried


@pytest.mark.parametrize(
    ("overhead", "a_pair", "most", "size"),
    [
        (0.004, 3e-5, 100_000, 2048),  # waits for launches up to a thousand
        (0.004, 4e-4, 100_000, 256),  # a large tower is busy with few
        (0.004, 1e-6, 100_000, 2048),  # the largest that is tried
        (0.004, 3e-5, 600, 512),  # memory is what stops it
        (0.004, 3e-5, 10, 64),  # a run halves the smallest
    ],
)
def test_batches_are_doubled_while_that_pays(overhead, a_pair, most, size):
    seconds, tried = card(overhead, a_pair, most)
    assert fastest_batch(seconds) == size
    assert tried == sorted(tried)
    assert max(tried) * a_pair < 0.5


def test_a_disturbed_measure_does_not_decide():
    seconds, _ = card(0.004, 3e-5, 100_000)
    disturbed = {128: 0.05, 256: 0.03}
    assert fastest_batch(lambda size: disturbed.get(size) or seconds(size)) == 2048


def test_the_image_tower_is_what_is_measured(demo_estimator):
    assert 0 < demo_estimator._seconds_per_images(16) < 60
    assert demo_estimator.fit_batch(None) == 256  # of a CPU, whose results would not change
    assert demo_estimator.fit_batch(40) == 40


def test_without_a_gpu_nothing_is_pinned():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert not pin(torch.zeros(4, dtype=torch.uint8))


@pytest.fixture
def streams(monkeypatch):
    """The streams of a CPU in place of a GPU's."""
    for name in ("Stream", "stream", "current_stream", "Event"):
        monkeypatch.setattr(torch.cuda, name, getattr(torch.cpu, name))
    monkeypatch.setattr(torch.cpu.Stream, "__init__", lambda self, device=None: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)


def test_a_pinned_batch_is_uploaded_uncopied_and_another_from_pinned_memory(streams, monkeypatch):
    uploads, pinned = Uploads(torch.device("cpu")), []
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: self.data_ptr() in pinned)
    slot = torch.arange(24, dtype=torch.uint8).view(2, 3, 2, 2)

    def pin_memory(self):
        copied = self.clone()
        pinned.append(copied.data_ptr())
        return copied

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    assert uploads._upload(slot).data_ptr() == pinned[-1] != slot.data_ptr()
    pinned.append(slot.data_ptr())  # as `pin` does
    assert uploads._upload(slot).data_ptr() == slot.data_ptr()
    assert torch.equal(uploads.encode([slot[:1], slot[1:]], lambda batch: batch + 1)(), slot + 1)


def test_token_ids_are_uploaded_once(demo_estimator, monkeypatch):
    uploads = []
    upload = Estimator._on_device

    def counted(self, rows):
        uploads.append(tuple(rows.shape))
        return upload(self, rows)

    monkeypatch.setattr(Estimator, "_on_device", counted)
    captions = [f"{'very ' * (number % 30)}big dog" for number in range(90)]
    demo_estimator.encode_text(captions)
    assert uploads == [(30, demo_estimator.context_length), (90,)]
