"""The first ten minutes of three people, by what README says: `ncclean clean` and a look at it."""

import shutil
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ncclean_cli.app import app
from typer.testing import CliRunner

from tests.object_store import s3, upload
from tests.pipelines.test_calibrate_by import corpus as embeddings

pytestmark = pytest.mark.usefixtures("rough_shifts")
MODEL = ("--model", "demo", "--precision", "fp32")


def ncclean(*words):
    """The exit code is that of a run without failures; what was printed."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.stderr
    return done.stdout


def check(out, printed, kept):
    """What each of them looks at."""
    assert "noise rate" in printed
    assert f"report: {out}/report.html" in printed
    assert "<h2>" in (out / "report.html").read_text("utf-8")
    question = "SELECT count(*) AS n FROM scores WHERE noise_probability < 0.5"
    assert ncclean("query", question, out / "scores.parquet", "--csv") == f"n\n{kept}\n"


def exported(out, printed):
    """The samples of the clean shards, as the last line counts them."""
    names = set()
    for tar in (out / "clean").glob("*.tar"):
        with tarfile.open(tar) as archive:
            names |= {name.partition(".")[0] for name in archive.getnames()}
    assert f"clean shards: {out}/clean ({len(names)} samples)" in printed
    return len(names)


def hugging_face(corpus, folder):
    """A Parquet file as `datasets` writes images: structs of bytes and path."""
    rows = []
    for tar in sorted(corpus.glob("*.tar")):
        samples = {}
        with tarfile.open(tar) as archive:
            for member in archive:
                key, _, extension = member.name.partition(".")
                samples.setdefault(key, {})[extension] = archive.extractfile(member).read()
        for key, parts in samples.items():
            image = next((parts[end] for end in ("jpg", "png", "webp") if end in parts), None)
            if image is not None and "txt" in parts:
                text = parts["txt"].decode("utf-8", "replace")
                rows.append({"image": {"bytes": image, "path": f"{key}.jpg"}, "text": text})
    pq.write_table(pa.Table.from_pylist(rows), folder / "train-00000-of-00001.parquet")


def test_a_parquet_file_from_hugging_face(corpus, tmp_path):
    hugging_face(corpus, tmp_path)
    out = tmp_path / "cleaned"
    printed = ncclean("clean", tmp_path / "train-00000-of-00001.parquet", "--out", out, *MODEL)
    check(out, printed, exported(out, printed))


def test_img2dataset_tars_in_s3(corpus, tmp_path):
    out = tmp_path / "cleaned"
    with s3("bucket"):
        upload(corpus, "s3://bucket/laion")
        printed = ncclean("clean", "s3://bucket/laion", "--out", out, *MODEL)
        check(out, printed, exported(out, printed))


def test_datacomp_embeddings(tmp_path):
    made = embeddings(tmp_path / "e", sizes=(900, 0, 0))
    folder = tmp_path / "datacomp"
    folder.mkdir()
    image, text = (np.load(made / kind / f"{kind}_0.npy") for kind in ("img_emb", "text_emb"))
    rows = pq.read_table(made / "metadata/metadata_0.parquet")
    uids = [f"{number:032x}" for number in range(len(rows))]
    table = pa.table({"uid": uids, "text": rows.column("caption")})
    pq.write_table(table, folder / "00000000.parquet")
    np.savez(folder / "00000000.npz", l14_img=image, l14_txt=text)
    shutil.rmtree(made)
    out = tmp_path / "cleaned"
    printed = ncclean("clean", folder, "--out", out)
    kept = np.load(out / "uids.npy")
    assert f"uids: {out}/uids.npy" in printed
    selected = pq.read_table(out / "clean.parquet").column("uid").to_pylist()
    whole = {f"{high:016x}{low:016x}" for high, low in kept.tolist()}
    assert whole == set(selected)
    check(out, printed, len(kept))
