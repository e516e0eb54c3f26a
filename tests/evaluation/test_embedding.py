"""Sets to embeddings: what is skipped is counted, what is wrong is named."""

import json
from io import BytesIO

import pytest
import torch
from PIL import Image

from ncclean.data.images.layout import ImageLayout
from ncclean.data.images.resolve import resolve_images
from ncclean.data.shards import resolve_shards
from ncclean.errors import InputError, ModelError
from ncclean.evaluation.embedding import EmbeddingOptions, embed_classes, embed_dataset
from tests import hostile


def shards(folder, *members):
    folder.mkdir(exist_ok=True)
    data = hostile.tar_bytes(members)
    (folder / "0.tar").write_bytes(data)
    return resolve_shards([str(folder)])


def jpeg(seed):
    return hostile.encoded(hostile.photo(seed=seed))


def retrieval_set(folder, *members):
    folder.mkdir()
    (folder / "dataset_type.txt").write_text("retrieval\n")
    return shards(folder / "test", *members)


def test_several_captions_an_image(demo_estimator, tmp_path):
    embedded = embed_dataset(
        demo_estimator,
        retrieval_set(
            tmp_path / "s",
            *(("a.jpg", jpeg(1)), ("a.txt", b"one\n two \n\nthree\n")),
            *(("b.jpg", b"no image"), ("b.txt", b"never encoded")),
            *(("c.jpg", jpeg(2)), ("c.txt", b"two")),
            *(("d.jpg", jpeg(3)), ("d.txt", b"\n")),
        ),
        EmbeddingOptions(),
    )
    assert embedded.keys == ["0/a", "0/c"]
    assert embedded.text_to_image.tolist() == [0, 0, 0, 1]
    assert embedded.skipped == {"image_corrupt": 1, "caption_missing": 1}
    assert torch.equal(embedded.text[1], embedded.text[3])
    torch.testing.assert_close(embedded.image.norm(dim=1), torch.ones(2))


def test_a_caption_of_a_table_may_have_several_lines(demo_estimator, tmp_path):
    (tmp_path / "a.jpg").write_bytes(jpeg(1))
    raw = ["one", "two lines\nof one", "three\u2028parts", " ", "five"]
    images = [{"filename": "a.jpg", "split": "test", "sentences": [{"raw": one} for one in raw]}]
    (tmp_path / "dataset.json").write_text(json.dumps({"images": images}))
    table = resolve_images([str(tmp_path / "dataset.json")])
    count = [len(embed_dataset(demo_estimator, table, EmbeddingOptions(), n).text) for n in (4, 3)]
    assert count == [4, 3]
    assert len(embed_dataset(demo_estimator, table, EmbeddingOptions()).text) == 4


def test_a_caption_of_other_shards_may_have_several_lines(demo_estimator, tmp_path):
    """As for `score`; a set's own shards have a caption a line, also without the set."""
    members = [("a.jpg", jpeg(1)), ("a.txt", b"one\ntwo"), ("b.jpg", jpeg(2)), ("b.txt", b"three")]
    plain, of_set = shards(tmp_path / "plain", *members), retrieval_set(tmp_path / "set", *members)
    pairs = embed_dataset(demo_estimator, [*plain, *of_set], EmbeddingOptions())
    assert pairs.text_to_image.tolist() == [0, 1, 2, 2, 3]
    assert torch.equal(pairs.text[0], demo_estimator.encode_text(["one\ntwo"], 1)[0])


def test_an_image_with_rows_in_several_units_is_one(demo_estimator, tmp_path, monkeypatch):
    for seed, name in enumerate("abc"):
        (tmp_path / f"{name}.jpg").write_bytes(jpeg(seed))
    rows = [f"{name}.jpg,{name} {number}\n" for number in range(4) for name in "abc"]
    (tmp_path / "t.csv").write_text("image,caption\n" + "".join(rows))
    monkeypatch.setattr(ImageLayout, "unit_rows", 5)
    units = resolve_images([str(tmp_path / "t.csv")])
    assert len(units) == 3
    pairs = embed_dataset(demo_estimator, units, EmbeddingOptions())
    assert len(pairs.keys) == len(pairs.image) == 3
    assert pairs.text_to_image.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    expected = demo_estimator.encode_text(["b 0", "b 3"], 2)
    torch.testing.assert_close(pairs.text[[4, 7]], expected)


def test_images_lie_as_they_are_stored(demo_estimator, tmp_path):
    """Published figures are of images as open_clip decodes them, which ignores EXIF."""
    exif = Image.Exif()
    exif[0x0112] = 6
    on_its_side = BytesIO()
    hostile.photo(seed=1).save(on_its_side, "JPEG", exif=exif)
    plain = BytesIO()
    hostile.photo(seed=1).save(plain, "JPEG")
    images = [("a.jpg", plain.getvalue()), ("b.jpg", on_its_side.getvalue())]
    members = [*images, ("a.txt", b"one"), ("b.txt", b"one")]
    embedded = embed_dataset(
        demo_estimator, shards(tmp_path / "s", *sorted(members)), EmbeddingOptions()
    )
    assert torch.equal(embedded.image[0], embedded.image[1])


def test_batch_size_and_threads_change_nothing(demo_estimator, tmp_path):
    members = [
        member
        for n in range(21)
        for member in ((f"{n:02d}.jpg", jpeg(n)), (f"{n:02d}.cls", b"%d" % (n % 3)))
    ]
    refs = shards(tmp_path / "s", *members)
    embedded = [
        embed_classes(demo_estimator, refs, 3, EmbeddingOptions(batch_size=b, decode_threads=t))
        for b, t in ((256, 1), (4, 3))
    ]
    assert embedded[0].labels.tolist() == [n % 3 for n in range(21)]
    assert embedded[0].keys == embedded[1].keys
    assert torch.equal(embedded[0].image, embedded[1].image)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (b"3", "sample 0/a has class 3, but the names of the classes end at 2"),
        (b"-1", "has class -1"),
        (b"cat", "the .cls of sample 0/a is not a number: 'cat'"),
        (b"", "has no .cls"),
        (None, "has no .cls"),
    ],
)
def test_labels_that_cannot_be(demo_estimator, tmp_path, label, message):
    members = [("a.jpg", jpeg(0))] + ([] if label is None else [("a.cls", label)])
    with pytest.raises(InputError, match=message):
        embed_classes(demo_estimator, shards(tmp_path / "s", *members), 3, EmbeddingOptions())


def test_an_image_with_labels_of_two_classes_is_named(demo_estimator, tmp_path):
    """The first one counted."""
    for name in "ab":
        (tmp_path / f"{name}.jpg").write_bytes(jpeg(0))
    (tmp_path / "labels.csv").write_text("image,label\na.jpg,1\nb.jpg,0\nb.jpg,0\n")
    units = resolve_images([str(tmp_path / "labels.csv")])
    embedded = embed_classes(demo_estimator, units, 3, EmbeddingOptions(), "label")
    assert embedded.labels.tolist() == [1, 0]
    with (tmp_path / "labels.csv").open("a") as file:
        file.write("a.jpg,2\n")
    units = resolve_images([str(tmp_path / "labels.csv")])
    with pytest.raises(InputError, match="labels/a has several classes: 1, 2"):
        embed_classes(demo_estimator, units, 3, EmbeddingOptions(), "label")


def test_nothing_to_embed_and_a_shard_cut_short(demo_estimator, tmp_path):
    broken = shards(tmp_path / "s", ("a.jpg", b"no image"), ("a.txt", b"words"))
    with pytest.raises(InputError, match=r"no usable image \(1 image_corrupt\)"):
        embed_dataset(demo_estimator, broken, EmbeddingOptions())
    shards(tmp_path / "t", *hostile.sample("a", hostile.JPEG, b"x"), ("b.jpg", jpeg(2)))
    cut = tmp_path / "t" / "0.tar"
    cut.write_bytes(cut.read_bytes()[:-6000])
    with pytest.raises(InputError, match=r"0\.tar is cut short after"):
        embed_dataset(demo_estimator, resolve_shards([str(cut)]), EmbeddingOptions())


def test_embeddings_that_are_not_finite(demo_estimator, tmp_path):
    class Broken:
        preprocessing = demo_estimator.preprocessing

        def start_image(self, pixels):
            return lambda: torch.full((len(pixels), 4), torch.nan)

        def encode_text(self, captions, batch_size):
            return torch.ones(len(captions), 4)

    refs = shards(tmp_path / "s", *hostile.sample("a", hostile.JPEG, b"x"))
    with pytest.raises(ModelError, match="not finite; try --precision fp32"):
        embed_dataset(Broken(), refs, EmbeddingOptions())


def test_options_are_checked():
    with pytest.raises(InputError, match="at least 1"):
        EmbeddingOptions(batch_size=0)
