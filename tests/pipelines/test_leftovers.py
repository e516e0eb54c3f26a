"""Temporary files of killed processes are gone when the command has been run to its end."""

import pytest
from ncclean_pipelines.inject_noise import InjectNoise
from ncclean_pipelines.merge import Merge
from ncclean_pipelines.neighbours import Neighbours
from ncclean_pipelines.score import Score
from ncclean_pipelines.select import Select

from ncclean.base.config import ScoreOptions
from ncclean.data.synthetic import CorpusOptions, write_corpus

MODEL = {"model": "demo", "precision": "fp32", "shift": 0.2}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("leftovers")
    write_corpus(folder / "shards", CorpusOptions(pairs=120, shard_size=40, seed=1), 1)
    for name, shards in {"a": ("00000", "00001"), "b": ("00002",)}.items():
        sources = [str(folder / "shards" / f"{shard}.tar") for shard in shards]
        Score(shards=sources, out=str(folder / name), **MODEL).run()
    options = ScoreOptions(embeddings=str(folder / "e"))
    out = str(folder / "s.parquet")
    Score(shards=[str(folder / "shards")], out=out, options=options, **MODEL).run()
    return folder


def scoring_to(name):
    def make(corpus, out):
        options = ScoreOptions(embeddings=str(out / "e"))
        return Score(shards=[str(corpus / "shards")], out=str(out / name), options=options, **MODEL)

    return make


COMMANDS = {
    "score, one file": scoring_to("s.parquet"),
    "score, parts": scoring_to("s"),
    "merge": lambda corpus, out: Merge(
        runs=[str(corpus / "a"), str(corpus / "b")], out=str(out / "m"), shift=0.2
    ),
    "select": lambda corpus, out: Select(
        scores=[str(corpus / "s.parquet")], out=str(out / "k.parquet")
    ),
    "neighbours": lambda corpus, out: Neighbours(
        embeddings=[str(corpus / "e")], out=str(out / "n.parquet")
    ),
    "inject-noise": lambda corpus, out: InjectNoise(
        shards=[str(corpus / "shards")], out=str(out / "i"), noise={"ncr": 0.2}
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_killed_processes_left_is_removed(corpus, tmp_path, name):
    once, again = tmp_path / "once", tmp_path / "again"
    once.mkdir()
    COMMANDS[name](corpus, once).run()
    made = [path.relative_to(once) for path in once.rglob("*") if path.is_file()]
    planted = [
        (again / file).with_name(f".{file.name}.7123456789.tmp")
        for file in made
        if file.suffix in (".parquet", ".npy", ".tar")
    ]
    mine = again / ".mine.parquet.7.tmp"
    for path in (*planted, mine):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    COMMANDS[name](corpus, again).run()
    assert planted
    assert list(again.rglob("*.tmp")) == [mine]
    assert {path.relative_to(again) for path in again.rglob("*") if path.is_file()} == {
        *made,
        mine.relative_to(again),
    }


def test_leftovers_of_a_search_do_not_keep_its_working_folder(corpus, tmp_path):
    """Of a file as well that a resumed search did not need any more."""
    work = tmp_path / "n.parquet.work"
    work.mkdir()
    (work / ".visits-text-text.arrays.7123456789.tmp").write_text("half")
    COMMANDS["neighbours"](corpus, tmp_path).run()
    assert [path.name for path in tmp_path.iterdir()] == ["n.parquet"]
