"""Daft on webdataset shards: the cosine of each pair, to Parquet.

    python daft_similarity.py SHARDS MODEL OUT

Daft reads the shards, decodes the images and embeds them; MODEL is a folder in the format of
Hugging Face. Its `embed_text` takes models of sentence-transformers only, so captions are embedded
by a class of ours, as its guide on classes does it. Images that it cannot decode are null, and left
out. Each shard is a query of its own: on two cores, reading two shards in one did not end.
"""

import sys
from pathlib import Path

import daft
import torch
from daft.functions import cosine_similarity, decode_image_file, embed_image
from transformers import AutoConfig, AutoModel, AutoTokenizer


def main(shards: str, model: str, out: str) -> None:
    size = AutoConfig.from_pretrained(model, trust_remote_code=True).projection_dim

    @daft.cls
    class TextEmbedder:
        def __init__(self) -> None:
            self.model = AutoModel.from_pretrained(model, trust_remote_code=True).eval()
            self.tokenizer = AutoTokenizer.from_pretrained(model)

        @daft.method.batch(return_dtype=daft.DataType.embedding(daft.DataType.float32(), size))
        def embed(self, texts: daft.Series) -> list:
            tokens = self.tokenizer(
                texts.to_pylist(), padding=True, truncation=True, return_tensors="pt"
            )
            with torch.inference_mode():
                return list(self.model.get_text_features(**tokens).numpy())

    text_embedder, failed = TextEmbedder(), []
    for shard in sorted(Path(shards).glob("*.tar")):
        try:
            pairs = daft.read_webdataset(str(shard))
            image = decode_image_file(pairs["jpg"], "RGB", on_error="null")
            pairs = pairs.with_column("image", image)
            pairs = pairs.where(pairs["image"].not_null() & pairs["txt"].not_null())
            images = embed_image(pairs["image"], provider="transformers", model=model)
            cosine = cosine_similarity(images, text_embedder.embed(pairs["txt"]))
            pairs.select("__key__", cosine.alias("cosine")).write_parquet(out)
        except Exception as error:
            failed.append(f"{shard.name}: {' '.join(str(error).split())[:300]}")
    if failed:
        raise SystemExit("\n".join(failed))


if __name__ == "__main__":
    main(*sys.argv[1:])
