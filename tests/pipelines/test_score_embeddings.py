"""Scores from embeddings: those of the shards, and what goes on from them."""

import shutil
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.evaluate_noise import EvaluateNoise
from ncclean_pipelines.score import Score

import ncclean
from ncclean.base.config import ScoreOptions
from ncclean.errors import InputError
from ncclean.execution.score_corpus import ScoreCorpus
from ncclean.models.estimator import Estimator
from ncclean.scoring.canonical import Moments, Projection, halves
from tests.pipelines.score_tables import read
from tests.scoring.test_canonical import corpus as canonical_corpus

BLOCK_COLUMNS = (
    "ncu_confidence", "ncu_split", "disncl_clean", "neg_clip_loss", "i2t_rank", "t2i_rank", "block",
)  # fmt: skip


@pytest.fixture(scope="module")
def expected(scored):
    """The rows of the corpus that could be scored, from its images."""
    table = read(scored / "scores.parquet")
    return table.filter(pa.compute.equal(table.column("status"), "ok"))


@pytest.fixture(scope="module")
def scale(expected):
    return float(expected.schema.metadata[b"scale"])


def score(source, out, **options):
    fields = {"scale": 20.0, **options}
    return Score(shards=[str(source)], out=str(out), **fields).run().summary


@pytest.fixture(autouse=True)
def no_model(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(Estimator, "load", refuse)


def assert_block_columns(found, expected):
    for name in BLOCK_COLUMNS:
        assert found.column(name).equals(expected.column(name)), name
    one, other = (np.asarray(table.column("similarity")) for table in (found, expected))
    assert np.abs(one - other).max() < 1e-3


def together(scored, folder, shards=True):
    """The corpus in one file, as clip-retrieval writes it: partitions cut across shards."""
    for kind in ("img_emb", "text_emb"):
        files = sorted((scored / "embeddings" / kind).iterdir())
        (folder / kind).mkdir(parents=True)
        np.save(folder / kind / f"{kind}_0.npy", np.concatenate([np.load(f) for f in files]))
    files = sorted((scored / "embeddings" / "metadata").iterdir())
    table = pa.concat_tables([pq.read_table(file) for file in files])
    (folder / "metadata").mkdir()
    dropped = ["row"] if shards else ["row", "shard", "uid"]
    pq.write_table(table.drop(dropped), folder / "metadata" / "metadata_0.parquet")
    return folder


def test_every_column_is_that_of_the_shards(scored, expected, scale, tmp_path):
    out = tmp_path / "scores.parquet"
    summary = score(scored / "embeddings", out, scale=scale, shift=0.2)
    found = read(out)
    assert_block_columns(found, expected)
    for name in ("uid", "shard", "key", "row", "text", "width", "height", "status", "is_noisy"):
        assert found.column(name).equals(expected.column(name)), name
    for name in ("osa_weight", "noise_probability", "null_p_value", "clean_posterior"):
        one, other = (np.asarray(table.column(name)) for table in (found, expected))
        assert np.abs(one - other).max() < 0.02, name
    assert summary.ok == summary.rows == len(expected)
    metadata = found.schema.metadata
    assert metadata[b"model"] == b"embeddings"
    rates = (float(each[b"noise_rate"]) for each in (metadata, expected.schema.metadata))
    assert next(rates) == pytest.approx(next(rates), abs=1e-3)  # of cosines in 16 and 32 bits


def test_a_file_that_holds_several_shards(scored, expected, scale, tmp_path):
    score(together(scored, tmp_path / "e"), tmp_path / "scores.parquet", scale=scale)
    assert_block_columns(read(tmp_path / "scores.parquet"), expected)


def test_metadata_that_names_no_shard(scored, expected, tmp_path):
    score(together(scored, tmp_path / "e", shards=False), tmp_path / "scores.parquet")
    table = read(tmp_path / "scores.parquet")
    assert set(table.column("shard").to_pylist()) == {"metadata_0"}
    assert len(set(table.column("uid").to_pylist())) == len(expected)
    assert table.column("row").to_pylist() == list(range(len(expected)))


@pytest.mark.parametrize("name", ["scores.parquet", "scores"])
def test_a_table_is_calibrated_again_whatever_shards_its_rows_name(scored, tmp_path, name):
    """Also of several files whose rows name the same shard, with the parts gone."""
    for copy in ("a", "b"):
        shutil.copytree(scored / "embeddings", tmp_path / copy)
    sources, out = [str(tmp_path / "a"), str(tmp_path / "b")], tmp_path / name
    Score(shards=sources, out=str(out), scale=20.0).run()
    first = read(out)
    Score(shards=[], out=str(out), finalize_only=True, shift=0.1).run()
    again = read(out)
    assert again.column("uid").equals(first.column("uid"))
    assert again.column("noise_probability").equals(first.column("noise_probability"))
    assert not again.column("osa_weight").equals(first.column("osa_weight"))


def test_a_pool_of_the_corpus_makes_small_shards_as_good_as_large_ones(scored, tmp_path):
    whole = together(scored, tmp_path / "e", shards=False)
    one_batch = tmp_path / "one.parquet"
    score(whole, one_batch, options=ScoreOptions(block_size=10_000))
    options = ScoreOptions(block_size=30, pool=10_000)
    one = read(one_batch).to_pandas().neg_clip_loss
    # Files of their own, or one that holds several shards: each pair is told from its own copy.
    for number, source in enumerate((scored / "embeddings", together(scored, tmp_path / "s"))):
        pooled = tmp_path / f"pooled-{number}.parquet"
        score(source, pooled, options=options)
        table = read(pooled)
        assert np.asarray(table.column("neg_clip_loss")) == pytest.approx(one.to_numpy(), abs=1e-5)
        assert table.schema.metadata[b"pool"] == b"10000"


def test_the_pool_stays_until_the_run_begins_anew(scored, tmp_path):
    files = sorted((scored / "embeddings" / "img_emb").iterdir())
    assert len(files) > 1
    grown, out = tmp_path / "e", tmp_path / "s.parquet"
    shutil.copytree(scored / "embeddings", grown)
    later = [
        grown / kind / file.name
        for kind in ("img_emb", "text_emb", "metadata")
        for file in sorted((grown / kind).iterdir())[1:]
    ]
    aside = [path.rename(tmp_path / f"{path.parent.name}-{path.name}") for path in later]
    options = ScoreOptions(pool=40)
    score(grown, out, options=options)
    first = read(out)
    for path, was in zip(aside, later, strict=True):
        path.rename(was)
    score(grown, out, options=options)
    rows = read(out).slice(0, len(first))
    assert rows.column("neg_clip_loss").equals(first.column("neg_clip_loss"))
    score(grown, out, options=options, overwrite=True)
    assert (
        not read(out)
        .slice(0, len(first))
        .column("neg_clip_loss")
        .equals(first.column("neg_clip_loss"))
    )
    assert score(grown, out, options=options, dry_run=True).samples_per_second > 0


@pytest.mark.parametrize("change", ["options", "shards"])
def test_the_pool_of_a_run_killed_before_its_first_shard_does_not_outlive_it(
    scored, tmp_path, monkeypatch, change
):
    def killed(self, *_):
        raise KeyboardInterrupt

    source, out, alone = tmp_path / "e", tmp_path / "s.parquet", tmp_path / "alone.parquet"
    shutil.copytree(scored / "embeddings", source)
    size = 20 if change == "options" else 40
    with monkeypatch.context() as patched:
        patched.setattr(ScoreCorpus, "_score", killed)
        with pytest.raises(KeyboardInterrupt):
            score(source, out, options=ScoreOptions(pool=size))
    if change == "shards":
        image = source / "img_emb" / "img_emb_0.npy"
        np.save(image, np.load(image)[::-1])
    score(source, out, options=ScoreOptions(pool=40))
    score(source, alone, options=ScoreOptions(pool=40))
    assert read(out).column("neg_clip_loss").equals(read(alone).column("neg_clip_loss"))


def test_other_layouts_have_the_same_scores(scored, expected, scale, tmp_path):
    whole = together(scored, tmp_path / "e")
    image, text = (np.load(whole / k / f"{k}_0.npy") for k in ("img_emb", "text_emb"))
    metadata = pq.read_table(whole / "metadata" / "metadata_0.parquet")
    (tmp_path / "d").mkdir()
    pq.write_table(metadata, tmp_path / "d" / "00.parquet")
    np.savez_compressed(tmp_path / "d" / "00.npz", l14_img=image, l14_txt=text)
    columns = {"v": pa.FixedSizeListArray.from_arrays(image.ravel(), image.shape[1])}
    columns["t"] = pa.FixedSizeListArray.from_arrays(text.ravel(), text.shape[1])
    vectors = metadata
    for name, column in columns.items():
        vectors = vectors.append_column(name, column)
    pq.write_table(vectors, tmp_path / "v.parquet")
    for source, keys in ((tmp_path / "d", None), (tmp_path / "v.parquet", "v,t")):
        out = tmp_path / f"{source.name}.scores.parquet"
        score(source, out, scale=scale, embedding_keys=keys)
        assert_block_columns(read(out), expected)


def test_nothing_is_lost_and_a_mended_file_is_scored_again(scored, tmp_path):
    source, out = tmp_path / "e", tmp_path / "scores"
    shutil.copytree(scored / "embeddings", source)
    image = np.load(source / "img_emb" / "img_emb_1.npy")
    np.save(source / "img_emb" / "img_emb_1.npy", image[:-1])
    spoilt = np.load(source / "text_emb" / "text_emb_2.npy")
    spoilt[3] = np.nan
    np.save(source / "text_emb" / "text_emb_2.npy", spoilt)
    summary = score(source, out)
    rows = pq.read_table(scored / "embeddings" / "metadata").num_rows
    assert summary.rows == rows
    assert summary.failures == {"embedding_missing": len(image), "embedding_corrupt": 1}
    assert list(summary.failed_shards) == ["metadata_1"]
    assert "rows, but" in summary.failed_shards["metadata_1"]
    np.save(source / "img_emb" / "img_emb_1.npy", image)
    summary = score(source, out)
    assert summary.failures == {"embedding_corrupt": 1}
    assert summary.shards_failed == 0
    again = tmp_path / "again"
    score(source, again)
    assert read(again).equals(read(out))


@pytest.mark.parametrize(
    "options",
    [
        {"model": "demo"},
        {"options": ScoreOptions(decode_on="device")},
        {"shift": "noise"},
        {"embedding_keys": "a,b"},
    ],
)
def test_options_that_embeddings_do_not_have(scored, tmp_path, options, refused):
    refused(score, scored / "embeddings", tmp_path / "s.parquet", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"scale": 100.0},
        {"embedding_keys": "a,b"},
        {"options": ScoreOptions(pool=10)},
        {"options": ScoreOptions(canonical=True)},
    ],
)
def test_options_that_images_do_not_have(corpus, tmp_path, options, refused):
    refused(Score, shards=[str(corpus)], out=str(tmp_path / "s.parquet"), model="demo", **options)


@pytest.mark.parametrize(
    ("field", "value"),
    [("scale", "-1"), ("scale", float("nan")), ("embedding_keys", "a"), ("embedding_keys", "a,a")],
)
def test_values_that_make_no_sense(field, value, refused):
    refused(Score, shards=["e"], out="s.parquet", **{field: value})


def test_one_pair_alone_has_no_mismatches(tmp_path):
    for name in ("img_emb", "text_emb"):
        (tmp_path / "e" / name).mkdir(parents=True)
        np.save(tmp_path / "e" / name / f"{name}_0.npy", np.ones((1, 1), np.float16))
    (tmp_path / "e" / "metadata").mkdir()
    pq.write_table(pa.table({"caption": ["a"]}), tmp_path / "e/metadata/metadata_0.parquet")
    summary = score(tmp_path / "e", tmp_path / "s.parquet")
    assert (summary.ok, summary.noise_rate.is_known, summary.shift) == (1, False, 0.0)


def test_an_estimate_of_the_job(scored, tmp_path):
    plan = score(scored / "embeddings", tmp_path / "s.parquet", dry_run=True)
    assert plan.pairs == pq.read_table(scored / "embeddings" / "metadata").num_rows
    assert plan.samples_per_second > 0


def test_canonical_similarity_of_a_pair_is_by_the_other_half(tmp_path):
    image, text, moved = canonical_corpus(2400)
    source = tmp_path / "e"
    for number, rows in enumerate((slice(0, 900), slice(900, 2400))):
        for kind, side in (("img_emb", image), ("text_emb", text)):
            (source / kind).mkdir(parents=True, exist_ok=True)
            np.save(source / kind / f"{kind}_{number}.npy", side[rows])
        (source / "metadata").mkdir(exist_ok=True)
        captions = [f"caption {row}" for row in range(len(image[rows]))]
        place = source / "metadata" / f"metadata_{number}.parquet"
        pq.write_table(pa.table({"caption": captions, "is_noisy": moved[rows]}), place)
    options = ScoreOptions(canonical=True)
    score(source, tmp_path / "s.parquet", options=options)
    table = read(tmp_path / "s.parquet")
    found = np.asarray(table.column("canonical_similarity"))
    half = halves(table.column("shard").to_pylist(), np.asarray(table.column("row")))
    for own in (half, ~half):
        moments = Moments(image.shape[1])
        moments.add(image[~own], text[~own], np.random.default_rng(0))
        expected = Projection.fit(moments).cosines(image[own], text[own])
        assert found[own] == pytest.approx(expected, abs=1e-4)
    evaluated = EvaluateNoise(scores=[str(tmp_path / "s.parquet")]).run().summary
    auroc = {each.column: each.kinds[0].report.auroc for each in evaluated.scores}
    assert auroc["canonical_similarity"] > auroc["similarity"] + 0.1
    first = read(tmp_path / "s.parquet")
    score(source, tmp_path / "s.parquet", options=options)
    assert read(tmp_path / "s.parquet").equals(first)


def test_canonical_similarity_of_few_pairs_is_null(scored, tmp_path):
    said = []
    command = Score(
        shards=[str(scored / "embeddings")], out=str(tmp_path / "s.parquet"), scale=20.0,
        options=ScoreOptions(canonical=True),
    )  # fmt: skip
    command.run(SimpleNamespace(say=said.append, advance=lambda *_, **__: None))
    assert read(tmp_path / "s.parquet").column("canonical_similarity").null_count == 591
    assert any("canonical_similarity is null: of 128 dimensions" in line for line in said)


def test_facts_of_a_part_of_the_corpus_are_said(tmp_path, caplog):
    for number in (0, 1):
        folder = tmp_path / f"piece-{number}"
        folder.mkdir()
        sides = np.random.default_rng(number).normal(size=(2, 30, 4)).tolist()
        table = pa.table(dict(zip(("image_embedding", "text_embedding"), sides, strict=True)))
        pq.write_table(table, folder / f"{number}.parquet")
    options = ScoreOptions(pool=10, canonical=True)
    pieces = [str(tmp_path / f"piece-{number}.parquet") for number in (0, 1)]
    for piece in pieces:
        score(piece.removesuffix(".parquet"), piece, options=options)
    assert not caplog.messages
    ncclean.merge(pieces, tmp_path / "merged.parquet")
    assert "--canonical and --pool went by the shards of each run alone" in caplog.text
    shutil.copy(tmp_path / "piece-1" / "1.parquet", tmp_path / "piece-0")
    score(tmp_path / "piece-0", pieces[0], options=options)
    assert "--pool and --canonical still go by the shards that the run began" in caplog.text
    said = len(caplog.messages)
    score(tmp_path / "piece-0", pieces[0], options=options)
    assert len(caplog.messages) == said


@pytest.mark.parametrize("option", ["pretrained", "preprocess"])
def test_weights_without_a_model_are_not_dropped(scored, tmp_path, option):
    with pytest.raises(InputError, match=rf"--{option} .*--scale MODEL"):
        score(scored / "embeddings", tmp_path / "s.parquet", **{option: "openai"})
