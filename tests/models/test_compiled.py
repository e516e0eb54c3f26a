"""Compiled towers: few shapes, and the embeddings of those that are not compiled."""

import functools
import shutil
from collections import Counter

import pytest
import torch
from torch._dynamo.utils import counters

from ncclean.models.estimator import Estimator
from ncclean.models.heads import HeadedClip, Heads, HeadsConfig
from ncclean.models.text_tower import COMPILED_LENGTHS as LENGTHS
from ncclean.models.text_tower import shortened

CAPTIONS = [f"{'very ' * (number % 60)}big dog {number}" for number in range(70)]
TOLERANCE = 1e-5


@pytest.fixture
def one_thread():
    """Threads that meet in a shape for the first time would each compile it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.compiler.reset()
    counters.clear()
    yield
    torch.set_num_threads(threads)
    torch.compiler.reset()


def pixels(count, size):
    generator = torch.Generator().manual_seed(count)
    return torch.randint(0, 256, (count, 3, *size), generator=generator).byte()


def graphs():
    """How many graphs were compiled since the last call."""
    count = counters["stats"]["unique_graphs"]
    counters.clear()
    return count


def assert_one_graph_a_shape(plain, compiled, lengths):
    """Of images there is one shape, whatever is left at the end of a shard."""
    for count in (150, 64, 17, 1):
        images = pixels(count, plain.image_size)
        difference = plain.encode_image(images) - compiled.encode_image(images)
        assert difference.abs().max() < TOLERANCE
    assert graphs() == 1
    for captions in (CAPTIONS, CAPTIONS[:1], CAPTIONS[30:]):
        difference = plain.encode_text(captions) - compiled.encode_text(captions)
        assert difference.abs().max() < TOLERANCE
    assert graphs() == len({*lengths, plain.context_length})
    assert plain.identity == compiled.identity


@pytest.mark.slow
def test_a_graph_for_each_shape(demo_estimator, monkeypatch, one_thread):
    """Dynamo traces and guards; its graphs run without Inductor, which takes half a minute."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    lengths = LENGTHS[:1]  # a second is traced for each
    monkeypatch.setattr("ncclean.models.estimator.COMPILED_LENGTHS", lengths)
    compiled = Estimator.load("demo", precision="fp32", device="cpu", compiled=True)
    assert_one_graph_a_shape(demo_estimator, compiled, lengths)
    assert not counters["graph_break"]


@pytest.mark.slow
def test_compiled_by_inductor(demo_estimator, one_thread):
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler on a CPU")
    compiled = Estimator.load("demo", precision="fp32", device="cpu", compiled=True)
    for encode, rows in (
        ("encode_image", pixels(17, compiled.image_size)),
        ("encode_text", ["a cat", "two dogs"]),
    ):
        difference = getattr(demo_estimator, encode)(rows) - getattr(compiled, encode)(rows)
        assert difference.abs().max() < TOLERANCE


def test_shapes_that_the_towers_see(demo_estimator, monkeypatch, one_thread):
    """On a GPU the fixed number of rows is the run's batch, halved where memory runs out."""
    seen, most = Counter(), 64

    def compiled(tower, **options):
        def run(rows, **arguments):
            seen[tuple(rows.shape[:2])] += 1
            if len(rows) > most:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return tower(rows, **arguments)

        return run

    monkeypatch.setattr(torch, "compile", compiled)
    estimator = Estimator.load("demo", precision="fp32", device="cpu", compiled=True)
    estimator._cores = None  # as on a GPU
    assert estimator.fit_batch(128) == 128
    images = pixels(128, estimator.image_size)
    with pytest.raises(torch.OutOfMemoryError):
        estimator.encode_image(images)
    again = torch.cat([estimator.encode_image(part) for part in images[:100].split(64)])
    assert (again - demo_estimator.encode_image(images[:100])).abs().max() < TOLERANCE
    estimator.encode_text(CAPTIONS, 64)
    assert seen[128, 3] == 1
    assert seen[64, 3] == 2
    assert {length for rows, length in seen if length != 3} <= {*LENGTHS, 77}
    assert {rows for rows, length in seen if length != 3} == {64}


def test_a_shortened_tower_shares_its_weights_and_leaves_the_model_alone(demo_estimator):
    model = demo_estimator.model
    heads = Heads(HeadsConfig(feature_dim=demo_estimator.embed_dim, hidden_dim=8, dim=4)).eval()
    headed = HeadedClip(model, heads, "joint")
    tokens = demo_estimator.tokenize(["a cat"])
    for whole in (model, headed):
        tower = shortened(whole, 16)
        ours = {id(value) for value in whole.parameters()}
        others = [name for name, value in tower.named_parameters() if id(value) not in ours]
        assert [name.split(".")[-1] for name in others] == ["positional_embedding"]
        with torch.no_grad():
            found = tower.encode_text(tokens[:, :16], normalize=True)
            expected = whole.encode_text(tokens, normalize=True)
        assert (found - expected).abs().max() < TOLERANCE
    assert demo_estimator.context_length == 77
