import os

import fsspec
import numpy as np
import pytest

from ncclean.storage import array_files
from ncclean.storage.array_files import ArrayFolder

ARRAYS = {
    "vectors": np.arange(12, dtype=np.float16).reshape(4, 3),
    "ids": np.arange(4, dtype=np.int32),
    "digests": np.array([[1, 2**63]], np.uint64),
    "flags": np.array([True, False]),
    "nothing": np.empty((0, 3), np.float32),
    "number": np.array([7]),
}


@pytest.fixture(params=["local", "store"])
def place(request, tmp_path):
    if request.param == "local":
        yield str(tmp_path / "work")
    else:
        yield "memory://arrays/work"
        store = fsspec.filesystem("memory")
        if store.exists("/arrays"):
            store.rm("/arrays", recursive=True)


def test_what_is_saved_is_loaded(place):
    folder = ArrayFolder(place, run="one")
    assert folder.names() == set()
    folder.save("a-0", ARRAYS)
    folder.save("b-0", {"ids": ARRAYS["ids"][::2]})
    assert folder.names() == {"a-0", "b-0"}
    assert folder.has("a-0")
    found = folder.load("a-0")
    for name, expected in ARRAYS.items():
        np.testing.assert_array_equal(found[name], expected)
        assert found[name].dtype == expected.dtype
    assert folder.load("b-0")["ids"].tolist() == [0, 2]
    folder.remove(["a-0"])
    assert folder.names() == {"b-0"}
    folder.forget()


def test_copies_of_another_run_are_not_taken_for_those_of_this_one():
    place = "memory://arrays/work"
    first, second = ArrayFolder(place, run="first"), ArrayFolder(place, run="second")
    first.save("a", {"ids": np.array([1])})
    assert first.load("a")["ids"].tolist() == [1]
    second.save("a", {"ids": np.array([2])})
    assert second.load("a")["ids"].tolist() == [2]
    for folder in (first, second):
        folder.forget()
    fsspec.filesystem("memory").rm("/arrays", recursive=True)


def test_a_file_that_is_not_there_is_one_sentence(place, refused):
    folder = ArrayFolder(place)
    refused(folder.load, "a-1")
    assert not folder.has("a-1")


def test_more_files_are_held_than_systems_allow_at_first(tmp_path):
    resource = pytest.importorskip("resource")
    folder = ArrayFolder(str(tmp_path))
    for number in range(40):
        folder.save(f"a-{number}", ARRAYS)
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    array_files._hold_many_files.cache_clear()
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 20, most))
    try:
        held = [folder.load(f"a-{number}") for number in range(40)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    assert all(one["number"] == 7 for one in held)
