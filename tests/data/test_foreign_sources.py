"""Sources as other tools write them: img2dataset 1.47's own writers, `datasets` 5.2's `to_parquet`.

Five pairs each. `caption N é` is the caption of image N.
"""

import io
from pathlib import Path

import pytest
from PIL import Image

from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_pairs

FOREIGN = Path(__file__).parent / "foreign"


@pytest.mark.parametrize("name", sorted(path.name for path in FOREIGN.iterdir()))
def test_what_others_write(name):
    shards = resolve_pairs([str(FOREIGN / name)])
    samples = [sample for shard in shards for sample in read_samples(shard)]
    assert [sample.status.value for sample in samples] == ["ok"] * 5
    assert [sample.caption for sample in samples] == [f"caption {number} é" for number in range(5)]
    assert {Image.open(io.BytesIO(sample.image)).size for sample in samples} == {(16, 12)}
    assert len({sample.key for sample in samples}) == 5
    if name.endswith("lists"):
        assert {len(sample.captions) for sample in samples} == {2}
        return
    assert {len(sample.captions) for sample in samples} == {1}
    if name.startswith("img2dataset"):
        assert samples[3].key.rpartition("/")[2] == "000000003"
        assert samples[3].metadata["url"] == "https://example.org/3.jpg"
        assert samples[3].metadata["original_width"] == 16
