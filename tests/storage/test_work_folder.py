"""What is not data lies where loaders of whole folders do not look."""

import os
import shutil

import pytest
from upath import UPath

import ncclean
from ncclean.storage.work_folder import work_folder

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
    assert visible(outputs / "scores") == ["part-00000.parquet", "part-00001.parquet"]


def test_a_run_that_began_in_plain_view_goes_on_there(outputs, tmp_path):
    shutil.copytree(outputs / "export", tmp_path / "export")
    old, work = tmp_path / "export", tmp_path / "export" / ".ncclean"
    for path in sorted(work.iterdir()):
        path.rename(old / path.name)
    work.rmdir()
    os.remove(old / "00001_stats.json")
    os.remove(old / "00001.tar")
    before = visible(old)
    again = ncclean.export(
        str(outputs / "all.parquet"),
        str(old),
        shards=[str(outputs / "synth")],
        samples_per_shard=30,
        scores=[str(outputs / "scores")],
        columns=["similarity"],
        workers=1,
    )
    assert again.summary.samples == 40
    assert visible(old) == sorted([*before, "00001.tar", "00001_stats.json"])


def test_a_table_that_began_in_plain_view_goes_on_there(outputs, tmp_path):
    old = tmp_path / "scores"
    shutil.copytree(outputs / "scores", old)
    (old / ".ncclean").rename(old / "_work")
    ncclean.score([str(outputs / "synth")], str(old), **MODEL)
    assert visible(old)[0] == "_work/manifest.jsonl"
    assert not (old / ".ncclean").exists()


def test_the_place_of_an_earlier_record(tmp_path):
    out = UPath(tmp_path)
    assert work_folder(out, "r.jsonl", out / "_work") == out / ".ncclean"
    (tmp_path / "_work").mkdir()
    assert work_folder(out, "r.jsonl", out / "_work") == out / ".ncclean"
    (tmp_path / "_work" / "r.jsonl").touch()
    assert work_folder(out, "r.jsonl", out / "_work") == out / "_work"
