"""Shards from and tables to `s3://`, against a real endpoint, with its bad days."""

import json
import signal
import subprocess
import sys
import time

import pytest
from ncclean_pipelines.score import Score

from ncclean.base import stores
from ncclean.base.config import ScoreOptions
from ncclean.errors import InputError
from ncclean.storage.joined import query
from tests import object_store
from tests.command_line import START, run
from tests.execution.clusters import environment
from tests.factories import rendered
from tests.pipelines.score_tables import assert_same_rows, read

MODEL = {"model": "demo", "precision": "fp32", "shift": 0.2}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return rendered(
        tmp_path_factory.mktemp("objects") / "shards",
        pairs=120,
        shard_size=20,
        noise={"ncr": 0.2},
        broken=0.02,
        seed=4,
    )


@pytest.fixture(scope="module")
def reference(shards, tmp_path_factory):
    out = tmp_path_factory.mktemp("reference") / "scores.parquet"
    Score(shards=[str(shards)], out=str(out), **MODEL).run()
    return read(out)


@pytest.fixture
def store(shards):
    with object_store.s3() as made:
        object_store.upload(shards, "s3://corpus/shards")
        made.requests.clear()
        yield made


def download(url, folder):
    system = object_store.filesystem()
    folder.mkdir()
    for name in system.glob(url.removeprefix("s3://")):
        system.get_file(name, str(folder / name.rsplit("/", 1)[1]))
    return read(folder)


@pytest.mark.parametrize("name", ["scores.parquet", pytest.param("scores", marks=pytest.mark.slow)])
def test_in_and_out(store, reference, tmp_path, name):
    out = f"s3://corpus/{name}"
    options = ScoreOptions(embeddings="s3://corpus/embeddings")
    summary = Score(shards=["s3://corpus/shards"], out=out, options=options, **MODEL).run().summary
    assert (summary.rows, summary.shards_failed) == (120, 0)
    pattern = out if name.endswith("parquet") else f"{out}/*.parquet"
    assert_same_rows(download(pattern, tmp_path / "copy"), reference)
    counted = query("SELECT count(*), sum(similarity) FROM scores", [out]).fetchall()[0]
    assert counted[0] == 120
    assert counted[1] == pytest.approx(reference["similarity"].to_pandas().sum(), rel=1e-5)
    written = object_store.filesystem().find("corpus")
    assert sum("img_emb" in path for path in written) == 6
    assert not [path for path in written if "part-" in path and ".ncclean" in path]  # cleaned up
    # Each shard is fetched once, and three of them are looked at to estimate their samples.
    gets = [path for method, path in store.requests if method == "GET" and path.endswith(".tar")]
    assert len(gets) == 6 + 3
    Score(shards=[], out=out, finalize_only=True, **{**MODEL, "shift": 0.4}).run()
    assert query("SELECT sum(osa_weight) FROM scores", [out]).fetchall()[0][0] < 40


@pytest.mark.slow
def test_an_endpoint_that_refuses_connections_for_a_while_is_waited_for(
    store, reference, tmp_path, caplog
):
    def leaves(method, path):
        if method == "PUT" and "part-00001" in path and not leaves.has_left:
            leaves.has_left = True
            store.away(5)
        return False

    leaves.has_left = False
    store.refuses = leaves
    out = "s3://corpus/scores.parquet"
    summary = Score(shards=["s3://corpus/shards"], out=out, **MODEL).run().summary
    assert (summary.rows, summary.shards_failed) == (120, 0)
    assert leaves.has_left
    assert "again in" in caplog.text
    assert_same_rows(download(out, tmp_path / "copy"), reference)


@pytest.mark.slow
def test_credentials_that_expire_end_the_run_and_nothing_is_lost(
    store, reference, tmp_path, refused
):
    store.forbids = lambda method, path: method == "PUT" and "part-00003" in path
    out = "s3://corpus/scores.parquet"
    refused(Score, shards=["s3://corpus/shards"], out=out, **MODEL)
    store.forbids = lambda method, path: False
    store.requests.clear()
    Score(shards=["s3://corpus/shards"], out=out, **MODEL).run()
    assert not [path for method, path in store.requests if method == "PUT" and "00000" in path]
    assert_same_rows(download(out, tmp_path / "copy"), reference)


def test_one_object_that_is_refused_is_one_failed_shard(store, tmp_path, refused):
    store.forbids = lambda method, path: path.endswith("00002.tar")
    out = str(tmp_path / "s.parquet")
    summary = Score(shards=["s3://corpus/shards"], out=out, **MODEL).run().summary
    assert (summary.rows, summary.shards_failed) == (100, 1)
    assert "Forbidden" in summary.failed_shards["00002"]
    store.forbids = lambda method, path: path.endswith(".tar")
    refused(Score, shards=["s3://corpus/shards"], out=str(tmp_path / "t.parquet"), **MODEL)


@pytest.mark.slow
def test_of_two_runs_on_one_output_the_second_is_refused(store, reference, tmp_path):
    store.delay = 0.1
    out = "s3://corpus/scores.parquet"
    words = ["score", "s3://corpus/shards", "--out", out, "--model", "demo", "--shift", "0.2"]
    first = subprocess.Popen([sys.executable, "-c", START, *words, "--precision", "fp32"])
    while not any(method == "PUT" and ".lease" in path for method, path in store.requests):
        assert first.poll() is None
        time.sleep(0.05)
    with pytest.raises(InputError, match=rf"another run is writing to .*process {first.pid} on .*"):
        Score(shards=["s3://corpus/shards"], out=out, **MODEL).run()
    assert first.wait() == 0
    store.delay = 0
    assert Score(shards=["s3://corpus/shards"], out=out, **MODEL).run().summary.rows == 120
    assert_same_rows(download(out, tmp_path / "copy"), reference)


def test_globs_braces_and_what_is_missing(store, tmp_path, refused):
    def count(source):
        out = tmp_path / f"{len(list(tmp_path.iterdir()))}.parquet"
        return Score(shards=[source], out=str(out), dry_run=True, **MODEL).run().summary.shards

    assert count("s3://corpus/shards/0000[01].tar") == 2
    assert count("s3://corpus/shards/{00000..00002}.tar") == 3
    for source in ("corpus/none/*.tar", "corpus/none/00000.tar", "no-such-bucket/shards"):
        refused(count, f"s3://{source}")


def test_output_to_a_bucket_that_is_not_there(store, refused):
    refused(Score, shards=["s3://corpus/shards"], out="s3://no-such-bucket/s", **MODEL)


def test_no_credentials_is_one_sentence(store, monkeypatch, refused):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with environment({"AWS_EC2_METADATA_DISABLED": "true"}):
        object_store.filesystem_class().clear_instance_cache()
        refused(Score, shards=["s3://corpus/shards"], out="s3://corpus/s", **MODEL)


@pytest.mark.slow
def test_throttling_is_sat_out(store, reference, tmp_path):
    """Every fourth request is refused, whatever it is."""
    seen = []

    def refuses(method, path):
        seen.append(path)
        return len(seen) % 4 == 0

    store.refuses = refuses
    Score(shards=["s3://corpus/shards"], out="s3://corpus/s.parquet", **MODEL).run()
    store.refuses = lambda method, path: False
    assert store.refused > 5
    assert_same_rows(download("s3://corpus/s.parquet", tmp_path / "copy"), reference)


@pytest.mark.slow
def test_a_store_that_stays_away_ends_the_run_with_a_sentence(store, monkeypatch, refused):
    monkeypatch.setattr(stores, "PATIENCE_SECONDS", 1.0)
    store.refuses = lambda method, path: method == "PUT" and "part-00000" in path
    refused(Score, shards=["s3://corpus/shards"], out="s3://corpus/s.parquet", **MODEL)
    store.refuses = lambda method, path: False
    summary = Score(shards=["s3://corpus/shards"], out="s3://corpus/s", **MODEL).run().summary
    assert summary.rows == 120


@pytest.mark.slow
def test_killed_and_resumed(store, reference, tmp_path):
    command = [
        *("score", "s3://corpus/shards", "--json"),
        *("--out", "s3://corpus/s.parquet", "--model", "demo", "--precision", "fp32"),
        *("--shift", "0.2"),
    ]
    process = subprocess.Popen([sys.executable, "-c", START, *command], stdout=subprocess.DEVNULL)
    while not any(method == "PUT" and "part-" in path for method, path in store.requests):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = run(*command)
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)["rows"] == 120
    assert_same_rows(download("s3://corpus/s.parquet", tmp_path / "copy"), reference)
