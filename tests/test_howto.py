"""Every snippet of docs/howto.md runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from ncclean_cli.app import app
from typer.testing import CliRunner

import ncclean
from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_pairs
from tests.command_line import START
from tests.data.image_layouts import (
    write_files,
    write_hugging_face,
    write_open_clip,
    write_recaptioned,
)
from tests.execution import clusters
from tests.test_docs import DOCS, code_blocks, shell_commands

pytestmark = pytest.mark.usefixtures("rough_shifts")

PAGE = DOCS / "howto.md"
PAIRS = 260  # one step of the default batch size


def snippets(page: Path) -> list[tuple[str, str]]:
    """The language and text of each block that is to be run, in order."""
    return re.findall(r"^```(bash|python)\n(.*?)^```", page.read_text("utf-8"), re.S | re.M)


def run_commands(block: Path) -> None:
    """Run a block of commands, in this process: starting one takes seconds."""
    for program, *words in shell_commands(block):
        assert program == "ncclean"
        if words[0] in ("score", "clean") and "--model" not in words:
            words += ["--model", "demo"]  # the default model needs a network
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, f"{' '.join(words)}\n{result.output}"


def run_snippet(language: str, text: str, folder: Path) -> None:
    if language == "python":
        exec(compile(text, str(PAGE), "exec"), {})
        return
    block = folder / "block.md"
    block.write_text(f"```bash\n{text}```\n")
    run_commands(block)


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the page takes for given: `cc3m/`, `sets/` and `models/ours`."""
    folder = tmp_path_factory.mktemp("howto")
    shards = str(folder / "cc3m")
    ncclean.synth(shards, pairs=PAIRS, shard_size=100, broken=0.02, held_out=8, workers=1)
    (folder / "cc3m" / "heldout").rename(folder / "sets")
    ours = Path(ncclean.__file__).parent / "models" / "demo_noisy"
    shutil.copytree(ours, folder / "models" / "ours")
    pairs = [
        (sample.key, sample.image, sample.caption)
        for shard in resolve_pairs([shards])
        for sample in read_samples(shard)
        if sample.image is not None
    ]
    (folder / "hf-dataset").mkdir()
    write_hugging_face(pairs, folder / "hf-dataset" / "data")
    write_files(pairs, folder / "pictures")
    write_recaptioned(pairs, folder / "recaptioned")
    table = write_open_clip(pairs, folder / "open_clip")
    table.rename(folder / "train.csv")
    (folder / "open_clip" / "images").rename(folder / "images")
    return folder


@pytest.mark.slow
def test_every_snippet_runs(rendered, tmp_path, monkeypatch):
    monkeypatch.chdir(rendered)
    for language, text in snippets(PAGE):
        run_snippet(language, text, tmp_path)
    kept = duckdb.sql("SELECT count(*) FROM 'clean.parquet'").fetchall()[0][0]
    assert 0.7 * PAIRS < kept < 0.9 * PAIRS
    for place, table in (
        ("hf-clean", "*.parquet"),
        ("pictures-clean", "metadata.jsonl"),
        ("csv-clean", "*.csv"),
    ):
        scores = duckdb.sql(f"SELECT status, count(*) FROM '{place}/scores.parquet' GROUP BY 1")
        assert dict(scores.fetchall()).keys() <= {"ok", "image_corrupt", "image_too_large"}
        assert list((rendered / place / "clean").glob(table))
    captions = duckdb.sql("SELECT count(*), count(DISTINCT key) FROM 'best-captions.parquet'")
    assert len(set(captions.fetchall()[0])) == 1
    assert Path("cc3m-clean/00000.tar").is_file()


@pytest.mark.slow
def test_auto_is_the_running_cluster(rendered, tmp_path, monkeypatch):
    """The address that docs/cluster.md gives."""
    monkeypatch.chdir(rendered)
    words = "--ray-address auto --workers 2 --cpus-per-worker 1"
    with clusters.cluster(tmp_path / "nodes", [3]) as cluster:
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)  # what `auto` means
        run_snippet("bash", f"ncclean score cc3m/ --out scores-ray.parquet {words}\n", tmp_path)
    rows = duckdb.sql("SELECT count(*) FROM 'scores-ray.parquet'").fetchall()[0][0]
    assert rows == PAIRS


@pytest.mark.slow
def test_the_scripts_for_slurm_run(rendered, tmp_path, monkeypatch):
    """What SLURM does: the first script once for each task of the array, then the second one."""
    monkeypatch.chdir(rendered)
    program = tmp_path / "ncclean"
    program.write_text(
        "#!/bin/bash\n"
        'if [ "$1" = score ]; then set -- "$@" --model demo; fi\n'  # the default needs a network
        f'exec {sys.executable} -c "{START}" "$@"\n'
    )
    program.chmod(0o755)
    score, merge = code_blocks(PAGE, "sh")
    tasks = 2
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for task in range(tasks):
        numbers = {"SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_TASK_COUNT": str(tasks)}
        subprocess.run(["bash", "-c", score], env={**environment, **numbers}, check=True)
    subprocess.run(["bash", "-c", merge], env=environment, check=True)
    ncclean.score("cc3m/", "scores-once.parquet", model="demo")
    columns = "shard, row, similarity, osa_weight, noise_probability, clean_posterior"
    merged, once = (
        duckdb.sql(f"SELECT {columns} FROM '{name}.parquet'").to_arrow_table()
        for name in ("scores-merged", "scores-once")
    )
    assert len(merged) == PAIRS
    assert merged.select(["shard", "row"]).equals(once.select(["shard", "row"]))
    for name in merged.column_names[2:]:
        a, b = (table.column(name).to_pandas() for table in (merged, once))
        assert (a.isna() == b.isna()).all()
        assert (a - b).abs().max() < 0.01, name
