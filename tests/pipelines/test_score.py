"""Scoring end to end: rows, statuses, invariance, resume, calibration."""

import io
import json
import tarfile

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score

from ncclean.base import schema
from ncclean.base.config import ClusterOptions
from ncclean.data.synthetic import CorpusOptions, write_corpus
from ncclean.execution.cost import SCORE_BYTES_PER_PAIR
from ncclean.scoring.mixture import LossMixture
from ncclean.scoring.stats import unpack_histogram
from tests import hostile
from tests.command_line import run
from tests.pipelines.score_tables import assert_same_rows, command, read


@pytest.fixture(scope="module")
def scored(corpus, tmp_path_factory):
    """The corpus scored once, in three blocks a shard: summary, table and embeddings."""
    folder = tmp_path_factory.mktemp("scored")
    summary = (
        command(
            corpus,
            folder / "scores.parquet",
            embeddings=str(folder / "embeddings"),
            block_size=80,
            batch_size=64,
        )
        .run()
        .summary
    )
    return summary, folder


def test_one_row_per_sample_in_input_order_with_the_status_its_json_foretells(corpus, scored):
    summary, folder = scored
    table = pq.read_table(folder / "scores.parquet")
    assert table.schema.remove_metadata().equals(schema.SCORES)
    from ncclean.data.synthetic.corpus import BROKEN_KINDS

    expected = []
    for shard in sorted(corpus.glob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                if member.name.endswith(".json"):
                    record = json.load(tar.extractfile(member))
                    status = BROKEN_KINDS[record["broken"]] if record["broken"] else "ok"
                    expected.append((record["uid"], shard.stem, record["key"], status))
    columns = ("uid", "shard", "key", "status")
    found = list(zip(*(table.column(name).to_pylist() for name in columns), strict=True))
    assert found == expected
    assert summary.rows == len(expected) == 600
    assert summary.ok == sum(status == "ok" for *_, status in expected)
    assert sum(summary.failures.values()) == summary.rows - summary.ok == 9


def test_columns_equal_plain_numpy_on_the_exported_embeddings(scored, demo_estimator):
    _, folder = scored
    table = read(folder / "scores.parquet").to_pandas()
    for number, shard in enumerate(("00000", "00001", "00002")):
        image = np.load(folder / "embeddings" / "img_emb" / f"img_emb_{number}.npy")
        text = np.load(folder / "embeddings" / "text_emb" / f"text_emb_{number}.npy")
        metadata = pq.read_table(folder / f"embeddings/metadata/metadata_{number}.parquet")
        assert image.dtype == np.float16
        rows = table[(table.shard == shard) & (table.status == "ok")].reset_index(drop=True)
        assert metadata.column("key").to_pylist() == rows.key.tolist()
        image, text = image.astype(np.float32), text.astype(np.float32)
        assert np.abs((image * text).sum(1) - rows.similarity).max() < 1e-3
        for _, block in rows.groupby("block"):
            cosines = image[block.index] @ text[block.index].T
            own = np.diag(cosines)
            assert (block.i2t_rank == (cosines > own[:, None]).sum(1)).all()
            assert (block.t2i_rank == (cosines > own[None, :]).sum(0)).all()
            mutual = (own >= cosines.max(1)) & (own >= cosines.max(0))
            assert (block.disncl_clean == mutual).all()
            logits = demo_estimator.scale * cosines.astype(np.float64)
            lse = np.log(np.exp(logits).sum(1)), np.log(np.exp(logits).sum(0))
            confidence = (np.exp(np.diag(logits) - lse[0]) + np.exp(np.diag(logits) - lse[1])) / 2
            assert np.abs(block.ncu_confidence - confidence).max() < 1e-4
            loss = own - (lse[0] + lse[1]) / (2 * demo_estimator.scale)
            assert np.abs(block.neg_clip_loss - loss).max() < 1e-4
            order = np.argsort(block.ncu_confidence.to_numpy(), kind="stable")
            forget = np.zeros(len(block), dtype=bool)
            forget[order[: len(block) // 10]] = True
            assert ((block.ncu_split == "forget") == forget).all()


@pytest.mark.parametrize(
    ("batch_size", "threads", "as_file"),
    [(256, 4, True), pytest.param(7, 1, False, marks=pytest.mark.slow)],
)
def test_rows_do_not_depend_on_batch_threads_or_layout(
    corpus, scored, tmp_path, batch_size, threads, as_file
):
    _, folder = scored
    out = tmp_path / ("s.parquet" if as_file else "s")
    command(corpus, out, block_size=80, batch_size=batch_size, decode_threads=threads).run()
    table = read(out)
    assert_same_rows(table, read(folder / "scores.parquet"))
    if not as_file:
        assert [f.name[:10] for f in out.glob("*.parquet")] == ["part-00000"]


def test_rows_that_are_decoded_on_the_device_differ_in_last_digits(corpus, scored, tmp_path):
    shard = corpus / "00000.tar"
    command(shard, tmp_path / "s.parquet", block_size=80, shift=0.2, decode_on="device").run()
    found = read(tmp_path / "s.parquet")
    expected = read(scored[1] / "scores.parquet").slice(0, len(found))
    for column in ("uid", "status", "width", "height"):
        assert found[column].equals(expected[column])
    difference = np.abs(found["similarity"].to_numpy() - expected["similarity"].to_numpy())
    assert np.nanmax(difference) < 1e-3


def test_similarity_is_open_clips_own(corpus, scored):
    import open_clip

    from ncclean.models.checkpoint import resolve

    _, folder = scored
    name = resolve("demo", None).name
    model, _, preprocess = open_clip.create_model_and_transforms(name)
    tokenizer = open_clip.get_tokenizer(name)
    rows = read(folder / "scores.parquet").to_pandas()
    rows = rows[(rows.shard == "00000") & (rows.status == "ok")].head(100)
    with tarfile.open(corpus / "00000.tar") as tar:
        names = {m.name.split(".")[0]: m for m in tar if not m.name.endswith(("json", "txt"))}
        images = [
            preprocess(Image.open(io.BytesIO(tar.extractfile(names[key]).read())).convert("RGB"))
            for key in rows.key
        ]
    with torch.no_grad():
        image = model.eval().encode_image(torch.stack(images), normalize=True)
        text = model.encode_text(tokenizer(rows.text.tolist()), normalize=True)
    expected = (image * text).sum(1).numpy()
    assert np.abs(rows.similarity - expected).max() < 3e-3


# Rare noise takes more pairs to be estimated within a fifth.
@pytest.mark.parametrize(
    ("rate", "pairs"), [pytest.param(0.05, 2000, marks=pytest.mark.slow), (0.5, 600)]
)
def test_noise_rate_and_probability_find_the_permuted_captions(tmp_path, rate, pairs):
    write_corpus(
        tmp_path / "c", CorpusOptions(pairs=pairs, noise={"ncr": rate}, seed=int(100 * rate)), 1
    )
    assert_found(command(tmp_path / "c", tmp_path / "s.parquet").run().summary, tmp_path)


def test_they_find_them_in_the_corpus(scored):
    summary, folder = scored
    assert_found(summary, folder)


def assert_found(summary, folder):
    rows = read(next(folder.glob("*.parquet"))).to_pandas()
    rows = rows[rows.status == "ok"]
    truth = rows.is_noisy.astype(bool)
    # The interval covers the truth or misses it by at most two points.
    assert summary.noise_rate.low - 0.02 <= truth.mean() <= summary.noise_rate.high + 0.02
    assert roc_auc_score(truth, rows.noise_probability) >= 0.99
    assert rows.noise_probability.sum() == pytest.approx(truth.sum(), rel=0.2)


def test_metadata_tells_how_the_table_was_made(scored):
    summary, folder = scored
    metadata = {
        k.decode(): v.decode()
        for k, v in pq.read_schema(folder / "scores.parquet").metadata.items()
    }
    assert metadata["model"] == "demo"
    assert metadata["precision"] == "fp32"
    assert len(metadata["weights_fingerprint"]) == 32
    assert float(metadata["shift"]) == pytest.approx(summary.shift)
    assert float(metadata["noise_rate"]) == pytest.approx(summary.noise_rate.value)
    preprocessing = {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic"}
    assert json.loads(metadata["preprocessing"]) == {**preprocessing, "resize_mode": "shortest"}
    assert summary.preprocessing == json.loads(metadata["preprocessing"])
    assert summary.model == "demo / bundled"
    assert metadata["seed"] == "0"
    assert {"pretrained", "noise_rate_low", "noise_rate_high", "ncclean_version"} <= set(metadata)
    assert metadata["schema_version"] == schema.SCHEMA_VERSION


def test_another_preprocessing_is_another_run_and_is_said(corpus, tmp_path):
    shard = corpus / "00000.tar"
    options = ("score", shard, "--out", tmp_path / "s.parquet", "--model", "demo", "--shift", 0.2)
    assert "squash" not in run(*options).stdout
    options = (*options, "--preprocess", "ViT-B-16-SigLIP/webli")
    refused = run(*options)
    assert refused.returncode == 2
    assert "preprocessing" in refused.stderr
    assert "squash" in run(*options, "--overwrite").stdout


@pytest.mark.parametrize("clean", [200, 350, 450, 800])
def test_shares_of_a_mixture_are_those_of_its_means(clean):
    """In whatever order the fit has them."""
    generator = torch.Generator().manual_seed(0)
    low, high = (torch.randn(n, generator=generator) / 10 for n in (clean, 1000 - clean))
    for losses in (torch.cat([low + 1, high + 3]), torch.cat([high + 3, low + 1])):
        fitted = LossMixture.fit(losses)
        assert fitted.means == pytest.approx([1, 3], abs=0.1)
        assert fitted.shares == pytest.approx([clean / 1000, 1 - clean / 1000], abs=0.02)


def test_clean_posterior_is_the_mixture_over_the_whole_corpus(scored, demo_estimator):
    frame = pq.read_table(scored[1] / "scores.parquet").to_pandas()
    ok = frame[frame.status == "ok"]
    losses = -demo_estimator.scale * torch.from_numpy(ok.neg_clip_loss.to_numpy().copy())
    losses = losses.clamp_min(0)
    expected = LossMixture.fit(losses).clean_posterior(losses).numpy()
    assert np.abs(ok.clean_posterior - expected).max() < 0.05  # fitted to a histogram, not to pairs
    strictly_clean = ok.clean_posterior > 0.95
    assert ok.is_noisy[strictly_clean].mean() < 0.01
    assert strictly_clean[~ok.is_noisy].mean() > 0.5
    assert frame[frame.status != "ok"].clean_posterior.isna().all()


def test_kind_of_noise_and_the_histograms_travel_with_the_table(scored):
    table = pq.read_table(scored[1] / "scores.parquet")
    frame = table.to_pandas()
    assert set(frame.noise_kind[frame.is_noisy]) == {"ncr"}
    assert frame.noise_kind[~frame.is_noisy].isna().all()
    fields = json.loads(table.schema.metadata[b"mismatched_histogram"])
    blocks = frame[frame.status == "ok"].groupby(["shard", "block"]).size()
    assert unpack_histogram(fields).size == (blocks * (blocks - 1)).sum()
    matched = unpack_histogram(json.loads(table.schema.metadata[b"matched_histogram"]))
    assert matched.size == (frame.status == "ok").sum()


@pytest.mark.parametrize("out", ["s.parquet", "s"])
def test_finalize_again_with_another_shift(corpus, tmp_path, out, refused):
    first = command(corpus / "00000.tar", tmp_path / out).run().summary
    before = read(tmp_path / out)
    again = command([], tmp_path / out, shift=0.35, finalize_only=True).run().summary
    after = read(tmp_path / out)
    assert again.shift == 0.35
    assert again.noise_rate == first.noise_rate
    similarity = after.column("similarity").to_pandas()
    assert (after.column("osa_noisy").to_pandas().dropna() == (similarity.dropna() <= 0.35)).all()
    changed = {"osa_weight", "osa_noisy"}
    for name in schema.SCORES.names:
        assert (before.column(name) == after.column(name)) or name in changed, name
    back = command([], tmp_path / out, shift="shuffled", finalize_only=True).run().summary
    assert back.shift == first.shift
    assert_same_rows(read(tmp_path / out), before)
    refused(command, [], tmp_path / out, shift="noise", finalize_only=True)


def test_noise_shift_is_estimated_once_and_kept(corpus, tmp_path, demo_estimator, monkeypatch):
    from ncclean.scoring.osa import estimate_shift

    monkeypatch.setattr("ncclean.execution.score_corpus._SHIFT_TOLERANCE", 4e-3)
    shard = corpus / "00000.tar"
    summary = command(shard, tmp_path / "s.parquet", shift="noise").run().summary
    estimate = estimate_shift(demo_estimator, seed=1, tolerance=4e-3)
    assert summary.shift == pytest.approx(estimate.mean, abs=2e-2)
    assert summary.shift_deviation == pytest.approx(estimate.deviation, rel=0.2)
    assert (
        command([], tmp_path / "s.parquet", shift="noise", finalize_only=True).run().summary.shift
        == summary.shift
    )


def test_hostile_shards_end_the_run_neither_early_nor_silently(tmp_path):
    readable, broken = hostile.write_hostile(tmp_path / "hostile")
    summary = command(tmp_path / "hostile", tmp_path / "s.parquet", batch_size=16).run().summary
    rows = read(tmp_path / "s.parquet").to_pandas()
    for case in [*readable, *broken]:
        found = rows[rows.shard == case.name]
        assert list(zip(found.key, found.status, strict=True)) == case.rows, case.name
        assert (found.similarity.notna() == (found.status == "ok")).all()
        assert (found.error.notna() | (found.status != "image_corrupt")).all()
    assert summary.shards_failed == len(broken)
    assert set(summary.failed_shards) == {shard.name for shard in broken}
    assert all(summary.failed_shards.values())
    assert rows[rows.key == "a"].uid.tolist()[-1] == "uid-of-a"


def test_without_text(corpus, tmp_path):
    command([str(corpus / "00000.tar")], tmp_path / "s.parquet", text=False).run()
    assert read(tmp_path / "s.parquet").column("text").null_count == 200


def test_plan_counts_without_scoring(corpus, tmp_path):
    estimate = command(corpus, tmp_path / "s.parquet", dry_run=True).run().summary
    assert estimate.shards == 3
    assert estimate.pairs == pytest.approx(600, rel=0.1)
    assert estimate.hours == pytest.approx(
        estimate.pairs / estimate.samples_per_second / 3600, abs=1e-3
    )
    assert estimate.gpu_hours is None
    of_each = estimate.bytes / estimate.pairs
    assert estimate.read_bytes_per_second == pytest.approx(
        of_each * estimate.samples_per_second, rel=1e-2
    )
    # Parts and then the table; embeddings only where they are asked for.
    assert estimate.bytes_written == int(2 * SCORE_BYTES_PER_PAIR * estimate.pairs)
    out = str(tmp_path / "e")
    more = command(corpus, tmp_path / "s.parquet", dry_run=True, embeddings=out).run().summary
    assert more.bytes_written == estimate.bytes_written + 4 * 128 * estimate.pairs
    assert not (tmp_path / "s.parquet").exists()
    assert not (tmp_path / "s.parquet.work").exists()


def test_a_plan_counts_the_workers_that_have_a_shard(corpus, tmp_path):
    options = {"engine": "ray", "cluster": ClusterOptions(workers=64), "dry_run": True}
    result = command(corpus, tmp_path / "s.parquet", **options).run()
    plan = result.summary
    assert (plan.workers, plan.busy_workers) == (64, 3)
    assert plan.hours == pytest.approx(plan.worker_hours / 3, abs=1e-6)
    shown = " ".join(map(str, result.shown))
    assert "64 workers" in shown
    assert "at most 3 can be busy" in shown


def test_an_image_beyond_max_pixels_has_a_row_that_says_so(corpus, tmp_path):
    out = tmp_path / "scores.parquet"
    command(corpus / "00000.tar", out, max_pixels=64 * 64, shift=0.2).run()
    table = read(out).to_pandas()
    is_large = table.width * table.height > 64 * 64
    assert is_large.any()
    assert set(table.status[is_large]) == {"image_too_large"}
    assert not (table.status[~is_large] == "image_too_large").any()


def test_what_a_clone_without_git_lfs_has_is_named(tmp_path):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    (tmp_path / "tars").mkdir()
    (tmp_path / "tars/00000.tar").write_bytes(pointer)
    (tmp_path / "train.parquet").write_bytes(pointer)
    out = str(tmp_path / "scores.parquet")
    tars = run("score", tmp_path / "tars", "--out", out, "--model", "demo")
    table = run("score", tmp_path / "train.parquet", "--out", out, "--model", "demo")
    assert tars.returncode == 1
    assert table.returncode == 2
    for done in (tars, table):
        assert "a pointer of Git LFS in place of the file" in done.stdout + done.stderr
