import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from upath import UPath

from ncclean.storage.parts import write_embeddings
from tests import command_line


def run(*arguments):
    return command_line.run("neighbours", *arguments)


@pytest.fixture
def embeddings(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((60, 8))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)
    rows[50:] = rows[:10]
    names = [str(i) for i in range(60)]
    table = pa.table({"uid": names, "shard": ["s"] * 60, "key": names, "caption": names})
    write_embeddings(UPath(tmp_path / "e"), "0", rows, rows, table)
    return tmp_path / "e"


def test_json_and_summary(embeddings, tmp_path):
    out = tmp_path / "n.parquet"
    result = run(embeddings, "--out", out, "--json")
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["pairs"] == 60
    assert summary["image_duplicates"] == 10
    assert summary["index_image"] == "flat (exact)"
    assert pq.read_table(out).num_rows == 60
    result = run(embeddings, "--out", out, "--overwrite", "--index", "ivf")
    assert result.returncode == 0, result.stderr
    assert "recall" in result.stdout
    assert "searching image neighbours, 1 task\n" in result.stderr
    assert run(embeddings, "--out", out, "--overwrite", "--quiet").stdout == ""


def test_missing_recall_is_null_in_json(embeddings, tmp_path):
    """Without any near-duplicate in the sample, that recall cannot be measured."""
    arguments = ("--index", "ivf", "--image-threshold", "1", "--no-whiten", "--json")
    result = run(embeddings, "--out", tmp_path / "n.parquet", *arguments)
    assert json.loads(result.stdout)["image_duplicate_recall"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere", "--out", "n.parquet"), "nowhere holds no embeddings"),
        (("nowhere", "--out", "n.parquet", "--index", "lsh"), "--index takes auto, flat"),
        (("nowhere",), "--out"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(arguments, message):
    result = run(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_torch_is_not_loaded(embeddings, tmp_path):
    """Its OpenMP runtime beside that of FAISS crashes on macOS."""
    code = (
        "import sys; from ncclean_cli.app import app\n"
        "try: app(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print({'torch', 'faiss'} & set(sys.modules), file=sys.stderr)"
    )
    words = ["neighbours", str(embeddings), "--out", str(tmp_path / "n.parquet"), "--quiet"]
    result = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )
    assert result.stderr.strip() == "{'faiss'}"
