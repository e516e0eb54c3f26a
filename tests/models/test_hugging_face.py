"""Text towers and tokenizers of Hugging Face, with random weights and a vocabulary learnt here."""

import contextlib
import json

import open_clip
import pyarrow.parquet as pq
import pytest
import torch
from ncclean_pipelines.score import Score
from safetensors.torch import save_file

from ncclean.errors import ModelError
from ncclean.models.estimator import Estimator
from ncclean.models.request import write_model
from tests.factories import rendered
from tests.models.test_estimator import VISION

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

LENGTH, WORDS = 16, 300
CAPTIONS = ["a large red circle", "a small blue square", "zwei Hunde im Schnee", "word " * 40, ""]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
TOWERS = {
    "roberta": lambda: transformers.RobertaConfig(
        **SIZES, vocab_size=WORDS, intermediate_size=64, max_position_embeddings=64, pad_token_id=1
    ),
    "xlm-roberta": lambda: transformers.XLMRobertaConfig(
        **SIZES, vocab_size=WORDS, intermediate_size=64, max_position_embeddings=64, pad_token_id=1
    ),
    "bert": lambda: transformers.BertConfig(
        **SIZES, vocab_size=WORDS, intermediate_size=64, max_position_embeddings=64, pad_token_id=1
    ),
}


def write_tokenizer(folder):
    """A byte-level BPE of the captions, with RoBERTa's special tokens."""
    fast = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    fast.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=WORDS,
        special_tokens=special,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    fast.train_from_iterator(CAPTIONS * 4, trainer)
    fast.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=fast,
        bos_token="<s>", eos_token="</s>", cls_token="<s>", sep_token="</s>", pad_token="<pad>",
        unk_token="<unk>",
    ).save_pretrained(folder)  # fmt: skip


def model_folder(folder, text):
    """A model with seeded random weights and its own tokenizer."""
    write_tokenizer(folder)
    config = {
        "embed_dim": 32,
        "vision_cfg": VISION,
        "custom_text": True,
        "text_cfg": {"context_length": LENGTH, "hf_tokenizer_name": "made/here", **text},
    }
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    torch.manual_seed(0)
    built = {**config, "text_cfg": {**config["text_cfg"]}}
    del built["custom_text"]
    if "hf_model_name" in text:
        built["text_cfg"] |= {
            "hf_model_name": str(folder / text["hf_model_name"]), "hf_model_pretrained": False,
        }  # fmt: skip
    model = open_clip.CustomTextCLIP(**built)
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    save_file(state, folder / "open_clip_model.safetensors")
    return model.eval()


@pytest.fixture(scope="module", params=[*TOWERS, "open_clip"])
def saved(request, tmp_path_factory):
    """A folder and its model; the last has open_clip's tower, as SigLIP 2 and MetaCLIP 2."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "open_clip":
        text = {"vocab_size": WORDS, "width": 32, "heads": 2, "layers": 2, "pool_type": "last"}
        return folder, model_folder(folder, text | {"no_causal_mask": True, "pad_id": 1})
    TOWERS[request.param]().save_pretrained(folder / "towers" / request.param)
    text = {"hf_model_name": f"towers/{request.param}", "hf_proj_type": "mlp"}
    text["hf_pooler_type"] = "mean_pooler"
    return folder, model_folder(folder, text)


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@torch.no_grad()
def test_captions_are_embedded_as_open_clip_does(saved):
    folder, model = saved
    tokenizer = open_clip.get_tokenizer(f"local-dir:{folder}")
    expected = model.encode_text(tokenizer(CAPTIONS), normalize=True)
    estimator = Estimator.load(str(folder), precision="fp32", device="cpu")
    assert (estimator.encode_text(CAPTIONS) - expected).abs().max() < 1e-5


def test_captions_are_counted_and_cut_at_the_tokenizers_length(saved):
    """Not at the positions of the tower, of which Hugging Face's have more."""
    estimator = Estimator.load(str(saved[0]), precision="fp32", device="cpu")
    assert estimator.context_length == LENGTH
    counts = estimator.count_tokens(CAPTIONS)
    assert counts[4] == 2
    assert counts[3] > LENGTH
    assert estimator.cut(counts)["captions_cut"] == sum(count > LENGTH for count in counts)


def test_a_model_that_is_saved_loads_without_a_network(saved, tmp_path):
    estimator = Estimator.load(str(saved[0]), precision="fp32", device="cpu")
    write_model(estimator, tmp_path / "copy")
    again = Estimator.load(str(tmp_path / "copy"), precision="fp32", device="cpu")
    assert again.identity.fingerprint == estimator.identity.fingerprint
    assert torch.equal(again.encode_text(CAPTIONS), estimator.encode_text(CAPTIONS))


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return rendered(tmp_path_factory.mktemp("pairs") / "shards", pairs=40, shard_size=40)


def test_a_corpus_is_scored(saved, shards, tmp_path):
    out = str(tmp_path / "s.parquet")
    scored = Score(shards=[str(shards)], out=out, model=str(saved[0]), shift=0.2).run()
    assert scored.summary.ok == 40
    assert scored.summary.context_length == LENGTH
    assert pq.read_table(out, columns=["similarity"])["similarity"].null_count == 0


def test_a_tokenizer_with_more_words_than_its_tower_is_refused(tmp_path, refused):
    text = {"vocab_size": 200, "width": 32, "heads": 2, "layers": 1}
    model_folder(tmp_path, text)
    refused(Estimator.load, str(tmp_path), device="cpu")


def test_a_tokenizer_that_is_not_there_is_said(tmp_path, refused):
    text = {"vocab_size": WORDS, "width": 32, "heads": 2, "layers": 1}
    model_folder(tmp_path, text)
    for path in tmp_path.glob("tokenizer*"):
        path.unlink()
    refused(Estimator.load, str(tmp_path), device="cpu")


@pytest.mark.parametrize("mapped", ["AutoTokenizer", "AutoConfig"])
def test_code_that_comes_with_a_tokenizer_or_a_tower_is_never_run(tmp_path, mapped):
    marker = tmp_path / "owned"
    TOWERS["bert"]().save_pretrained(tmp_path / "tower")
    model_folder(tmp_path, {"hf_model_name": "tower", "hf_proj_type": "mlp"})
    folder, kind = (tmp_path, "tokenizer_config") if mapped == "AutoTokenizer" else (
        tmp_path / "tower", "config"
    )  # fmt: skip
    config = json.loads((folder / f"{kind}.json").read_text())
    config["auto_map"] = {
        mapped: ["own.Own", "own.Own"] if mapped == "AutoTokenizer" else "own.Own"
    }
    config |= {"tokenizer_class": "Own"} if mapped == "AutoTokenizer" else {"model_type": "own"}
    (folder / f"{kind}.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(
        f"open({str(marker)!r}, 'w').close()\nfrom transformers import BertConfig as Own\n"
    )
    with contextlib.suppress(ModelError):  # without the code the rest may still be a tokenizer
        Estimator.load(str(tmp_path), device="cpu")
    assert not marker.exists()
