"""Precision of the towers: weights that are cast once, and flags that are put back."""

import threading

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ncclean.models.devices import _cast_matrices, float32_products, resolve_precision
from ncclean.models.estimator import Estimator

MATRICES = (nn.Linear, nn.Conv2d, nn.MultiheadAttention)


def pixels(estimator, count=16):
    generator = torch.Generator().manual_seed(0)
    size = (count, 3, *estimator.image_size)
    return torch.randint(0, 256, size, generator=generator).byte()


class Casts(TorchDispatchMode):
    """Collects the tensors that are cast to another precision."""

    def __init__(self):
        super().__init__()
        self.tensors = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._to_copy.default:
            self.tensors.append(args[0])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_no_weight_is_cast_for_a_batch(precision):
    """But for the few that are parameters and no layers."""
    estimator = Estimator.load("demo", precision=precision, device="cpu")
    towers, dtype = estimator._towers, {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    values = estimator.normalized(pixels(estimator))
    tokens = estimator.tokenize(["a cat", "two dogs"] * 8)
    for module in towers.modules():
        for value in module.parameters(recurse=False):
            assert (value.dtype == dtype) == isinstance(module, MATRICES)
    assert all(value.dtype == torch.float32 for value in estimator.model.parameters())

    def encoded(model):
        with torch.no_grad(), estimator.autocast(), Casts() as casts:
            image = model.encode_image(values, normalize=True).float()
            text = model.encode_text(tokens, normalize=True).float()
        cast = {id(tensor) for tensor in casts.tensors}
        return image, text, {name for name, one in model.named_parameters() if id(one) in cast}

    *found, cast = encoded(towers)
    assert cast == {"visual.proj", "visual.positional_embedding", "text_projection"}
    *expected, cast = encoded(estimator.model)
    assert len(cast) > 20
    # Both round to low precision, at other places.
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() < 0.01


def test_kernels_of_convolutions_as_a_gpu_takes_them(demo_estimator):
    model = demo_estimator.model
    copied = _cast_matrices(model, torch.float32, is_channels_last=True)
    for ours, theirs in zip(copied.modules(), model.modules(), strict=True):
        if isinstance(ours, nn.Conv2d):
            assert ours.weight.is_contiguous(memory_format=torch.channels_last)
            assert theirs.weight.is_contiguous()
    values = demo_estimator.normalized(pixels(demo_estimator))
    with torch.no_grad():
        found = copied.encode_image(values.contiguous(memory_format=torch.channels_last))
        expected = model.encode_image(values)
    assert torch.allclose(found, expected, atol=1e-5)


def test_tf32_is_refused_without_it(monkeypatch, refused):
    for device in ("cpu", "mps"):
        refused(resolve_precision, "tf32", torch.device(device))
    for capability, has_tf32 in (((7, 5), False), ((8, 0), True), ((12, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, it=capability: it)
        if has_tf32:
            assert resolve_precision("tf32", torch.device("cuda")) == "tf32"
        else:
            refused(resolve_precision, "tf32", torch.device("cuda"))


def flags():
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def test_the_flags_of_float32_products_are_put_back():
    before = flags()
    assert before[0] != before[1]  # torch's own are neither
    for tf32 in (True, False):
        with float32_products(tf32=tf32):
            assert flags() == (tf32, tf32)
        assert flags() == before
    with pytest.raises(ValueError, match="in it"), float32_products(tf32=True):
        raise ValueError("in it")
    assert flags() == before


def test_threads_do_not_see_the_precision_of_others():
    before, wrong = flags(), []

    def compute(tf32):
        for _ in range(200):
            with float32_products(tf32=tf32):
                wrong.extend(one for one in flags() if one != tf32)

    threads = [threading.Thread(target=compute, args=(tf32,)) for tf32 in (True, False) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert flags() == before
