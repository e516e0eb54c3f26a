"""Noise files: which caption goes to which image, there and back."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclean.base.stores import location
from ncclean.data.noise import CODES, placed, plan_noise
from ncclean.data.noise_files import FilePlaces, read_noise_file, write_noise_file
from ncclean.errors import InputError


def whole(counts):
    """The places of a corpus all of whose images and captions can be used."""
    counts = np.asarray(counts)
    numbers = np.concatenate([np.arange(count) for count in counts])
    rows = np.arange(len(counts))
    return FilePlaces(counts, rows, np.repeat(rows, counts), numbers)


def pairs_of(plan):
    """(image, caption) of each pair after the noise."""
    shown = plan.image_source[plan.images]
    return sorted(zip(shown.tolist(), plan.caption_source.tolist(), strict=True))


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=40), st.data())
def test_any_file_comes_back(counts, data):
    total = sum(counts)
    entry = st.integers(0, len(counts) - 1)
    file = np.array(data.draw(st.lists(entry, min_size=total, max_size=total)))
    places = whole(counts)
    plan = places.plan(file)
    assert pairs_of(plan) == sorted(zip(file.tolist(), range(total), strict=True))
    own = np.repeat(np.arange(len(counts)), counts)
    assert plan.is_noisy.tolist() == (plan.images != own[plan.caption_source]).tolist()
    assert plan.planned == {"noise_file": int((file != own).sum())}
    assert places.file(plan).tolist() == file.tolist()


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=40),
    st.sampled_from(["ncr", "ncr_image", "decl", "per_batch"]),
    st.floats(0, 1),
    st.integers(0, 3),
)
def test_the_file_of_a_plan_makes_the_same_pairs(counts, kind, rate, seed):
    images = np.repeat(np.arange(len(counts)), counts)
    plan = plan_noise(len(images), {kind: rate}, seed, images=images)
    places = whole(counts)
    again = places.plan(places.file(plan))
    assert pairs_of(again) == pairs_of(plan)
    assert again.is_noisy.sum() == plan.is_noisy.sum()


def test_captions_of_an_image_move_together():
    """Nobody keeps a part of its captions, whatever else is drawn."""
    images = np.repeat(np.arange(100), np.resize([1, 3, 5], 100))
    plan = plan_noise(len(images), {"ncr_image": 0.3, "ncr": 0.4, "hard": 0.1}, 1, images=images)
    of_image = plan.code == CODES.index("ncr_image")
    for image in np.unique(plan.images[of_image]):
        here = plan.images == image
        assert of_image[here].all()
        (source,) = set(images[plan.caption_source[here]])
        assert source != image
        assert here.sum() == (images == source).sum()
    assert len(np.unique(plan.images[of_image])) in (28, 29, 30)
    assert sorted(plan.caption_source) == list(range(len(images)))


def test_a_caption_that_comes_takes_a_place_that_became_free():
    own = np.array([0, 0, 0, 1, 1, 1])
    source, images = placed(own, np.array([0, 1, 0, 0, 1, 1]))
    assert source.tolist() == [0, 3, 2, 1, 4, 5]
    assert images.tolist() == own.tolist()
    source, images = placed(own, np.array([0, 1, -1, 1, 1, 1]))
    assert source.tolist() == [0, 3, 4, 5, 1]
    assert images.tolist() == [0, 1, 1, 1, 1]


def test_what_cannot_be_used_keeps_its_number():
    """Of three images with two captions the second cannot be read, nor caption 1 of the third."""
    images, numbers = np.array([0, 0, 1]), np.array([0, 1, 0])
    places = FilePlaces(np.array([2, 2, 2]), np.array([0, 2]), images, numbers)
    plan = places.plan(np.array([2, 0, 0, 1, 1, 2]))
    # Caption 0 goes to the third image, its caption 0 to the one that is missing.
    assert pairs_of(plan) == [(0, 1), (1, 0)]
    assert plan.kind.tolist() == ["", "noise_file"]
    assert places.file(plan).tolist() == [2, 0, 1, 1, 2, 2]


def test_a_file_of_the_first_captions():
    """SCAN's splits of COCO take five captions of each image; some have six."""
    plan = whole([2, 3]).plan(np.array([1, 0, 0, 1]))
    assert pairs_of(plan) == [(0, 1), (0, 2), (1, 0), (1, 3), (1, 4)]


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ([0, 0, 1], "3 entries, and the corpus 4 captions of 2 images"),
        ([0, 0, 1, 2], "entry 3 of the noise file is image 2, and there are 2 images"),
        ([0, -1, 1, 1], "entry 1 of the noise file is image -1"),
    ],
)
def test_files_of_another_corpus_are_refused(file, message):
    with pytest.raises(InputError, match=message):
        whole([2, 2]).plan(np.array(file))


def test_a_file_of_more_captions_than_an_image_has_is_refused():
    """It would go on into the captions of the next image."""
    with pytest.raises(InputError, match="6 entries, and the corpus 5 captions of 3 images"):
        whole([3, 1, 1]).plan(np.array([0, 0, 1, 1, 2, 2]))


def test_noise_that_no_file_can_say_is_refused(refused):
    places = whole([1] * 10)
    refused(places.file, plan_noise(10, {"hard": 0.5, "ncr": 0.2}, 0))


def header(text):
    data = text.encode("latin1") + b"\n"
    return b"\x93NUMPY\x01\0" + len(data).to_bytes(2, "little") + data


def saved(values, **options):
    stream = io.BytesIO()
    np.save(stream, values, **options)
    return stream.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY\x09\x00",
        header("{'descr': '<i8', ((("),  # each another error of NumPy's
        header("{[]: 1}"),
        header("-" * 9000 + "1"),
        saved(np.array([{}]), allow_pickle=True),
        saved(np.zeros(3)),
        saved(np.zeros((3, 2), int)),
        saved(np.zeros(3, int))[:-1],
        saved(np.array([1, 2**64 - 1], np.uint64)),
        saved(np.zeros(3, int)).replace(b"(3,), ", b"(3" + b"0" * 4 + b",)"),
    ],
)
def test_what_is_no_noise_file_is_refused(tmp_path, data, refused):
    (tmp_path / "x.npy").write_bytes(data)
    refused(read_noise_file, str(tmp_path / "x.npy"))


@pytest.mark.parametrize("kind", ["<i8", "<i4", ">i8", "|u1"])
def test_integers_of_any_kind_are_read_and_int64_is_written(tmp_path, kind):
    (tmp_path / "x.npy").write_bytes(saved(np.array([1, 0, 2], kind)))
    entries = read_noise_file(str(tmp_path / "x.npy"))
    assert entries.tolist() == [1, 0, 2]
    write_noise_file(location(str(tmp_path / "y.npy")), entries)
    again = np.load(tmp_path / "y.npy", mmap_mode="r")
    assert (again.dtype, again.tolist()) == (np.int64, [1, 0, 2])
