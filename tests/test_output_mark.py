"""Which command wrote a file, in every format that commands write."""

import json
import os

import matplotlib.figure
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from upath import UPath

from ncclean.base.figure_files import write_figure
from ncclean.base.file_names import FIGURE_ENDINGS
from ncclean.base.output_mark import check_free, mark, was_made_by
from ncclean.errors import InputError
from ncclean.exporting.uid_file import export_uids
from ncclean.storage.run_folder import write_json


@pytest.mark.parametrize("kind", FIGURE_ENDINGS)
def test_figures(tmp_path, kind):
    path = str(tmp_path / f"f{kind}")
    figure = matplotlib.figure.Figure()
    figure.subplots().plot(range(1000))
    write_figure(figure, path, "evaluate noise")
    first = UPath(path).read_bytes()
    assert was_made_by(path, "evaluate noise")
    assert not was_made_by(path, "evaluate similarity")
    write_figure(figure, path, "evaluate noise")
    if kind != ".svg":  # its ids are drawn by chance
        assert UPath(path).read_bytes() == first
    with pytest.raises(InputError, match="takes a file ending in"):
        write_figure(figure, str(tmp_path / "f.txt"), "evaluate noise")


def test_json_keeps_its_values(tmp_path):
    path = write_json(str(tmp_path / "r.json"), {"auroc": 0.5, "x": float("nan")}, "evaluate noise")
    assert was_made_by(path, "evaluate noise")
    assert json.loads(UPath(path).read_text()) == {
        "made_by": "made by ncclean evaluate noise", "auroc": 0.5, "x": None
    }  # fmt: skip


def test_parquet_of_many_columns_and_groups(tmp_path):
    """The mark stands behind the descriptions of all groups, at the end of the file."""
    path = str(tmp_path / "t.parquet")
    table = pa.table({f"column_{n}": range(2000) for n in range(60)})
    pq.write_table(
        table.replace_schema_metadata({"made_by": mark("select")}), path, row_group_size=20
    )
    assert os.path.getsize(path) > 1 << 18
    assert was_made_by(path, "select")


def test_the_words_in_a_caption_are_no_mark(tmp_path, refused):
    path = str(tmp_path / "t.parquet")
    pq.write_table(pa.table({"caption": [mark("select")]}), path, compression="none")
    assert not was_made_by(path, "select")
    refused(check_free, [path], "select")


def test_what_is_called_parquet_and_is_none_is_not_ours(tmp_path):
    (tmp_path / "t.parquet").write_text(mark("select"))
    assert not was_made_by(str(tmp_path / "t.parquet"), "select")


@pytest.mark.parametrize("kind", FIGURE_ENDINGS)
def test_a_figure_of_somebody_that_says_the_words_is_not_ours(tmp_path, kind):
    path = str(tmp_path / f"f{kind}")
    figure = matplotlib.figure.Figure()
    figure.suptitle(mark("evaluate noise"))
    described = {"Title": mark("evaluate noise"), **({"Creator": None} if kind == ".svg" else {})}
    figure.savefig(path, metadata=described)
    assert mark("evaluate noise").encode() in UPath(path).read_bytes()
    assert not was_made_by(path, "evaluate noise")


def test_an_array_of_somebody_is_not_ours(tmp_path):
    path = str(tmp_path / "u.npy")
    np.save(path, np.array([f"# {mark('export')} \n".encode()]))
    assert not was_made_by(path, "export")


def test_uids_can_be_mapped_and_say_who_wrote_them(tmp_path):
    uids = [f"{n:032x}" for n in (3, 1, 2)]
    columns = {
        "uid": [*uids, uids[0]],  # one entry finds all samples of a uid
        "shard": ["a"] * 4,
        "key": [*uids, "again"],
        "weight": [1.0] * 4,
        "split": ["train"] * 4,
    }
    pq.write_table(pa.table(columns), tmp_path / "s.parquet")
    path = str(tmp_path / "u.npy")
    export_uids(str(tmp_path / "s.parquet"), UPath(path))
    assert was_made_by(path, "export")
    for mapped in (None, "r"):
        assert np.load(path, mmap_mode=mapped).tolist() == [(0, 1), (0, 2), (0, 3)]
    with open(path, "rb") as file:
        header = file.read(10)
        assert (10 + int.from_bytes(header[8:], "little")) % 64 == 0


def _page(command):
    return (
        f'<!DOCTYPE html>\n<html>\n<meta charset="utf-8">\n<meta name="generator" content="ncclean '
        f'0.2.0, made by ncclean {command}">\n<title>made by ncclean</title>'
    ).encode()


@pytest.mark.parametrize(
    ("content", "is_own"),
    [
        (_page("report"), True),
        (_page("reporter"), False),
        (_page("audit"), False),
        (b"<!DOCTYPE html><title>On</title>" + _page("report"), False),
        (b"made by ncclean report", False),
        (b"<i>made by ncclean report</i>", False),
        (b"name,made_by\na,made by ncclean report\n", False),
        (b'{"made_by": "made by ncclean report"}', True),
        (b'{"notes": {"made_by": "made by ncclean report"}}', False),
        (b'["made_by", "made by ncclean report"]', False),
        (b"# made by ncclean report\nstages: 1\n", True),
        (b"# not made by ncclean report\n", False),
        (b"a: 1\n# made by ncclean report\n", False),
        (b"", False),
        (b"my notes", False),
    ],
)
def test_anything_else_is_refused_unless_asked_for(tmp_path, content, is_own, refused):
    path = tmp_path / "page.html"
    path.write_bytes(content)
    if is_own:
        check_free([str(path)], "report")
    else:
        refused(check_free, [None, str(path)], "report")
    check_free([str(path)], "report", overwrite=True)


def test_folders_and_devices_are_never_replaced(tmp_path, refused):
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path, tmp_path / "pipe", "/dev/null"):
        refused(check_free, [str(place)], "report", overwrite=True)


def test_objects_of_a_store(refused):
    place = UPath("memory://marks/page.html")
    check_free([str(place)], "report")
    place.write_bytes(_page("report"))
    check_free([str(place)], "report")
    refused(check_free, [str(place)], "audit")
    place.fs.store.clear()


def test_the_mark_of_a_long_pdf_is_at_its_end(tmp_path):
    path = tmp_path / "f.pdf"
    write_figure(matplotlib.figure.Figure(), str(path), "report")
    data = path.read_bytes()
    assert was_made_by(str(path), "report")
    path.write_bytes(data[:20] + b"\n%" + b"x" * 100_000 + b"\n" + data[20:])
    assert was_made_by(str(path), "report")
    assert not was_made_by(str(path), "audit")
