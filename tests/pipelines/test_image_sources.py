"""The same pairs in every layout: equal scores, and every command that takes images."""

import json
import tarfile

import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.export import Export
from ncclean_pipelines.finetune import Finetune
from ncclean_pipelines.inject_noise import InjectNoise
from ncclean_pipelines.score import Score
from ncclean_pipelines.select import Select

import ncclean
from ncclean.base.config import ScoreOptions
from ncclean.base.schema import PLACE_COLUMNS
from ncclean.data.images.as_tar import tar_key
from ncclean.data.member_samples import sample_uid
from ncclean.data.options import SourceOptions
from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_pairs
from ncclean.training.objectives.options import ObjectiveOptions
from tests.data.image_layouts import LAYOUTS, PEOPLES, write_karpathy, write_open_clip

pytestmark = pytest.mark.usefixtures("rough_shifts")

ALL = {**LAYOUTS, **PEOPLES}
# What clean writes no such layout of.
TO_TARS = ("Karpathy", "Lance", "COCO", "LLaVA", "RedCaps")
OTHERS = [name for name in ALL if name != "tar"]
# Of files, tables, vectors and lists; tests/data reads the same samples from all of them.
SCORED = ("files", "Hugging Face", "open_clip", "Karpathy", "Lance", "hive")
IN_TWO = ("Arrow", "hive")  # shards
# Not known in all layouts, or of another name.
OF_THE_PLACE = {"uid", "shard", "key", "url", *PLACE_COLUMNS}


@pytest.fixture(scope="module")
def pairs(corpus):
    """Pairs that can be scored, images as they are in the shards."""
    return [
        (sample.key, sample.image, sample.caption)
        for shard in resolve_pairs([str(corpus)])
        for sample in read_samples(shard)
        if sample.image is not None
    ][:60]


def score(source, out, **options):
    settings = dict(model="demo", pretrained=None, precision="fp32", shift="shuffled", **options)
    Score(shards=[str(source)], out=str(out), **settings).run()
    return pq.read_table(out)


@pytest.fixture(scope="module")
def expected(pairs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tar")
    return score(LAYOUTS["tar"](pairs, folder / "source"), folder / "s.parquet")


@pytest.mark.parametrize(
    "layout", [pytest.param(one, marks=[] if one in SCORED else pytest.mark.slow) for one in OTHERS]
)
def test_scores_are_equal(layout, pairs, expected, tmp_path):
    table = score(ALL[layout](pairs, tmp_path / "source"), tmp_path / "s.parquet")
    if layout in IN_TWO:
        found, cosines = (sorted(one["similarity"].to_pylist()) for one in (table, expected))
        assert found == cosines
        return
    for name in set(expected.column_names) - OF_THE_PLACE:
        assert table[name].equals(expected[name]), name


@pytest.mark.parametrize(
    ("layout", "to"),
    [
        # These repeat tests/exporting/test_round_trip.py, but for the one below.
        pytest.param(one, "auto", marks=pytest.mark.slow)
        for one in OTHERS
    ]
    + [
        ("Hugging Face", "webdataset"),
        *(
            pytest.param(one, "webdataset", marks=pytest.mark.slow)
            for one in ("files", "open_clip", "Arrow")
        ),
    ],
)
def test_clean_gives_back_the_kept_pairs(layout, to, pairs, tmp_path):
    """In the form that came in, with noise columns, or as tars."""
    source = ALL[layout](pairs, tmp_path / "source")
    ncclean.clean(str(source), str(tmp_path / "out"), model="demo", precision="fp32", layout=to)
    assert_kept_pairs(tmp_path / "out", layout, to, pairs)


def assert_kept_pairs(folder, layout, to, pairs):
    scores = pq.read_table(folder / "scores.parquet").to_pylist()
    kept = [row for row in scores if row["noise_probability"] < 0.5]
    assert 10 < len(kept) < len(scores)
    out = folder / "clean"
    assert bool(list(out.glob("*.tar"))) == (to == "webdataset" or layout in TO_TARS)
    again = [
        (sample_uid(sample.metadata, shard.name, sample.key), sample.caption)
        for shard in resolve_pairs([str(out)])
        for sample in read_samples(shard)
    ]
    assert again == [(row["uid"], row["text"]) for row in kept]
    noise = {row["uid"]: row["noise_probability"] for row in kept}
    images = {caption: image for _, image, caption in pairs}
    for shard in resolve_pairs([str(out)]):
        for sample in read_samples(shard):
            assert sample.image == images[sample.caption]
            if to == "auto" and layout not in TO_TARS:
                stated = float(sample.metadata["noise_probability"])
                assert stated == pytest.approx(noise[sample.metadata["uid"]])


@pytest.mark.parametrize("layout", ["Hugging Face"])
def test_a_model_trains_on_them(layout, pairs, tmp_path):
    source = LAYOUTS[layout](pairs, tmp_path / "source")
    trained = Finetune(
        method="clip", shards=[str(source)], out=str(tmp_path / "run"), model="demo",
        pretrained=None, batch_size=20, objective=ObjectiveOptions(epochs=1),
    ).run()  # fmt: skip
    assert trained.summary.steps == 3
    assert trained.summary.skipped == {}


def test_another_root_reaches_every_stage(pairs, tmp_path):
    table = write_open_clip(pairs, tmp_path / "source")
    (tmp_path / "tables").mkdir()
    table = table.rename(tmp_path / "tables" / "c.csv")
    root = str(tmp_path / "source")
    options = {"model": "demo", "precision": "fp32"}
    ncclean.clean(str(table), str(tmp_path / "out"), image_root=root, **options)
    scores = pq.read_table(tmp_path / "out" / "scores.parquet")
    assert set(scores["status"].to_pylist()) == {"ok"}
    assert (tmp_path / "out" / "clean" / "c.csv").is_file()
    assert_kept_pairs(tmp_path / "out", "open_clip", "auto", pairs)
    assert "data:image" in (tmp_path / "out" / "report.html").read_text()


def test_a_split_reaches_every_stage(pairs, tmp_path):
    source = str(write_karpathy(pairs, tmp_path / "source"))
    options = {"model": "demo", "precision": "fp32", "split": ["val", "test"]}
    planned = ncclean.clean(source, str(tmp_path / "out"), dry_run=True, **options)
    assert planned["stages"][0]["pairs"] == 30
    ncclean.clean(source, str(tmp_path / "out"), threshold=1, **options)
    keys = [key for key, *_ in pairs[1::2]]
    scores = pq.read_table(tmp_path / "out" / "scores.parquet")
    assert [key.rpartition("/")[2] for key in scores["key"].to_pylist()] == keys
    assert scores["text"].to_pylist() == [caption for *_, caption in pairs[1::2]]
    with tarfile.open(next((tmp_path / "out" / "clean").glob("*.tar"))) as tar:
        exported = [name for name in tar.getnames() if name.endswith(".txt")]
    kept = pq.read_table(tmp_path / "out" / "clean.parquet").num_rows
    assert len(exported) == kept > 20


def test_scores_of_one_split_are_not_taken_for_those_of_another(pairs, tmp_path, refused):
    source = write_karpathy(pairs, tmp_path / "source")
    score(source, tmp_path / "s.parquet", source_options=SourceOptions(split=["val"]))
    refused(score, source, tmp_path / "s.parquet", source_options=SourceOptions(split=["test"]))


def test_a_run_goes_on_where_a_table_has_grown(pairs, tmp_path, monkeypatch):
    monkeypatch.setattr("ncclean.data.images.layout.ImageLayout.unit_rows", 20)
    source = LAYOUTS["files"](pairs[:40], tmp_path / "source")
    score(source, tmp_path / "s.parquet")
    LAYOUTS["files"]([(f"z{key}", image, caption) for key, image, caption in pairs[40:]],
                     tmp_path / "more")  # fmt: skip
    for path in (tmp_path / "more" / "c").iterdir():
        path.rename(source / "c" / path.name)
    grown = score(source, tmp_path / "s.parquet")
    assert grown.equals(score(source, tmp_path / "whole.parquet"))


@pytest.mark.parametrize("layout", ["files", "Hugging Face", "open_clip"])
def test_noise_is_injected(layout, pairs, tmp_path):
    source = LAYOUTS[layout](pairs, tmp_path / "source")
    InjectNoise(shards=[str(source)], out=str(tmp_path / "noisy"), noise=("ncr=0.5",)).run()
    captions = {image: caption for _, image, caption in pairs}
    samples = [
        sample
        for shard in resolve_pairs([str(tmp_path / "noisy")])
        for sample in read_samples(shard)
    ]
    assert len(samples) == len(pairs)
    changed = [sample.caption != captions[sample.image] for sample in samples]
    assert changed == [sample.metadata["is_noisy"] for sample in samples]
    assert sum(changed) >= 20


def test_keys_with_dots_are_exported(pairs, tmp_path):
    names = ["a.b", "a_b", "../x/c.d", "e f", "__g__", "h/.i"]
    renamed = [(f"{n}", *rest) for n, (_, *rest) in zip(names, pairs, strict=False)]
    assert len({tar_key(name) for name in names}) == len(names)
    safe = [(f"{number}", *rest) for number, (_, *rest) in enumerate(renamed)]
    table = write_open_clip(safe, tmp_path / "source")
    lines = table.read_text().splitlines()
    keyed = ["key\t" + lines[0]] + [
        f"{n}\t{line}" for n, line in zip(names, lines[1:], strict=True)
    ]
    table.write_text("\n".join(keyed))
    score(table, tmp_path / "s.parquet", options=ScoreOptions(embeddings=str(tmp_path / "e")))
    Select(scores=[str(tmp_path / "s.parquet")], out=str(tmp_path / "all.parquet")).run()
    Export(
        selection=str(tmp_path / "all.parquet"), shards=[str(table)], out=str(tmp_path / "clean"),
        scores=[str(tmp_path / "s.parquet")], columns=("similarity",),
    ).run()  # fmt: skip
    (shard,) = resolve_pairs([str(tmp_path / "clean")])
    samples = list(read_samples(shard))
    assert [sample.metadata["key"] for sample in samples] == names
    assert [sample.key for sample in samples] == list(map(tar_key, names))
    assert all(isinstance(sample.metadata["similarity"], float) for sample in samples)
    assert json.dumps(samples[0].metadata)
