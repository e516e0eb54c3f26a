"""What the library makes of an attack, read in this process."""

import resource
import time
from collections import Counter
from pathlib import Path

from ncclean.data.decode import ImageDecoder, Preprocessing
from ncclean.data.open_image import ImageRejected
from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_sources
from ncclean.data.stream import DecodedSample
from ncclean.errors import ShardError
from ncclean.execution.sample_rows import Row, captions_of
from tests.attacks import Attack

MOST_BYTES, MOST_SECONDS = 1 << 30, 10


def check(attack: Attack, folder: Path) -> None:
    """Read the source that the attack wrote: every row has its status, and bounds are kept."""
    decoder = ImageDecoder(Preprocessing((32, 32), (0.0,), (1.0,)))
    statuses: Counter[str] = Counter()
    failed: dict[str, str] = {}
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
