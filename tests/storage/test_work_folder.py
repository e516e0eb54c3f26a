"""What is not data lies where loaders of whole folders do not look."""

import re

import pytest

import ncclean

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
