"""Fixtures of several tests of the commands."""

import pytest

from ncclean.data.synthetic import CorpusOptions, write_corpus


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """600 clean pairs in 3 shards, 2 % broken."""
    out = tmp_path_factory.mktemp("clean") / "shards"
    write_corpus(out, CorpusOptions(pairs=600, shard_size=200, broken=0.02, seed=5), 1)
    return out
