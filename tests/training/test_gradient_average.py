"""When gradients are exchanged; that the means are right is tested on real ranks."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ncclean.training import gradient_average
from ncclean.training.batch_step import backward_in_pieces
from ncclean.training.process_group import GradientAverage, Ranks

LAYERS = 4


@pytest.fixture
def exchanged(monkeypatch):
    """What is sent, in order, by two ranks whose gradients are the same."""
    sent = []

    class Sum:
        def __init__(self, flat):
            self.flat = flat

        def wait(self):
            self.flat *= 2

    def all_reduce(flat, async_op):
        assert async_op
        sent.append(flat.clone())
        return Sum(flat)

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    monkeypatch.setattr(dist, "broadcast", lambda tensor, src: None)
    monkeypatch.setattr(gradient_average, "_BUCKET_BYTES", 3 * 3 * 4)  # a layer of three
    return sent


def layers():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in range(LAYERS)))


def gradients(module):
    return [parameter.grad.clone() for parameter in module.parameters()]


def test_layers_are_sent_while_earlier_ones_are_not_yet_reached(exchanged):
    module, inputs = layers(), torch.randn(5, 3)
    module(inputs).sum().backward()
    alone = gradients(module)
    average = GradientAverage(list(module.parameters()), Ranks(0, 2))
    sent_before = []  # when the pass comes to a layer, from the last to the first
    for layer in module:
        layer.weight.register_post_accumulate_grad_hook(
            lambda parameter: sent_before.append(len(exchanged))
        )
    for expected in ([0] * LAYERS, list(range(LAYERS))):
        exchanged.clear()
        sent_before.clear()
        module.zero_grad()
        with average.during():
            module(inputs).sum().backward()
        assert sent_before == expected
        assert len(exchanged) == LAYERS
        for found, gradient in zip(gradients(module), alone, strict=True):
            torch.testing.assert_close(found, gradient)
    torch.testing.assert_close(exchanged[0], alone[-1].flatten())  # the last layer first


def test_processes_of_one_machine_exchange_at_the_end(exchanged, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    module, inputs = layers(), torch.randn(5, 3)
    module(inputs).sum().backward()
    alone = gradients(module)
    average = GradientAverage(list(module.parameters()), Ranks(0, 2))
    for _ in range(2):
        exchanged.clear()
        module.zero_grad()
        with average.during():
            module(inputs).sum().backward()
            assert exchanged == []
        assert len(exchanged) == LAYERS
        for found, gradient in zip(gradients(module), alone, strict=True):
            torch.testing.assert_close(found, gradient)


def test_what_the_last_pass_does_not_reach_follows_at_its_end(exchanged):
    """A scale has its gradient from the loss, before the towers' pieces are passed again."""
    tower, scale = nn.Linear(3, 2, bias=False), nn.Parameter(torch.tensor(2.0))
    unused = nn.Parameter(torch.ones(2))
    average = GradientAverage([scale, *tower.parameters(), unused], Ranks(0, 2))
    pieces = list(torch.randn(6, 3).chunk(3))

    def loss(embeddings):
        return {"loss": (scale * embeddings["x"]).square().sum()}

    def encode(piece):
        return {"x": tower(piece)}

    backward_in_pieces(pieces, encode, loss)
    alone = [scale.grad.clone(), *gradients(tower)]
    for _ in range(2):
        tower.zero_grad()
        scale.grad = None
        exchanged.clear()
        backward_in_pieces(pieces, encode, loss, last_pass=average.during())
        assert sum(len(flat) for flat in exchanged) == 1 + 6
        for found, gradient in zip([scale.grad, *gradients(tower)], alone, strict=True):
            torch.testing.assert_close(found, gradient)
    assert unused.grad is None
    torch.testing.assert_close(exchanged[0], alone[1].flatten())


def test_one_process_exchanges_nothing():
    module = layers()
    average = GradientAverage(list(module.parameters()), Ranks())
    with average.during():
        module(torch.randn(5, 3)).sum().backward()
    assert all(gradient.isfinite().all() for gradient in gradients(module))


def test_a_pass_that_fails_exchanges_nothing_more(exchanged):
    module = layers()
    average = GradientAverage(list(module.parameters()), Ranks(0, 2))
    outputs = module(torch.randn(5, 3)).sum()
    outputs.backward()
    with pytest.raises(RuntimeError, match="second time"), average.during():
        outputs.backward()
    assert exchanged == []
    module(torch.randn(5, 3)).sum().backward()  # its hooks are gone
    assert exchanged == []
