"""Tables of judgements as others publish them, and hostile ones."""

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ncclean.errors import InputError
from ncclean.evaluation.judgement_table import read_judgements


def test_several_judges_of_a_csv(tmp_path):
    path = tmp_path / "expert.csv"
    path.write_text(
        "image,caption_id,caption,judge1,judge2,judge3\n"
        'a.jpg,b.jpg#2,"A dog , running .",1,2,\n'
        "a.jpg,a.jpg#0,  A  cat,4,4,3\n"
    )
    found = read_judgements(str(path))
    assert found.image == ["a.jpg", "a.jpg"]
    assert found.caption == ["A dog , running .", "A cat"]
    assert found.rating_columns == ("judge1", "judge2", "judge3")
    np.testing.assert_array_equal(found.ratings, [[1, 2, math.nan], [4, 4, 3]])
    np.testing.assert_allclose(found.averaged().ratings, [[1.5], [11 / 3]])
    assert found.left_out == {}


def test_a_row_for_each_rating(tmp_path):
    """Two rows of a caption are not two captions, which would form a pair that nobody can order."""
    path = tmp_path / "workers.csv"
    rows = ["a.jpg,A cat,ann,4", "a.jpg,A dog,ann,1", "a.jpg, A  cat,bob,3", "b.jpg,A cat,bob,1"]
    path.write_text("\n".join(["image,caption,worker,rating", *rows]))
    judgements = read_judgements(str(path))
    assert judgements.image == ["a.jpg", "a.jpg", "b.jpg"]
    assert judgements.caption == ["A cat", "A dog", "A cat"]
    np.testing.assert_array_equal(judgements.ratings, [[4, 3], [1, math.nan], [1, math.nan]])
    np.testing.assert_array_equal(judgements.averaged().ratings, [[3.5], [1], [1]])


def test_thumb_and_a_score_of_ones_choice(tmp_path):
    path = tmp_path / "thumb.jsonl"
    row = {"SYS": "x", "hyp": "A cat.", "image": "c.jpg", "P": 4.0, "R": 3.0, "human_score": 3.5}
    path.write_text(json.dumps(row) + "\n")
    assert read_judgements(str(path)).ratings.tolist() == [[3.5]]
    chosen = read_judgements(str(path), ratings=["P", "r"])
    assert (chosen.rating_columns, chosen.ratings.tolist()) == (("p", "r"), [[4.0, 3.0]])


def test_parquet_with_names_of_its_own(tmp_path):
    path = tmp_path / "j.parquet"
    pq.write_table(pa.table({"Photo": [7, 8], "Said": ["x", "y"], "Likes": [1, 2]}), path)
    found = read_judgements(str(path), image="Photo", caption="said", ratings=["Likes"])
    assert (found.image, found.caption) == (["7", "8"], ["x", "y"])
    with pytest.raises(InputError, match=r"no column of image names .*--image-column.*photo, said"):
        read_judgements(str(path))
    with pytest.raises(InputError, match="has no column 'nowhere': there are photo, said, likes"):
        read_judgements(str(path), image="nowhere")


def test_rows_that_are_no_judgement_are_counted(tmp_path):
    path = tmp_path / "j.jsonl"
    good = {"image": "a", "caption": "b", "score": "2"}
    rows = [
        good,
        {**good, "image": None},
        {**good, "caption": " \n"},
        {**good, "caption": ["b"]},
        {**good, "score": "many"},
        {**good, "score": True},
        {**good, "score": 1e999},
        {**good, "score": math.nan},
        {**good, "caption": "\ud800"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{broken\n[1]\n")
    found = read_judgements(str(path))
    assert found.caption == ["b", "?"]
    assert found.left_out == {
        "image_missing": 1, "caption_missing": 2, "rating_missing": 4, "row_broken": 2
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("j.csv", b"", "no column of image names"),
        ("j.csv", b"image,caption,score\n", "holds no judgement .it is empty"),
        ("j.csv", b"image,caption,score\na,b,\n", "holds no judgement .1 rating_missing"),
        ("j.csv", b"image,caption\na,b\n", "no column of ratings .human_score"),
        ("j.csv", b"PK\x03\x04", "is a zip archive"),
        ("j.csv", "image,caption,score\n".encode("utf-16"), "is UTF-16"),
        ("j.parquet", b"PAR1", "cannot be read"),
        ("j.txt", b"image", "is not a table of judgements"),
    ],
)
def test_no_table(tmp_path, name, data, message):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(InputError, match=message):
        read_judgements(str(path))


def test_a_table_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        read_judgements(str(tmp_path / "nowhere.csv"))


def test_a_caption_with_more_ratings_than_all_could_have_is_refused(tmp_path, refused):
    """Every caption takes the room of the one with most ratings."""
    rows = [("a.jpg", "a cat", 1)] * 10_001 + [("a.jpg", f"{n}", 2) for n in range(10_000)]
    path = tmp_path / "ratings.csv"
    path.write_text("image,caption,rating\n" + "".join(f"{i},{c},{r}\n" for i, c, r in rows))
    refused(read_judgements, str(path))
