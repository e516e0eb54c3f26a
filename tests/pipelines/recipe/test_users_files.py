"""A recipe never removes a file of the user's, and always what an earlier start of it left."""

from dataclasses import dataclass
from functools import cache

import pytest
from ncclean_pipelines.recipe.run import run

import ncclean
from ncclean.data.synthetic.heldout import ZEROSHOT_SETS, write_retrieval_set, write_zeroshot_set
from ncclean.evaluation import models_on_sets
from tests.factories import rendered

from .recipes import made

NOTES = {"notes.txt": "mine", "more.json": '{"mine": 1}', "mine.parquet": "not a table"}


@dataclass(frozen=True)
class Case:
    """A stage, something in it that changes its result, and one of the files that it makes.

    `takes_folder` says whether it begins in a folder that holds other files.
    """

    text: str
    old: str
    new: str
    takes_folder: bool
    result: str


CASES = {
    "zeroshot": Case(
        "command: evaluate zeroshot\n    model: demo\n    data: {}/z\n    device: cpu\n",
        "model: demo\n", "model: demo-noisy\n", True, "z_bundled_demo_en_zeroshot_*.json",
    ),
    "retrieval": Case(
        "command: evaluate retrieval\n    model: demo\n    data: {}/r\n    device: cpu\n",
        "model: demo\n", "model: demo-noisy\n", True, "r_bundled_demo_en_*.json",
    ),
    "adapt": Case(
        "command: adapt\n    scores: {}/scores.parquet\n    shards: {}/shards\n    model: demo\n"
        "    threshold: 0.1\n    steps: 3\n    batch_size: 4\n",
        "steps: 3", "steps: 4", False, "open_clip_model.safetensors",
    ),
    "finetune": Case(
        "command: finetune\n    method: clip\n    shards: {}/shards\n    model: demo-noisy\n"
        "    epochs: 1\n    batch_size: 8\n    save_steps: 1\n    tensorboard: false\n",
        "batch_size: 8", "batch_size: 10", False, "open_clip_model.safetensors",
    ),
    "export": Case(
        "command: export\n    selection: {}/clean.parquet\n    shards: {}/shards\n    workers: 1\n"
        "    samples_per_shard: 5\n",
        "samples_per_shard: 5", "samples_per_shard: 50", True, "00001.tar",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Shards with scores and a selection, and two held-out sets."""
    folder = tmp_path_factory.mktemp("data")
    rendered(folder / "shards", pairs=40, shard_size=20, seed=3)
    table = str(folder / "scores.parquet")
    ncclean.score(str(folder / "shards"), table, model="demo", precision="fp32", shift=0.2)
    ncclean.select(table, str(folder / "clean.parquet"), where="row < 12")
    write_zeroshot_set(folder / "z", ZEROSHOT_SETS[0], 8, 1)
    write_retrieval_set(folder / "r", 8, 1)
    return folder


@pytest.fixture(scope="module")
def first_start(data, tmp_path_factory):
    """The names of the files that a stage makes where nothing was before."""

    @cache
    def names(case, *, changed):
        folder = tmp_path_factory.mktemp("first")
        run(recipe(case, data, folder, changed=changed))
        return own_files(folder)

    return names


class Stops:
    """Ends the run as Ctrl-C does, when something has been done."""

    def say(self, text):
        pass

    def advance(self, done, total, unit, **facts):
        raise KeyboardInterrupt


def recipe(case, data, tmp_path, *, changed=False):
    text = case.text.replace("{}", str(data)).replace(case.old, case.new if changed else case.old)
    return made(f"stages:\n  stage:\n    {text}    out: ${{run}}/out\n", tmp_path)


def put_notes(tmp_path):
    out = tmp_path / "out"
    (out / "deep").mkdir(parents=True, exist_ok=True)
    for name, text in NOTES.items():
        (out / name).write_text(text)
        (out / "deep" / name).write_text(text)


def assert_notes_are_there(tmp_path):
    for name, text in NOTES.items():
        assert (tmp_path / "out" / name).read_text() == text
        assert (tmp_path / "out" / "deep" / name).read_text() == text


def own_files(tmp_path):
    """What the stage made: all that is not the user's."""
    out = tmp_path / "out"
    files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    return files - {*NOTES, *(f"deep/{name}" for name in NOTES)}


@pytest.mark.parametrize("name", CASES)
def test_files_that_were_there_first(data, tmp_path, name, refused):
    case = CASES[name]
    put_notes(tmp_path)
    if case.takes_folder:
        run(recipe(case, data, tmp_path))
        assert_notes_are_there(tmp_path)
        assert list((tmp_path / "out").glob(case.result))
        return
    # Another folder is to be named; asking again, in whatever way, does not change that.
    for changed, start_from in ((False, None), (False, None), (True, None), (True, "stage")):
        refused(run, recipe(case, data, tmp_path, changed=changed), start_from=start_from)
        assert_notes_are_there(tmp_path)
        assert own_files(tmp_path) == set()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow
def test_a_changed_run_and_one_from_the_stage(data, first_start, tmp_path, name):
    case = CASES[name]
    run(recipe(case, data, tmp_path))
    put_notes(tmp_path)
    before = own_files(tmp_path)
    assert list((tmp_path / "out").glob(case.result))
    assert run(recipe(case, data, tmp_path)).ran == ()
    assert run(recipe(case, data, tmp_path), start_from="stage").ran == ("stage",)
    assert_notes_are_there(tmp_path)
    assert own_files(tmp_path) == before
    assert run(recipe(case, data, tmp_path, changed=True)).ran == ("stage",)
    assert_notes_are_there(tmp_path)
    # Nothing of the earlier start is left: as many files as a first start makes.
    assert own_files(tmp_path) == first_start(case, changed=True)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.slow
def test_an_interrupted_run(data, first_start, tmp_path, name, changed, refused):
    case = CASES[name]
    with pytest.raises(KeyboardInterrupt):
        run(recipe(case, data, tmp_path), Stops())
    put_notes(tmp_path)
    if name == "adapt":  # it writes nothing before it is done, and so does not go on
        refused(run, recipe(case, data, tmp_path, changed=changed))
        assert_notes_are_there(tmp_path)
        return
    assert run(recipe(case, data, tmp_path, changed=changed)).ran == ("stage",)
    assert_notes_are_there(tmp_path)
    assert own_files(tmp_path) == first_start(case, changed=changed)
    assert run(recipe(case, data, tmp_path, changed=changed)).ran == ()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow
def test_a_run_that_was_interrupted_while_it_replaced_another(data, first_start, tmp_path, name):
    case = CASES[name]
    run(recipe(case, data, tmp_path))
    put_notes(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(recipe(case, data, tmp_path, changed=True), Stops())
    assert_notes_are_there(tmp_path)
    assert run(recipe(case, data, tmp_path, changed=True)).ran == ("stage",)
    assert_notes_are_there(tmp_path)
    assert own_files(tmp_path) == first_start(case, changed=True)


def test_two_evaluations_in_one_folder_keep_their_results(data, tmp_path):
    text = (
        "stages:\n  a:\n    command: evaluate retrieval\n    model: {}\n    data: {}/r\n"
        "    out: ${{run}}/out\n  b:\n    command: evaluate zeroshot\n    model: demo\n"
        "    data: {}/z\n"
        "    out: ${{run}}/out\n"
    )
    put_notes(tmp_path)
    places = (data, data)
    run(made(text.format("demo", *places), tmp_path))
    first = own_files(tmp_path)
    changed = run(made(text.format("demo-noisy", *places), tmp_path))
    assert changed.ran == ("a",)
    assert_notes_are_there(tmp_path)
    second = own_files(tmp_path)
    zeroshot = {name for name in first if name.startswith("z_")}
    assert zeroshot == {name for name in second if name.startswith("z_")} != set()
    assert first & second == zeroshot


def test_a_result_file_in_whose_place_the_user_has_one(data, tmp_path, refused):
    """It is refused; a changed recipe must not take it for what the stage made."""
    notes = tmp_path / "notes.json"
    notes.write_text('{"mine": 1}')
    for model in ("demo", "demo-noisy"):
        text = (
            f"stages:\n  z:\n    command: evaluate zeroshot\n    model: {model}\n"
            f"    data: {data}/z\n    out: {notes}\n"
        )
        for start_from in (None, "z"):
            refused(run, made(text, tmp_path / "run"), start_from=start_from)
            assert notes.read_text() == '{"mine": 1}'


def test_results_that_were_half_written_are_replaced(data, first_start, tmp_path, monkeypatch):
    """Ctrl-C between the first result and the last, then another model."""
    write, case = models_on_sets.write_results, CASES["retrieval"]

    def write_some(*arguments):
        write(*arguments)
        raise KeyboardInterrupt

    put_notes(tmp_path)
    monkeypatch.setattr(models_on_sets, "write_results", write_some)
    with pytest.raises(KeyboardInterrupt):
        run(recipe(case, data, tmp_path))
    monkeypatch.undo()
    run(recipe(case, data, tmp_path, changed=True))
    assert_notes_are_there(tmp_path)
    assert own_files(tmp_path) == first_start(case, changed=True)
