"""Small sources of `sources.yaml`, and all that is read of them: rows, counts and refusals."""

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from ncclean.data.options import SourceOptions
from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_sources
from ncclean.errors import NccleanError, ShardError
from tests import hostile

CASES = yaml.safe_load(Path(__file__).with_name("sources.yaml").read_text("utf-8"))


JPEG = "jpeg:"  # in front of what is to be taken for a JPEG


def with_bytes(value):
    """The value, with bytes for each text that begins with `bytes:` or `jpeg:`."""
    if isinstance(value, dict):
        return {name: with_bytes(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [with_bytes(inner) for inner in value]
    if isinstance(value, str) and value.startswith(JPEG):
        return b"\xff\xd8\xff" + value.removeprefix(JPEG).encode()
    is_bytes = isinstance(value, str) and value.startswith("bytes:")
    return value.removeprefix("bytes:").encode() if is_bytes else value


def contents(name, value):
    """The bytes of a file of this name."""
    if name.endswith(".tar"):
        members = value.items() if isinstance(value, dict) else value  # a name may come twice
        return hostile.tar_bytes([(member, contents(member, one)) for member, one in members])
    if name.endswith(".parquet"):
        file = io.BytesIO()
        pq.write_table(pa.table(with_bytes(value)), file)
        return file.getvalue()
    if name.endswith(".jsonl") and isinstance(value, list):
        value = "".join(json.dumps(row) + "\n" for row in value)
    if isinstance(value, str) and value.startswith(JPEG):
        return with_bytes(value)
    return (json.dumps(value) if isinstance(value, (dict, list)) else str(value)).encode()


def write(files, folder):
    """Files by their names."""
    for name, value in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(value, dict) and "link" in value:
            path.symlink_to(value["link"])
        else:
            path.write_bytes(contents(name, value))


def lines_of(sample):
    """A line of the sample, then one for each of its captions."""
    image = None if sample.image is None else sample.image.decode("utf-8", "backslashreplace")
    error = f" ({sample.error})" if sample.error else ""
    fields = json.dumps(sample.metadata, default=str) if sample.metadata else ""
    line = f"{sample.row} {sample.key}: {sample.status.value}{error}, image {image!r} {fields}"
    yield line.rstrip()
    for one in sample.captions:
        error = f" ({one.error})" if one.error else ""
        name = "" if one.key is None else f" {one.key}"
        yield f"  {one.number}{name}: {one.status.value}{error} {one.text!r}"


def lines_read(source, layout="auto", caption_key=None, **options):
    """Lines of the samples of each unit, of what was counted beside them and of errors."""
    try:
        shards = resolve_sources([source], layout, SourceOptions(**options))
    except NccleanError as error:
        yield f"refused: {error}"
        return
    for shard in shards:
        reader, samples = read_samples(shard, caption_key), []
        try:
            for sample in reader:
                samples.append(sample)
        except ShardError as error:
            yield f"unit {shard.name}: {error}"
        for sample in sorted(samples, key=lambda one: one.row):
            yield from lines_of(sample)
        counts = {name: count for name, count in vars(reader.further).items() if count}
        if counts:
            yield f"beside: {json.dumps(counts)}"


@pytest.mark.parametrize("name", CASES)
def test_what_is_read(name, tmp_path, monkeypatch, snapshot):
    write(CASES[name]["files"], tmp_path)
    monkeypatch.chdir(tmp_path)
    for read in CASES[name].get("reads", [{}]):
        options = {"source": CASES[name].get("source", "."), **read}
        options["source"] = str(tmp_path / options["source"])
        snapshot.says("\n".join(lines_read(**options)))
