"""Names under which a caption could lie, for whoever named one that is not there."""

from __future__ import annotations

import itertools

from ncclean.data.images.folders import Folder
from ncclean.data.images.listing import entries_of
from ncclean.data.images.registry import layout_of
from ncclean.data.images.tables import TableLayout
from ncclean.data.reader import read_samples
from ncclean.data.shards import ShardRef
from ncclean.data.tar import TarSamples
from ncclean.errors import ShardError

_SAMPLES = 20  # that are looked at
_MOST_NAMES, _LONGEST_NAME = 20, 60


def names_there(shard: ShardRef) -> list[str]:
    """List where captions may be: the columns of a table, or a shard's extensions and json fields.

    Some of them, where there are many; none if the shard cannot be read.
    """
    try:
        names = [name[:_LONGEST_NAME] for name in _names(shard)]
    except ShardError:
        return []
    distinct = list(dict.fromkeys(names))
    more = ["..."] if len(distinct) > _MOST_NAMES else []
    return distinct[:_MOST_NAMES] + more


def _names(shard: ShardRef) -> list[str]:
    layout = layout_of(shard)
    if isinstance(layout, TableLayout):
        columns = layout.columns(shard.url)
        return columns if isinstance(columns, list) else columns.names
    if shard.layout == Folder.name:
        entries = itertools.islice(entries_of(shard.url, shard.span), _SAMPLES)
        extensions = [entry.extension for entry in entries]
        reader = read_samples(shard)
    else:
        extensions = []
        reader = TarSamples(shard)
    samples = list(itertools.islice(reader, _SAMPLES))
    extensions += [extension for sample in samples for extension in sample.members]
    return [*extensions, *(name for sample in samples for name in sample.metadata)]
