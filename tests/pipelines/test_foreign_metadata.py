"""Score tables of strangers: what their metadata claims is checked before it is believed."""

import base64
import json
import resource
import time
import tracemalloc
import zlib

import numpy as np
import pyarrow.parquet as pq
import pytest
from ncclean_cli.app import app
from typer.testing import CliRunner

import ncclean
from ncclean.base.config import CalibrationOptions
from ncclean.execution.score_corpus import _as_before
from ncclean.scoring.null import BINS
from ncclean.scoring.stats import unpack_histogram
from ncclean.storage.tables import table_metadata
from tests.pipelines.test_calibrate_by import corpus as embeddings

# A table is opened some sixty times by a report: hostile values would take minutes.
MOST_BYTES, MOST_SECONDS = 1 << 30, 30


def packed(raw, units=0):
    counts = base64.b64encode(zlib.compress(raw)).decode()
    return json.dumps({"counts": counts, "units": units})


def recalibration(**changes):
    moved = {"intercept": 0.1, "knots": [0.0], "slopes": [1.0, 1.0]}
    fields = {
        "noise_rate": 0.2,
        "answers": 9,
        "digest": "x",
        "drawn_bounds": [0.5],
        "bounds": [0.5],
    }
    return json.dumps({"recalibration": moved, **fields, **changes})


def group(**changes):
    fields = {"group": "a", "pairs": 9, "noise_rate": 0.2, "own_null": True}
    return json.dumps([{**fields, **changes}])


DEEP = "[" * 100_000 + "]" * 100_000
HUGE = "9" * 400
VALUES = {
    "noise_rates_by_group": (
        DEEP, group(pairs="many"), "{", '{"a": 1}', "[1]", "null", "[" + "[]," * 12_000_000 + "[]]",
        group(pairs=-3), group(pairs=1e400), group(pairs=[1]), group(group={"a": [1]}),
        group(group=7), group(own_null="x"), group(noise_rate=17), group(noise_rate="abc"),
        group().replace("0.2", HUGE), group().replace(": 9", f": {HUGE}"), group(pairs=None),
    ),
    "mismatched_histogram": (
        DEEP, "7", '{"counts": 3, "units": 1}', packed(b"abc"), packed(bytes(1 << 20)),
        packed(np.full(BINS, -5, "<i8").tobytes()), packed(np.full(BINS, 1 << 62, "<i8").tobytes()),
        packed(np.ones(BINS, "<i8").tobytes(), "x"), packed(np.ones(BINS, "<i8").tobytes(), 1e400),
    ),
    "audited": (
        DEEP, "[]", "1", recalibration(answers="x"), recalibration(answers=-1),
        recalibration(bounds="abc"), recalibration(bounds=[None]), recalibration(bounds=[[1]]),
        recalibration(drawn_bounds={}), recalibration(digest=[1]), recalibration(noise_rate=HUGE),
        recalibration(recalibration={"intercept": "x", "knots": ["a"], "slopes": [None]}),
        recalibration(recalibration={"intercept": 0, "knots": [1, 2], "slopes": []}),
    ),
    "shift": ("abc", "nan", "inf", HUGE, ""),
    "separation": ("abc", "nan", "-7", "1e300"),
    "noise_rate": ("abc", "-1", "7", HUGE, "nan"),
    "noise_rate_low": ("nan", "9", "abc"),
    "near_miss_rate": ("-1", "abc"),
    "scale": ("0", "-1", "abc"),
    "calibrated_on": ("no_such_score", "'; DROP", DEEP),
    "calibrate_by": ("no_such_column", "'; DROP TABLE scores", DEEP),
    "shift_source": ("given", "abc"),
    "schema_version": ("abc", "-1", HUGE),
    "seed": ("abc",),
    "model": ("\x1b[31m" * 9, "x" * 30_000_000),
    b"\xff\xfe": ("1",),
}  # fmt: skip
ROUNDS = max(map(len, VALUES.values()))
COMMANDS = (
    "report s.parquet --out r.html",
    "audit s.parquet --answers {answers}",
    "audit s.parquet --out a.html",
    "select s.parquet --threshold 0.5 --out q.parquet",
)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scored")
    source = embeddings(folder / "e", sizes=(300, 200, 0))
    ncclean.score(str(source), str(folder / "s.parquet"), calibrate_by="language")
    table = pq.read_table(folder / "s.parquet")
    uids = table.column("uid").to_pylist()[:40]
    answers = {uid: "match" if number % 4 else "mismatch" for number, uid in enumerate(uids)}
    (folder / "answers.json").write_text(json.dumps(answers))
    return table, folder / "answers.json"


@pytest.mark.parametrize(
    "number", [*range(5), *(pytest.param(n, marks=pytest.mark.slow) for n in range(5, ROUNDS))]
)
def test_no_command_believes_or_dies_of_it(table, tmp_path, monkeypatch, number):
    """Each round has another value under each of the keys; late ones, under few, are for two."""
    monkeypatch.chdir(tmp_path)
    rows, answers = table
    changed = {
        key if isinstance(key, bytes) else key.encode(): values[number]
        for key, values in VALUES.items()
        if number < len(values)
    }
    pq.write_table(rows.replace_schema_metadata({**rows.schema.metadata, **changed}), "s.parquet")
    for words in COMMANDS if number < 5 else COMMANDS[:2]:
        before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        done = CliRunner().invoke(app, words.format(answers=answers).split())
        assert done.exit_code in (0, 2), (words, done.exception)
        assert "unexpected" not in done.stderr, (words, done.stderr)
        assert done.exit_code == 0 or "ncclean: " in done.stderr
        assert "\x1b[31m" not in done.stdout + done.stderr
        assert time.process_time() - begin < MOST_SECONDS
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_BYTES >> 10


def test_a_shift_that_is_no_number_is_named(table, tmp_path, refused):
    calibration = CalibrationOptions()
    metadata = {**table[0].schema.metadata, b"shift_source": b"given", b"shift": b"abc"}
    pq.write_table(table[0].replace_schema_metadata(metadata), tmp_path / "s.parquet")
    refused(_as_before, calibration, str(tmp_path / "s.parquet"))
    metadata[b"shift_source"] = b"elsewhere"
    pq.write_table(table[0].replace_schema_metadata(metadata), tmp_path / "s.parquet")
    assert _as_before(calibration, str(tmp_path / "s.parquet")).shift == "auto"


def test_a_footer_that_is_too_large_to_be_read_is_not_tried_again(table, tmp_path, refused):
    path = tmp_path / "s.parquet"
    metadata = {**table[0].schema.metadata, b"model": b"x" * (101 << 20)}
    pq.write_table(table[0].replace_schema_metadata(metadata), path)
    begin = time.monotonic()
    refused(table_metadata, str(path))
    assert time.monotonic() - begin < MOST_SECONDS


def test_a_histogram_is_not_unpacked_past_its_size():
    bomb = json.loads(packed(bytes(256 << 20)))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="not a histogram"):
            unpack_histogram(bomb)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
