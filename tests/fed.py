"""Shards through the worker processes that read them, without a model."""

import torch

from ncclean.base.options import MAX_PIXELS
from ncclean.data.decode import Preprocessing
from ncclean.execution.shard_feed import AGAIN, Images, ShardFeed
from ncclean.execution.shard_reader import ReaderSettings, ShardRows
from ncclean.models.tokens import Tokenize


def letters(captions):
    """(n, 8) numbers of the first letters of captions."""
    return torch.tensor([[ord(one) for one in text[:8].ljust(8)] for text in captions])


def fed(shards, decoders=2, batch_size=8, **settings):
    """What is known of each shard once all are read, by its name: rows or an error, and pixels."""
    asked = ReaderSettings(
        Preprocessing((32, 32), (0.0,), (1.0,)), Tokenize(letters), MAX_PIXELS, **settings
    )
    feed = ShardFeed(asked, decoders, batch_size)
    found, pixels = {}, {number: {} for number in range(len(shards))}
    for number, part in feed.read(shards):
        if part is AGAIN:
            pixels[number].clear()
        elif isinstance(part, Images):
            assert pixels[number].keys().isdisjoint(part.block.rows)
            pixels[number] |= dict(zip(part.block.rows, part.pixels.clone(), strict=True))
            feed.release(part)
        else:
            assert isinstance(part, ShardRows | Exception)
            found[shards[number].name] = part, pixels[number]
    granted = [block for reader in feed._readers for block in reader.filling]
    assert sorted(feed._free + granted) == list(range(len(feed._arena.blocks)))
    return found
