"""Groups with nulls of their own: each one's noise is found, and the null of all is wrong."""

import io
import json
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from ncclean_pipelines.report import Report
from ncclean_pipelines.score import Score

from ncclean.base.config import ScoreOptions
from ncclean.scoring.null import Histogram
from ncclean.scoring.stats import Distributions

RATES = {"de": 0.2, "en": 0.05, "fr": 0.4}


def corpus(folder, sizes=(3000, 3000, 3000), dim=128, files=1):
    """Embeddings of three languages, each in a cone of its own that is narrower than the last."""
    rng = np.random.default_rng(0)
    group = np.repeat([0, 1, 2], sizes)
    rng.shuffle(group)
    common = rng.standard_normal((len(group), dim))
    sides = []
    for _ in range(2):
        vectors = common + 1.2 * rng.standard_normal(common.shape)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        shared = np.array([0.0, 0.35, 0.7])[group, None]
        vectors = np.sqrt(1 - shared**2) * vectors + shared * np.eye(3, dim)[group]
        sides.append(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    source = np.arange(len(group))
    for number, rate in enumerate(RATES.values()):
        members = rng.permutation(np.flatnonzero(group == number))
        chosen = members[: int(rate * len(members))]
        source[chosen] = np.roll(chosen, 1)
    languages = np.array(list(RATES))[group]
    for number, rows in enumerate(np.array_split(np.arange(len(group)), files)):
        pieces = {"img_emb": sides[0][rows], "text_emb": sides[1][source][rows]}
        for kind, values in pieces.items():
            (folder / kind).mkdir(parents=True, exist_ok=True)
            np.save(folder / kind / f"{kind}_{number}.npy", values.astype(np.float16))
        (folder / "metadata").mkdir(exist_ok=True)
        metadata = {
            "caption": [f"caption {row}" for row in rows],
            "language": languages[rows],
            "is_noisy": (source != np.arange(len(group)))[rows],
        }
        pq.write_table(pa.table(metadata), folder / f"metadata/metadata_{number}.parquet")
    return folder


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory):
    return corpus(tmp_path_factory.mktemp("groups") / "e")


def score(source, out, by, **options):
    settings = ScoreOptions(calibrate_by=by)
    return Score(shards=[str(source)], out=str(out), options=settings, **options).run().summary


@pytest.fixture(scope="module")
def by_language(embeddings, tmp_path_factory):
    out = tmp_path_factory.mktemp("by") / "s.parquet"
    return score(embeddings, out, "language"), out


def test_every_group_has_its_own_noise_rate(by_language, tmp_path):
    summary, out = by_language
    assert [group.group for group in summary.groups] == list(RATES)
    for group in summary.groups:
        assert group.own_null
        assert group.noise_rate.low <= RATES[group.group] <= group.noise_rate.high, group
    truth = np.mean(list(RATES.values()))
    assert summary.noise_rate.low <= truth <= summary.noise_rate.high
    table = pq.read_table(out).to_pandas()
    assert (table.calibration_group.value_counts() == 3000).all()
    metadata = pq.read_schema(out).metadata
    assert metadata[b"calibrate_by"] == b"language"
    page = tmp_path / "r.html"
    Report(scores=[str(out)], out=str(page)).run()
    assert "<bdi>fr</bdi></th><td>3,000</td>" in page.read_text()
    recorded = json.loads(metadata[b"noise_rates_by_group"])
    assert recorded[0]["noise_rate"] == summary.groups[0].noise_rate.value
    for language, rate in RATES.items():
        kept = table[(table.calibration_group == language) & (table.noise_probability < 0.5)]
        expected, wrong = kept.noise_probability.sum(), kept.is_noisy.sum()
        assert wrong == pytest.approx(expected, abs=0.01 * 3000), (language, rate)


@pytest.mark.parametrize("unlabelled", [["fr"], ["de", "en"]])
def test_pairs_without_a_label_are_a_group_and_count_for_the_corpus(
    embeddings, tmp_path, unlabelled
):
    out = tmp_path / "s.parquet"
    labels = [language for language in RATES if language not in unlabelled]
    by = f"CASE WHEN language IN ({str(labels)[1:-1]}) THEN language END"
    summary = score(embeddings, out, by)
    assert [group.group for group in summary.groups] == [*labels, None]
    assert [group.pairs for group in summary.groups] == [3000] * len(labels) + [
        3000 * len(unlabelled)
    ]
    if len(unlabelled) == 1:  # one cone, so one null fits
        of_rest = summary.groups[-1]
        assert of_rest.own_null
        assert of_rest.noise_rate.low <= RATES["fr"] <= of_rest.noise_rate.high
        assert summary.noise_rate.low <= np.mean(list(RATES.values())) <= summary.noise_rate.high
        table = pq.read_table(out).to_pandas()
        kept = table[table.calibration_group.isna() & (table.noise_probability < 0.5)]
        expected, wrong = kept.noise_probability.sum(), kept.is_noisy.sum()
        assert wrong == pytest.approx(expected, abs=0.01 * 3000)
    page = tmp_path / "r.html"
    Report(scores=[str(out)], out=str(page)).run()
    assert f"(no label)</th><td>{3000 * len(unlabelled):,}</td>" in page.read_text()
    again = Score(shards=[], out=str(out), shift=0.1, finalize_only=True).run().summary
    assert again.groups == summary.groups


def test_a_group_that_is_called_like_the_pairs_without_a_label_is_another(tmp_path):
    distributions = Distributions()
    for name in ("None", "", "unlabelled", None):
        distributions.group(name).matched += Histogram.of(torch.tensor([0.5]))
    back = Distributions.from_json(json.loads(json.dumps(distributions.to_json())))
    assert set(back.groups) == {"None", "", "unlabelled", None}


def test_the_null_of_all_is_wrong_here(embeddings, tmp_path):
    out = tmp_path / "s.parquet"
    summary = score(embeddings, out, None)
    assert summary.noise_rate.high < 0.15  # of a true 0.217
    assert summary.noise_rate.value == pytest.approx(0.087, abs=0.005)  # docs/scores.md says 9 %
    assert summary.groups == []
    table = pq.read_table(out).to_pandas()
    kept = table[table.noise_probability < 0.5]
    assert kept.is_noisy.sum() > 3 * kept.noise_probability.sum()
    assert table.calibration_group.isna().all()


def test_small_groups_have_the_null_of_all(tmp_path):
    source = corpus(tmp_path / "e", sizes=(300, 2500, 2500))
    summary = score(source, tmp_path / "s.parquet", "language")
    assert [group.own_null for group in summary.groups] == [False, True, True]
    assert summary.groups[0].noise_rate.is_known


def test_groups_add_up_over_shards(by_language, tmp_path):
    whole, _ = by_language
    pieces = score(corpus(tmp_path / "e", files=4), tmp_path / "p.parquet", "upper(language)")
    assert [group.group for group in pieces.groups] == ["DE", "EN", "FR"]
    assert [g.pairs for g in pieces.groups] == [g.pairs for g in whole.groups]
    for one, other in zip(pieces.groups, whole.groups, strict=True):
        assert one.noise_rate.value == pytest.approx(other.noise_rate.value, abs=0.01)


def test_fields_of_the_json(corpus_with_styles, tmp_path):
    out = tmp_path / "s.parquet"
    by = "CASE WHEN style = 'long' THEN 'long' ELSE 'short' END"
    summary = score(corpus_with_styles, out, by, model="demo", shift="shuffled")
    assert [group.group for group in summary.groups] == ["long", "short"]
    table = pq.read_table(out).to_pandas()
    assert (table.calibration_group == np.where(table.row % 2, "long", "short")).all()


@pytest.fixture
def corpus_with_styles(corpus, tmp_path):
    """60 pairs of the rendered corpus, with a field of its own in every other json."""
    out = tmp_path / "styles" / "00000.tar"
    out.parent.mkdir()
    numbers = {}
    with tarfile.open(corpus / "00000.tar") as source, tarfile.open(out, "w") as target:
        for member in source:
            data = source.extractfile(member).read()
            key = member.name.split(".")[0]
            number = numbers.setdefault(key, len(numbers))
            if number == 60:
                break
            if member.name.endswith(".json") and number % 2:
                data = json.dumps({**json.loads(data), "style": "long"}).encode()
                member.size = len(data)
            target.addfile(member, io.BytesIO(data))
    return out


@pytest.mark.parametrize(
    "by", ["lang uage", "language; DROP TABLE pairs", "read_text('/etc/passwd')", "caption", "key"]
)
def test_expressions_that_make_no_groups(embeddings, tmp_path, by, refused):
    refused(score, embeddings, tmp_path / "s.parquet", by)


def test_a_column_that_is_not_there_makes_no_group(tmp_path):
    source = corpus(tmp_path / "e", sizes=(50, 50, 50))
    result = Score(
        shards=[str(source)],
        out=str(tmp_path / "s.parquet"),
        options=ScoreOptions(calibrate_by="langage"),
    ).run()
    assert result.summary.groups == []
    assert any("no pair has a group" in str(shown) for shown in result.shown)
