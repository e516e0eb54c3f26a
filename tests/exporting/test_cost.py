"""What is left to export, and what it takes."""

import gzip

from upath import UPath

from ncclean.data.shards import resolve_shards
from ncclean.exporting.cost import plan
from ncclean.exporting.export import export_shards
from tests import hostile
from tests.exporting.test_tars import selection


def compressed(folder, keys):
    data = hostile.tar_bytes([one for key in keys for one in hostile.sample(key, hostile.JPEG)])
    (folder / "0.tar.gz").write_bytes(gzip.compress(data))
    return resolve_shards([str(folder / "0.tar.gz")])


def test_every_worker_unpacks_a_shard_of_its_own(tmp_path):
    shards, chosen = compressed(tmp_path, list("ab")), selection(tmp_path, list("ab"))
    estimate = plan(chosen, shards, str(tmp_path / "out"), workers=3)
    assert estimate.temporary_bytes == 3 * shards[0].size


def test_what_is_done_is_not_estimated_again(tmp_path):
    shards, chosen = compressed(tmp_path, list("ab")), selection(tmp_path, list("ab"))
    out = str(tmp_path / "out")
    export_shards(chosen, shards, UPath(out), samples_per_shard=1)
    estimate = plan(chosen, shards, out, samples_per_shard=1)
    assert (estimate.shards, estimate.shards_done, estimate.processor_hours) == (2, 2, 0)
    assert plan(chosen, shards, out, samples_per_shard=1, overwrite=True).shards_done == 0
