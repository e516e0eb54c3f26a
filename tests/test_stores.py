"""Files and stores behind one set of paths, and patience with stores."""

import math

import pytest
from upath import UPath

from ncclean.base import stores
from ncclean.errors import InputError
from ncclean.storage.tables import listed_files
from tests.http_server import served


class GcsError(Exception):
    def __init__(self, code):
        self.code = code


@pytest.fixture
def quick(monkeypatch):
    """Pauses of nothing."""
    monkeypatch.setattr(stores, "_LONGEST_PAUSE_SECONDS", 0.001)


def failing(*errors):
    left = list(errors)

    def work(value):
        if left:
            raise left.pop(0)
        return value

    return work


def test_an_operation_is_tried_until_it_succeeds(quick):
    assert stores.ask("read", "s3://b/x", failing(TimeoutError(), GcsError(500)), 7) == 7


def test_what_does_not_help_is_not_tried_again(quick, refused):
    work = failing(FileNotFoundError(2, "No such file"))
    refused(stores.ask, "read", "/x", work, 7)
    assert work(7) == 7  # the second call was never made


def test_patience_ends(quick, monkeypatch, refused):
    monkeypatch.setattr(stores, "PATIENCE_SECONDS", 0.05)

    def work():
        raise TimeoutError("away")

    refused(stores.ask, "read", "s3://b/x", work)


def test_bugs_are_not_sentences():
    with pytest.raises(ZeroDivisionError):
        stores.ask("read", "/x", lambda: 1 / 0)


@pytest.mark.parametrize("refusals", [2, math.inf])
def test_reads_of_an_open_object_are_retried(quick, monkeypatch, tmp_path, refusals):
    """Of fsspec's file systems, that of http reads each range once."""
    monkeypatch.setattr(stores, "PATIENCE_SECONDS", 0.2)
    data = bytes(range(256)) * 8
    (tmp_path / "x").write_bytes(data)
    refused = []

    def refuses(request):
        is_later = not request.headers.get("Range", "bytes=0-").startswith("bytes=0-")
        refused.extend([request] * is_later)
        return is_later and len(refused) <= refusals

    with served(tmp_path, refuses) as url:
        for opened in (
            lambda: stores.open_binary(f"{url}/x", block_bytes=1024, blocks=2),
            lambda: stores.open_anywhere(UPath(f"{url}/x")),
        ):
            refused.clear()
            with opened() as file:
                assert file.read(1000) == data[:1000]
                if refusals == 2:
                    assert file.read() == data[1000:]
                else:
                    with pytest.raises(OSError, match="does not answer"):
                        file.read()


@pytest.mark.parametrize(
    "is_there",
    [stores.exists, stores.is_file, lambda path: stores.present_files([path]),
     lambda path: listed_files([str(path)])],
    ids=["exists", "is_file", "present_files", "listed_files"],
)  # fmt: skip
def test_a_store_that_does_not_answer_denies_nothing(quick, monkeypatch, tmp_path, is_there):
    """fsspec's `isfile` and http's `exists` do, and http calls a file without a size missing."""
    (tmp_path / "x.parquet").write_bytes(b"x")
    refusals = [None] * 5
    with served(tmp_path, lambda request: refusals and not refusals.pop()) as url:
        assert is_there(UPath(f"{url}/x.parquet"))
        assert not refusals
        monkeypatch.setattr(stores, "PATIENCE_SECONDS", 0.1)
        refusals += [None] * 10_000
        with pytest.raises(InputError, match="does not answer"):
            is_there(UPath(f"{url}/x.parquet"))
        refusals.clear()
        nothing = UPath(f"{url}/none")
        assert (stores.exists(nothing), stores.is_file(nothing)) == (False, False)


def test_an_unknown_scheme_is_one_sentence(refused):
    refused(stores.location, "nosuch://x")


def test_a_store_whose_library_is_missing_says_what_to_install(monkeypatch, refused):
    def refuse(*_, **__):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(stores, "UPath", refuse)
    refused(stores.location, "s3://b/x")
    refused(stores.location, "abfs://b/x")


@pytest.mark.parametrize("place", ["disk", "store"])
def test_ranges(tmp_path, place, refused):
    path = UPath(tmp_path / "x") if place == "disk" else UPath(f"memory://{tmp_path.name}/x")
    path.write_bytes(bytes(range(100)))
    url = str(path)
    assert stores.read_range(url, 10, 14) == bytes(range(10, 14))
    assert stores.read_bytes(path) == bytes(range(100))
    refused(stores.read_range, url, 90, 110)


def test_a_server_without_ranges_is_named(tmp_path):
    (tmp_path / "x").write_bytes(bytes(range(100)))
    error = pytest.raises(InputError, match="ignores ranges")
    with served(tmp_path, has_ranges=False) as url, error:
        stores.read_range(f"{url}/x", 10, 14)


@pytest.mark.parametrize("place", ["disk", "store"])
@pytest.mark.parametrize("count", [3, 30])
def test_files_are_found_and_removed_and_folders_are_not(tmp_path, place, count):
    folder = UPath(tmp_path / "f") if place == "disk" else UPath(f"memory://{tmp_path.name}/f")
    if place == "disk":
        folder.mkdir()
    files = [folder / f"{number}.bin" for number in range(count)]
    inside = folder / "sub.bin" / "inside.txt"
    if place == "disk":
        inside.parent.mkdir()
    for path in [*files[::2], folder / "mine.bin", inside]:
        path.write_bytes(b"x")
    asked = [*files, inside.parent, folder / "none" / "x.bin"]
    assert set(map(str, stores.present_files(asked))) == set(map(str, files[::2]))
    stores.remove_files(asked)
    assert not any(path.exists() for path in files)
    assert (folder / "mine.bin").exists()
    assert inside.exists()


def test_a_link_is_removed_and_not_what_it_points_to(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("x")
    for name, target in (("to_folder", "data"), ("to_nothing", "nowhere")):
        (tmp_path / name).symlink_to(tmp_path / target)
        stores.remove_files([UPath(tmp_path / name)])
        assert not (tmp_path / name).is_symlink()
    assert (tmp_path / "data" / "x").exists()


def test_one_name_for_each_file(tmp_path, monkeypatch):
    (tmp_path / "x").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "x")
    monkeypatch.chdir(tmp_path)
    assert stores.canonical("link") == stores.canonical("./x") == str((tmp_path / "x").resolve())
    assert stores.canonical("s3://b/../x") == "s3://b/../x"


@pytest.mark.parametrize(
    "url",
    ["reference://x.json", "filecache::s3://b/x", "zip://a.tar::s3://b/x.zip", "github://a:b@/x",
     "dask://x", "jlab://x", "dir::file:///pairs"],
)  # fmt: skip
def test_urls_that_stand_for_something_else_are_not_followed(url, refused):
    """Some of fsspec's file systems evaluate expressions that are in a file, or run commands."""
    refused(stores.location, url)
