"""A selection as a loader reads it: which captions, which weights, how many."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ncclean.data.selection import SelectedSample
from ncclean.data.selection_reader import SelectionReader
from ncclean.errors import InputError
from ncclean.training.batches import open_selection
from ncclean.training.objectives.options import ObjectiveOptions


@pytest.fixture
def path(tmp_path):
    """Of image `x` the second caption is the best, of `y` the first; `z` is in another shard."""
    table = pa.table({
        "uid": ["x", "x", "y", "y", "z"], "shard": ["s"] * 4 + ["t"], "key": list("xxyyz"),
        "weight": pa.array([0.5, 2.0, None, 1.0, 1.0], pa.float32()),
        "split": [None, "forget", "retain", None, None],
        "caption_number": pa.array([0, 1, 0, 1, 0], pa.int16()),
        "caption_rank": pa.array([1, 0, 0, 1, 0], pa.int16()),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "selection.parquet")
    return str(tmp_path / "selection.parquet")


X = [SelectedSample("x", 2.0, True, 1), SelectedSample("x", 0.5, False, 0)]
Y = [SelectedSample("y", 1.0, False, 0), SelectedSample("y", 1.0, False, 1)]


@pytest.mark.parametrize(
    ("captions", "samples", "counts"),
    [
        ("all", {"x": X, "y": Y}, {"s": 4, "t": 1}),
        ("best", {"x": X[:1], "y": Y[:1]}, {"s": 2, "t": 1}),
        ("sample", {"x": X, "y": Y}, {"s": 2, "t": 1}),
    ],
)
def test_captions_of_an_image_come_the_best_first(path, captions, samples, counts):
    reader = SelectionReader(path, captions)
    assert reader.samples("s") == samples
    assert reader.counts() == counts
    assert reader.samples("other") == {}


def test_what_a_selection_holds(path):
    reader = SelectionReader(path)
    assert reader.has_weights()
    assert reader.has_forget_set()


def test_only_a_caption_of_several_is_told_apart_from_its_image():
    names = {SelectedSample("u", 1.0, False, caption=n).pair_name for n in (None, 0, 1)}
    assert names == {"u", "u/1"}  # an image has the same name when it gets more captions


def test_another_table_is_refused(tmp_path, refused):
    pq.write_table(pa.table({"uid": ["a"]}), tmp_path / "t.parquet")
    refused(SelectionReader, str(tmp_path / "t.parquet"))


def test_mended_captions_are_read(path, tmp_path):
    table = pq.read_table(path).append_column("caption", pa.array(["m", None, None, "n", None]))
    pq.write_table(table, tmp_path / "mended.parquet")
    samples = SelectionReader(str(tmp_path / "mended.parquet")).samples("s")
    assert [one.text for one in samples["x"]] == [None, "m"]
    assert [one.text for one in samples["y"]] == [None, "n"]


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("first", [0.5, 1.0])
def test_weights_that_are_none_are_refused(path, tmp_path, weight, first):
    table = pq.read_table(path)
    weights = pa.array([first, 1, 1, weight, 1], pa.float32())
    pq.write_table(table.set_column(3, "weight", weights), tmp_path / "odd.parquet")
    with pytest.raises(InputError, match="negative or not a finite number"):
        SelectionReader(str(tmp_path / "odd.parquet")).has_weights()


@pytest.mark.parametrize("kind", [pa.float16(), pa.decimal128(4, 2), pa.string()])
def test_weights_of_other_types(path, tmp_path, kind):
    weights = pa.array([0.5, 1, 1, None, 0.25], pa.float32())
    weights = weights.cast(pa.float64()).cast(kind)
    table = pq.read_table(path).set_column(3, "weight", weights)
    pq.write_table(table, tmp_path / "kind.parquet")
    reader = SelectionReader(str(tmp_path / "kind.parquet"))
    assert reader.has_weights()
    found = [one.weight for shard in reader.counts() for several in reader.samples(shard).values()
             for one in several]  # fmt: skip
    assert sorted(found) == [0.25, 0.5, 1, 1, 1]


def test_weights_that_are_no_numbers_are_refused(path, tmp_path):
    table = pq.read_table(path).set_column(3, "weight", pa.array(["much"] * 5))
    pq.write_table(table, tmp_path / "text.parquet")
    with pytest.raises(InputError, match="negative or not a finite number"):
        SelectionReader(str(tmp_path / "text.parquet")).has_weights()


def test_siglip_checks_the_weights_that_it_reads(path, tmp_path):
    table = pq.read_table(path)
    weights = pa.array([1, 1, 1, -5, 1], pa.float32())
    pq.write_table(table.set_column(3, "weight", weights), tmp_path / "odd.parquet")
    with pytest.raises(InputError, match="negative or not a finite number"):
        open_selection(str(tmp_path / "odd.parquet"), "siglip", ObjectiveOptions())


def test_a_selection_of_no_pair_has_no_weights(path, tmp_path):
    pq.write_table(pq.read_table(path).slice(0, 0), tmp_path / "empty.parquet")
    with pytest.raises(InputError, match="selects no pair"):
        SelectionReader(str(tmp_path / "empty.parquet")).has_weights()


def test_weights_that_are_all_0_are_refused(path, tmp_path):
    table = pq.read_table(path)
    weights = pa.array([0] * 5, pa.float32())
    pq.write_table(table.set_column(3, "weight", weights), tmp_path / "zero.parquet")
    with pytest.raises(InputError, match="all weights are 0"):
        SelectionReader(str(tmp_path / "zero.parquet")).has_weights()


@pytest.mark.parametrize("split", [["Forget"], ["forget", " retain"], [0, 1]])
def test_marks_that_are_none_are_named(path, tmp_path, split):
    marks = pa.array([*split, *[None] * (5 - len(split))])
    table = pq.read_table(path)
    pq.write_table(table.set_column(4, "split", marks), tmp_path / "odd.parquet")
    with pytest.raises(InputError, match=r"split takes forget or retain, and has '(F| r|0)"):
        SelectionReader(str(tmp_path / "odd.parquet")).has_forget_set()


@pytest.mark.parametrize("marks", [pa.nulls(5), pa.array(["retain"] * 5).dictionary_encode()])
def test_a_selection_without_marks_has_no_forget_set(path, tmp_path, marks):
    table = pq.read_table(path)
    pq.write_table(table.set_column(4, "split", marks), tmp_path / "kept.parquet")
    assert not SelectionReader(str(tmp_path / "kept.parquet")).has_forget_set()
