"""SIGKILL at random moments, then the same command again: the rows of an uninterrupted run."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_pairs
from tests.data.image_layouts import LAYOUTS, write_recaptioned
from tests.factories import rendered
from tests.pipelines.score_tables import assert_same_rows, read

COMMAND = "import sys; from ncclean_cli.app import main; main()"


def command(shards, out, *words):
    options = ["--model", "demo", "--precision", "fp32", "--shift", "0.2", "--quiet", *words]
    return [sys.executable, "-c", COMMAND, "score", str(shards), "--out", str(out), *options]


def kill_and_resume(source, out, kills, rng):
    """Start again until it has been killed so often: the rows then, and those of one go."""
    reference = out.with_name("reference.parquet")
    begin = time.monotonic()
    subprocess.run(command(source, reference), check=True)
    whole = time.monotonic() - begin
    for _ in range(kills):
        process = subprocess.Popen(command(source, out))
        try:
            # Most of the time is spent on start-up; aim at the scoring and finalizing after it.
            process.wait(timeout=whole * (0.5 + 0.5 * rng.random()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        visible = [p for p in out.glob("*") if not p.name.startswith((".", "_"))]
        for part in visible:
            read(part)  # nothing is ever visible half-written
    subprocess.run(command(source, out), check=True)
    return read(out), read(reference)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["s.parquet", "s"])
def test_killed_five_times_and_resumed(tmp_path, name):
    shards = tmp_path / "shards"
    rendered(shards, workers=2, pairs=3000, shard_size=250, noise={"ncr": 0.2})
    assert_same_rows(*kill_and_resume(shards, tmp_path / name, 5, random.Random(name)))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["files", "Hugging Face", "imagefolder", "recaptioned"])
def test_killed_on_other_sources(tmp_path, layout):
    rendered(tmp_path / "shards", workers=2, pairs=2400, shard_size=200)
    write = {**LAYOUTS, "recaptioned": write_recaptioned}[layout]
    for number, shard in enumerate(resolve_pairs([str(tmp_path / "shards")])):
        pairs = [(one.key, one.image, one.caption) for one in read_samples(shard)]
        write(pairs, tmp_path / "source" / f"{number:02d}")
    rows = kill_and_resume(tmp_path / "source", tmp_path / "s.parquet", 3, random.Random(layout))
    assert_same_rows(*rows)


def processes(run, kind):
    """The numbers of a run's readers, of the servers that fork them, and of its Ray workers."""
    words = ["ps", "-ww", "-o", "pid=,ppid=,args=", "--sid", str(run.pid)]
    listed = subprocess.run(words, capture_output=True, text=True).stdout.splitlines()
    found = {
        int(pid): (int(parent), args) for pid, parent, args in (x.split(None, 2) for x in listed)
    }
    forked = {pid for pid, (_, args) in found.items() if "fork_server" in args}
    return {
        "reader": [pid for pid in forked if found[pid][0] in forked],
        "server": [pid for pid in forked if found[pid][0] not in forked],
        "worker": [pid for pid, (_, args) in found.items() if args.startswith("ray::score")],
        "command": [run.pid],
    }[kind]


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("--engine", "ray", "--workers", "1")], ids=["local", "ray"])
def test_any_process_of_a_run_is_killed(tmp_path, words):
    """The command alone has to be given again."""
    shards, out = tmp_path / "shards", tmp_path / "s.parquet"
    rendered(shards, workers=2, pairs=4000, shard_size=250, noise={"ncr": 0.2})
    rng = random.Random(len(words))
    kinds = ["reader", "server", "reader", "command", *(["worker"] if words else [])]
    rng.shuffle(kinds)

    def start():
        environment = os.environ | {"RAY_ADDRESS": "local"}
        return subprocess.Popen(
            command(shards, out, *words), env=environment, start_new_session=True
        )

    run = start()
    try:
        for kind in kinds:
            while not (processes(run, "reader") and (found := processes(run, kind))):
                if run.poll() is not None:  # it was quicker
                    assert run.returncode == 0
                    out = out.with_name(f"again-{out.name}")
                    run = start()
                time.sleep(0.05)
            time.sleep(rng.uniform(0, 0.5))
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                os.kill(rng.choice(found), signal.SIGKILL)
            if kind == "command":
                run.wait()
                run = start()
        assert run.wait() == 0
    finally:
        run.kill()
    reference = tmp_path / "reference.parquet"
    subprocess.run(command(shards, reference), check=True)
    assert_same_rows(read(out), read(reference))
