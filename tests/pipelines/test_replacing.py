"""One rule for the files of commands: their own are replaced, others are refused unless asked."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.display import failure_notes
from ncclean_pipelines.inject_noise import InjectNoise
from ncclean_pipelines.merge import Merge
from ncclean_pipelines.neighbours import Neighbours
from ncclean_pipelines.score import Score
from ncclean_pipelines.select import Select

import ncclean
from ncclean.base.config import ScoreOptions
from tests.factories import rendered

COMMANDS = {
    "select": (lambda s, o, **x: ncclean.select(scores=s, out=o("k.parquet"), **x), ["k.parquet"]),
    "report": (lambda s, o, **x: ncclean.write_report(scores=s, out=o("r.html"), **x), ["r.html"]),
    "figures": (
        lambda s, o, **x: ncclean.write_report(scores=s, out=o("r.html"), figures=o("f"), **x),
        ["f/threshold_curve.pdf"],
    ),
    "audit": (
        lambda s, o, **x: ncclean.audit(scores=s, out=o("a"), pairs=10, **x),
        ["a/audit.html", "a/sample.parquet"],
    ),
    "noise": (
        lambda s, o, **x: ncclean.evaluate_noise(
            scores=s, out=o("n.json"), plot=o("n.pdf"), **x
        ),
        ["n.json", "n.pdf"],
    ),
    "uids": (
        lambda s, o, **x: ncclean.export(selection=o("kept.parquet"), out=o("u.npy"), **x),
        ["u.npy"],
    ),
}  # fmt: skip


@pytest.fixture
def scores(tmp_path):
    random = np.random.default_rng(0)
    pairs = 200
    is_noisy = random.random(pairs) < 0.3
    table = {
        "uid": [f"{n:032x}" for n in range(pairs)],
        "shard": ["a"] * pairs,
        "key": [f"{n:05d}" for n in range(pairs)],
        "row": pa.array(range(pairs), pa.int32()),
        "caption_number": pa.array([0] * pairs, pa.int16()),
        "status": ["ok"] * pairs,
        "text": ["a cat"] * pairs,
        "url": pa.array([None] * pairs, pa.string()),
        "similarity": pa.array(random.random(pairs) - is_noisy, pa.float32()),
        "noise_probability": pa.array(is_noisy * 0.8 + 0.1, pa.float32()),
        "is_noisy": is_noisy,
        "noise_kind": pa.array([None] * pairs, pa.string()),
    }
    pq.write_table(pa.table(table), tmp_path / "s.parquet")
    return str(tmp_path / "s.parquet")


@pytest.mark.parametrize("name", COMMANDS)
def test_own_files_are_replaced_and_others_stay(tmp_path, scores, name, refused):
    run, files = COMMANDS[name]

    def place(file):
        return str(tmp_path / file)

    ncclean.select(scores=scores, out=place("kept.parquet"))
    run(scores, place)
    run(scores, place)
    for file in files:
        first = (tmp_path / file).read_bytes()
        (tmp_path / file).write_text("mine")
        others = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        refused(run, scores, place)
        assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == others
        run(scores, place, overwrite=True)
        assert (tmp_path / file).read_bytes()[:4] == first[:4]


def test_a_run_keeps_away_from_a_folder_with_files_of_the_same_names(tmp_path, refused):
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "index.html").write_text("my site")
    recipe = tmp_path / "r.yaml"
    recipe.write_text("stages:\n  synth:\n    pairs: 20\n")
    refused(ncclean.run, recipe=str(recipe), out=str(folder))
    assert [path.name for path in folder.iterdir() if path.name != ".lock"] == ["index.html"]
    assert (folder / "index.html").read_text() == "my site"


# Temporary files of killed processes are gone when the command has been run to its end.

MODEL = {"model": "demo", "precision": "fp32", "shift": 0.2}


@pytest.fixture(scope="module")
def leftovers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("leftovers")
    rendered(folder / "shards", pairs=30, shard_size=10, seed=1)
    for name, shards in {"a": ("00000", "00001"), "b": ("00002",)}.items():
        sources = [str(folder / "shards" / f"{shard}.tar") for shard in shards]
        Score(shards=sources, out=str(folder / name), **MODEL).run()
    options = ScoreOptions(embeddings=str(folder / "e"))
    out = str(folder / "s.parquet")
    Score(shards=[str(folder / "shards")], out=out, options=options, **MODEL).run()
    return folder


def scoring_to(name):
    def make(leftovers, out):
        options = ScoreOptions(embeddings=str(out / "e"))
        return Score(
            shards=[str(leftovers / "shards")], out=str(out / name), options=options, **MODEL
        )

    return make


LEAVING = {
    "score, one file": scoring_to("s.parquet"),
    "score, parts": scoring_to("s"),
    "merge": lambda leftovers, out: Merge(
        runs=[str(leftovers / "a"), str(leftovers / "b")], out=str(out / "m"), shift=0.2
    ),
    "select": lambda leftovers, out: Select(
        scores=[str(leftovers / "s.parquet")], out=str(out / "k.parquet")
    ),
    "neighbours": lambda leftovers, out: Neighbours(
        embeddings=[str(leftovers / "e")], out=str(out / "n.parquet")
    ),
    "inject-noise": lambda leftovers, out: InjectNoise(
        shards=[str(leftovers / "shards")], out=str(out / "i"), noise={"ncr": 0.2}
    ),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n == "score, one file" else n for n in LEAVING],
)
def test_what_killed_processes_left_is_removed(leftovers, tmp_path, name):
    once, again = tmp_path / "once", tmp_path / "again"
    once.mkdir()
    LEAVING[name](leftovers, once).run()
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
    LEAVING[name](leftovers, again).run()
    assert planted
    assert list(again.rglob("*.tmp")) == [mine]
    assert {path.relative_to(again) for path in again.rglob("*") if path.is_file()} == {
        *made,
        mine.relative_to(again),
    }


def test_leftovers_of_a_search_do_not_keep_its_working_folder(leftovers, tmp_path):
    """Of a file as well that a resumed search did not need any more."""
    work = tmp_path / "n.parquet.work"
    work.mkdir()
    (work / ".visits-text-text.arrays.7123456789.tmp").write_text("half")
    LEAVING["neighbours"](leftovers, tmp_path).run()
    assert [path.name for path in tmp_path.iterdir()] == ["n.parquet"]


# `query` from Python: rows that print, and go on as a frame.


def test_the_rows_as_a_table_an_arrow_table_and_a_frame(scored):
    rows = ncclean.query(
        sql="SELECT key, row FROM scores ORDER BY shard, row LIMIT 3", scores=[str(scored)]
    )
    assert "│" in repr(rows)
    assert rows.to_arrow().num_rows == len(rows["rows"]) == 3
    assert rows.to_arrow()["row"].to_pylist() == [0, 1, 2]
    pandas = pytest.importorskip("pandas")
    assert isinstance(rows.to_pandas(), pandas.DataFrame)


def test_times_with_a_zone_are_text_however_deep(scored):
    time = "TIMESTAMPTZ '2020-01-02 00:00:00+00'"
    sql = f"SELECT {time} AS \"a b\", [{{'t': {time}}}] AS c, sum(row) AS d FROM scores"
    (row,) = ncclean.query(sql=sql, scores=[str(scored)])["rows"]
    assert row["a b"].startswith("2020-01-0")
    assert row["c"] == [{"t": row["a b"]}]
    assert isinstance(row["d"], int)


def test_a_notebook_shows_the_first_rows_as_they_are(scored):
    table = str(scored / "scores.parquet")
    page = ncclean.query("SELECT key, '<b>' AS mark, NULL AS gap FROM scores", table)._repr_html_()
    assert page.count("<tr>") == 1 + 20
    assert "first 20" in page
    assert "<th>key</th><th>mark</th><th>gap</th>" in page
    assert page.count("<td>&lt;b&gt;</td><td>NULL</td>") == 20
    first = ncclean.query("SELECT key FROM scores", table).to_arrow()["key"][0].as_py()
    assert f"<td>{first}</td>" in page
    long = ncclean.query("SELECT repeat('x', 1000000) AS text", table)._repr_html_()
    assert len(long) < 1_000
    assert "first" not in long


# Notes on samples without scores say what to do.


def texts(*args):
    return [note.text for note in failure_notes(*args)]


def test_what_to_do_about_samples_without_scores():
    assert texts(10, 10, {}) == []
    assert texts(10, 8, {"image_corrupt": 2}) == []
    (note,) = texts(10, 9, {"caption_not_text": 1})
    assert note.startswith("1 caption cannot be read as UTF-8 without NUL: convert")
    (note,) = texts(10, 0, {"caption_missing": 10}, ["alt"])
    assert "mostly caption_missing; name the caption with --caption-key: there are alt" in note
    assert "no shard could be read" in texts(10, 0, {})[0]
