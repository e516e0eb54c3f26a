"""Where a score table lies, and what may be removed of it."""

import re

import pytest
from upath import UPath

import ncclean
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.made_files import MadeFiles, OwnPlace
from ncclean.storage.run_record import RUN
from ncclean.storage.score_run import RunIdentity, ScoreRun
from tests.storage.scored_runs import score

SHARDS = [ShardRef("00000", "00000.tar", 1, ""), ShardRef("x/00001", "x/00001.tar", 1, "")]
IDENTITY = RunIdentity({}, {}, SHARDS, "1")


def begin(layout, **options):
    ScoreRun.open(layout, IDENTITY, **options).close()


def test_a_file_has_its_working_folder_beside_it():
    layout = ScoreLayout(UPath("/d/s.parquet"))
    assert str(layout.shard_list) == "/d/s.parquet.work/shards.parquet"
    assert str(layout.part(SHARDS[1])) == "/d/s.parquet.work/part-x__00001.parquet"
    assert str(layout.table_file("s.parquet")) == "/d/s.parquet"


def test_a_folder_has_it_inside():
    layout = ScoreLayout(UPath("/d/s"))
    assert str(layout.shard_list) == "/d/s/.ncclean/shards.parquet"
    assert str(layout.part(SHARDS[1])) == "/d/s/.ncclean/part-x__00001.parquet"
    assert str(layout.table_file("part-00000-a.parquet")) == "/d/s/part-00000-a.parquet"


@pytest.mark.parametrize("name", ["s", "s.parquet"])
def test_overwrite_removes_what_the_run_lists_and_nothing_else(tmp_path, name):
    layout = ScoreLayout(UPath(tmp_path / name))
    score(layout.out, ["a", "b"])
    score(layout.out, ["a", "b", "c"], until_finalize=True)
    layout.check_usable()
    mine = [layout.work / "part-mine.parquet", tmp_path / "notes.txt"]
    if name == "s":
        mine += [tmp_path / "s" / "part-mine.parquet", tmp_path / "s" / "README"]
    for path in mine:
        path.write_text("mine")
    begin(layout, overwrite=True)
    files = {str(path) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == set(map(str, [*mine, layout.work / RUN, layout.shard_list]))


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(("name", "table"), [("s", "s/mine.parquet"), ("s.parquet", "s.parquet")])
def test_a_table_that_no_manifest_lists_is_in_the_way(tmp_path, name, table, overwrite):
    (tmp_path / "s").mkdir()
    (tmp_path / table).write_text("mine")
    layout = ScoreLayout(UPath(tmp_path / name))
    for use in (layout.check_usable, lambda: begin(layout, overwrite=overwrite)):
        with pytest.raises(InputError, match=f"{table} is in the way"):
            use()
    assert (tmp_path / table).read_text() == "mine"
    assert not layout.work.exists()


def test_a_folder_for_a_file_and_a_file_for_a_folder_are_refused(tmp_path, refused):
    (tmp_path / "s.parquet").mkdir()
    (tmp_path / "s").write_text("mine")
    for name in ("s.parquet", "s"):
        layout = ScoreLayout(UPath(tmp_path / name))
        for use in (layout.check_usable, lambda layout=layout: begin(layout)):
            refused(use)


# Where a run may remove files: in its output and its working folder, and through no link.


@pytest.fixture
def place(tmp_path):
    """Of a run that writes a table, with its working folder beside it."""
    (tmp_path / "s.parquet.work").mkdir()
    return OwnPlace(UPath(tmp_path / "s.parquet"), UPath(tmp_path / "s.parquet.work"))


@pytest.mark.parametrize(
    ("name", "is_own"),
    [
        ("s.parquet", True),
        ("s.parquet.work/parts/a.parquet", True),
        ("s.parquet2", False),
        ("other.parquet", False),
        ("s.parquet.work/../other.parquet", False),
        ("", False),
    ],
)
def test_the_output_and_what_lies_in_the_working_folder(place, tmp_path, name, is_own):
    assert place.holds(UPath(f"{tmp_path}/{name}")) == is_own


def test_nothing_behind_a_link(place, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "s.parquet.work" / "parts").symlink_to(tmp_path / "mine")
    assert not place.holds(UPath(tmp_path / "s.parquet.work" / "parts" / "a.parquet"))


def test_a_list_names_files_below_the_output_alone(tmp_path):
    files = MadeFiles(UPath(tmp_path))
    files.add([".", "a", "b/c", f"{tmp_path}/d", "/etc/passwd", "s3://bucket/e"])
    assert list(files.paths()) == [UPath(tmp_path), UPath(tmp_path / "a"), UPath(tmp_path / "b/c")]


def test_names_are_listed_once(tmp_path):
    files = MadeFiles(UPath(tmp_path / "out"))
    paths = [UPath(tmp_path / "out" / "a"), UPath(tmp_path / "out" / "b"), UPath(tmp_path / "c")]
    assert files.new_names(paths) == ["a", "b"]
    files.add(["a"])
    assert files.new_names(paths) == ["b"]


# What is not data lies where loaders of whole folders do not look.

MODEL = {"model": "demo", "shift": 0.2}


def visible(folder):
    """The files that Hugging Face's `load_dataset` takes for data: no name on the way is hidden."""
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    shown = [file for file in files if not any(part.startswith(".") for part in file.parts)]
    return sorted(map(str, shown))


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """A folder for each command that writes data: `synth`, `inject-noise`, `score` and `export`."""
    folder = tmp_path_factory.mktemp("outputs")
    names = ("synth", "noisy", "scores", "export")
    synth, noisy, scores, export = (str(folder / name) for name in names)
    ncclean.synth(synth, pairs=40, shard_size=20, held_out=0, workers=1)
    ncclean.inject_noise([synth], noisy, noise=["ncr=0.2"], workers=1)
    ncclean.score([synth], scores, **MODEL)
    ncclean.select([scores], str(folder / "all.parquet"), where="true")
    ncclean.export(str(folder / "all.parquet"), export, shards=[synth], samples_per_shard=30,
                   scores=[scores], columns=["similarity"], workers=1)  # fmt: skip
    return folder


@pytest.mark.parametrize("name", ["synth", "noisy"])
def test_a_folder_of_shards_has_shards_alone(outputs, name):
    assert visible(outputs / name) == ["00000.tar", "00001.tar"]


def test_an_export_has_the_statistics_of_img2dataset_and_datacomp_beside_its_shards(outputs):
    statistics = ["00000_stats.json", "00001_stats.json", "sizes.json"]
    assert visible(outputs / "export") == sorted(["00000.tar", "00001.tar", *statistics])


def test_a_folder_of_a_table_has_tables_alone(outputs):
    (name,) = visible(outputs / "scores")
    assert re.fullmatch(r"part-00000-[0-9a-f]{8}\.parquet", name)
