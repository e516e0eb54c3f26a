"""The columns of `--caption-parts`, of shards whose images are embeddings of right captions."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F

from ncclean.base import schema
from ncclean.base.config import ScoreOptions
from ncclean.data.caption_parts import parts_of, split_captions
from ncclean.errors import InputError
from ncclean.execution.column_source import EncoderFacts
from ncclean.execution.encoded_shard import EncodedShard
from ncclean.execution.part_columns import PartColumns, _Texts
from ncclean.execution.word_checks import WordChecks
from ncclean.models.estimator import Estimator
from ncclean.models.tokens import Tokenize
from ncclean.scoring.caption_parts import PAIR_SCORE, PART_SCORE
from ncclean.scoring.columns import score_pairs
from tests.conftest import write_model

COLOURS = ("red", "green", "blue", "yellow", "black", "white", "pink", "brown")
SHAPES = ("circle", "square", "star", "triangle", "heart", "ring")
FRAMES = (
    "A photo of a {}.", "There is a {}.", "You can see a {} here.", "A drawing of one {}.",
    "A picture with a {} in it.",
)  # fmt: skip
THINGS = [f"{colour} {shape}" for colour in COLOURS for shape in SHAPES]


def written(thing, sentences):
    return " ".join(frame.format(thing) for frame in FRAMES[:sentences])


def shard(estimator, captions, shows=None, images=None, name="00000"):
    """A shard whose pair n shows what `shows[n]` says, by default its caption."""
    image = estimator.encode_text(captions if shows is None else shows)
    rng = torch.Generator().manual_seed(1)
    image = F.normalize(image + 0.02 * torch.randn(image.shape, generator=rng), dim=1)
    return EncodedShard(
        name=name,
        facts={"text": pa.array(captions, pa.string())},
        ok=np.ones(len(captions), bool),
        image=image,
        text=estimator.encode_text(captions),
        metadata=pa.table({}),
        images=images,
    )


def scores_of(encoded):
    return score_pairs(
        encoded.image, encoded.text, scale=100.0, shard=encoded.name, block_size=2048,
        forget_percent=10.0, seed=0, images=encoded.images,
    )  # fmt: skip


def columns(estimator, encoded, seed=0):
    """The columns as lists, and the scores to whose distributions they were added."""
    scores = scores_of(encoded)
    facts = EncoderFacts(dim=encoded.image.shape[1], estimator=estimator, batch_size=64)
    values = PartColumns(seed).of_shard(encoded, facts, scores)
    assert values.keys() == schema.PART_TYPES.keys()
    for column, array in values.items():
        assert array.type == schema.PART_TYPES[column]
        assert len(array) == len(encoded.ok)
    return {column: array.to_pylist() for column, array in values.items()}, scores


@pytest.fixture(scope="module")
def planted(demo_estimator):
    """Captions of one to five sentences; every fourth of several has one of another thing."""
    rng = np.random.default_rng(0)
    things = [THINGS[n] for n in rng.integers(len(THINGS), size=600)]
    captions, shows, wrong = [], [], []
    for number, thing in enumerate(things):
        sentences = [frame.format(thing) for frame in FRAMES[: 1 + number % 5]]
        shows.append(f"a {thing}")
        wrong.append(None)
        if len(sentences) > 1 and number % 4 == 0:
            wrong[-1] = int(rng.integers(len(sentences)))
            other = THINGS[(THINGS.index(thing) + 7 + 6 * int(rng.integers(6))) % len(THINGS)]
            sentences[wrong[-1]] = FRAMES[wrong[-1]].format(other)
        captions.append(" ".join(sentences))
    encoded = shard(demo_estimator, captions, shows)
    return encoded, wrong, *columns(demo_estimator, encoded)


def test_parts_and_their_cosines(demo_estimator, planted):
    encoded, _, values, _ = planted
    captions = encoded.facts["text"].to_pylist()
    for row in range(0, 600, 7):
        starts = values["part_starts"][row]
        ends = [*starts[1:], len(captions[row])]
        parts = [captions[row][b:e].strip() for b, e in zip(starts, ends, strict=True)]
        assert values["part_count"][row] == len(parts) == 1 + row % 5
        worst = values["worst_part_number"][row]
        assert values["worst_part"][row] == parts[worst]
        cosines = (demo_estimator.encode_text(parts) @ encoded.image[row]).tolist()
        assert values["worst_part_similarity"][row] == pytest.approx(cosines[worst], abs=1e-5)
        assert values["mean_part_similarity"][row] == pytest.approx(np.mean(cosines), abs=1e-5)
        odds = values["part_log_odds"][row]
        assert len(odds) == len(parts)
        if len(parts) > 1:
            assert worst == np.argmax(odds)


def test_the_wrong_sentence_is_named(planted):
    _, wrong, values, _ = planted
    flagged = [row for row, number in enumerate(wrong) if number is not None]
    named = [values["worst_part_number"][row] == wrong[row] for row in flagged]
    assert np.mean(named) > 0.9
    odds = [max(one) for one in values["part_log_odds"] if len(one) > 1]
    is_wrong = [number is not None for number, one in
                zip(wrong, values["part_log_odds"], strict=True) if len(one) > 1]  # fmt: skip
    order = np.argsort(odds)[-sum(is_wrong) :]
    assert np.mean([is_wrong[row] for row in order]) > 0.85


def test_a_caption_of_one_sentence_has_the_scores_of_the_pair(planted):
    encoded, _, values, scores = planted
    captions = encoded.facts["text"].to_pylist()
    for row in range(0, 600, 5):
        similarity = scores.columns["similarity"][row]
        assert values["worst_part"][row] == captions[row]
        assert values["worst_part_number"][row] == 0
        assert values["worst_part_similarity"][row] == similarity
        assert values["mean_part_similarity"][row] == similarity
        assert values["part_starts"][row] == [0]
        assert values["part_log_odds"][row] == [None]


def test_the_distributions_count_parts_of_captions_with_several(planted):
    _, _, values, scores = planted
    several = [odds for odds in values["part_log_odds"] if len(odds) > 1]
    parts, pairs = (scores.distributions.scores[name] for name in (PART_SCORE, PAIR_SCORE))
    assert parts.matched.size == sum(map(len, several))
    assert 0.8 * parts.matched.size < parts.mismatched.size <= parts.matched.size
    assert pairs.matched.size == len(several)
    # Higher is cleaner.
    assert parts.matched.mean > parts.mismatched.mean
    assert pairs.matched.mean > pairs.mismatched.mean
    assert parts.matched.mean == pytest.approx(-np.concatenate(several).mean() / 16, abs=1e-3)


def test_the_seed_and_the_shard_draw_the_foreign_parts(demo_estimator, planted):
    encoded, _, values, _ = planted
    assert columns(demo_estimator, encoded)[0] == values
    others = [columns(demo_estimator, encoded, seed=1)[0]]
    encoded.name = "00001"
    others.append(columns(demo_estimator, encoded)[0])
    encoded.name = "00000"
    assert all(other["part_log_odds"] != values["part_log_odds"] for other in others)
    assert all(other["part_starts"] == values["part_starts"] for other in others)


@pytest.mark.parametrize(
    "captions",
    [
        [],
        ["a red circle"],
        ["a red circle", "a blue star", "a ring"],
        ["a red circle", "a blue star. A ring.", "a ring"],
        [written(thing, 3) for thing in THINGS[:8]],
        ["A dog. A cat."] * 300,
        [f"A {thing}. A {thing}." for thing in THINGS[:1] * 300],
    ],
    ids=["none", "one", "single", "one of several", "few", "equal captions", "equal sentences"],
)
def test_where_nothing_can_be_learnt_the_cosine_tells_the_worst(demo_estimator, captions):
    encoded = shard(demo_estimator, captions)
    values, scores = columns(demo_estimator, encoded)
    for row, odds in enumerate(values["part_log_odds"]):
        assert odds == [None] * values["part_count"][row]
        starts = [*values["part_starts"][row], len(captions[row])]
        parts = [captions[row][b:e].strip() for b, e in pairwise(starts)]
        cosines = demo_estimator.encode_text(parts) @ encoded.image[row]
        assert values["worst_part_similarity"][row] == pytest.approx(float(cosines.min()), abs=1e-5)
    parts = scores.distributions.scores[PART_SCORE]
    assert (parts.matched.size, parts.mismatched.size) == (0, 0)


def test_captions_of_one_image_know_each_other(demo_estimator):
    """Parts of another caption of the image are not foreign: of one image only, none is."""
    captions = [written(thing, 4) for thing in THINGS * 3]
    apart = shard(demo_estimator, captions)
    assert columns(demo_estimator, apart)[1].distributions.scores[PART_SCORE].mismatched.size
    images = np.zeros(len(captions), np.int64)
    together = shard(demo_estimator, captions, images=images)
    values, scores = columns(demo_estimator, together)
    assert not scores.distributions.scores[PART_SCORE].mismatched.size
    assert not scores.distributions.scores[PAIR_SCORE].mismatched.size
    assert all(odds == [None] * 4 for odds in values["part_log_odds"])


def test_long_hostile_captions(demo_estimator):
    hostile = [
        "word " * 3_000, "." * 5_000, "x" * 1_000_000, "猫" * 200, "😀" * 300, "A dog. " * 200,
        "\x07\u202e\u2066 a. B \ufeffc.", "دائرة حمراء. مربع أزرق؟", "- a\n- b\n- c",
    ]  # fmt: skip
    captions = [caption.strip() for caption in hostile] * 2
    values, _ = columns(demo_estimator, shard(demo_estimator, captions))
    assert max(values["part_count"]) <= 100
    assert values["part_count"][3] > 5
    assert values["part_count"][-2:] == [2, 3]
    assert np.isfinite(values["worst_part_similarity"]).all()


def test_the_wrong_word_of_the_wrong_sentence(demo_estimator):
    """A whole caption would name a word of any sentence."""
    things = [THINGS[n % len(THINGS)] for n in range(240)]
    shape = {"red circle": "star", "blue star": "ring"}
    captions, shows = [], []
    for number, thing in enumerate(things):
        colour, what = thing.split()
        other = shape.get(thing, "heart" if what != "heart" else "square")
        wrong = FRAMES[3].format(f"{colour} {other}") if number % 3 == 0 else ""
        captions.append(f"{written(thing, 2)} {wrong}".strip())
        shows.append(f"a {thing}")
    encoded = shard(demo_estimator, captions, shows)
    facts = EncoderFacts(dim=encoded.image.shape[1], estimator=demo_estimator, batch_size=64)
    scores = scores_of(encoded)
    encoded.values |= PartColumns(0).of_shard(encoded, facts, scores)
    text = encoded.text.clone()
    words = WordChecks.of(ScoreOptions(words=True)).of_shard(encoded, facts, scores)
    assert torch.equal(encoded.text, text)
    right = 0
    for row in range(0, 240, 3):
        worst, suspect = encoded.values["worst_part"][row].as_py(), words["suspect_word"][row]
        if suspect.is_valid:
            assert suspect.as_py() in worst
            right += suspect.as_py() in captions[row].split(". ")[-1]
    assert right > 60
    # As of captions that are nothing but the worst sentence.
    alone = shard(demo_estimator, encoded.values["worst_part"].to_pylist(), shows)
    expected = WordChecks.of(ScoreOptions(words=True)).of_shard(alone, facts, scores_of(encoded))
    for name in ("suspect_word", "better_word"):
        assert words[name].equals(expected[name])
    margins = [one["word_margin"].to_numpy(zero_copy_only=False) for one in (words, expected)]
    assert margins[0] == pytest.approx(margins[1], abs=1e-5, nan_ok=True)


def test_embeddings_are_refused():
    with pytest.raises(InputError, match="--caption-parts encodes sentences"):
        PartColumns(0).check(EncoderFacts(dim=4, estimator=None, batch_size=1))


def test_it_is_asked_for(refused):
    assert PartColumns.of(ScoreOptions()) is None
    assert PartColumns.of(ScoreOptions(caption_parts="sentences", seed=3)) == PartColumns(3)
    refused(ScoreOptions, caption_parts="words")


@pytest.mark.parametrize(("context", "counts"), [(32, [1, 4]), (77, [1, 2]), (128, [1, 1])])
def test_parts_fit_the_context_of_the_model(tmp_path, context, counts):
    """A longer one has whole sentences where a shorter one has pieces."""
    vision = {"image_size": 32, "layers": 1, "width": 32, "head_width": 32, "patch_size": 16}
    text = {"context_length": context, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
    config = {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}
    estimator = Estimator.load(f"local-dir:{write_model(tmp_path / 'm', config)}", None)
    captions = ["a dog", "a dog and a cat, " * 20]
    values, _ = columns(estimator, shard(estimator, [caption.strip() for caption in captions]))
    assert values["part_count"] == counts
    parts = parts_of(captions[1], values["part_starts"][1])
    assert max(estimator.count_tokens(parts)) <= context


def test_each_text_is_tokenized_once(demo_estimator, monkeypatch):
    """For its tokens and its embedding: short and long sentences, and captions of one."""
    tokenized = Counter()

    def tokenizer(captions):
        tokenized.update(captions)
        return demo_estimator.tokenizer(captions)

    monkeypatch.setattr(demo_estimator, "tokenize", Tokenize(tokenizer))
    sentence = (
        "A red circle lies far left of a very large green square with blue and white stripes."
    )
    captions = [
        f"A dog. {sentence}",
        f"{sentence} A cat.",
        sentence,
        "word " * 400 + "." + "a" * 90,
    ]
    texts = _Texts(demo_estimator, 64)
    starts = split_captions(captions, texts.count_tokens, demo_estimator.context_length)
    parts = [part for c, s in zip(captions, starts, strict=True) for part in parts_of(c, s)]
    encoded = texts.encode(parts)
    assert tokenized["A dog."] == tokenized[sentence] == 1
    assert max(tokenized[part] for part in parts) <= 2
    monkeypatch.undo()
    assert torch.equal(encoded, demo_estimator.encode_text(parts))
