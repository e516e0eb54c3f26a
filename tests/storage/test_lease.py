"""One writer at a time: who holds a lease, who waits, and who takes it over."""

import json
import os
import socket
import threading
import time

import pytest
from upath import UPath

from ncclean.errors import InputError
from ncclean.storage import lease as module
from ncclean.storage.lease import Lease
from ncclean.storage.run_record import RunRecord


@pytest.fixture(params=["disk", "store"])
def path(request, tmp_path):
    if request.param == "disk":
        yield UPath(tmp_path / "work" / "run.lease")
        return
    place = UPath(f"memory://{tmp_path.name}/run.lease")
    yield place
    place.fs.store.clear()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name, seconds in (("LEASE_SECONDS", 1.0), ("RENEW_SECONDS", 0.2), ("_TICK_SECONDS", 0.05)):
        monkeypatch.setattr(module, name, seconds)


def held_by(path, **change):
    """The lease of another process."""
    other = {"id": "x", "host": "elsewhere", "pid": 7, "renewed": time.time(), **change}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(json.dumps(other).encode())


def test_a_second_writer_is_refused_with_host_and_process(path):
    first = Lease(path)
    with pytest.raises(InputError) as raised:
        Lease(path)
    assert f"process {os.getpid()} on {socket.gethostname()}, last seen 20" in str(raised.value)
    first.check()
    first.release()
    Lease(path).release()
    assert not path.exists()


def test_one_that_ran_out_is_watched_for_a_renewal_and_taken_over(path):
    held_by(path, renewed=time.time() - 100)
    begin = time.monotonic()
    Lease(path).release()
    assert time.monotonic() - begin < 0.9


def test_one_that_nobody_renews_is_taken_over_when_it_runs_out(path):
    held_by(path, renewed=time.time() + 1000)  # by a clock that is ahead
    begin = time.monotonic()
    Lease(path).release()
    assert time.monotonic() - begin >= 1.0


def test_one_that_is_renewed_elsewhere_refuses(path, refused):
    held_by(path)
    renewed = threading.Timer(0.3, held_by, [path], {"renewed": time.time() + 0.5})
    renewed.start()
    refused(Lease, path)
    renewed.join()


def test_that_of_a_process_that_died_here_is_taken_over_at_once(path):
    held_by(path, host=socket.gethostname(), pid=2**22 + 1)
    begin = time.monotonic()
    Lease(path).release()
    assert time.monotonic() - begin < 0.9


@pytest.mark.parametrize("name", ["run.lease", "run.json"])
def test_a_pipe_is_refused_at_once(tmp_path, name, refused):
    os.mkfifo(tmp_path / name)
    refused(RunRecord.open, UPath(tmp_path / "run.json"), "copy", {})


def test_who_has_lost_it_stops_and_leaves_it_to_the_other(path, refused):
    lease = Lease(path)
    held_by(path)
    time.sleep(0.5)
    refused(lease.check)
    lease.release()
    if "://" in str(path):
        assert json.loads(path.read_bytes())["id"] == "x"


def test_it_is_renewed_as_long_as_it_is_held(path):
    lease = Lease(path)
    before = json.loads(path.read_bytes())["renewed"]
    time.sleep(0.5)
    assert json.loads(path.read_bytes())["renewed"] > before
    lease.release()


def test_of_many_that_begin_at_once_one_succeeds(path):
    leases, refused, together = [], [], threading.Barrier(8)

    def take():
        together.wait()
        try:
            leases.append(Lease(path))
        except InputError as error:
            refused.append(error)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(leases), len(refused)) == (1, 7)
    leases[0].release()
