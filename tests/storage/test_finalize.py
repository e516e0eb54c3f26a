"""Parts to the final table: what it holds, what may be gone, and what a kill leaves."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from upath import UPath

from ncclean.base import schema
from ncclean.data.shards import ShardRef
from ncclean.scoring.calibration import Calibration, fill_calibrated
from ncclean.scoring.null import Histogram
from ncclean.scoring.stats import Distributions, ShardStats
from ncclean.storage import finalize as stage
from ncclean.storage.calibration import calibrate
from ncclean.storage.finalize import finalize
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.score_run import RunIdentity, ScoreRun
from tests.storage.scored_runs import commit

SHARDS = [ShardRef(name, f"{name}.tar", 1, "") for name in ("a", "b")]
IDENTITY = RunIdentity(
    model={"model": "demo", "scale": "100.0"},
    options={"seed": 0, "caption_key": None},
    shards=SHARDS,
    version="9",
)
SIMILARITY = {"a": [0.1, 0.3, None], "b": [0.5]}


def part(shard):
    """Rows with a similarity and what no column may lack; null where it is null."""
    cosines = SIMILARITY[shard]
    rows = [
        {
            "uid": f"{shard}{row}", "shard": shard, "key": str(row), "row": row,
            "status": "ok" if cosine is not None else "image_corrupt", "similarity": cosine,
            "neg_clip_loss": None if cosine is None else cosine - 0.5,
        }
        for row, cosine in enumerate(cosines)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=schema.SCORES)


def scored(layout, shards=SHARDS):
    run = ScoreRun.open(layout, IDENTITY)
    for shard in shards:
        table = part(shard.name)
        stats = ShardStats(len(table), {"ok": len(table)}, 1.0)
        cosines = torch.tensor([c for c in SIMILARITY[shard.name] if c is not None])
        mismatched = Histogram.of(torch.tensor([-0.1, 0.1, 0.3]))
        distributions = Distributions(Histogram.of(cosines), mismatched, Histogram())
        commit(run, shard, table, stats, distributions)
    return run


@pytest.fixture(params=["s", "s.parquet"])
def layout(request, tmp_path):
    return ScoreLayout(UPath(tmp_path / request.param))


def calibration(shift=0.2):
    return Calibration(shift, "given", None, None, 100.0)


def read(layout):
    files = sorted(layout.out.glob("*.parquet")) if layout.out.is_dir() else [layout.out]
    return pa.concat_tables(pq.read_table(str(file)) for file in files)


def test_rows_are_those_of_the_parts_with_the_calibrated_columns(layout):
    run = scored(layout)
    finalize(run, calibration())
    table = read(layout)
    assert table.column("uid").to_pylist() == ["a0", "a1", "a2", "b0"]
    assert table.column("osa_noisy").to_pylist() == [True, False, None, False]
    weights = table.column("osa_weight").to_pylist()
    assert weights[0] == 0
    assert 0 < weights[1] < weights[3]
    assert weights[2] is None
    assert table.column("noise_probability").null_count == 4
    assert {path.name for path in layout.work.iterdir()} == {
        "run.json",
        "run.lease",
        "shards.parquet",
    }


def test_places_are_stored_as_differences(layout):
    run = scored(layout)
    finalize(run, calibration())
    files = sorted(layout.out.glob("*.parquet")) if layout.out.is_dir() else [layout.out]
    for file in files:
        group = pq.read_metadata(str(file)).row_group(0)
        columns = [group.column(number) for number in range(group.num_columns)]
        encodings = {one.path_in_schema: one.encodings for one in columns}
        for name, encoding in schema.DELTA_COLUMNS.items():
            assert encoding in encodings[name]


def test_again_with_another_shift_once_the_parts_are_gone(layout):
    run = scored(layout)
    finalize(run, calibration())
    before = read(layout)
    finalize(run, calibration(0.4))
    assert read(layout).column("osa_noisy").to_pylist() == [True, True, None, False]
    finalize(run, calibration())
    assert read(layout).equals(before)


def test_a_table_of_some_of_the_shards_grows(layout):
    run = scored(layout, SHARDS[:1])
    finalize(run, calibration())
    assert read(layout).column("uid").to_pylist() == ["a0", "a1", "a2"]
    run.close()
    finalize(scored(layout, SHARDS[1:]), calibration())
    assert read(layout).column("uid").to_pylist() == ["a0", "a1", "a2", "b0"]


@pytest.mark.parametrize("killed_after", [0, 1])
def test_killed_while_parts_are_removed(layout, monkeypatch, killed_after):
    """Some parts are gone: the rest of the table is in the final files already."""
    run = scored(layout)
    with monkeypatch.context() as killed:
        killed.setattr(stage, "remove_with_leftovers", lambda paths: None)
        finalize(run, calibration())
    for shard in SHARDS[:killed_after]:
        layout.part(shard).unlink()
    finalize(run, calibration())
    assert read(layout).column("uid").to_pylist() == ["a0", "a1", "a2", "b0"]
    assert {path.name for path in layout.work.iterdir()} == {
        "run.json",
        "run.lease",
        "shards.parquet",
    }


def test_a_table_that_is_gone_with_its_parts_is_one_sentence(layout, refused):
    run = scored(layout)
    finalize(run, calibration())
    files = [layout.out] if layout.is_single_file else list(layout.out.glob("*.parquet"))
    for path in files:
        path.unlink()
    refused(finalize, run, calibration())


def test_the_temporary_file_of_a_killed_writer_goes_with_its_part(layout):
    run = scored(layout)
    leftover, mine = layout.work / ".part-a.parquet.77.tmp", layout.work / ".mine.77.tmp"
    for path in (leftover, mine):
        path.write_text("half")
    finalize(run, calibration())
    assert not leftover.exists()
    assert mine.exists()


def test_the_metadata_says_how_the_table_was_made(layout):
    run = scored(layout)
    finalize(run, calibration(0.25))
    (path,) = [layout.out] if layout.is_single_file else layout.out.glob("*.parquet")
    metadata = {k.decode(): v.decode() for k, v in pq.read_schema(str(path)).metadata.items()}
    assert metadata["model"] == "demo"
    assert metadata["seed"] == "0"
    assert metadata["caption_key"] == ""  # the usual ones
    assert (metadata["shift"], metadata["shift_source"]) == ("0.25", "given")
    assert metadata["noise_rate"] == "nan"
    assert metadata["ncclean_version"] == "9"


def test_the_shift_of_shuffled_pairs_is_the_mean_of_the_mismatches(tmp_path, refused):
    run = scored(ScoreLayout(UPath(tmp_path / "s")))
    shuffled = calibrate(run, "shuffled")
    assert shuffled.shift == pytest.approx(0.1, abs=1e-5)
    assert shuffled.shift_source == "shuffled"
    assert calibrate(run, 0.3).shift == 0.3
    assert calibrate(run, 0.0).shift_source == "given"
    refused(calibrate, run, "noise")
    run.record_noise_shift(0.22)
    assert calibrate(run, "noise").shift == 0.22


def test_nothing_is_filled_where_nothing_was_scored():
    table = fill_calibrated(part("a"), calibration())
    assert np.asarray(table.column("osa_weight").is_null()).tolist() == [False, False, True]
    assert table.schema.equals(schema.SCORES)


def test_what_an_earlier_calibration_gave_is_taken_back():
    """A table is filled anew with `--finalize-only`, and the estimator may not tell."""
    table = part("b").append_column("near_miss_score", pa.array([0.1], pa.float32()))
    table = table.append_column("near_miss_probability", pa.array([0.9], pa.float32()))
    assert fill_calibrated(table, calibration())["near_miss_probability"].to_pylist() == [None]
