"""Functions that yield batches in another process, and then end in some way."""

import os
import resource
import sys

import numpy as np
import pyarrow as pa

from ncclean.errors import InputError
from ncclean.workers.worker import limit_this_process


def some(count, then):
    for number in range(count):
        yield pa.record_batch({"n": [number]})
    if then == "abort":
        os.abort()
    if then == "loop":
        while True:
            pass
    if then == "memory":
        bytearray(5 << 30)
    if then == "panic":
        raise KeyboardInterrupt("the library panicked")
    if then == "refuse":
        raise InputError("not like this")
    if then == "noise":
        os.write(2, b"hundreds of lines\n" * 100_000)


def may_take(held, more, *sizes):
    """Of a process that holds much and may take `more`, whether it gets each of these sizes."""
    already = bytearray(held)
    limit_this_process(more)
    for size in sizes:
        try:
            yield len(bytearray(size)) == size
        except MemoryError:
            yield False
    assert len(already) == held


loaded_before_forks = []


def before_forks():
    loaded_before_forks.append(os.getpid())


def loaded():
    """Whether `before_forks` was called, and by another process: the one that forked this."""
    yield {one == os.getpid() for one in loaded_before_forks}


def without_room():
    """An array that finds no memory to share."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, most))
    yield np.zeros(1 << 20)


def where():
    yield os.getpid()


def folder():
    yield os.getcwd()


def parts():
    """What else is imported with a decoder and a tokenizer, and whether the rest is at hand."""
    from open_clip import tokenizer
    from torchvision.io import decode_jpeg

    yield decode_jpeg.__name__, tokenizer.__name__
    yield "torch._dynamo" in sys.modules, "transformers" in sys.modules
    import open_clip
    import torchvision

    yield torchvision.models.__name__, callable(open_clip.get_tokenizer)
