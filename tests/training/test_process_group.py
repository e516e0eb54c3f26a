import pytest
import torch

from ncclean.training.process_group import rank_device


@pytest.mark.parametrize(
    ("device", "rank", "expected"),
    [
        ("auto", "1", "cuda:1"),
        ("cuda", "3", "cuda:1"),
        ("cpu", "1", "cpu"),
        ("cuda:0", "1", "cuda:0"),
    ],
)
def test_each_process_of_a_machine_takes_a_gpu(monkeypatch, device, rank, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", rank)
    assert rank_device(device) == expected


def test_without_a_gpu_the_choice_is_left_to_the_estimator(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert rank_device("auto") == "auto"
