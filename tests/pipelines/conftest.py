"""Fixtures of several tests of the commands."""

import pytest

from tests.factories import rendered


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """600 clean pairs in 3 shards, 2 % broken."""
    return rendered(
        tmp_path_factory.mktemp("clean") / "shards", pairs=600, shard_size=200, broken=0.02, seed=5
    )
