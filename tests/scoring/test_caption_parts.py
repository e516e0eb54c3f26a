"""Parts of captions that do not belong: features, known foreign parts, probabilities."""

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from ncclean.base.estimates import Estimate
from ncclean.scoring.caption_parts import (
    PAIR_SCORE,
    PART_SCORE,
    ForeignParts,
    Parts,
    _judge,
    any_foreign,
    part_distributions,
    with_part_probabilities,
)
from ncclean.scoring.null import Histogram
from ncclean.scoring.stats import Distributions

DIM = 24


def corpus(captions=300, several=1, foreign=0.0, seed=0, per_caption=(2, 6)):
    """Images with `several` captions each, whose parts lie around their image; and which do not."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(*per_caption, captions)
    caption = np.repeat(np.arange(captions), counts)
    images = np.arange(captions) // several
    image = F.normalize(torch.from_numpy(rng.normal(size=(images[-1] + 1, DIM))), dim=1)
    shows = images[caption]
    is_foreign = np.zeros(len(caption), bool)
    for number in np.flatnonzero(rng.random(captions) < foreign):
        place = rng.choice(np.flatnonzero(caption == number))
        is_foreign[place] = True
        shows[place] = (shows[place] + rng.integers(1, len(image))) % len(image)
    noise = torch.from_numpy(rng.normal(size=(len(caption), DIM))) * 0.16
    part = F.normalize(image[torch.from_numpy(shows)] + noise + 0.3, dim=1)
    parts = Parts(
        image=image[torch.from_numpy(images)].float(),
        part=part.float(),
        caption=caption,
        images=images,
        text=np.arange(len(caption)),
        length=rng.integers(10, 90, len(caption)),
    )
    return parts, is_foreign


def loops(parts, drawn):
    """The features of part `drawn[i]` in the place of part i, one after the other."""
    image, part = parts.image.double().numpy(), parts.part.double().numpy()
    mean_image, mean_part = image.mean(axis=0), part.mean(axis=0)
    rows = []
    for place, taken in enumerate(drawn):
        its_image = image[parts.caption[place]]
        others = [
            part[other]
            for other in range(len(part))
            if parts.caption[other] == parts.caption[place] and other != place
        ]
        total = np.sum(others, axis=0)
        apart = np.sum([other - mean_part for other in others], axis=0)
        rows.append([
            its_image @ part[taken],
            its_image @ mean_part,
            part[taken] @ mean_image,
            np.mean([its_image @ other for other in others]),
            apart / np.linalg.norm(apart) @ (part[taken] - mean_part),
            total / np.linalg.norm(total) @ part[taken],
        ])  # fmt: skip
    return np.array(rows)


@pytest.fixture(scope="module")
def planted():
    return corpus(400, several=2, foreign=0.3)


def test_features_are_those_of_the_drawn_part_among_the_others(planted):
    parts, _ = planted
    own = np.arange(len(parts.part))
    drawn = np.random.default_rng(1).permutation(own)
    for numbers in (own, drawn):
        assert parts._features(numbers) == pytest.approx(loops(parts, numbers), abs=1e-5)
    assert parts.cosines.numpy() == pytest.approx(loops(parts, own)[:, 0], abs=1e-6)


def test_each_half_of_the_images_is_judged_by_the_other(planted):
    """Logistic regression on the same features, the classes weighted alike, in steps of 2^-10."""
    parts, _ = planted
    drawn = parts._foreign(np.random.default_rng([3, 4]))
    known = parts._is_foreign(drawn)
    own, foreign = loops(parts, np.arange(len(drawn))), loops(parts, drawn)
    expected_own, expected_foreign = np.empty(len(drawn)), np.empty(len(drawn))
    for half in (0, 1):
        judged = parts.images[parts.caption] % 2 == half
        rows = np.concatenate([own[~judged], foreign[~judged & known]])
        labels = np.arange(len(rows)) >= (~judged).sum()
        scaler = StandardScaler().fit(rows)
        model = LogisticRegression(class_weight="balanced", tol=1e-8, max_iter=1000)
        model.fit(scaler.transform(rows), labels)
        for values, result in ((own, expected_own), (foreign, expected_foreign)):
            result[judged] = model.decision_function(scaler.transform(values[judged]))
    of_own, of_foreign = parts.log_odds([3, 4])
    assert of_own == pytest.approx(expected_own.clip(-16, 16), abs=0.02)
    assert of_foreign == pytest.approx(expected_foreign[known].clip(-16, 16), abs=0.02)
    assert (of_own * 1024 == np.round(of_own * 1024)).all()


@pytest.mark.parametrize(
    ("own", "foreign", "apart"), [(60, 25, 0.0), (900, 500, 1.0), (50, 60, 90.0)]
)
def test_the_judge_is_the_logistic_regression_of_scikit_learn(own, foreign, apart):
    """Whatever the scale of the features, one that is constant, and kinds that lie far apart."""
    rng = np.random.default_rng(3)
    scales = np.array([1.0, 1e-3, 50.0, 0.0])
    features = [
        ((rng.normal(size=(rows, 4)) + shift) * scales + 0.5).astype(np.float32)
        for rows, shift in ((own, 0.0), (foreign, apart))
    ]
    scaler = StandardScaler().fit(np.concatenate(features).astype(np.float64))
    regression = LogisticRegression(class_weight="balanced", tol=1e-10, max_iter=10_000)
    labels = np.repeat([0, 1], [own, foreign])
    regression.fit(scaler.transform(np.concatenate(features).astype(np.float64)), labels)
    expected = regression.decision_function(scaler.transform(features[0].astype(np.float64)))
    assert _judge(*features)(features[0]) == pytest.approx(expected, abs=1e-3)


def test_known_foreign_parts_are_of_like_length(planted):
    parts, _ = planted
    drawn = parts._foreign(np.random.default_rng(0))
    assert sorted(drawn) == list(range(len(drawn)))  # each takes one place
    place = np.empty(len(drawn), int)
    place[np.argsort(parts.length, kind="stable")] = np.arange(len(drawn))
    # Within the group of 32, up to the order of equal lengths.
    apart = np.abs(parts.length - parts.length[drawn])
    assert apart.max() <= 8
    assert apart.mean() < 4
    assert (parts._foreign(np.random.default_rng(0)) == drawn).all()
    assert (parts._foreign(np.random.default_rng(1)) != drawn).mean() > 0.8


def small(caption, images, text, length=None):
    caption = np.array(caption)
    vectors = F.normalize(torch.randn(len(caption), DIM, generator=torch.Generator()), dim=1)
    return Parts(
        image=vectors[: len(images)], part=vectors, caption=caption, images=np.array(images),
        text=np.array(text), length=np.ones(len(caption), int) if length is None else length,
    )  # fmt: skip


def test_what_is_said_of_the_image_elsewhere_is_not_foreign():
    """Captions 0 and 1 are of image 7; caption 2 says what caption 1 says."""
    parts = small([0, 0, 1, 1, 2, 2], [7, 7, 8], [0, 1, 2, 3, 3, 4])
    drawn = np.array([2, 4, 5, 0, 1, 3])
    #  0: caption 1, the same image; 1: text 3, which caption 1 has; 2: text 4, foreign;
    #  3: caption 0, the same image; 4: text 1, foreign to image 8; 5: text 3, which is its own.
    assert parts._is_foreign(drawn).tolist() == [False, False, True, False, True, False]


def test_known_foreign_parts_of_a_corpus_with_repeats():
    parts, _ = corpus(300, several=3)
    parts = Parts(parts.image, parts.part, parts.caption, parts.images,
                  parts.text % 150, parts.length)  # fmt: skip
    drawn = parts._foreign(np.random.default_rng(5))
    known = parts._is_foreign(drawn)
    for place in np.flatnonzero(known):
        image = parts.images[parts.caption[place]]
        assert parts.images[parts.caption[drawn[place]]] != image
        theirs = parts.text[parts.images[parts.caption] == image]
        assert parts.text[drawn[place]] not in theirs
    assert known.sum() == len(parts.log_odds([0])[1]) or known.mean() > 0.5


@pytest.mark.parametrize("captions", [0, 1, 2, 5])
def test_too_few_parts_tell_nothing(captions):
    parts, _ = corpus(max(captions, 1))
    if not captions:
        empty = np.empty(0, np.int64)
        parts = Parts(parts.image[:0], parts.part[:0], empty, empty, empty, empty)
    own, foreign = parts.log_odds([0])
    assert len(own) == len(parts.part)
    assert np.isnan(own).all()
    assert foreign.size == 0
    distributions = part_distributions(own, foreign)
    assert (distributions.matched.size, distributions.mismatched.size) == (0, 0)
    means = parts.mean_cosines()
    assert means.matched.size == captions
    assert means.mismatched.size == captions * (captions - 1)


@pytest.mark.parametrize("equal", ["text", "images", "part", "image", "all"])
def test_corpora_of_equals(equal):
    """Every sentence the same, or every image: nothing is known to be foreign, or nothing told."""
    parts, _ = corpus(200)
    arrays = {name: getattr(parts, name) for name in ("image", "part", "images", "text")}
    if equal in ("text", "images"):
        arrays[equal] = np.zeros_like(arrays[equal])
    elif equal in ("part", "image"):
        arrays[equal] = arrays[equal][:1].expand(arrays[equal].shape)
    else:
        arrays = {
            name: np.zeros_like(one) if isinstance(one, np.ndarray) else one[:1].expand(one.shape)
            for name, one in arrays.items()
        }
    own, foreign = Parts(caption=parts.caption, length=parts.length, **arrays).log_odds([1])
    assert np.isnan(own).all() == (equal in ("text", "images", "all"))
    assert np.isfinite(foreign).all()


def test_mean_cosines_of_own_and_other_captions():
    """Not of another caption of the image, nor of one that says the same."""
    parts, _ = corpus(40, several=2)
    same_text = parts.text.copy()
    first, last = (np.flatnonzero(parts.caption == number) for number in (4, 30))
    same_text[first] = np.arange(len(first)) + 1000
    equal = len(first) == len(last)
    same_text[last] = np.arange(len(last)) + 1000
    parts = Parts(parts.image, parts.part, parts.caption, parts.images, same_text, parts.length)
    image, part = parts.image.numpy(), parts.part.numpy()
    means = [part[parts.caption == number].mean(axis=0) for number in range(40)]
    own = [image[n] @ means[n] for n in range(40)]
    others = [
        image[a] @ means[b]
        for a in range(40)
        for b in range(40)
        if a // 2 != b // 2 and not (equal and {a, b} == {4, 30})
    ]
    distributions = parts.mean_cosines()
    assert distributions.matched.size == 40
    assert distributions.matched.mean == pytest.approx(np.mean(own), abs=1e-4)
    assert distributions.mismatched.size == len(others)
    assert distributions.mismatched.mean == pytest.approx(np.mean(others), abs=1e-4)


def test_captions_of_equal_parts_in_another_order_are_not_equal():
    parts = small([0, 0, 1, 1, 2, 2, 2], [0, 1, 2], [5, 6, 5, 6, 6, 5, 5])
    assert parts._captions().tolist() == [0, 0, 1]
    assert parts.mean_cosines().mismatched.size == 4


def fitted(parts):
    own, foreign = parts.log_odds([0])
    scores = {PART_SCORE: part_distributions(own, foreign), PAIR_SCORE: parts.mean_cosines()}
    return own, ForeignParts.fit(Distributions(scores=scores))


def test_planted_parts_are_found_and_counted():
    parts, is_foreign = corpus(2_000, foreign=0.25, seed=3)
    own, foreign = fitted(parts)
    assert roc_auc_score(is_foreign, own) > 0.97
    assert foreign.rate.low <= is_foreign.mean() <= foreign.rate.high
    assert not foreign.cannot_tell
    probability = foreign.probabilities(own)
    assert probability.sum() == pytest.approx(is_foreign.sum(), rel=0.15)
    assert roc_auc_score(is_foreign, probability) > 0.97


def test_clean_parts_are_left_alone():
    own, foreign = fitted(corpus(1_000, seed=4)[0])
    assert foreign.rate.low < 0.01
    assert (foreign.probabilities(own) >= 0.5).mean() < 0.01


def test_nothing_is_fitted_without_known_foreign_parts():
    some = Histogram.of(torch.linspace(-0.5, 0.5, 100))
    own, pairs = Distributions(matched=some), Distributions(matched=some, mismatched=some)
    for scores in ({}, {PART_SCORE: own, PAIR_SCORE: pairs}, {PART_SCORE: pairs}):
        assert ForeignParts.fit(Distributions(scores=scores)) is None


SHARES = st.floats(0, 1, width=32)


@given(SHARES, st.lists(SHARES, max_size=6), SHARES)
def test_any_part_is_foreign(pair, parts, other):
    caption = np.array([1] * len(parts) + [0], int)
    values = np.array([*parts, other], np.float32)
    whole = any_foreign(np.array([other, pair], np.float32), values, caption)
    assert whole[1] == pytest.approx(1 - (1 - pair) * np.prod([1 - q for q in parts]), abs=1e-6)
    assert whole[0] == pytest.approx(1 - (1 - other) ** 2, abs=1e-6)
    if not any(parts):
        assert whole[1] == np.float32(pair)


class Told:
    """Log-odds and mean cosines that are the probabilities."""

    cannot_tell = False

    def __init__(self, pair):
        self.pairs = self
        self._pair = pair

    def noise_probability(self, mean):
        return mean if self._pair is None else torch.full_like(mean, self._pair)

    def probabilities(self, odds):
        return odds.copy()


def table(noise, odds, mean=None):
    count = len(noise)
    return pa.table({
        "noise_probability": pa.array(noise, pa.float32()),
        "mean_part_similarity": pa.array(mean or [0.25] * count, pa.float32()),
        "part_log_odds": pa.array(odds, pa.list_(pa.float32())),
        "part_noise_probability": pa.nulls(count, pa.float32()),
        "part_noise_probabilities": pa.nulls(count, pa.list_(pa.float32())),
    })  # fmt: skip


def filled(table, foreign):
    table = with_part_probabilities(table, foreign)
    names = ("part_noise_probability", "part_noise_probabilities")
    return [table[name].to_pylist() for name in names]


TINY = float(np.float32(1e-20))


def test_probabilities_of_parts_and_of_any():
    whole, each = filled(
        table(
            [0.9, TINY, None, 0.7, 0.125, None],
            [[0.5, 0.25], [None], None, [None, None], [0.0, 1.0, 0.5], [0.5, 0.5]],
        ),
        Told(None),
    )
    # Of several parts, whether all are foreign is told by their mean cosine, here .25.
    assert each[0] == pytest.approx([1 - 0.75 * 0.5, 1 - 0.75 * 0.75])
    assert whole[0] == pytest.approx(1 - 0.75 * 0.5 * 0.75)
    # Of one part, by the pair's own probability, to the last bit.
    assert (whole[1], each[1]) == (TINY, [TINY])
    # Not scored, or not told.
    assert (whole[2], each[2]) == (None, None)
    assert (whole[3], each[3]) == (None, [None, None])
    assert each[4] == pytest.approx([0.25, 1.0, 1 - 0.75 * 0.5])
    assert whole[4] == 1.0
    assert (whole[5], each[5]) == (None, [None, None])


@pytest.mark.parametrize("vague", [None, "wide"])
def test_of_several_parts_nothing_is_said_if_nothing_can_be_told(vague):
    foreign = None
    if vague:
        foreign = Told(None)
        foreign.cannot_tell = True
    whole, each = filled(table([0.3, 0.4], [[0.5, 0.25], [None]]), foreign)
    assert each == [[None, None], [pytest.approx(0.4)]]
    assert whole == [None, pytest.approx(0.4)]


def test_a_table_without_rows():
    assert filled(table([], []), None) == [[], []]


def test_a_slice_of_a_table():
    whole = table([0.1, 0.2, 0.3], [[0.5, 0.25], [0.5, 0.5], [None]])
    assert filled(whole.slice(1, 2), Told(0.0)) == [
        [0.75, pytest.approx(0.3)], [[0.5, 0.5], [pytest.approx(0.3)]],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "pairs", "cannot"),
    [
        ((0.1, 0.05, 0.15), (0.1, 0.05, 0.5), False),
        ((0.3, 0.02, 0.39), (0.1, 0.05, 0.15), False),  # its lower end does not count
        ((0.5, 0.0, 1.0), (0.1, 0.05, 0.15), True),
        ((0.3, 0.2, 0.41), (0.1, 0.05, 0.15), True),
        ((0.1, 0.05, 0.15), (0.9, 0.0, 1.0), True),
    ],
)
def test_rates_that_may_be_any_tell_nothing(parts, pairs, cannot):
    """Of the pairs as well: else all parts of all captions would be foreign."""
    nulls = [type("Null", (), {"noise_rate": Estimate(*rate)})() for rate in (parts, pairs)]
    assert ForeignParts(*nulls).cannot_tell == cannot
