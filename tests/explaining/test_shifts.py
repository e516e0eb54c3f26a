"""Shifted captions: the shift, and the run."""

import numpy as np
import pytest

from ncclean.explaining.shifts import find_shift


def vectors(count, noise=1.5, seed=0):
    """Images and captions of unit length; a caption is its image with noise."""
    rng = np.random.default_rng(seed)
    image = rng.normal(size=(count, 64))
    text = image + rng.normal(size=(count, 64)) * noise
    unit = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in (image, text)]
    return unit[0], unit[1], float(np.einsum("nd,nd->n", *unit).mean())


@pytest.mark.parametrize("by", [1, -1, 3, 16, -7])
def test_a_shift_of_all_pairs(by):
    image, text, right = vectors(300)
    found = find_shift(np.arange(300) * 2, image, np.roll(text, by, axis=0), right)
    assert found is not None
    assert found.by == by
    assert found.right_after > 0.9 * (300 - abs(by))
    assert found.right_before < 0.1 * 300
    assert f"{by:+d}" in str(found)
    side = "after" if by > 0 else "before"
    which = f"next pair {side}" if abs(by) == 1 else f"pair {abs(by)} places {side}"
    assert f"with the caption of the {which} it, " in str(found)
    # A caption belongs to the image `by` places after it.
    there = found.sources >= 0
    assert (found.sources[there] - found.places[there] == 2 * by).all()


def test_a_run_within_the_pairs():
    image, text, right = vectors(400)
    text[100:250] = np.roll(text[100:250], 2, axis=0)
    found = find_shift(np.arange(400), image, text, right)
    assert found is not None
    assert found.by == 2
    assert abs(found.places[0] - 100) <= 3
    assert abs(found.places[-1] - 249) <= 3
    assert "a run of" in str(found)


def test_what_was_not_shifted_is_left_alone():
    image, text, right = vectors(300)
    assert find_shift(np.arange(300), image, text, right) is None
    order = np.random.default_rng(1).permutation(300)
    assert find_shift(np.arange(300), image, text[order], right) is None
    assert find_shift(np.arange(1), image[:1], text[:1], right) is None
    assert find_shift(np.arange(300), image, text, float("nan")) is None


def test_a_weak_estimator_still_sees_a_shift():
    image, text, right = vectors(250, noise=6.0)
    found = find_shift(np.arange(250), image, np.roll(text, 1, axis=0), right)
    assert found is not None
    assert found.by == 1


def test_a_run_too_short_to_matter_to_its_cause_is_left_alone():
    """A shift must make three pairs in ten of the cause right, not of the run."""
    for run, is_proposed in ((60, False), (200, True)):
        image, text, right = vectors(400)
        text[100 : 100 + run] = np.roll(text[100 : 100 + run], 2, axis=0)
        found = find_shift(np.arange(400), image, text, right)
        assert (found is not None) == is_proposed


def test_a_shift_that_leaves_most_pairs_wrong_is_not_proposed():
    """It makes a third of the pairs right, far more than chance does."""
    image, text, right = vectors(900)
    rng = np.random.default_rng(3)
    moved = np.roll(text, 1, axis=0)
    wrong = rng.permutation(900)[:560]
    moved[wrong] = text[rng.permutation(wrong)]
    assert find_shift(np.arange(900), image, moved, right) is None


def test_right_pairs_are_counted_from_the_cosine_of_mismatches():
    """Which is far above 0 where all vectors have a direction in common."""
    image, text, _ = vectors(300)
    image, text = (side + 0.2 for side in (image, text))
    image, text = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (image, text))
    right = float(np.einsum("nd,nd->n", image, text).mean())
    found = find_shift(np.arange(300), image, np.roll(text, 1, axis=0), right)
    assert (image @ text.T).mean() > 0.4
    assert found.right_before < 0.1 * 300
    assert found.right_after > 0.9 * 299
