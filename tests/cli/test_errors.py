"""A signal ends a command, whatever query it waits for."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ENDLESS = "(SELECT count(*) FROM range(1000000000000)) > 3"


@pytest.mark.parametrize(
    ("command", "kind"), [("query", signal.SIGINT), ("select", signal.SIGTERM)]
)
def test_a_signal_ends_an_endless_query(tmp_path, command, kind):
    scores = str(tmp_path / "scores.parquet")
    columns = {"uid": ["a"], "shard": ["s"], "key": ["k"], "row": [0], "status": ["ok"]}
    pq.write_table(pa.table({**columns, "similarity": [0.5]}), scores)
    words = {
        "query": [f"SELECT count(*) FROM scores WHERE {ENDLESS}", scores],
        "select": [scores, "--where", ENDLESS, "--out", str(tmp_path / "s.parquet")],
    }[command]
    process = subprocess.Popen(
        [sys.executable, "-m", "ncclean_cli", command, *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        # A shell's background job ignores Ctrl-C, and so would what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    begin = time.monotonic()
    while _seconds_used(process.pid) < 4.0:  # the query runs by then
        assert process.poll() is None
        assert time.monotonic() - begin < 60
        time.sleep(0.1)
    process.send_signal(kind)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors.strip().splitlines()[-1]) == (130, "ncclean: interrupted")


def _seconds_used(number):
    """Processor time of a process."""
    with open(f"/proc/{number}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_too_little_memory_to_map_is_said(corpus, tmp_path):
    done = subprocess.run(
        ["bash", "-c", f"ulimit -v 3000000; '{sys.executable}' -m ncclean_cli score '{corpus}'"
         f" --out '{tmp_path}/s.parquet' --model demo"],
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert "may map 2,929 MB of memory here (`ulimit -v`)" in done.stderr
    assert "Traceback" not in done.stderr
