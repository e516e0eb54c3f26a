"""The Ray engine on a real cluster: the local engine's rows, whatever happens to the workers.

Those of a cluster to which nothing happens: `tests/runners/test_ray_runner.py`.
"""

import contextlib
import itertools
import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pyarrow.compute as pc
import pytest
import ray
import torch
from ncclean_pipelines.score import Score
from ray.exceptions import ObjectLostError, RayTaskError
from ray.util import list_named_actors
from safetensors.torch import save_file

from ncclean.base.config import DEFAULT_MODEL, ClusterOptions, ScoreOptions
from ncclean.data.reader import read_samples
from ncclean.data.shards import ShardRef
from ncclean.data.sources import resolve_pairs
from ncclean.errors import InputError
from ncclean.execution import ray_shards, ray_workers
from ncclean.execution.column_sources import ColumnSources
from ncclean.execution.engine import PartWriter, ShardOutcome, ShardTask
from ncclean.runners import ray_cluster
from tests import object_store
from tests.data.image_layouts import LAYOUTS, write_recaptioned
from tests.execution import clusters
from tests.factories import rendered
from tests.pipelines.score_tables import assert_same_rows, read

DATA = Path(__file__).parents[1] / "data"
NOISY = {"shard_size": 100, "noise": {"ncr": 0.2}, "broken": 0.02, "seed": 3}
COMMAND = "import sys; from ncclean_cli.app import main; main()"


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return rendered(tmp_path_factory.mktemp("ray") / "shards", pairs=900, **NOISY)


@pytest.fixture(scope="module")
def reference(shards, tmp_path_factory):
    out = tmp_path_factory.mktemp("reference") / "scores.parquet"
    Score(shards=[str(shards)], out=str(out), **MODEL).run()
    return read(out)


MODEL = {"model": "demo", "precision": "fp32", "shift": 0.2}


def on(cluster, shards, out, workers=3, **changes):
    return Score(
        shards=[str(shards)],
        out=str(out),
        engine="ray",
        cluster=ClusterOptions(address=cluster.address, workers=workers, cpus_per_worker=1),
        **{**MODEL, **changes},
    )


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory):
    with clusters.cluster(tmp_path_factory.mktemp("site"), [2, 1]) as made:
        yield made


@pytest.mark.slow
def test_an_outcome_that_is_lost_with_its_node(two_nodes, shards, reference, tmp_path, monkeypatch):
    """The shard is scored again: its statistics lay in the store of the node."""
    lost = []

    def get(reference):
        outcome = ray_cluster.get(reference)
        if not lost and isinstance(outcome, ShardOutcome):
            lost.append(reference)
            raise ObjectLostError(reference.hex(), None, "")
        return outcome

    monkeypatch.setattr(ray_workers, "get", get)
    summary = on(two_nodes, shards, tmp_path / "scores.parquet").run().summary
    assert lost
    assert summary.shards_failed == 0
    assert_same_rows(read(tmp_path / "scores.parquet"), reference)


def _tars(folder: Path, **options: object) -> str:
    rendered(folder, pairs=300, shard_size=150, seed=1, **options)
    return folder.name


def _images(folder: Path, layout: str) -> str:
    """A source of images beside their captions, of as many pairs as two tars."""
    tars = _tars(folder.parent / "tars")
    pairs = [
        (sample.key, sample.image, sample.caption)
        for shard in resolve_pairs([str(folder.parent / tars)])
        for sample in read_samples(shard)
    ]
    source = {**LAYOUTS, "recaptioned": write_recaptioned}[layout](pairs, folder)
    return str(source.relative_to(folder.parent))


def _column_options(folder: Path) -> ScoreOptions:
    """A module and a head that only the working folder has."""
    (folder / "here_alone.py").write_text(
        "import pyarrow as pa\nfrom ncclean.columns import columns\n\n"
        "LIMIT = 30\n\n"
        "@columns(words=pa.int32())\n"
        "def words(batch):\n"
        "    if any(len(text) > LIMIT for text in batch.captions):\n"
        "        raise ValueError('too long')\n"
        "    return {'words': [len(text.split()) for text in batch.captions]}\n"
    )
    vectors = torch.nn.functional.normalize(torch.randn(1, 128), dim=1)
    save_file({"weight": vectors}, str(folder / "head.safetensors"))
    return ScoreOptions(
        columns=["here_alone:words"],
        head=["h=head.safetensors"],
        signals=["language", "image", "text"],
    )


# What makes the corpus in a folder and gives its name, then the options; and a column that has
# values.
RUNS = {
    **{
        layout: (partial(_images, layout=layout), {}, "similarity")
        for layout in ("files", "Hugging Face", "open_clip")
    },
    "recaptioned": (
        partial(_images, layout="recaptioned"),
        {"caption_key": ("caption", "recaption")},
        "similarity",
    ),
    "embeddings": (
        lambda folder: str(DATA / "clip-retrieval-2.45"),
        {"pool": 50, "canonical": True},
        "similarity",
    ),
    "columns": (partial(_tars, noise={"ncr": 0.2}), _column_options, "words"),
    "parts": (
        partial(_tars, noise={"foreign_sentence": 0.3}, sentences=3),
        {"caption_parts": "sentences"},
        "part_noise_probabilities",
    ),
    "words": (  # the classes are learnt once, here, and read by the nodes
        partial(_tars, noise={"hard": 0.3}),
        {"words": True, "word_classes": "corpus"},
        "suspect_word",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_rows_of_every_source_and_column(two_nodes, tmp_path, monkeypatch, name):
    """Named from the working folder, which no worker shares."""
    monkeypatch.setattr("ncclean.data.images.layout.ImageLayout.unit_rows", 50)
    make, settings, column = RUNS[name]
    monkeypatch.chdir(tmp_path)
    source = make(tmp_path / "source")
    options = settings(tmp_path) if callable(settings) else ScoreOptions(**settings)
    model = {"model": DEFAULT_MODEL, "precision": "auto", "shift": "shuffled"}
    changes = {"options": options, **(model if name == "embeddings" else {})}
    local = Score(shards=[source], out="local.parquet", **{**MODEL, **changes}).run().summary
    summary = on(two_nodes, source, "ray.parquet", **changes).run().summary
    for fact in ("rows", "shards", "column_failures", "part_noise_rate", "captions_cut"):
        assert getattr(summary, fact) == getattr(local, fact), fact
    computed, expected = read(tmp_path / "ray.parquet"), read(tmp_path / "local.parquet")
    assert_same_rows(computed, expected)
    assert computed.schema.names == expected.schema.names
    assert computed[column].null_count < len(computed)


@pytest.mark.slow
def test_a_corpus_grows_on_the_cluster(two_nodes, shards, reference, tmp_path):
    folder, out = tmp_path / "shards", tmp_path / "scores.parquet"
    folder.mkdir()
    for number in (1, 3, 4, 8):
        (folder / f"0000{number}.tar").symlink_to(shards / f"0000{number}.tar")
    on(two_nodes, folder, out).run()
    for number in (0, 2, 5, 6, 7):
        (folder / f"0000{number}.tar").symlink_to(shards / f"0000{number}.tar")
    summary = on(two_nodes, folder, out).run().summary
    assert (summary.rows, summary.shards) == (900, 9)
    found = read(out)
    assert_same_rows(found, reference)
    assert found.schema.metadata == reference.schema.metadata


@pytest.mark.slow
def test_a_folder_of_parts_and_finalize_again_on_the_cluster(
    two_nodes, shards, reference, tmp_path
):
    summary = on(two_nodes, shards, tmp_path / "scores", shift=0.5).run().summary
    assert (summary.rows, summary.shards, summary.shards_failed) == (900, 9, 0)
    of_the_shift = ["osa_weight", "osa_noisy"]
    found = read(tmp_path / "scores")
    assert_same_rows(found.drop_columns(of_the_shift), reference.drop_columns(of_the_shift))
    on(two_nodes, shards, tmp_path / "scores", finalize_only=True).run()
    assert_same_rows(read(tmp_path / "scores"), reference)


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_of_a_shard(two_nodes, shards, reference, tmp_path):
    killer = threading.Thread(target=clusters.kill_workers)
    killer.start()
    summary = on(two_nodes, shards, tmp_path / "s.parquet").run().summary
    killer.join()
    assert summary.shards_failed == 0
    assert_same_rows(read(tmp_path / "s.parquet"), reference)


def test_no_cluster_at_the_address_is_one_sentence(tmp_path, refused):
    few = rendered(tmp_path / "shards", pairs=20, shard_size=20)
    request = Score(
        shards=[str(few)],
        out=str(tmp_path / "s"),
        cluster=ClusterOptions(address="127.0.0.1:1"),
        **MODEL,
    )
    refused(request.run)


@pytest.mark.slow
def test_a_model_that_no_worker_can_load_ends_the_run(two_nodes, shards, tmp_path, refused):
    refused(on, two_nodes, shards, tmp_path / "s", model="local-dir:/no such")


@pytest.mark.slow
def test_a_node_removed_in_the_middle_of_the_job(shards, reference, tmp_path):
    with clusters.cluster(tmp_path / "site", [2]) as made:
        node = made.add_node(num_cpus=2, object_store_memory=100 << 20)
        watch = clusters.OnFirst(lambda: made.remove_node(node, allow_graceful=False))
        summary = on(made, shards, tmp_path / "s.parquet", workers=4).run(watch).summary
    assert watch.has_happened
    assert summary.shards_failed == 0
    assert_same_rows(read(tmp_path / "s.parquet"), reference)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("FATAL_SHARD", "on 2 workers, last ncclean-worker-"),
        ("UNREADABLE_SHARD", "cannot be read on: its reader was ended by SIGABRT"),
    ],
)
def test_a_shard_that_ends_whoever_has_it_is_set_aside(shards, reference, tmp_path, fault, says):
    """The worker itself, or its readers."""
    with clusters.cluster(tmp_path / "site", [2, 1], **{fault: "00004"}) as made:
        summary = on(made, shards, tmp_path / "s.parquet").run().summary
    assert list(summary.failed_shards) == ["00004"]
    assert says in summary.failed_shards["00004"]
    found = read(tmp_path / "s.parquet")
    kept = reference.filter(pc.not_equal(reference["shard"], "00004"))
    corpus_wide = [
        "noise_probability",
        "null_p_value",
        "clean_posterior",
    ]  # a shard less makes another null
    assert_same_rows(found.drop_columns(corpus_wide), kept.drop_columns(corpus_wide))


@pytest.mark.slow
def test_shards_and_table_in_an_object_store(shards, reference, tmp_path):
    """Workers read and write the store themselves; a killed one leaves nothing behind."""
    with object_store.s3() as store, clusters.cluster(tmp_path / "site", [2, 1]) as made:
        object_store.upload(shards, "s3://corpus/shards")
        killer = threading.Thread(target=clusters.kill_workers)
        killer.start()
        summary = on(made, "s3://corpus/shards", "s3://corpus/scores").run().summary
        killer.join()
        assert (summary.rows, summary.shards_failed) == (900, 0)
        assert any(method == "PUT" and "part-" in path for method, path in store.requests)
        (tmp_path / "copy").mkdir()
        system = object_store.filesystem()
        for name in system.glob("corpus/scores/*.parquet"):
            system.get_file(name, str(tmp_path / "copy" / name.rsplit("/", 1)[1]))
    assert_same_rows(read(tmp_path / "copy"), reference)


@pytest.mark.slow
def test_a_straggler_does_not_hold_the_job(shards, reference, tmp_path, monkeypatch):
    """Meanwhile, idle workers are given back: an autoscaler may take their nodes away."""
    monkeypatch.setattr(ray_shards, "STRAGGLER_SECONDS", 15.0)  # the others end before
    workers = []

    class Watching:
        def say(self, text): ...

        def advance(self, *counts, **facts):
            workers.append(len(list_named_actors(all_namespaces=True)))

    with clusters.cluster(tmp_path / "site", [2, 1], SLOW_SHARD="00007") as made:
        begin = time.monotonic()
        summary = on(made, shards, tmp_path / "s.parquet").run(Watching()).summary
        seconds = time.monotonic() - begin
    assert (tmp_path / "site" / "asked").exists()
    assert seconds < 300  # what the first worker to open the shard sleeps
    assert (summary.rows, summary.shards_failed) == (900, 0)
    assert_same_rows(read(tmp_path / "s.parquet"), reference)
    assert max(workers) == 3
    assert workers[-1] <= 2


@pytest.mark.slow
def test_a_node_with_other_weights_is_left_out(shards, reference, tmp_path, caplog):
    """It joins when the others are at work: those that came first say what the weights are."""
    with clusters.cluster(tmp_path / "site", [2], SECONDS_A_BATCH="4") as made:

        def join():
            with clusters.environment({"OTHER_WEIGHTS": "1"}):
                made.add_node(num_cpus=1, object_store_memory=100 << 20)

        summary = on(made, shards, tmp_path / "s.parquet").run(clusters.OnFirst(join)).summary
    assert "a worker has ModelIdentity" in caplog.text
    assert "is parked" in caplog.text
    assert (summary.rows, summary.shards_failed) == (900, 0)
    assert_same_rows(read(tmp_path / "s.parquet"), reference)


@pytest.mark.slow
def test_a_model_that_fails_to_load_on_one_node(shards, reference, tmp_path):
    with clusters.cluster(tmp_path / "site", [1]) as made:
        with clusters.environment({"BROKEN_NODE": "1"}):
            made.add_node(num_cpus=2, object_store_memory=100 << 20)
        summary = on(made, shards, tmp_path / "s.parquet", workers=None).run().summary
    assert summary.shards_failed == 0
    assert_same_rows(read(tmp_path / "s.parquet"), reference)


@pytest.mark.slow
def test_a_worker_without_room_holds_no_shards_and_one_that_joins_takes_part(
    shards, reference, tmp_path
):
    with clusters.cluster(tmp_path / "site", [1]) as made:
        watch = clusters.OnFirst(lambda: made.add_node(num_cpus=1, object_store_memory=100 << 20))
        on(made, shards, tmp_path / "s.parquet", workers=3).run(watch)
    assert watch.has_happened
    assert_same_rows(read(tmp_path / "s.parquet"), reference)


@pytest.mark.slow
def test_the_driver_killed_and_started_again(shards, reference, tmp_path):
    with clusters.cluster(tmp_path / "site", [2]) as made:
        arguments = ["--model", "demo", "--precision", "fp32", "--shift", "0.2", "--json"]
        command = [
            *(sys.executable, "-c", COMMAND, "score", str(shards)),
            *("--out", str(tmp_path / "s.parquet"), *arguments),
            *("--ray-address", made.address, "--workers", "2", "--cpus-per-worker", "1"),
        ]
        work = tmp_path / "s.parquet.work"
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while len(list(work.glob("part-*.parquet"))) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)["rows"] == 900
    assert_same_rows(read(tmp_path / "s.parquet"), reference)


@pytest.mark.slow
def test_an_ill_device_gets_no_more_shards(shards, reference, tmp_path, caplog):
    """It works for three batches, then every call fails, in each new process, too."""
    options = ScoreOptions(batch_size=30)
    with clusters.cluster(tmp_path / "site", [1], SECONDS_A_BATCH="3") as made:
        with clusters.environment({"ILL_FROM_BATCH": "4"}):
            ill = made.add_node(num_cpus=1, object_store_memory=100 << 20)
        summary = on(made, shards, tmp_path / "s.parquet", options=options).run().summary
        assert (summary.rows, summary.shards_failed) == (900, 0)
    assert_same_rows(read(tmp_path / "s.parquet"), reference)
    failures = [line for line in caplog.messages if "CUDA error: an illegal" in line]
    parked = [line for line in caplog.messages if "is parked" in line]
    assert len(failures) == 3
    assert len(parked) == 1
    assert f"({ill.node_id[:8]})" in parked[0]


@pytest.mark.slow
def test_devices_that_all_fail_end_the_run_and_fail_no_shard(shards, tmp_path):
    with (
        clusters.cluster(tmp_path / "site", [1], ILL_FROM_BATCH="1") as made,
        pytest.raises(InputError, match=r"no worker is left.*CUDA error.*what is done is kept"),
    ):
        on(made, shards, tmp_path / "s.parquet").run()
    assert not list(tmp_path.rglob("part-*.parquet"))


@pytest.mark.slow
def test_a_device_with_little_memory_takes_smaller_batches(shards, reference, tmp_path):
    with clusters.cluster(tmp_path / "site", [1], LARGEST_BATCH="20") as made:
        summary = on(made, shards, tmp_path / "s.parquet").run().summary
    assert (summary.rows, summary.shards_failed) == (900, 0)
    assert_same_rows(read(tmp_path / "s.parquet"), reference)


@pytest.mark.slow
def test_four_workers_that_die_at_once_do_not_stop_the_driver(shards, reference, tmp_path):
    """Each of their shards is scored again; what is asked of the driver meanwhile is answered."""
    times = []

    class Watching:
        def say(self, text): ...

        def advance(self, *counts, **facts):
            times.append(time.monotonic())

    killer = threading.Thread(target=clusters.kill_workers, args=(4,))
    options = ScoreOptions(batch_size=30)
    with clusters.cluster(tmp_path / "site", [4], SECONDS_A_BATCH="4") as made:
        killer.start()
        run = on(made, shards, tmp_path / "s.parquet", workers=4, options=options)
        summary = run.run(Watching()).summary
    killer.join()
    assert (summary.rows, summary.shards_failed) == (900, 0)
    assert_same_rows(read(tmp_path / "s.parquet"), reference)
    assert max(after - before for before, after in itertools.pairwise(times)) < 5


@pytest.mark.slow
def test_what_there_is_to_watch(shards, tmp_path):
    """Metrics, the names of actors, and the traceback of a shard that two workers failed."""
    names, metrics = set(), {}

    class Watching:
        def say(self, text): ...

        def advance(self, *counts, **facts):
            names.update(one["name"] for one in list_named_actors(all_namespaces=True))
            for node in filter(lambda one: one["Alive"], ray.nodes()):
                url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
                with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as page:
                    shown = re.findall(
                        r"^ray_(ncclean_\w+)\{(.*)\} (.*)$", page.read().decode(), re.M
                    )
                metrics.update({(name, tags): float(value) for name, tags, value in shown})

    variables = {"RAY_metrics_report_interval_ms": "500", "SECONDS_A_BATCH": "0.5"}
    with clusters.cluster(tmp_path / "site", [2], ODD_SHARD="00002", **variables) as made:
        options = ScoreOptions(batch_size=30)
        run = on(made, shards, tmp_path / "s.parquet", workers=2, options=options)
        summary = run.run(Watching()).summary
        logs = Path(made.head_node.get_logs_dir_path())
        written = "".join(path.read_text() for path in logs.glob("worker-*.err"))
    assert re.search(r"ERROR ncclean.*\[ncclean-worker-.*, node .*\] shard 00002 failed\n", written)
    assert "LookupError: nobody has thought of this" in written
    assert list(summary.failed_shards) == ["00002"]
    assert "LookupError" in summary.failed_shards["00002"]
    assert "on 2 workers" in summary.failed_shards["00002"]
    assert (
        len([name for name in names if re.fullmatch(r"ncclean-worker-[0-9a-f]{6}-\d", name)]) == 2
    )
    assert {name for name, _ in metrics} >= {
        "ncclean_pairs_total", "ncclean_bytes_total", "ncclean_seconds_total",
        "ncclean_failures_total",
    }  # fmt: skip
    phases = {re.search('phase="(.*?)"', tags)[1] for name, tags in metrics if "seconds" in name}
    assert phases == {"store", "decode", "device", "score", "write"}
    assert any('reason="LookupError"' in tags for _, tags in metrics)
    assert all("worker=" in tags for _, tags in metrics)


# What becomes of shards that fail: by workers that answer at once, without a cluster.


class Failing:
    """A pool of some workers on which every shard fails."""

    columns = ColumnSources(ScoreOptions())
    watch = SimpleNamespace(nodes=dict)

    def __init__(self, workers):
        self.usable = self.ready = [
            ray_workers.Worker(f"w{number}", None, ray_workers.Place("n", str(number), "h"))
            for number in range(workers)
        ]
        self.calls, self.tried = {}, []

    def is_healthy(self, worker):
        return True

    def grow(self, most):
        pass

    def release(self, worker):
        pass

    def call(self, worker, method, *_, **facts):
        self.tried.append(worker.name)
        assert len(self.tried) < 20, "it is never given up"
        call = ray_workers.Call(worker, method, time.monotonic(), **facts)
        self.calls[len(self.tried)] = call
        worker.running.append(call)

    def answers(self):
        for reference, call in list(self.calls.items()):
            del self.calls[reference]
            call.worker.running.remove(call)
            yield call, RayTaskError("score", "Traceback: no", LookupError("no"))


@pytest.mark.parametrize(
    ("workers", "tried"), [(1, ["w0", "w0", "w0"]), (2, ["w0", "w1"]), (3, ["w0", "w1"])]
)
def test_two_workers_or_three_attempts_of_the_only_one(tmp_path, workers, tried):
    pool, outcomes = Failing(workers), []
    task = ShardTask(0, ShardRef("00000", str(tmp_path / "00000.tar"), 1, "v"))
    writer = PartWriter(str(tmp_path), None, 5)
    run = ray_shards.ShardRun(
        pool, [task], [task.shard], writer, lambda *done: outcomes.append(done), lambda pairs: None
    )
    run.until_done()
    assert pool.tried == tried
    ((shard, outcome),) = outcomes
    assert (shard, outcome.stats.rows) == (task.shard, 0)
    assert f"on {len(set(tried))} workers" in outcome.stats.error
