"""Lance data sets: scored from images and from vectors, and given their scores back."""

import sys

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.annotate import Annotate
from ncclean_pipelines.score import Score

from ncclean.data import lance_table, parquet_table
from ncclean.data.embeddings.layout import EmbeddingLayout
from ncclean.data.images.layout import ImageLayout
from ncclean.data.images.registry import layout_of
from ncclean.data.lance_table import lance_pieces
from ncclean.data.sources import resolve_sources
from ncclean.errors import ShardError
from ncclean.storage import lance_scores
from tests.command_line import run
from tests.data.image_layouts import read as read_pairs
from tests.factories import rendered
from tests.pipelines.score_tables import assert_same_rows, read

MODEL = {"model": "demo", "precision": "fp32", "shift": 0.2}
COUNT = 90


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Rendered pairs as a table, rows without an image or a caption among them."""
    folder = tmp_path_factory.mktemp("pairs") / "shards"
    rendered(folder, pairs=COUNT, shard_size=COUNT, noise={"ncr": 0.2})
    samples, _ = read_pairs(folder)
    columns = {
        "image": [None if sample.row == 5 else sample.image for sample in samples],
        "caption": ["" if sample.row == 7 else sample.captions[0].text for sample in samples],
        "uid": [f"{sample.row:032x}" for sample in samples],
    }
    return pa.table(columns)


@pytest.fixture(autouse=True)
def small_units(monkeypatch):
    monkeypatch.setattr(ImageLayout, "unit_rows", 30)


def score(source, out, **options):
    Score(shards=[str(source)], out=str(out), **{**MODEL, **options}).run()
    return read(out)


def test_scores_of_images_are_those_of_parquet_and_go_back_in(pairs, tmp_path):
    dataset, out = tmp_path / "pairs.lance", tmp_path / "scores.parquet"
    lance.write_dataset(pairs, dataset, max_rows_per_file=20)
    pq.write_table(pairs, tmp_path / "pairs.parquet", row_group_size=20)
    parquet = score(tmp_path / "pairs.parquet", tmp_path / "other.parquet")
    scores = score(dataset, out)
    assert scores.column("status").to_pylist()[5:8] == ["image_missing", "ok", "caption_missing"]
    names = [name for name in scores.schema.names if name not in ("shard", "key")]
    assert_same_rows(scores.select(names).sort_by("uid"), parquet.select(names).sort_by("uid"))

    done = Annotate(scores=[str(out)], dataset=str(dataset)).run()
    assert done.values["scored"] == done.values["rows"] == COUNT
    Annotate(scores=[str(out)], dataset=str(dataset), columns=["similarity"]).run()
    written = lance.dataset(dataset).to_table().sort_by("uid")
    assert written.drop_columns([f"ncclean_{name}" for name in done.values["columns"]]) == pairs
    for name in ("status", "similarity", "noise_probability"):
        assert written.column(f"ncclean_{name}").to_pylist() == (
            scores.sort_by("uid").column(name).to_pylist()
        )
    # Its scores are no part of what is scored: the same command finds all of it done.
    assert score(dataset, out) == scores


def test_vectors_are_read_and_rows_told_by_their_place(tmp_path, monkeypatch):
    monkeypatch.setattr(EmbeddingLayout, "unit_rows", 30)
    monkeypatch.setattr(parquet_table, "_PIECE_ROWS", 30)
    generator = np.random.default_rng(0)
    image, text = generator.normal(size=(2, COUNT, 8)).astype(np.float32)
    table = pa.table(
        {
            "image_embedding": pa.FixedSizeListArray.from_arrays(image.ravel(), 8),
            "text_embedding": pa.FixedSizeListArray.from_arrays(text.ravel(), 8),
            "caption": [f"caption {number}" for number in range(COUNT)],
        }
    )
    dataset, out = tmp_path / "vectors.lance", tmp_path / "scores.parquet"
    lance.write_dataset(table, dataset, max_rows_per_file=40)
    lance.dataset(dataset).delete("caption = 'caption 3'")
    Score(shards=[str(dataset)], out=str(out)).run()
    scores = read(out)
    kept = np.arange(COUNT) != 3
    cosines = (image * text).sum(1) / np.linalg.norm(image, axis=1) / np.linalg.norm(text, axis=1)
    assert scores.column("similarity").to_numpy() == pytest.approx(cosines[kept], abs=1e-5)
    Annotate(scores=[str(out)], dataset=str(dataset), columns=["similarity"]).run()
    written = lance.dataset(dataset).to_table(columns=["ncclean_similarity"])
    assert written.column(0).to_numpy() == pytest.approx(cosines[kept], abs=1e-5)


def test_rows_with_and_without_a_uid_get_their_scores(tmp_path):
    generator = np.random.default_rng(1)
    image, text = generator.normal(size=(2, COUNT, 8)).astype(np.float32)
    table = pa.table({
        "image_embedding": pa.FixedSizeListArray.from_arrays(image.ravel(), 8),
        "text_embedding": pa.FixedSizeListArray.from_arrays(text.ravel(), 8),
        "uid": [f"u{number}" if number % 3 else None for number in range(COUNT)],
    })  # fmt: skip
    dataset, out = tmp_path / "vectors.lance", tmp_path / "scores.parquet"
    lance.write_dataset(table, dataset)
    Score(shards=[str(dataset)], out=str(out)).run()
    done = Annotate(scores=[str(out)], dataset=str(dataset), columns=["similarity"]).run()
    assert done.values["scored"] == COUNT
    written = lance.dataset(dataset).to_table(columns=["ncclean_similarity"]).column(0)
    cosines = (image * text).sum(1) / np.linalg.norm(image, axis=1) / np.linalg.norm(text, axis=1)
    assert written.to_numpy() == pytest.approx(cosines, abs=1e-5)


def test_appended_rows_leave_the_pieces_before_them(pairs, tmp_path):
    lance.write_dataset(pairs, tmp_path / "a.lance", max_rows_per_file=30)
    before = lance_pieces(str(tmp_path / "a.lance"), 30)
    assert [(piece.first, piece.last) for piece in before] == [(0, 30), (30, 60), (60, 90)]
    lance.write_dataset(pairs.slice(0, 10), tmp_path / "a.lance", mode="append")
    assert lance_pieces(str(tmp_path / "a.lance"), 30)[:3] == before
    lance.dataset(tmp_path / "a.lance").delete("caption = ''")
    after = lance_pieces(str(tmp_path / "a.lance"), 30)
    assert all(one.version != other.version for one, other in zip(before, after, strict=False))


def test_rows_that_changed_since_they_were_listed_fail(pairs, tmp_path):
    lance.write_dataset(pairs, tmp_path / "a.lance")
    shards = resolve_sources([str(tmp_path / "a.lance")])
    lance.dataset(tmp_path / "a.lance").delete("caption = ''")
    with pytest.raises(ShardError, match="has changed since the run began"):
        list(layout_of(shards[0]).rows(shards[0]))


def test_a_file_that_is_cut_costs_its_rows_alone(pairs, tmp_path):
    lance.write_dataset(pairs, tmp_path / "a.lance", max_rows_per_file=30)
    second = lance.dataset(tmp_path / "a.lance").get_fragments()[1].metadata.files[0].path
    file = tmp_path / "a.lance/data" / second
    file.write_bytes(file.read_bytes()[:100])
    samples, errors = read_pairs(tmp_path / "a.lance")
    broken = [sample.status.value == "row_broken" for sample in samples]
    assert broken == [False] * 30 + [True] * 30 + [False] * 30
    assert len(errors) == 1


@pytest.mark.slow
def test_scores_that_do_not_fit_are_refused(pairs, tmp_path, refused):
    lance.write_dataset(pairs, tmp_path / "a.lance")
    lance.write_dataset(pairs.slice(0, 50), tmp_path / "b.lance")
    out = tmp_path / "scores.parquet"
    score(tmp_path / "a.lance", out)
    refused(Annotate, scores=[str(out)], dataset=str(tmp_path / "b.lance"))
    copy = tmp_path / "copy.parquet"  # of somebody else: nothing tells its shards
    pq.write_table(pq.read_table(out).replace_schema_metadata(None), copy)
    refused(Annotate, scores=[str(out), str(copy)], dataset=str(tmp_path / "a.lance"))
    result = run("annotate", out, "--dataset", tmp_path / "a.lance", "--columns", "nosuch")
    assert (result.returncode, "no column nosuch" in result.stderr) == (2, True)
    assert lance.dataset(tmp_path / "a.lance").version == 1


def test_old_scores_stay_until_the_new_ones_are_written(pairs, tmp_path, monkeypatch, refused):
    """The disk may be full, or the process be killed."""
    dataset, out = tmp_path / "a.lance", tmp_path / "scores.parquet"
    lance.write_dataset(pairs, dataset)
    score(dataset, out)
    annotate = Annotate(scores=[str(out)], dataset=str(dataset))
    annotate.run()
    before = lance.dataset(dataset).to_table()

    lance_scores_values = lance_scores._values

    def reader(*arguments):
        whole = lance_scores_values(*arguments)

        def batches():
            yield whole.read_next_batch().slice(0, 5)
            raise OSError(28, "No space left on device")

        return pa.RecordBatchReader.from_batches(whole.schema, batches())

    with monkeypatch.context() as patch:
        patch.setattr(lance_scores, "_values", reader)
        refused(annotate.run)
    assert lance.dataset(dataset).to_table() == before
    # A process that was killed just before it drops the old columns leaves the new ones.
    with monkeypatch.context() as patch:
        patch.setattr(lance_scores, "_drop", killed)
        with pytest.raises(KeyboardInterrupt):
            annotate.run()
    assert lance.dataset(dataset).to_table().select(before.column_names) == before
    annotate.run()
    assert lance.dataset(dataset).to_table().select(before.column_names) == before
    assert set(lance.dataset(dataset).schema.names) == set(before.column_names)


def killed(target, names):
    if names:
        raise KeyboardInterrupt


@pytest.mark.slow
def test_scores_of_no_row_are_refused_where_another_uid_occurs_twice(pairs, tmp_path, refused):
    lance.write_dataset(pairs, tmp_path / "a.lance")
    out = tmp_path / "scores.parquet"
    score(tmp_path / "a.lance", out)
    lance.write_dataset(
        pa.concat_tables([pairs.slice(0, COUNT - 1), pairs.slice(0, 1)]), tmp_path / "b.lance"
    )
    refused(Annotate, scores=[str(out)], dataset=str(tmp_path / "b.lance"))


def test_a_type_that_the_library_does_not_know_is_one_sentence(pairs, tmp_path, refused):
    place = tmp_path / "a.lance"
    lance.write_dataset(pairs, place)
    for manifest in (place / "_versions").iterdir():
        manifest.write_bytes(manifest.read_bytes().replace(b"string", b"st\0ing"))
    refused(resolve_sources, [str(place)])


def test_what_is_missing_is_one_sentence(tmp_path, monkeypatch, refused):
    refused(resolve_sources, [str(tmp_path / "a.lance")])
    monkeypatch.setitem(sys.modules, "lance", None)
    refused(resolve_sources, [str(tmp_path / "a.lance")])


@pytest.mark.parametrize("uid", [None, pytest.param([["a"]] * COUNT, marks=pytest.mark.slow)])
def test_rows_in_another_order_get_no_scores_by_their_place(pairs, tmp_path, uid, refused):
    dataset, out = tmp_path / "a.lance", tmp_path / "scores.parquet"
    pairs = pairs.drop_columns(["uid"])
    if uid is not None:  # which is none
        pairs = pairs.append_column("uid", pa.array(uid))
    lance.write_dataset(pairs, dataset)
    score(dataset, out)
    annotate = Annotate(scores=[str(out)], dataset=str(dataset))
    assert annotate.run().values["scored"] == annotate.run().values["scored"] == COUNT
    lance.write_dataset(pairs.take(list(range(COUNT))[::-1]), dataset, mode="overwrite")
    refused(annotate.run)
    assert "ncclean_similarity" not in lance.dataset(dataset).schema.names


@pytest.mark.slow
def test_a_column_of_another_tool_is_not_replaced(pairs, tmp_path, refused):
    dataset, out = tmp_path / "a.lance", tmp_path / "scores.parquet"
    reviewed = pa.array(["by hand"] * COUNT)
    lance.write_dataset(pairs.append_column("ncclean_status", reviewed), dataset)
    score(dataset, out)
    refused(Annotate, scores=[str(out)], dataset=str(dataset))
    Annotate(scores=[str(out)], dataset=str(dataset), columns=["similarity"]).run()
    assert lance.dataset(dataset).to_table()["ncclean_status"].to_pylist() == ["by hand"] * COUNT


def test_rows_are_those_of_the_version_that_was_checked(pairs, tmp_path, monkeypatch):
    """Another process deletes rows while the reader starts."""
    place = tmp_path / "a.lance"
    lance.write_dataset(pairs, place)
    shards = resolve_sources([str(place)])
    contained = lance_table.contained

    def later(*request):
        lance.dataset(place).delete("caption IS NOT NULL")
        return contained(*request)

    monkeypatch.setattr(lance_table, "contained", later)
    assert [row["uid"] for row in layout_of(shards[0]).rows(shards[0])] == pairs["uid"].to_pylist()[
        :30
    ]


@pytest.mark.slow
def test_images_may_be_blobs(pairs, tmp_path):
    image = pa.field("image", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([image, *pairs.schema.remove(pairs.schema.get_field_index("image"))])
    lance.write_dataset(pairs.cast(schema), tmp_path / "blobs.lance")
    lance.write_dataset(pairs, tmp_path / "plain.lance")
    blobs = score(tmp_path / "blobs.lance", tmp_path / "blobs.parquet")
    plain = score(tmp_path / "plain.lance", tmp_path / "plain.parquet")
    for name in ("status", "similarity"):
        assert blobs.column(name) == plain.column(name)
