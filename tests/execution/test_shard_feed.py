"""Shards through worker processes: the same whatever their number, and whatever ends them."""

import logging
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest
import torch

from ncclean.base.config import ScoreOptions
from ncclean.data.decode import ImageDecoder, Preprocessing
from ncclean.data.decoding import decoded_shard
from ncclean.data.shards import resolve_shards
from ncclean.execution import shard_feed
from ncclean.execution.column_sources import ColumnSources
from ncclean.execution.image_encoder import ImageEncoder
from ncclean.models.estimator import Estimator
from ncclean.models.tokens import Tokenize
from ncclean.workers.fork_server import SERVER
from tests import hostile
from tests.fed import fed, letters
from tests.workers import fatal

SPEC = Preprocessing((32, 32), (0.0,), (1.0,))
PAIRS = 40


@pytest.fixture
def fatal_readers(monkeypatch):
    monkeypatch.setattr(shard_feed, "shard_reader", fatal)


def write(folder, odd=(), count=3, keys=()):
    """Shards of photographs, of which some in the first have other widths, or other keys."""
    for shard in range(count):
        members = []
        for n in range(PAIRS):
            size = (dict(odd).get(n, 90), 70) if not shard else (90, 70)
            key = dict(keys).get(n, f"{n:03d}") if not shard else f"{n:03d}"
            photo = hostile.encoded(hostile.photo(*size, seed=n + shard), "PNG")
            members += hostile.sample(key, photo, f"photo {n % 7}".encode(), ext="png")
        (folder / f"{shard}.tar").write_bytes(hostile.tar_bytes(members))
    return resolve_shards([str(folder)])


def table(found):
    """All of the shards that can be compared."""
    return {
        name: (
            {column: values.to_pylist() for column, values in rows.facts.items()},
            rows.images.tolist(),
            rows.tokens.ids.tolist(),
            {row: image.sum().item() for row, image in pixels.items()},
            rows.error,
        )
        for name, (rows, pixels) in found.items()
    }


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """Shards, and what is known of them once one process has read them."""
    shards = write(tmp_path_factory.mktemp("usual"))
    return shards, table(fed(shards, 1, 3))


@pytest.mark.parametrize(("decoders", "batch_size"), [(5, 7), (8, 200)])
def test_nothing_depends_on_how_many_there_are(usual, decoders, batch_size):
    shards, expected = usual
    found = fed(shards, decoders, batch_size)
    assert table(found) == expected
    for number, shard in enumerate(shards):
        rows, pixels = found[str(number)]
        decoded = list(decoded_shard(shard, ImageDecoder(SPEC), 1))
        assert rows.facts["key"].to_pylist() == [one.sample.key for one in decoded]
        assert all(torch.equal(pixels[one.sample.row], one.pixels) for one in decoded)
        assert rows.tokens.places.tolist() == [n % 7 for n in range(PAIRS)]
        assert rows.waited.keys() == {"store", "decode"}


ENDS = {
    fatal.ABORTS: "its decoder was ended by SIGABRT",
    fatal.LOOPS: "its decoder came to no end within the seconds that it may compute",
    fatal.FILLS_MEMORY: "MemoryError()",
    fatal.KILLED: "its decoder was ended by the system, as happens where memory runs out",
    fatal.EXITS: "its decoder ended by itself, with status 3",
    fatal.RAISES: "LookupError('nobody has thought of this')",
}


def test_images_that_end_their_readers_cost_themselves_alone(
    tmp_path, fatal_readers, monkeypatch, usual
):
    monkeypatch.setattr("ncclean.execution.shard_reader._SECONDS_ALONE", 1.0)
    odd = {5: fatal.ABORTS, 30: fatal.ABORTS}
    odd |= dict(zip((8, 13, 18, 19, 33), [*ENDS][1:], strict=True))
    found, (_, expected) = table(fed(write(tmp_path, odd))), usual
    facts, _, _, pixels, error = found["0"]
    said = {
        row: (status, error)
        for row, (status, error) in enumerate(zip(facts["status"], facts["error"], strict=True))
        if status != "ok"
    }
    assert said == {row: ("image_corrupt", ENDS[width]) for row, width in odd.items()}
    assert error is None
    assert pixels == {row: v for row, v in expected["0"][3].items() if row not in odd}
    assert (found["1"], found["2"]) == (expected["1"], expected["2"])


def test_a_sample_that_cannot_be_read_ends_its_shard_there(tmp_path, fatal_readers):
    found = table(fed(write(tmp_path, keys={25: "fatal"})))
    facts, _, _, pixels, error = found["0"]
    assert facts["status"] == ["ok"] * 25
    assert len(pixels) == 25
    assert error == "cannot be read on: its reader was ended by SIGABRT"
    assert found["1"][4] is found["2"][4] is None


def test_a_reader_that_hangs_is_replaced(tmp_path, fatal_readers, monkeypatch):
    """Without computing anything, as one does that waits for a dead disk."""
    monkeypatch.setattr(shard_feed, "_SILENT_SECONDS", 3.0)
    monkeypatch.setenv("ASKED_BEFORE", str(tmp_path / "asked"))
    shards = write(tmp_path, odd={5: fatal.SLEEPS})
    found = table(fed(shards))
    assert found["0"][0]["status"] == ["ok"] * PAIRS
    assert found["0"][4] is None


def test_what_readers_log_is_logged_here(tmp_path, fatal_readers, caplog):
    """Retries are said, and counted by handlers of the store's own log."""
    fed(write(tmp_path, keys={25: "said"}))
    assert ("ncclean.base.stores", logging.WARNING, "trying a.tar again") in caplog.record_tuples


def test_any_process_may_be_killed_at_any_time(tmp_path):
    """Readers, and the server that they are forked from."""
    shards = write(tmp_path, count=12)
    expected = table(fed(shards))
    stop, killed = threading.Event(), []

    def kill():
        random = np.random.default_rng(0)
        while not stop.wait(0.1) and len(killed) < 4:
            server = SERVER._process.pid
            with open(f"/proc/{server}/task/{server}/children") as children:
                readers = [int(pid) for pid in children.read().split()]
            if readers:
                victim = int(random.choice(readers)) if len(killed) % 3 else server
                os.kill(victim, signal.SIGKILL)
                killed.append(victim)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        found = table(fed(shards))
    finally:
        stop.set()
        killer.join()
    assert killed
    assert found == expected


def test_readers_end_with_whoever_reads(tmp_path):
    shards = write(tmp_path)
    feed = shard_feed.ShardFeed(
        shard_feed.ReaderSettings(SPEC, Tokenize(letters), 1 << 20), decoders=2, batch_size=8
    )
    parts = feed.read(shards)
    next(parts)
    readers = [reader.worker._pid for reader in feed._readers]
    parts.close()
    deadline = time.monotonic() + 10
    while any(map(_is_alive, readers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_is_alive, readers))


def _is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def in_script(captions):
    return letters(captions)


def test_a_tokenizer_that_workers_cannot_have_is_called_here(tmp_path, demo_estimator):
    shards = write(tmp_path, count=1)
    tokenizer = demo_estimator.tokenizer
    of_user = Estimator(
        demo_estimator.model, lambda texts: tokenizer(texts), demo_estimator.preprocessing
    )
    options = ScoreOptions(batch_size=8)

    def encoded(estimator):
        encoder = ImageEncoder(estimator, options, ColumnSources(options))
        [(_, complete)] = encoder.encode(shards, lambda samples: None)
        return complete()

    expected, found = encoded(demo_estimator), encoded(of_user)
    assert len(expected.text) == PAIRS
    assert torch.equal(found.text, expected.text)


def test_what_a_script_defines_does_not_travel(monkeypatch):
    assert Tokenize(letters).is_portable
    assert not Tokenize(lambda captions: captions).is_portable
    monkeypatch.setattr(in_script, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "in_script", in_script, raising=False)
    assert not Tokenize(in_script).is_portable


def test_the_working_folder_may_be_removed(tmp_path, monkeypatch):
    shards = write(tmp_path, count=1)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    [(rows, _)] = fed(shards).values()
    assert rows.error is None
