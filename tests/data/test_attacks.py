"""Every attack gives the rows that it must, in bounded time and memory."""

import resource
import subprocess
import time
from collections import Counter

import pytest

from ncclean.data.decode import ImageDecoder, Preprocessing
from ncclean.data.decoding import DecodedSample
from ncclean.data.open_image import ImageRejected
from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_sources
from ncclean.errors import ShardError
from ncclean.execution.sample_rows import Row, captions_of
from tests.attacks import ATTACKS
from tests.table_attacks import TABLE_ATTACKS

MOST_BYTES, MOST_SECONDS = 1 << 30, 10
SLOW = ("six images of 88 million pixels",)  # to be decoded by more than one thread: test_gate.py


@pytest.fixture
def folder(tmp_path):
    yield tmp_path
    subprocess.run(["rm", "-rf", str(tmp_path)], check=True)  # too deep for shutil


@pytest.mark.parametrize(
    "attack",
    [one for one in (*ATTACKS, *TABLE_ATTACKS) if one.name not in SLOW],
    ids=lambda attack: attack.name,
)
def test_every_row_has_its_status(folder, attack):
    attack.write(folder)
    decoder = ImageDecoder(Preprocessing((32, 32), (0.0,), (1.0,)))
    statuses, failed = Counter(), {}
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    for shard in resolve_sources([str(folder / attack.source)]):
        try:
            for sample in read_samples(shard):
                if sample.image is not None:
                    decoded = decoder.decode_or_reject(sample.image)
                    if isinstance(decoded, ImageRejected):
                        sample.reject(decoded.reason)
                for caption in captions_of(sample):
                    statuses[Row(DecodedSample(sample), caption).status.value] += 1
        except ShardError as error:
            failed[shard.name] = str(error)
    assert time.process_time() - begin < MOST_SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_BYTES >> 10
    assert statuses == attack.statuses
    assert len(failed) == len(attack.failed)
    assert all("Errno" not in text for text in failed.values())
