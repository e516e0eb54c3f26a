"""DisNCL end to end: heads on frozen towers, the run folder as a scoring model."""

import json
import tarfile
from io import BytesIO

import open_clip
import pyarrow.parquet as pq
import pytest
from ncclean_cli.app import app
from ncclean_pipelines.evaluate_disentanglement import EvaluateDisentanglement
from ncclean_pipelines.finetune import Finetune
from ncclean_pipelines.score import Score
from typer.testing import CliRunner

from ncclean.data.options import LoaderOptions
from ncclean.data.synthetic.heldout import write_retrieval_set
from ncclean.models.checkpoint import resolve
from ncclean.models.heads import has_heads
from ncclean.training.objectives.options import DisnclOptions, ObjectiveOptions
from ncclean.training.options import TrainOptions
from ncclean.training.run_files import read_results
from tests import hostile


def request(corpus, out, **options):
    disncl = DisnclOptions(freeze_towers=True, warmup_epochs=15, dim=64, hidden_dim=64)
    return Finetune(
        method="disncl", shards=[str(corpus)], out=str(out), model="demo", batch_size=128,
        objective=ObjectiveOptions(learning_rate=1e-3, epochs=8, disncl=disncl),
        loader=LoaderOptions(), training=TrainOptions(log_steps=1, tensorboard=False), **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("disncl") / "run"
    request(corpus, out).run()
    return out


def test_heads_learn_on_frozen_towers(run):
    results = read_results(run)
    assert results[0]["phase"] == "warm-up"
    assert results[-1]["phase"] == "disentangling"
    assert results[-1]["clean/clean_share"] > results[0]["clean/clean_share"] + 0.1
    assert results[-1]["clean/noisy_share"] < results[-1]["clean/clean_share"]
    assert has_heads(run)
    trained, start = (
        open_clip.create_model(f"local-dir:{folder}").state_dict()
        for folder in (run, resolve("demo", None).folder)
    )
    assert all((trained[name] == start[name]).all() for name in start)


def test_score_takes_cosines_in_the_invariant_space(run, corpus, scored, tmp_path):
    heads = tmp_path / "heads.parquet"
    Score(
        shards=[str(corpus / "00000.tar")], out=str(heads), model=f"local-dir:{run}", shift=0.0
    ).run()
    tables = {"heads": pq.read_table(heads), "plain": pq.read_table(scored / "scores.parquet")}
    metadata = {name: table.schema.metadata for name, table in tables.items()}
    assert metadata["heads"][b"pretrained"] == b"local, invariant space"
    assert metadata["heads"][b"weights_fingerprint"] != metadata["plain"][b"weights_fingerprint"]
    ok = tables["heads"].to_pandas().query("status == 'ok'")
    assert not (ok.similarity == tables["plain"].to_pandas().loc[ok.index].similarity).all()
    noisy = ok.is_noisy.astype(bool)
    assert ok.disncl_clean[~noisy].mean() > ok.disncl_clean[noisy].mean()
    assert ok.similarity[~noisy].mean() > ok.similarity[noisy].mean() + 0.1


def test_the_entangled_control_trains_from_the_command_line(corpus, tmp_path):
    """Its decoders are not part of the model."""
    out = tmp_path / "control"
    found = CliRunner().invoke(
        app,
        ["finetune", "--method", "disncl", "--disentangle", "reconstruction", "--freeze-towers",
         "--shards", str(corpus / "00000.tar"), "--model", "demo", "--batch-size", "64",
         "--epochs", "1", "--alignment-epochs", "2", "--out", str(out), "--set", "dim=32"],
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    assert read_results(out)[-1]["loss/reconstruction"] > 0
    assert has_heads(out)
    found = CliRunner().invoke(app, ["finetune", "--method", "disncl", "--no-disentangle"])
    assert found.exit_code == 2
    assert "No such option" in found.output


@pytest.mark.parametrize("several", [False, True])
def test_frozen_features_of_one_of_several_captions_are_told(tmp_path, caplog, several):
    captions = ["a cat", "a dog", "a bird"] if several else ["a cat"]
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        for number in range(16):
            members = {"jpg": hostile.JPEG, "json": json.dumps({"captions": captions}).encode()}
            for extension, data in members.items():
                info = tarfile.TarInfo(f"{number:03d}.{extension}")
                info.size = len(data)
                tar.addfile(info, BytesIO(data))
    disncl = DisnclOptions(freeze_towers=True, warmup_epochs=1, dim=8, hidden_dim=8)
    Finetune(
        method="disncl", shards=[str(tmp_path / "0.tar")], out=str(tmp_path / "run"), model="demo",
        batch_size=8, objective=ObjectiveOptions(epochs=1, disncl=disncl),
        loader=LoaderOptions(caption_key="captions"),
    ).run()  # fmt: skip
    said = [one.getMessage() for one in caplog.records]
    assert any("of one caption of each image" in text for text in said) == several


def test_an_average_of_the_heads_is_refused(corpus, refused):
    options = TrainOptions(ema_decay=0.9)
    refused(Finetune, method="disncl", shards=[str(corpus)], out="x", training=options)


def test_halves_are_measured_and_drawn(run, tmp_path, refused):
    write_retrieval_set(tmp_path / "retrieval", 50, 3)

    def evaluate(**options):
        options = {"model": [f"local-dir:{run}"], "precision": "fp32", **options}
        data = [str(tmp_path / "retrieval")]
        return EvaluateDisentanglement(data=data, **options).run()

    plot = tmp_path / "halves.png"
    result = evaluate(out=str(tmp_path / "out"), plot=str(plot))
    (halves,) = result.summary
    assert halves.images == 50
    assert halves.recall["invariant"] > 5 * halves.chance > halves.recall["exclusive"]
    assert 0 <= halves.fitted <= 1
    assert min(halves.image_information, halves.text_information) >= 0
    assert plot.read_bytes()[:4] == b"\x89PNG"
    (written,) = json.loads((tmp_path / "out/disentanglement.json").read_text())["models"]
    assert written == {**result.to_json()["models"][0]}
    refused(evaluate, model=["demo"])
