"""The first ten minutes of four people, who type what README says and look at what it leaves."""

import shlex
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ncclean_cli.app import app
from typer.testing import CliRunner

from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_pairs
from tests.data.image_layouts import read, write_hugging_face
from tests.object_store import s3, upload
from tests.pipelines.test_calibrate_by import corpus as embeddings
from tests.test_docs import ROOT, shell_commands

pytestmark = pytest.mark.usefixtures("rough_shifts")
MODEL = ("--model", "demo", "--precision", "fp32")  # the default model needs a network


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    """README's paths are relative."""
    monkeypatch.chdir(tmp_path)


def typed(beginning):
    """The one command of README that begins like this, split into words."""
    (found,) = (
        words
        for words in shell_commands(ROOT / "README.md")
        if words[: len(beginning.split())] == beginning.split()
    )
    return found


def ncclean(*words):
    """What a run without failures printed."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, f"{shlex.join(map(str, words))}\n{done.stderr}"
    return done.stdout


def clean(source, tmp_path, *options):
    """README's command for a source, the options after it; the folder and what was printed."""
    program, *words = typed(f"ncclean clean {source}")
    assert program == "ncclean"
    out = words[words.index("--out") + 1].rstrip("/")
    return tmp_path / out, ncclean(*words, *options).replace(f": {out}/", f": {tmp_path / out}/")


def check(out, printed, kept):
    """What each of them looks at."""
    assert "noise rate" in printed
    assert f"report: {out}/report.html" in printed
    assert "<h2>" in (out / "report.html").read_text("utf-8")
    assert f"selection: {out}/clean.parquet" in printed
    assert pq.read_metadata(out / "clean.parquet").num_rows == kept
    question = "SELECT count(*) AS n FROM scores WHERE noise_probability < 0.5"
    assert ncclean("query", question, out / "scores.parquet", "--csv") == f"n\n{kept}\n"
    _, query, sql, _ = typed("ncclean query")
    assert "noise_probability" in ncclean(query, sql, out / "scores.parquet")


def exported(out, printed):
    """The pairs that came out, as the last line counts them."""
    shards = resolve_pairs([str(out / "clean")])
    count = sum(1 for shard in shards for _ in read_samples(shard))
    what = "clean shards" if list((out / "clean").glob("*.tar")) else "clean pairs"
    assert f"{what}: {out}/clean ({count} samples)" in printed
    return count


def test_nothing_of_ones_own(tmp_path):
    _, *words = typed("ncclean synth --out rendered/")
    words[words.index("--pairs") + 1] = "150"
    ncclean(*words, "--held-out", 0)
    out, printed = clean("rendered/", tmp_path, "--precision", "fp32")
    check(out, printed, exported(out, printed))


def test_a_dataset_from_hugging_face(corpus, tmp_path):
    samples, _ = read(corpus / "00000.tar")
    pairs = [(one.key, one.image, one.caption) for one in samples if one.status.value == "ok"]
    write_hugging_face(pairs, tmp_path / "dataset" / "data")
    out, printed = clean("dataset/data/", tmp_path, *MODEL)
    check(out, printed, exported(out, printed))


def test_img2dataset_tars_in_s3(corpus, tmp_path):
    with s3("bucket"):
        (tmp_path / "shards").mkdir()
        shutil.copy(corpus / "00000.tar", tmp_path / "shards")
        upload(tmp_path / "shards", "s3://bucket/laion")
        out, printed = clean("s3://bucket/laion/", tmp_path, *MODEL)
        check(out, printed, exported(out, printed))


def test_datacomp_embeddings(tmp_path):
    made = embeddings(tmp_path / "e", sizes=(900, 0, 0))
    folder = tmp_path / "datacomp" / "metadata"
    folder.mkdir(parents=True)
    image, text = (np.load(made / kind / f"{kind}_0.npy") for kind in ("img_emb", "text_emb"))
    rows = pq.read_table(made / "metadata/metadata_0.parquet")
    uids = [f"{number:032x}" for number in range(len(rows))]
    table = pa.table({"uid": uids, "text": rows.column("caption")})
    pq.write_table(table, folder / "00000000.parquet")
    np.savez(folder / "00000000.npz", l14_img=image, l14_txt=text)
    shutil.rmtree(made)
    out, printed = clean("datacomp/metadata/", tmp_path)
    kept = np.load(out / "uids.npy")
    assert f"uids: {out}/uids.npy" in printed
    selected = pq.read_table(out / "clean.parquet").column("uid").to_pylist()
    whole = {f"{high:016x}{low:016x}" for high, low in kept.tolist()}
    assert whole == set(selected)
    check(out, printed, len(kept))
