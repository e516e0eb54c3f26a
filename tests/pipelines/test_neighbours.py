"""A rendered corpus from shards to neighbours, with what was planted in it."""

import json
import os
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.command import build
from ncclean_pipelines.neighbours import Neighbours
from ncclean_pipelines.score import Score
from ncclean_pipelines.select import Select
from sklearn.metrics import roc_auc_score

from ncclean.base import schema
from ncclean.base.config import ScoreOptions
from ncclean.neighbour_search.options import NeighbourOptions
from ncclean.selection.policy import Policy
from ncclean.storage.run_record import RunRecord
from tests.factories import rendered

PAIRS, COPIES = 1400, 40


def facts(shards):
    """uid -> (uid of the pair whose scene it shows, kind of noise)."""
    found = {}
    for path in sorted(shards.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                if member.name.endswith(".json"):
                    record = json.load(tar.extractfile(member))
                    shown = record["duplicate_of"] or record["uid"]
                    found[record["uid"]] = (shown, record["noise_kind"] or "")
    return found


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """Embeddings of a corpus with redrawn scenes, and exact copies of its first pairs."""
    folder = tmp_path_factory.mktemp("neighbours")
    rendered(
        folder / "shards",
        pairs=PAIRS,
        shard_size=PAIRS // 2,
        noise={"ncr": 0.2},
        duplicates=0.1,
        seed=3,
    )
    Score(
        shards=[str(folder / "shards")],
        out=str(folder / "scores.parquet"),
        model="demo",
        precision="fp32",
        shift=0.2,
        options=ScoreOptions(embeddings=str(folder / "e")),
    ).run()
    for name in ("img_emb", "text_emb"):
        first = np.load(folder / "e" / name / f"{name}_0.npy")
        np.save(folder / "e" / name / f"{name}_2.npy", first[:COPIES])
    table = pq.read_table(folder / "e" / "metadata" / "metadata_0.parquet").slice(0, COPIES)
    uids = pa.array([f"copy-{i}" for i in range(COPIES)])
    table = table.set_column(0, "uid", uids).set_column(1, "shard", pa.array(["copies"] * COPIES))
    pq.write_table(table, folder / "e" / "metadata" / "metadata_2.parquet")
    return folder


@pytest.fixture(scope="module")
def found(scored):
    out = scored / "neighbours.parquet"
    summary = Neighbours(embeddings=[str(scored / "e")], out=str(out)).run().summary
    return summary, pq.read_table(out)


def test_one_row_per_pair_in_input_order(scored, found):
    summary, table = found
    assert summary.pairs == len(table) == PAIRS + COPIES
    assert table.schema.remove_metadata() == schema.NEIGHBOURS
    scores = pq.read_table(scored / "scores.parquet", columns=["uid"])
    assert table.column("uid").to_pylist()[:PAIRS] == scores.column("uid").to_pylist()
    metadata = {k.decode(): v.decode() for k, v in table.schema.metadata.items()}
    assert metadata["index_image"] == "flat (exact)"
    assert metadata["image_recall"] == "1.0"
    assert metadata["whitened"] == "True"
    assert metadata["lemon_tau_2"] == "5.0"


def test_every_planted_copy_is_found(found):
    _, table = found
    for name in ("image_group", "text_group", "pair_group"):
        groups = table.column(name).to_pylist()
        assert groups[-COPIES:] == groups[:COPIES]
        assert None not in groups[:COPIES]


def test_redrawn_scenes_are_found_at_a_stated_false_rate(scored, found):
    """Near-duplicates by another drawing of the same scene, in another style."""
    truth = facts(scored / "shards")
    table = found[1].slice(0, PAIRS)
    uids, groups = table.column("uid").to_pylist(), table.column("image_group").to_pylist()
    shown = [truth[uid][0] for uid in uids]
    times = {uid: shown.count(uid) for uid in set(shown)}
    has_duplicate = np.array([times[uid] > 1 for uid in shown])
    copied = np.arange(PAIRS) < COPIES
    flagged = np.array([group is not None for group in groups])
    assert has_duplicate.sum() > 190
    assert flagged[has_duplicate].mean() >= 0.95
    assert flagged[~has_duplicate & ~copied].mean() <= 0.04


def test_mismatched_pairs_have_rivals_and_disagree_with_their_neighbours(scored, found):
    truth = facts(scored / "shards")
    table = found[1].slice(0, PAIRS)
    noisy = np.array([truth[uid][1] == "ncr" for uid in table.column("uid").to_pylist()])
    mutual = table.column("mutual_nearest").to_numpy(zero_copy_only=False)
    assert mutual[noisy].mean() <= 0.01
    assert mutual[~noisy].mean() >= 0.4
    for name, least in (("lemon_score", 0.98), ("better_captions", 0.97), ("better_images", 0.95)):
        values = table.column(name).to_numpy(zero_copy_only=False)
        assert roc_auc_score(noisy, values) >= least, name


def test_approximate_agrees_with_exact(scored, found, tmp_path):
    options = NeighbourOptions(index="ivf", recall=0.99)
    out = str(tmp_path / "n.parquet")
    summary = Neighbours(embeddings=[str(scored / "e")], out=out, options=options).run().summary
    exact, approximate = found[1], pq.read_table(tmp_path / "n.parquet")
    assert not summary.exact
    assert min(summary.image_recall, summary.text_to_image_recall) >= 0.99
    for name in ("image_group", "text_group", "mutual_nearest"):
        ours, theirs = approximate.column(name).to_pylist(), exact.column(name).to_pylist()
        assert np.mean([a == b for a, b in zip(ours, theirs, strict=True)]) >= 0.99, name
    ours, theirs = (np.array(t.column("better_captions")) for t in (approximate, exact))
    assert np.array_equal(ours > 0, theirs > 0) or np.mean((ours > 0) == (theirs > 0)) >= 0.99
    assert (ours <= theirs).mean() >= 0.99  # a lower bound, but for ties
    ours, theirs = (np.array(t.column("lemon_score")) for t in (approximate, exact))
    assert np.corrcoef(ours, theirs)[0, 1] >= 0.999


def test_output_is_not_overwritten_unasked(scored, tmp_path, refused):
    out = tmp_path / "n.parquet"
    out.write_bytes(b"mine")
    refused(Neighbours, embeddings=[str(scored / "e")], out=str(out))
    assert out.read_bytes() == b"mine"


def test_a_place_that_cannot_be_written_is_told_at_once(tmp_path, refused):
    folder = tmp_path / "n.parquet"
    folder.mkdir()
    for out in (folder, "/proc/nowhere/n.parquet"):
        request = Neighbours(embeddings=["nowhere"], out=str(out), overwrite=True)
        refused(request.run)


@pytest.mark.parametrize(
    "options",
    [
        {"image_threshold": 1.5},
        {"text_threshold": 0.0},
        {"linkage": "single"},
        {"k": 0},
        {"k": 1001},
        {"out": "n"},
        {"recall": 2.0},
        {"seed": -1},
        {"index": "lsh"},
    ],
)
def test_values_out_of_range(options, refused):
    refused(build, Neighbours, {"embeddings": "e", "out": "n.parquet", **options})


def test_images_of_a_reference_are_found(scored, tmp_path):
    """A reference of the first pairs' images, and of scenes that the corpus does not have."""
    reference, out = tmp_path / "reference", tmp_path / "n.parquet"
    rendered(tmp_path / "others", pairs=200, shard_size=200, seed=77)
    Score(
        shards=[str(tmp_path / "others")], out=str(tmp_path / "o.parquet"), model="demo",
        precision="fp32", shift=0.2, options=ScoreOptions(embeddings=str(reference)),
    ).run()  # fmt: skip
    image = np.load(scored / "e" / "img_emb" / "img_emb_0.npy")
    np.save(tmp_path / "first.npy", image[:COPIES].astype(np.float32) * 3)
    for sources, contaminated in (([reference], 0), ([tmp_path / "first.npy"], None)):
        result = Neighbours(
            embeddings=[str(scored / "e")], out=str(out), overwrite=True,
            reference=[str(source) for source in sources],
        ).run()  # fmt: skip
        table = pq.read_table(out).to_pandas()
        assert result.summary.contaminated == table.contaminated.sum()
        if contaminated == 0:
            theirs = np.load(reference / "img_emb" / "img_emb_0.npy").astype(np.float32)
            uids = pq.read_table(reference / "metadata" / "metadata_0.parquet")["uid"].to_pylist()
            cosines = image.astype(np.float32) @ theirs.T
            ours = table[: len(image)]
            assert np.allclose(ours.reference_similarity, cosines.max(axis=1), atol=1e-5)
            nearest = [uids[place] for place in cosines.argmax(axis=1)]
            assert np.mean(ours.nearest_reference == nearest) > 0.99  # of rounding alike
            assert table.contaminated.mean() < 0.01
        else:
            assert table.contaminated[:COPIES].all()
            assert table.contaminated[-COPIES:].all()  # the copies of these pairs
            assert table.nearest_reference[:3].tolist() == ["0", "1", "2"]
            assert np.allclose(table.reference_similarity[:COPIES], 1, atol=1e-3)
            assert table.contaminated.mean() < 0.2
            selected = tmp_path / "clean.parquet"
            Select(
                scores=[str(scored / "scores.parquet")], out=str(selected), join=[str(out)],
                policy=Policy(where="NOT coalesce(contaminated, false)"),
            ).run()  # fmt: skip
            scratch = set(pq.read_table(selected)["uid"].to_pylist())
            assert not scratch & set(table.uid[table.contaminated])
            assert len(scratch) > PAIRS / 2


def test_without_a_reference_its_columns_are_null(found):
    _, table = found
    for name in ("reference_similarity", "nearest_reference", "contaminated"):
        assert table.column(name).null_count == len(table)


def test_clusters_are_of_like_images(found, scored):
    _, table = found
    cluster = table.column("cluster").to_numpy()
    assert cluster.min() == 0
    assert len(np.unique(cluster)) > 20
    image = np.concatenate(
        [np.load(path) for path in sorted((scored / "e" / "img_emb").glob("*.npy"))]
    ).astype(np.float32)
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, len(image), (2, 200_000))
    cosines = (image[one] * image[other]).sum(axis=1)
    same = cluster[one] == cluster[other]
    assert cosines[same].mean() > cosines[~same].mean() + 0.1


@pytest.mark.parametrize(
    "reference", ["nowhere", "narrow.npy", "broken.npy", "nan.npy", "empty.npy"]
)
def test_a_reference_that_is_none(reference, refused, scored, tmp_path):
    dim = np.load(scored / "e" / "img_emb" / "img_emb_0.npy").shape[1]
    np.save(tmp_path / "narrow.npy", np.ones((4, 3), np.float32))
    np.save(tmp_path / "nan.npy", np.array([[1.0] * dim, [np.nan] * dim]))
    np.save(tmp_path / "empty.npy", np.ones((0, dim), np.float32))
    (tmp_path / "broken.npy").write_bytes(b"no npy")
    refused(
        Neighbours,
        embeddings=[str(scored / "e")],
        out=str(tmp_path / "n.parquet"),
        reference=[str(tmp_path / reference)],
    )
    assert not (tmp_path / "n.parquet").exists()


def test_killed_between_the_table_and_the_end_the_same_command_goes_on(scored, found, tmp_path):
    """The table is in its place and the working folder as well: neither is in the way."""
    request = Neighbours(embeddings=[str(scored / "e")], out=str(tmp_path / "n.parquet"))

    class Killed(BaseException):
        pass

    def killed(*arguments, **options):
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunRecord, "clear", killed)
        with pytest.raises(Killed):
            request.run()
    assert sorted(os.listdir(tmp_path)) == ["n.parquet", "n.parquet.work"]
    request.run()
    assert os.listdir(tmp_path) == ["n.parquet"]
    assert pq.read_table(tmp_path / "n.parquet").equals(found[1])
    # What the same command wrote is replaced.
    request.run()
    assert pq.read_table(tmp_path / "n.parquet").equals(found[1])


class Interrupt:
    """Progress that interrupts the search at a message."""

    def __init__(self, at):
        self._at = at

    def say(self, text):
        if text == self._at:
            raise KeyboardInterrupt

    def advance(self, *position, **facts): ...


def test_a_table_that_was_there_before_an_interrupted_search_stays(scored, tmp_path, refused):
    out = tmp_path / "n.parquet"
    request = Neighbours(embeddings=[str(scored / "e")], out=str(out))
    with pytest.raises(KeyboardInterrupt):
        request.run(Interrupt("reading embeddings"))
    out.write_text("mine")
    refused(request.run)
    assert out.read_text() == "mine"


def test_an_interrupted_search_resumes_with_the_same_reference_only(scored, tmp_path, refused):
    vectors = np.load(scored / "e/img_emb/img_emb_0.npy")[:40]
    np.save(tmp_path / "r.npy", vectors)
    request = Neighbours(
        embeddings=[str(scored / "e")],
        reference=[str(tmp_path / "r.npy")],
        out=str(tmp_path / "n.parquet"),
    )
    with pytest.raises(KeyboardInterrupt):
        request.run(Interrupt("writing"))
    np.save(tmp_path / "r.npy", vectors[::-1])
    refused(request.run)
    np.save(tmp_path / "r.npy", vectors)
    assert request.run().summary.contaminated >= 40
