"""Scores of judged captions by hand."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F

from ncclean.errors import InputError
from ncclean.evaluation.judgement_evaluation import (
    JudgedImages,
    JudgedScores,
    JudgementEvaluation,
    plain_name,
    scores_of_model,
    scores_of_table,
)
from ncclean.evaluation.judgement_table import Judgements
from ncclean.scoring.clip_loss import neg_clip_loss


def test_rivals_are_all_judged_images_and_captions_once():
    generator = torch.Generator().manual_seed(0)
    image = F.normalize(torch.randn(4, 6, generator=generator), dim=1)
    text = F.normalize(torch.randn(3, 6, generator=generator), dim=1)
    asked = []

    def encode_text(prompts, batch_size):
        asked.extend(prompts)
        return text

    estimator = SimpleNamespace(scale=10.0, encode_text=encode_text)
    # The last image of the source was not judged, `d` is not there.
    images = JudgedImages({"a": 0, "b": 1, "c": 2, "e": 3}, image, {}, {"image_corrupt": 1})
    judged = [("a", "x"), ("b", "y"), ("c", "z"), ("a", "y"), ("d", "x")]
    names, captions = map(list, zip(*judged, strict=True))
    judgements = Judgements(names, captions, np.ones((5, 1)), ("score",), {})
    found = scores_of_model(estimator, images, judgements, prefix="A photo depicts")
    assert asked == [f"A photo depicts {caption}" for caption in "xyz"]
    assert found.missing == {"image_corrupt": 1}
    cosines = image[:3] @ text.T
    own = [cosines[0, 0], cosines[1, 1], cosines[2, 2], cosines[0, 1]]
    np.testing.assert_allclose(found.values["similarity"][:4], own, rtol=1e-6)
    expected = neg_clip_loss(cosines, 10.0)
    np.testing.assert_allclose(found.values["neg_clip_loss"][:3], expected, rtol=1e-5)
    logits = 10 * cosines
    across = cosines[0, 1] - (logits[0].logsumexp(0) + logits[:, 1].logsumexp(0)) / 20
    assert found.values["neg_clip_loss"][3] == pytest.approx(float(across), rel=1e-5)
    assert all(np.isnan(values[4]) for values in found.values.values())


@pytest.mark.parametrize(
    ("name", "plain"),
    [("a/b.c.jpg", "a/b.c"), ("x.JPEG", "x"), ("x.y", "x.y"), ("7", "7"), ("a.txt", "a.txt")],
)
def test_names_without_the_ending_of_an_image(name, plain):
    assert plain_name(name) == plain


def test_pairs_of_a_table_by_the_key_that_tells_them_apart(tmp_path):
    def table(**similarity):
        path = str(tmp_path / "s.parquet")
        keys = [key.replace("_", "/") for key in similarity]
        rows = {"uid": keys, "shard": ["0"] * len(keys), "key": keys, "text": ["x"] * len(keys)}
        pq.write_table(pa.table({**rows, "similarity": list(similarity.values())}), path)
        return path

    def judged(*names):
        count = len(names)
        return Judgements(list(names), ["x"] * count, np.ones((count, 1)), ("score",), {})

    path = table(a_1=0.5, b_1=0.25, c_2=0.75)
    found = scores_of_table([path], judged("a/1.jpg", "b/1.jpg", "2.jpg"))
    assert found.values["similarity"].tolist() == [0.5, 0.25, 0.75]
    with pytest.raises(InputError, match=r"1.jpg may be 0/a/1 or 0/b/1"):
        scores_of_table([path], judged("1.jpg", "2.jpg"))
    pq.write_table(
        pa.table(
            {"shard": ["0", "1"], "key": ["2", "2"], "text": ["x", "x"], "similarity": [1, 2]}
        ),
        tmp_path / "shared.parquet",
    )
    with pytest.raises(InputError, match=r"2.jpg may be 0/2 or 1/2"):  # two shards' key
        scores_of_table([str(tmp_path / "shared.parquet")], judged("2.jpg"))
    twice = scores_of_table([path], judged("2.jpg", "2.jpg"))  # by two captions, or two judges
    assert twice.values["similarity"].tolist() == [0.75, 0.75]


def test_blanks_of_any_kind_are_alike(tmp_path):
    blanks = [chr(c) for c in range(0x3100) if chr(c).isspace()]
    texts = pa.array([f"{blank}a{blank}dog{blank}" for blank in blanks])
    keys = [str(number) for number in range(len(blanks))]
    similarity = [float(number) for number in range(len(blanks))]
    path = tmp_path / "s.parquet"
    pq.write_table(pa.table({"key": keys, "text": texts, "similarity": similarity}), path)
    ratings = np.ones((len(keys), 1))
    judged = Judgements(keys, ["a dog"] * len(keys), ratings, ("score",), {})
    found = scores_of_table([str(path)], judged)
    assert found.values["similarity"].tolist() == similarity


def test_a_score_of_which_less_is_better_says_so():
    judged = Judgements(list("abc"), list("xyz"), np.array([[1.0], [2.0], [3.0]]), ("score",), {})
    evaluation = JudgementEvaluation(judged)
    values = {"similarity": np.array([0.1, 0.2, 0.3]), "i2t_rank": np.array([-2.0, -1.0, 0.0])}
    evaluation.add("s", judged, JudgedScores(values, {"not_in_scores": 2}, ("i2t_rank",)))
    stated = evaluation.to_json()
    assert [(one["score"], one["reversed"], one["tau_b"]) for one in stated["scores"]] == [
        ("similarity", False, 1.0),
        ("i2t_rank", True, 1.0),
    ]
    assert stated["missing"] == {"s": {"not_in_scores": 2}}
