"""A layout is a class and a line in the registry: that of `docs/architecture.md` is read."""

import io
import itertools
import re
from pathlib import Path

import pytest
from PIL import Image

from ncclean.data.images import registry
from ncclean.data.images.layout import RowLayout, hive_values
from ncclean.data.images.text_rows import open_text
from ncclean.data.layout import Cut
from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_pairs
from tests.data.image_layouts import read, write_pictures

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


def test_the_layout_of_the_page_is_read(tmp_path, monkeypatch):
    [code] = re.findall(r"```python\n(class Piped.*?)```", PAGE.read_text(), re.S)
    names = {"RowLayout": RowLayout, "Cut": Cut, "open_text": open_text, "itertools": itertools}
    exec(code, names)
    layout = names["Piped"]()
    monkeypatch.setattr("ncclean.data.images.resolve.LAYOUTS", (layout, *registry.LAYOUTS))
    monkeypatch.setitem(registry._BY_NAME, layout.name, layout)
    monkeypatch.setattr(RowLayout, "unit_rows", 2)
    pairs = [(str(number), b"image %d" % number, f"caption {number}") for number in range(5)]
    write_pictures(pairs, tmp_path / "c")
    lines = [f"{key}.jpg | {caption}\n" for key, _, caption in pairs]
    (tmp_path / "c" / "t.piped").write_text("".join(lines))
    samples, errors = read(tmp_path / "c" / "t.piped")
    assert not errors
    assert [(one.key, one.image, one.caption) for one in samples] == pairs


@pytest.mark.parametrize(
    ("url", "values"),
    [
        ("s3://b/lang=en/year=2020/part=1.parquet", {"lang": "en", "year": "2020"}),
        ("/a/Lang=a%20b/x.csv", {"lang": "a b"}),
        ("/a/b=c=d/x.csv", {}),
        ("/a/key=1/uid=2/image=3/file_name=4/b=5/x.csv", {"b": "5"}),  # of rows
        ("/a/lang=__HIVE_DEFAULT_PARTITION__/x.csv", {}),
    ],
)
def test_values_in_the_names_of_folders(url, values):
    assert hive_values(url) == values


# Sources as other tools write them: img2dataset 1.47's own writers, `datasets` 5.2's `to_parquet`.
#
# Five pairs each. `caption N é` is the caption of image N.

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
