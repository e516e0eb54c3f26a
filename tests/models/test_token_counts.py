"""How many tokens captions have before they are cut."""

import copy

import open_clip
import pytest
import torch

from ncclean.models.estimator import Estimator
from ncclean.models.tokens import MAX_CAPTION_CHARACTERS, Tokenize, tokens_before_cutting
from tests.conftest import write_model

CAPTIONS = [
    "a red circle", "", "word " * 200, "word " * 74, "word " * 75, "word " * 76, "cat",
    "猫" * 30, "😀" * 80, "Dr. Smith's 3.5 km &amp; more", "x" * 9_000, "\x07 a\u202e b",
]  # fmt: skip


def whole(tokenizer, captions):
    """By a tokenizer whose context holds the caption: what is not padding."""
    tokens = tokenizer(captions, context_length=20_000)
    return (tokens != 0).sum(dim=1).tolist()


def test_counts_are_those_of_a_context_without_end(demo_estimator):
    assert demo_estimator.count_tokens(CAPTIONS) == whole(demo_estimator.tokenizer, CAPTIONS)
    assert demo_estimator.count_tokens(["a b c", "word " * 76]) == [5, 78]
    assert demo_estimator.count_tokens([]) == []


def test_the_embeddings_come_with_the_counts(demo_estimator):
    captions = [*CAPTIONS, *CAPTIONS[:3]]
    embeddings, counts = demo_estimator.encode_captions(captions)
    assert torch.equal(embeddings, demo_estimator.encode_text(captions))
    assert counts == demo_estimator.count_tokens(captions)


def test_what_is_too_long_to_be_read_whole_has_no_count(demo_estimator):
    """Nor if its beginning would fit: nobody knows what follows."""
    longest = ("a b " * MAX_CAPTION_CHARACTERS)[:MAX_CAPTION_CHARACTERS]
    blanks = " " * MAX_CAPTION_CHARACTERS + "a b c"
    counts = demo_estimator.count_tokens([longest, longest + "a", blanks, "a"])
    assert counts == [MAX_CAPTION_CHARACTERS // 2 + 2, None, None, 3]


def test_cut_captions_are_counted(demo_estimator):
    assert demo_estimator.cut([77, 78, 3, None, 500]) == {"captions_cut": 3, "context_length": 77}
    assert demo_estimator.cut([77, 3]) == {"captions_cut": 0, "context_length": 77}
    assert demo_estimator.cut([None, None]) == {"captions_cut": 2, "context_length": 77}
    assert demo_estimator.cut([]) == {"captions_cut": 0, "context_length": 77}


def test_without_counts_nothing_is_said_to_be_cut(demo_estimator):
    estimator = copy.copy(demo_estimator)
    estimator.tokenize = Tokenize(lambda texts: demo_estimator.tokenizer(texts))
    assert estimator.count_tokens(CAPTIONS) == [None] * len(CAPTIONS)
    assert estimator.cut([None, None]) == estimator.cut([]) == {}


def test_another_context(tmp_path):
    vision = {"image_size": 32, "layers": 1, "width": 32, "head_width": 32, "patch_size": 16}
    text = {"context_length": 32, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
    config = {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}
    folder = write_model(tmp_path / "short", config)
    estimator = Estimator.load(f"local-dir:{folder}", None, device="cpu")
    assert estimator.context_length == 32
    counts = estimator.count_tokens(CAPTIONS)
    assert counts == whole(estimator.tokenizer, CAPTIONS)
    assert estimator.cut(counts) == {
        "captions_cut": sum(count > 32 for count in counts), "context_length": 32,
    }  # fmt: skip


class Words:
    """open_clip's tokenizer of Hugging Face in miniature: a word is a token, 1 ends and pads."""

    sot_token_id = 9
    clean_fn = staticmethod(str.lower)

    def __init__(self, mode, context_length=6):
        self.tokenizer_mode, self.context_length = mode, context_length

    def tokenizer(self, texts, add_special_tokens, verbose):
        ids = [[2 + len(word) for word in text.split()] for text in texts]
        return {"input_ids": [[*one, 1] if add_special_tokens else one for one in ids]}

    def __call__(self, texts):
        rows = self.tokenizer(texts, self.tokenizer_mode != "clips", False)["input_ids"]
        tokens = torch.ones(len(rows), self.context_length, dtype=torch.long)
        for row, ids in zip(tokens, rows, strict=True):
            if self.tokenizer_mode == "clips":
                ids = [9, *ids[: self.context_length - 3], 8, 7]
            row[: len(ids)] = torch.tensor(ids[: self.context_length])
        return tokens


@pytest.mark.parametrize(("mode", "further"), [("", 1), ("clips", 3)])
def test_padding_that_may_be_the_end(mode, further):
    """Only what a tokenizer without a limit says tells how long a text is."""
    words, captions = Words(mode), ["a", "a b c", "a b c d e", "a b c d e f g", ""]
    counts = tokens_before_cutting(words, captions, words(captions))
    assert counts == [len(caption.split()) + further for caption in captions]


def test_a_tokenizer_that_cannot_but_cut():
    def cutting(texts):
        return torch.ones(len(texts), 4, dtype=torch.long)

    captions = ["a b", "c"]
    assert tokens_before_cutting(cutting, captions, cutting(captions)) == [None, None]


def hugging_face(folder, *, clips=False, pad=0):
    """A tokenizer of Hugging Face that is made here, as `open_clip` loads it."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"[PAD]": pad, "[UNK]": 2, "</s>": 6, "a": 3, "dog": 4, "runs": 5}
    model = tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]")
    fast = tokenizers.Tokenizer(model)
    fast.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 6)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "</s>"}
    if clips:
        names |= {"bos_token": "[UNK]", "cls_token": "[UNK]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=fast, **names).save_pretrained(folder)
    mode = "clips" if clips else None
    return open_clip.tokenizer.HFTokenizer(str(folder), context_length=8, tokenizer_mode=mode)


@pytest.mark.parametrize("pad", [0, 1])
@pytest.mark.parametrize("clips", [False, True])
def test_tokenizers_of_hugging_face(tmp_path, clips, pad):
    tokenizer = hugging_face(tmp_path, clips=clips, pad=pad)
    captions = ["a dog runs", "a dog " * 3, "a dog " * 20, "", "a dog runs a dog runs a"]
    counts = tokens_before_cutting(tokenizer, captions, tokenizer(captions))
    further = 3 if clips else 1
    assert counts == [len(caption.split()) + further for caption in captions]
