"""Search by words and likeness: in every layout of embeddings, with filters, beside decisions."""

from __future__ import annotations

import asyncio
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ncclean.data.embeddings.units import resolve_embeddings
from ncclean.models.estimator import Estimator
from ncclean.reviewing.search import CAPTION, IMAGE, Search, Task, proposed
from ncclean.reviewing.table import Request, ReviewTable
from ncclean.reviewing.vector_search import PairVectors, Query, WordSearch
from tests.conftest import write_model
from tests.models.test_estimator import ARCHITECTURES
from tests.reviewing.served import served

DIM = 16
PAIRS = 300


def unit(rows, seed):
    vectors = np.random.default_rng(seed).standard_normal((rows, DIM))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)


def write_embeddings(folder, layout, images, texts, facts):
    """The same pairs in any of the layouts of docs/embeddings.md, in two files."""
    folder.mkdir()
    half = len(images) // 2
    for number, rows in enumerate((slice(0, half), slice(half, None))):
        some = {name: values[rows] for name, values in facts.items()}
        if layout == "clip-retrieval":
            for name, side in (("img_emb", images), ("text_emb", texts)):
                (folder / name).mkdir(exist_ok=True)
                np.save(folder / name / f"{name}_{number}.npy", side[rows])
            (folder / "metadata").mkdir(exist_ok=True)
            pq.write_table(pa.table(some), folder / "metadata" / f"metadata_{number}.parquet")
        elif layout == "datacomp":
            pq.write_table(pa.table(some), folder / f"{number}.parquet")
            np.savez(folder / f"{number}.npz", l14_img=images[rows], l14_txt=texts[rows])
        else:
            some |= {"image_emb": list(images[rows]), "text_emb": list(texts[rows])}
            pq.write_table(pa.table(some), folder / f"{number}.parquet")
    return resolve_embeddings([str(folder)])


def table_of(path, rows):
    """A score table of some of the pairs, in an order of its own."""
    pq.write_table(
        pa.table(
            {
                "uid": [f"u{row}" for row in rows],
                "caption_number": pa.array([0] * len(rows), pa.int16()),
                "shard": ["a"] * len(rows),
                "key": [str(row) for row in rows],
                "row": list(rows),
                "status": ["ok"] * len(rows),
                "text": [f"caption {row}" for row in rows],
                "similarity": [row / PAIRS for row in rows],
            }
        ),
        path,
    )
    return ReviewTable.open([str(path)], memory_limit="400MB")


@pytest.mark.parametrize("layout", ["clip-retrieval", "datacomp", "vectors"])
def test_the_nearest_come_first_in_every_layout(tmp_path, layout):
    images, texts = unit(PAIRS, 1), unit(PAIRS, 2)
    texts[250] = 0  # cannot be used: the rows after it keep their numbers
    facts = {
        "uid": [f"u{row}" for row in range(PAIRS)],
        "caption": [f"caption {row}" for row in range(PAIRS)],
    }
    shards = write_embeddings(tmp_path / "e", layout, images, texts, facts)
    rows = [*range(PAIRS - 1, 99, -1), PAIRS]  # of the last there are no embeddings
    table = table_of(tmp_path / "s.parquet", rows)
    table.work.mkdir(exist_ok=True)
    try:
        search = WordSearch(Task.of(shards, None, table, "400MB", None, None))
        for side, vectors in ((IMAGE, images), (CAPTION, texts)):
            place = rows.index(200)
            answer = search.answer(Query(side=side, place=place, nearest=5))
            cosines = vectors.astype(np.float32) @ images[200].astype(np.float32)
            usable = [row for row in rows[:-1] if row != 250]
            expected = sorted(usable, key=lambda row: -cosines[row])
            assert [rows[place] for place in answer["places"]] == expected[:5]
            np.testing.assert_allclose(answer["cosines"], cosines[expected[:5]], atol=2e-3)

            # All pairs of a view are in that order, those without embeddings at the end.
            out = table.work / f"{side}.parquet"
            assert search.answer(Query(side=side, place=place, out=str(out))) == {}
            request = Request(view="all", like=place, side=side, low=0.5, score="similarity")
            ranking = type("Ranking", (), {"file": out})
            view = table.view(request, ranking=ranking)
            keys = [int(row["key"]) for row in table.page(view, 0, PAIRS)]
            assert keys[:-2] == [row for row in expected if row >= PAIRS // 2]
            assert set(keys[-2:]) == {250, PAIRS}
        assert "do not have this pair" in search.answer(Query(place=len(rows) - 1))["error"]
        assert "add --model" in search.answer(Query(words="a dog"))["error"]
    finally:
        table.close()


@pytest.mark.slow
def test_each_side_has_an_order_of_its_own(tmp_path):
    facts = {"uid": [f"u{row}" for row in range(PAIRS)]}
    shards = write_embeddings(tmp_path / "e", "datacomp", unit(PAIRS, 1), unit(PAIRS, 2), facts)
    table = table_of(tmp_path / "s.parquet", range(PAIRS))
    table.work.mkdir(exist_ok=True)
    search = Search(Task.of(shards, None, table, "400MB", None, None))

    async def ask():
        found = [await search.ranking(side, "", 7) for side in (IMAGE, CAPTION, IMAGE)]
        await search.stop()
        await asyncio.sleep(0.2)  # until its pipes are closed
        return found

    try:
        image, caption, again = asyncio.run(ask())
        assert again is image  # kept
        first = pq.read_table(image.file).sort_by([("value", "descending")])
        assert first.column("place")[0].as_py() == 7
        cosines = [pq.read_table(one.file).column("value") for one in (image, caption)]
        assert cosines[0] != cosines[1]
    finally:
        table.close()


def test_words_are_not_searched_in_another_space_of_the_same_width(tmp_path):
    width = Estimator.load("demo", precision="fp32", device="cpu").embed_dim
    vectors = np.random.default_rng(0).standard_normal((20, width))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)
    facts = {name: [f"{name} {row}" for row in range(20)] for name in ("uid", "caption")}
    shards = write_embeddings(tmp_path / "e", "datacomp", vectors, vectors, facts)
    table = table_of(tmp_path / "s.parquet", range(20))
    table.work.mkdir(exist_ok=True)
    try:
        search = WordSearch(Task.of(shards, None, table, "400MB", "demo", None))
        assert "not those of" in search.answer(Query(words="a dog"))["error"]
    finally:
        table.close()


def test_of_several_vectors_of_one_name_the_first_counts(tmp_path):
    images, facts = unit(4, 1), {"uid": ["u0", "u1", "u1", "u2"]}
    shards = write_embeddings(tmp_path / "e", "datacomp", images, unit(4, 2), facts)
    table = table_of(tmp_path / "s.parquet", range(3))
    try:
        vectors = PairVectors(Task.of(shards, None, table, "400MB", None, None))
        for place, row in enumerate((0, 1, 3)):
            assert np.allclose(vectors.image_of(place), images[row], atol=1e-3)
    finally:
        table.close()


def test_shards_that_cannot_be_read_are_named(tmp_path):
    facts = {"uid": [f"u{row}" for row in range(PAIRS)]}
    shards = write_embeddings(tmp_path / "e", "datacomp", unit(PAIRS, 1), unit(PAIRS, 2), facts)
    broken = tmp_path / "e" / "1.npz"
    broken.write_bytes(broken.read_bytes()[:500])
    table = table_of(tmp_path / "s.parquet", range(PAIRS))
    table.work.mkdir(exist_ok=True)
    try:
        search = WordSearch(Task.of(shards, None, table, "400MB", None, None))
        assert search.unread == ["1"]
        assert len(search.answer(Query(place=0, nearest=PAIRS))["places"]) == PAIRS // 2
    finally:
        table.close()


def test_no_caption_is_proposed_twice_nor_that_of_the_image(tmp_path):
    rows = [
        {"place": place, "uid": uid, "text": text}
        for place, (uid, text) in enumerate(
            [("b", "A  dog"), ("a", "mine"), ("c", "a Dog"), ("d", "OWN"), ("e", None), ("f", "x")]
        )
    ]
    cosines = {place: 1 - place / 10 for place in range(6)}
    captions = proposed(rows, cosines, {"uid": "a", "text": " own"})
    assert captions == [("A  dog", 1.0), ("x", 0.5)]


@pytest.fixture(scope="module")
def running(scored, tmp_path_factory):
    out = tmp_path_factory.mktemp("search") / "decisions.parquet"
    with served(scored / "scores.parquet", "--out", out) as review:
        yield review  # the embeddings that the run has written are taken by themselves


@pytest.mark.slow
def test_words_find_pictures_and_captions(running, scored):
    estimator = Estimator.load("demo", precision="fp32", device="cpu")
    words = estimator.encode_text(["two red squares"])[0].numpy()
    facts = pq.read_table(scored / "embeddings" / "metadata").to_pylist()
    for side, folder in (("image", "img_emb"), ("caption", "text_emb")):
        files = sorted((scored / "embeddings" / folder).glob("*.npy"))
        cosines = np.concatenate([np.load(file) for file in files]).astype(np.float32) @ words
        cards = running.get("rows", view="all", count=20, meaning="two red squares", side=side)
        at = {(fact["uid"], fact["caption_number"]): n for n, fact in enumerate(facts)}
        listed = [cosines[at[card["uid"], card["number"]]] for card in cards["cards"]]
        assert listed == pytest.approx(sorted(cosines, reverse=True)[:20], abs=1e-3)

    # With a condition, an interval and the undecided ones alone, as any order.
    fields = {"view": "all", "meaning": "two red squares", "where": "similarity < 0.2"}
    first = running.get("rows", count=1, **fields)
    assert (
        first["pairs"] == running.get("rows", view="all", count=1, where=fields["where"])["pairs"]
    )
    card = first["cards"][0]
    running.post("decide", decision="keep", pairs=[[card["uid"], card["number"]]])
    left = running.get("rows", count=1, undecided=1, **fields)
    assert (left["pairs"], left["cards"][0]["uid"] != card["uid"]) == (first["pairs"] - 1, True)
    running.post("undo")
    like = running.get("rows", view="all", count=1, like=card["place"])
    assert like["cards"][0]["uid"] == card["uid"]
    answer = running.post("decide-all", decision="drop", request=fields)
    assert answer["changed"] == first["pairs"]
    running.post("undo")


@pytest.mark.slow
def test_a_search_holds_no_decision(scored, tmp_path):
    out = tmp_path / "decisions.parquet"
    with served(scored / "scores.parquet", "--out", out) as review:
        query = {"view": "all", "count": 1, "meaning": "a circle"}
        search = threading.Thread(target=review.get, args=("rows",), kwargs=query)
        search.start()  # which starts a process and loads a model
        begin = time.monotonic()
        review.post("decide", decision="drop", pairs=[["a", 0]])
        assert search.is_alive()
        assert time.monotonic() - begin < 2
        assert review.end() == 0
        search.join(10)


@pytest.mark.slow
def test_words_of_another_model_are_refused(scored, tmp_path):
    model = write_model(tmp_path / "model", {**ARCHITECTURES["clip"]})
    with served(
        scored / "scores.parquet", "--out", tmp_path / "d.parquet", "--model", model
    ) as review:
        status, answer = review.ask("rows?view=all&count=1&meaning=dog")
        assert status == 400
        assert "not those of" in answer["error"]
        # What needs no model goes on.
        assert len(review.get("rows", view="all", count=3, like=0)["cards"]) == 3
