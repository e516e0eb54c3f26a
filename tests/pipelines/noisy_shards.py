"""Shards to inject noise into, and what is in those that come out."""

import contextlib
import hashlib
import tarfile

from ncclean_pipelines.inject_noise import InjectNoise

from ncclean.data.shards import resolve_shards
from ncclean.data.tar import TarSamples
from ncclean.errors import ShardError
from tests import hostile

RATES = {"ncr": 0.2, "decl": 0.1, "hard": 0.05, "junk": 0.02}


def inject(shards, out, rates=RATES, **options):
    return InjectNoise(shards=[str(shards)], out=str(out), noise=rates, **options).run().summary


def digests(folder):
    """Name -> hash of every visible shard."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in (".tar", ".gz", ".tgz")
    }


def samples(path, caption_key=None):
    """The samples of a shard, broken ones included, and whether it breaks off."""
    (shard,) = resolve_shards([str(path)])
    found, reader = [], TarSamples(shard, caption_key)
    with contextlib.suppress(ShardError):
        found.extend(reader)
    for row, late in reader.late_metadata.items():
        next(s for s in found if s.row == row).metadata.update(late)
    return sorted(found, key=lambda sample: sample.row)


def members(path):
    with tarfile.open(path) as tar:
        return [(m.name, tar.extractfile(m).read()) for m in tar.getmembers() if m.isreg()]


def write_shard(path, *groups):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(hostile.tar_bytes([member for group in groups for member in group]))
    return path


def jpeg(seed):
    return hostile.encoded(hostile.photo(seed=seed))
