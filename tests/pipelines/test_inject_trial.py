"""`evaluate noise --inject`: does it work on a corpus that nobody has judged?"""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.evaluate_noise import EvaluateNoise, TrialOptions
from ncclean_pipelines.score import Score
from upath import UPath

from ncclean.base.config import ScoreOptions
from ncclean.data.embeddings.units import resolve_embeddings
from ncclean.models import checkpoint
from ncclean.storage.noisy_copy import write_noisy_copy
from tests.factories import rendered


def evaluate(source, share=0.2, **options):
    return EvaluateNoise(
        scores=[str(source)], inject=share, trial=TrialOptions(**{"scale": 54.8, **options})
    ).run()


def test_from_embeddings(scored):
    """The corpus has 20 % noise of its own, which counts as clean."""
    result = evaluate(scored / "embeddings")
    evaluation, trial = result.summary, result.summary.trial
    assert evaluation.clean + evaluation.noisy["ncr"] == trial.pairs == 591
    assert trial.moved == pytest.approx(0.2, abs=0.005)
    assert trial.before.low <= 0.2 <= trial.before.high
    assert trial.after.low <= trial.expected <= trial.after.high
    assert trial.expected == pytest.approx(
        trial.before.value + trial.moved * (1 - trial.before.value)
    )
    similarity = next(score for score in evaluation.scores if score.column == "similarity")
    auroc = similarity.kinds[0].report.auroc
    # A fifth of what passes for clean is as noisy as what was injected.
    assert auroc == pytest.approx(1 - trial.before.value / 2, abs=0.04)
    assert json.loads(json.dumps(result.to_json()))["trial"]["pairs"] == 591
    shown = "\n".join(map(str, result.shown))
    assert "20.0% of them got a caption of another one" in shown
    assert "lower bounds" in shown


@pytest.fixture(scope="module")
def donors(tmp_path_factory):
    """200 pairs of other scenes as shards, and as embeddings."""
    folder = tmp_path_factory.mktemp("donors")
    rendered(folder / "shards", pairs=200, seed=99)
    Score(
        shards=[str(folder / "shards")], out=str(folder / "s.parquet"), model="demo",
        precision="fp32", shift=0.2, options=ScoreOptions(embeddings=str(folder / "embeddings")),
    ).run()  # fmt: skip
    return folder


def test_with_captions_of_another_corpus(scored, donors):
    result = evaluate(scored / "embeddings", donors=[str(donors / "embeddings")])
    evaluation, trial = result.summary, result.summary.trial
    assert (trial.noise, list(evaluation.noisy)) == ("donor", ["donor"])
    assert evaluation.clean + evaluation.noisy["donor"] == trial.pairs == 591
    assert trial.moved == pytest.approx(0.2, abs=0.01)
    assert trial.after.low <= trial.expected <= trial.after.high
    shown = "\n".join(map(str, result.shown))
    assert "of them got a caption of another corpus" in shown


def test_the_copy_has_captions_and_vectors_of_the_donors(scored, donors, tmp_path):
    shards, others = (
        resolve_embeddings([str(folder / "embeddings")]) for folder in (scored, donors)
    )
    options = {"share": 0.25, "pairs": 1000, "seed": 1}
    copy = write_noisy_copy(shards, None, UPath(tmp_path), donors=others, **options)
    facts = pq.read_table(donors / "embeddings" / "metadata" / "metadata_0.parquet")
    vectors = np.load(donors / "embeddings" / "text_emb" / "text_emb_0.npy")
    by_text = dict(zip(facts["caption"].to_pylist(), vectors, strict=True))
    for number in range(3):
        table = pq.read_table(f"{copy.noisy}/metadata/metadata_{number}.parquet").to_pydict()
        text = np.load(f"{copy.noisy}/text_emb/text_emb_{number}.npy")
        before = np.load(f"{copy.given}/text_emb/text_emb_{number}.npy")
        noisy = np.array(table["is_noisy"])
        assert np.array_equal(text[~noisy], before[~noisy])
        for row in np.flatnonzero(noisy):
            assert table["noise_kind"][row] == "donor"
            assert np.allclose(text[row], by_text[table["caption"][row]], atol=1e-3)


def test_donors_of_another_kind_are_refused(scored, donors, tmp_path, refused):
    refused(evaluate, scored / "embeddings", donors=[str(donors / "shards")])
    vectors = pa.array([[1.0, 0.0]] * 200)
    pq.write_table(pa.table({"image": vectors, "text": vectors}), tmp_path / "e.parquet")
    refused(evaluate, scored / "embeddings", donors=[str(tmp_path / "e.parquet")])


@pytest.mark.usefixtures("rough_shifts")
def test_from_images(corpus):
    """The demo's own weights, named as a file."""
    weights = Path(checkpoint.__file__).parent / "demo" / checkpoint.WEIGHTS_NAME
    result = EvaluateNoise(
        scores=[str(corpus)],
        inject=0.3,
        trial=TrialOptions(model="demo", pretrained=str(weights), preprocess="webli", pairs=200),
    ).run()
    trial = result.summary.trial
    assert 180 < trial.pairs < 220
    assert trial.moved == pytest.approx(0.3, abs=0.02)
    assert result["trial"]["after"] > 0.3


def test_the_permuted_copy(scored, tmp_path):
    shards = resolve_embeddings([str(scored / "embeddings")])
    made = write_noisy_copy(shards, None, UPath(tmp_path), share=0.5, pairs=1000, seed=1)
    moved = 0
    for number in range(3):
        given, permuted = (
            pq.read_table(f"{folder}/metadata/metadata_{number}.parquet").to_pydict()
            for folder in (made.given, made.noisy)
        )
        assert given["uid"] == permuted["uid"]
        assert set(given["is_noisy"]) == {None}
        noisy = np.array(permuted["is_noisy"])
        differs = np.array(given["caption"]) != np.array(permuted["caption"])
        assert not differs[~noisy].any()
        assert differs[noisy].all()  # one that got an equal caption is clean
        image = [np.load(f"{f}/img_emb/img_emb_{number}.npy") for f in (made.given, made.noisy)]
        assert np.array_equal(*image)
        moved += noisy.sum()
    assert made.moved == pytest.approx(moved / made.pairs)


def test_another_caption_of_its_own_image_is_clean(tmp_path):
    vectors = np.eye(4, dtype=np.float32).repeat(3, axis=0)
    texts = [f"{image} {number}" for image in range(4) for number in range(3)]
    pairs = {"uid": [text[0] for text in texts], "caption": texts}
    columns = {"l14_img": list(vectors), "l14_txt": list(vectors), **pairs}
    pq.write_table(pa.table(columns), tmp_path / "e.parquet")
    shards = resolve_embeddings([str(tmp_path / "e.parquet")])
    copy = write_noisy_copy(
        shards, ("l14_img", "l14_txt"), UPath(tmp_path), share=1.0, pairs=1000, seed=0
    )
    table = pq.read_table(f"{copy.noisy}/metadata/metadata_0.parquet").to_pydict()
    is_own = [text[0] == uid for text, uid in zip(table["caption"], pairs["uid"], strict=True)]
    assert table["is_noisy"] == [not own for own in is_own]
    assert sum(is_own) > sum(map(str.__eq__, table["caption"], texts))


@pytest.mark.parametrize(
    "options",
    [
        {"inject": 0.001},
        {"inject": 0.0},
        {"trial": TrialOptions(pretrained="x")},
        {"trial": TrialOptions(model="demo")},
    ],
)
def test_what_cannot_be_tried(scored, options, refused):
    refused(EvaluateNoise, **{"scores": [str(scored / "embeddings")], "inject": 0.2, **options})


def test_options_of_a_trial_need_one(scored, refused):
    refused(EvaluateNoise, scores=[str(scored / "scores.parquet")], trial=TrialOptions(pairs=100))
