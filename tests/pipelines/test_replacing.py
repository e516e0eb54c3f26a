"""One rule for the files of commands: their own are replaced, others are refused unless asked."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ncclean

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
