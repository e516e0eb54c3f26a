"""Running recipes: what is skipped, what runs again, and what a run leaves behind."""

import json
import os
import shutil

import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.recipe.identity import stage_identity
from ncclean_pipelines.recipe.plan import plan
from ncclean_pipelines.recipe.run import run
from ncclean_pipelines.score import Score

import ncclean
from ncclean.base.config import ScoreOptions
from ncclean.base.progress import Silent
from ncclean.errors import InputError
from ncclean.recipes.folder import RunFolder, StageRecord
from ncclean.storage.tables import table_metadata
from tests.factories import rendered

from .recipes import made, whole


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return rendered(
        tmp_path_factory.mktemp("recipe") / "shards",
        pairs=60,
        shard_size=20,
        noise={"ncr": 0.2},
        seed=3,
    )


@pytest.fixture(scope="module")
def finished(shards, tmp_path_factory):
    """A whole run, once."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return run(made(whole(shards), folder)), folder


@pytest.fixture
def copied(finished, tmp_path):
    """A run of one's own to change: paths in a run's folder do not count for its fingerprints."""
    shutil.copytree(finished[1], tmp_path / "run")
    return tmp_path / "run"


def test_a_run_leaves_recipe_versions_records_logs_and_a_page(finished):
    summary, folder = finished
    assert summary.ran == ("score", "noise", "clean", "kept", "repaired", "report")
    assert summary.failures == {}
    names = {path.name for path in folder.iterdir()}
    assert {"recipe.yaml", "versions.json", "stages", "logs", "index.html", "score"} <= names
    assert json.loads((folder / "versions.json").read_text())["ncclean"]
    record = summary.records["clean"]
    assert record.result["kept"] == pq.read_metadata(folder / "clean/selection.parquet").num_rows
    assert record.figures["kept"] == f"{record.result['kept']} of 60"
    log = (folder / "logs" / "repaired.log").read_text()
    assert "training demo-noisy with clip" in log
    assert "done in" in log
    noise = summary.tables[0]
    assert noise.title == "noise: AUROC against clean pairs"
    assert dict(noise.rows)["similarity"] == "1.000"


def test_nothing_changed_nothing_runs(shards, copied):
    before = (copied / "score" / "scores.parquet").stat().st_mtime_ns
    again = run(made(whole(shards), copied))
    assert again.ran == ()
    assert (copied / "score" / "scores.parquet").stat().st_mtime_ns == before
    assert again.records["score"].figures["rows"] == "60"


def test_the_results_of_a_moved_run_name_its_models_by_stage(tmp_path):
    """Else, the tables name each by its former path, and take no mean over seeds."""
    folder = RunFolder(tmp_path / "run")
    record = StageRecord(stage="tested", command="evaluate zeroshot", identity={})
    result = {"results": [{"model": f"local-dir:{tmp_path}/run/trained"}, {"model": "ViT-B-32"}]}
    with folder.begin(record, anew=False) as opened:
        assert folder.finish(opened, record, made=[], result=result).result == result
    moved = folder.path.rename(tmp_path / "moved")
    names = [one["model"] for one in RunFolder(moved).record("tested").result["results"]]
    assert names == [f"local-dir:{moved}/trained", "ViT-B-32"]


def test_results_of_another_version_are_made_again(shards, copied, monkeypatch):
    recipe = made(whole(shards), copied)
    assert {stage.action for stage in plan(recipe, probe=False)} == {"skip"}
    monkeypatch.setattr(ncclean, "__version__", "99")
    assert {stage.action for stage in plan(recipe, probe=False)} == {"run"}


@pytest.mark.parametrize(
    ("old", "new", "ran"),
    [
        ("batch_size: 64", "batch_size: 32", ()),  # changes no result
        ("pairs: 2", "pairs: 3", ("report",)),
        ("method: noise-probability", "method: osa", ("clean", "kept")),
        # The finished parts are good for another shift: but for calibration, nothing is scored.
        ("shift: 0.2", "shift: 0.3", ("score", "noise", "clean", "kept")),
    ],
)
def test_what_changed_runs_again_and_what_uses_it(shards, copied, old, new, ran):
    text = whole(shards, only=None if ran == ("report",) else 4)
    again = run(made(text.replace(old, new), copied))
    assert again.ran == ran


def test_a_changed_shard_runs_everything_that_depends_on_it(shards, copied, tmp_path):
    own = shutil.copytree(shards, tmp_path / "shards")
    text = whole(own, only=3)
    assert run(made(text, copied)).ran == ("score", "noise", "clean")  # they lie elsewhere
    assert run(made(text, copied)).ran == ()
    os.utime(own / "00001.tar", ns=(1, 1))
    assert run(made(text, copied)).ran == ("score", "noise", "clean")


def test_files_that_options_name_are_inputs(shards, tmp_path):
    """A run was unchanged after its noise file, its head or the kind of its sources had changed."""
    for name in ("noise.npy", "head.safetensors", "classes.txt"):
        (tmp_path / name).write_bytes(b"1")
    text = f"""
stages:
  noisy: {{command: inject-noise, shards: {shards}, noise_file: {tmp_path}/noise.npy}}
  score:
    shards: {shards}
    model: demo
    head: [aesthetic={tmp_path}/head.safetensors]
    words: true
    word_classes: {tmp_path}/classes.txt
"""

    def identities(text=text):
        stages = made(text, tmp_path / "run").stages
        return [stage_identity(stages[name], {}) for name in ("noisy", "score")]

    before = identities()
    for name, changed in (("noise.npy", 0), ("head.safetensors", 1), ("classes.txt", 1)):
        (tmp_path / name).write_bytes(b"22")
        after = identities()
        assert before[changed] != after[changed]
        assert before[1 - changed] == after[1 - changed]
        before = after
    assert identities(text.replace("model: demo", "model: demo\n    format: images")) != before


def test_files_that_options_name_in_the_folder_of_the_run_are_inputs(scored, tmp_path):
    """Decisions that were added to a file there changed no selection."""
    folder = tmp_path / "run"
    folder.mkdir()
    uids = pq.read_table(scored / "scores.parquet")["uid"].to_pylist()
    text = f"""
stages:
  clean:
    command: select
    scores: {scored}/scores.parquet
    score: similarity
    keep_fraction: 1.0
    decisions: ${{run}}/decisions.jsonl
"""

    def drop(count):
        drops = ({"uid": uid, "decision": "drop", "time": "2026-11-28"} for uid in uids[:count])
        (folder / "decisions.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in drops))
        summary = run(made(text, folder))
        return summary.ran, summary.records["clean"].result["kept"]

    first, kept = drop(1)
    assert (first, drop(3)) == (("clean",), (("clean",), kept - 2))
    assert run(made(text, folder.rename(tmp_path / "moved"))).ran == ()


def test_an_output_that_is_gone_is_made_again(shards, copied):
    (copied / "clean" / "selection.parquet").unlink()
    again = run(made(whole(shards, only=4), copied))
    assert again.ran == ("clean", "kept")


@pytest.mark.parametrize(
    ("gone", "ran"),
    [("kept/00000.tar", ("kept",)), ("score/scores.parquet", ("score", "noise", "clean", "kept"))],
)
def test_a_shard_or_a_table_that_is_gone_is_made_again(shards, copied, gone, ran):
    """The folder of the shard is still there, and so is the record of the scoring."""
    (copied / gone).unlink()
    assert run(made(whole(shards, only=4), copied)).ran == ran
    assert (copied / gone).exists()


def test_an_output_that_another_run_has_replaced_is_made_again(scored, tmp_path):
    """A choice has its own folder, but an `out` outside of it is shared by all."""
    text = f"""
stages:
  clean:
    command: select
    scores: {scored}/scores.parquet
    score: similarity
    keep_fraction: 0.5
    out: {tmp_path}/clean.parquet
"""
    other = text.replace("0.5", "0.2")
    counts = []
    for recipe, folder in ((text, "one"), (other, "two"), (text, "one"), (text, "one")):
        summary = run(made(recipe, tmp_path / folder))
        counts.append((summary.ran, pq.read_metadata(tmp_path / "clean.parquet").num_rows))
    half, fifth = counts[0][1], counts[1][1]
    assert fifth < half
    assert counts == [(("clean",), half), (("clean",), fifth), (("clean",), half), ((), half)]


@pytest.mark.parametrize("name", ["scores.parquet", "scores"])
def test_a_table_that_another_command_has_replaced_is_made_again(scored, tmp_path, name):
    source, out = f"{scored}/embeddings", f"{tmp_path}/{name}"
    text = f"stages: {{score: {{shards: {source}, scale: 20, shift: 0.2, out: {out}}}}}"
    first = run(made(text, tmp_path / "run")).records["score"].result
    other = ScoreOptions(block_size=30)
    for options in ({"shift": 0.1}, {"shift": 0.2, "options": other, "overwrite": True}):
        Score(shards=[source], out=out, scale=20.0, **options).run()
        again = run(made(text, tmp_path / "run"))
        assert again.ran == ("score",)
        assert again.records["score"].result["noise_rate"] == first["noise_rate"]
        metadata = table_metadata(out)
        assert (float(metadata["shift"]), metadata["block_size"] != "30") == (0.2, True)
    Score(shards=[source], out=out, scale=20.0, shift=0.2).run()  # resumes: the table is the same
    assert run(made(text, tmp_path / "run")).ran == ()


def test_from_runs_a_stage_and_all_after_it(shards, copied, refused):
    again = run(made(whole(shards, only=4), copied), start_from="clean")
    assert again.ran == ("clean", "kept")
    refused(run, made(whole(shards, only=4), copied), start_from="clear")


def test_nothing_starts_if_a_later_stage_is_wrong(shards, tmp_path, refused):
    text = whole(shards).replace("    method: noise-probability", "    where: hight > 3")
    refused(run, made(text, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_stage_that_fails_is_named_and_logged(shards, tmp_path, refused):
    text = whole(shards, only=3).replace(
        "    method: noise-probability", "    where: error('boom') = 1"
    )
    refused(run, made(text, tmp_path / "run"))
    assert "boom" in (tmp_path / "run" / "logs" / "clean.log").read_text()
    record = RunFolder(tmp_path / "run").record("clean")
    assert record is not None
    assert not record.done
    mended = whole(shards, only=3)
    assert run(made(mended, tmp_path / "run")).ran == ("clean",)


def test_broken_shards_are_failures_and_the_run_goes_on(shards, tmp_path):
    own = shutil.copytree(shards, tmp_path / "shards")
    (own / "bad.tar").write_bytes(b"<html>" * 1000)
    summary = run(made(whole(own, only=2), tmp_path / "run"))
    assert list(summary.failures) == ["score"]
    assert "cannot be read" in summary.failures["score"]["bad"]
    assert summary.ran == ("score", "noise")
    assert "cannot be read" in (tmp_path / "run" / "index.html").read_text()
    assert run(made(whole(own, only=2), tmp_path / "run")).ran == ()


def test_a_second_run_in_the_folder_is_kept_out(shards, tmp_path):
    with (
        RunFolder(tmp_path / "run").locked(),
        pytest.raises(InputError, match="another run is using"),
    ):
        run(made(whole(shards, only=1), tmp_path / "run"))


def test_a_record_that_is_none_is_refused(shards, copied, refused):
    (copied / "stages" / "score.json").write_text("{}\n")
    refused(run, made(whole(shards, only=1), copied))


def test_a_start_that_was_killed_before_its_first_entry_is_repeated(scored, tmp_path):
    """Its record was said to be none, by every later start."""
    recipe = made(
        f"stages: {{select: {{scores: {scored}/scores.parquet, method: osa}}}}", tmp_path / "run"
    )
    run(recipe)
    shutil.rmtree(tmp_path / "run/stages/select.entries")
    assert run(recipe).ran == ("select",)


def test_the_time_of_a_resumed_stage_is_said_to_be_that_of_its_last_start(scored, tmp_path):
    """The table of a paper's times takes it from the page."""
    text = f"stages: {{score: {{shards: {scored}/embeddings, scale: 20, shift: 0.2}}}}"
    recipe = made(text, tmp_path / "run")
    assert not run(recipe).records["score"].resumed
    *_, done = sorted((tmp_path / "run/stages/score.entries").iterdir())
    done.unlink()
    for _ in range(2):
        assert run(recipe).records["score"].resumed
        assert "since it resumed" in (tmp_path / "run/index.html").read_text()


def test_places_outside_of_the_run_are_named_before_anything_starts(shards, tmp_path):
    said = []

    class Said(Silent):
        def say(self, text):
            said.append(text)

    out = tmp_path / "run-2" / "scores.parquet"  # beside it, though its name begins alike
    text = whole(shards, 2).replace("  score:\n", f"  score:\n    out: {out}\n", 1)
    assert str(out) in text
    run(made(text, tmp_path / "run"), Said())
    assert out.exists()
    assert str(out) in said[0]
    assert "score" in said[0]
    assert RunFolder(tmp_path / "run").record("score").made[0] == str(out)


def test_two_evaluations_in_one_folder_must_not_have_the_same_files(tmp_path):
    """The second replaced the first one's result, and a comparison of both found no difference."""
    ncclean.synth(tmp_path / "synth", pairs=8, held_out=8)
    stage = (
        f"    command: evaluate zeroshot\n    data: {tmp_path}/synth/heldout/zeroshot-shape\n"
        "    model: demo\n    out: ${run}/results\n    precision: "
    )
    text = f"stages:\n  one:\n{stage}fp32\n  two:\n{stage}bf16\n"
    with pytest.raises(InputError, match="is an output of the stage 'one', too"):
        run(made(text, tmp_path / "run"))
    (result,) = (tmp_path / "run/results").glob("*.json")
    assert json.loads(result.read_text())["precision"] == "fp32"
    apart = "others".join(text.rsplit("results", 1))
    assert run(made(apart, tmp_path / "run")).ran == ("two",)
