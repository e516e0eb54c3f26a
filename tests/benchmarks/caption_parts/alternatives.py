"""Phrases, and edits towards the image as TRACED makes them, beside sentences.

    python tests/benchmarks caption_parts.alternatives --data FOLDER --out runs/alternatives
        [--record docs/records/caption-parts-alternatives.json]

FOLDER and the estimators of --out are those of `caption_parts.photographs`. A fifth of the captions
is wrong. *Phrases* are what lies between commas, conjunctions and prepositions, compared as
sentences are. *Edits* (TRACED, ICLR 2026): up to three times the one deletion or exchange of a word
that raises the cosine most, words from the corpus; the features of the way (cosine before, gains,
words changed, cosine of both captions) are judged once by the whole gain, and once by logistic
regression that learns the truth in five folds, which flatters them. *Whole*, the cosine itself, is
given the same regression. *Words*, the length of the caption, is a control: a detail makes it
longer.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from ncclean_pipelines.synth import Synth
from records import make_record, write_record
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from caption_parts.photographs import captions_in_a_row, spoilt
from ncclean.data.caption_parts import parts_of, sentence_starts
from ncclean.data.decode import DecodedImage, ImageDecoder
from ncclean.data.options import CorpusOptions
from ncclean.data.reader import read_samples
from ncclean.data.samples import noise_of
from ncclean.data.shards import resolve_shards
from ncclean.models.estimator import Estimator
from ncclean.scoring.caption_parts import ForeignParts, Parts, any_foreign, part_distributions
from ncclean.scoring.stats import Distributions

RATE = 0.2
CORPORA = (("hard", 1), ("added_detail", 1), ("ncr", 1), ("foreign_sentence", 5))
_STEPS, _WORDS, _FEWEST = 3, 2, 5
_BETWEEN = re.compile(
    r",\s|\s(?=(?:and|with|on|in|at|of|by|near|next to|behind|beside|under|over|above|below|"
    r"to the|against|seen|made)\s)"
)


def phrase_starts(caption: str) -> list[int]:
    """The characters at which the phrases of a caption begin."""
    found = [match.end() for match in _BETWEEN.finditer(caption)]
    return sorted({*sentence_starts(caption), *found})


def by_parts(estimator: Estimator, image: torch.Tensor, captions: Sequence[str], split: Any,
             whole: np.ndarray) -> np.ndarray:  # fmt: skip
    """(n,) probabilities that a part is wrong; of a caption of one part, from its cosine."""
    starts = [split(caption) for caption in captions]
    rows = np.array([row for row, one in enumerate(starts) if len(one) > 1], dtype=np.int64)
    texts = [parts_of(captions[row], starts[row]) for row in rows]
    pieces = [text for one in texts for text in one]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(pieces))}
    parts = Parts(
        image=image[rows],
        part=estimator.encode_text(pieces),
        caption=np.repeat(np.arange(len(rows)), [len(one) for one in texts]),
        images=rows,
        text=np.array([numbers[text] for text in pieces]),
        length=np.array([len(text) for text in pieces]),
    )
    own, foreign = parts.log_odds([0, 0])
    pairs = parts.mean_cosines()
    scores = {"part_log_odds": part_distributions(own, foreign), "mean_part_similarity": pairs}
    fitted = ForeignParts.fit(Distributions(scores=scores))
    result = -whole  # a ranking; those with parts come by their probability, which lies above
    if fitted is not None and len(rows):
        means = np.bincount(parts.caption, parts.cosines.numpy()) / np.bincount(parts.caption)
        pair = fitted.pairs.noise_probability(torch.from_numpy(means).float()).numpy()
        result = result.copy()
        result[rows] = any_foreign(pair, fitted.probabilities(own), parts.caption)
        alone = np.setdiff1d(np.arange(len(captions)), rows)
        if len(alone):  # on one scale, by rank
            result[alone] = np.interp(
                result[alone],
                np.sort(result[alone]),
                np.linspace(0, 1, len(alone)) * result[rows].max(),
            )
    return result


def edited(estimator: Estimator, image: torch.Tensor, captions: Sequence[str]) -> np.ndarray:
    """(n, 5) features of each caption's way towards its image."""
    counts = collections.Counter(word for c in captions for word in set(c.lower().split()))
    vocabulary = [word for word, count in counts.items() if count >= _FEWEST]
    fits = image @ estimator.encode_text(vocabulary).T
    best = fits.topk(_WORDS, dim=1).indices.tolist()
    first = estimator.encode_text(captions)
    now, text = list(captions), first
    cosine = start = (image * first).sum(dim=1)
    gains = []
    for _ in range(_STEPS):
        variants, owner = [], []
        for row, caption in enumerate(now):
            words = caption.split()
            for place in range(len(words)):
                for other in ("", *(vocabulary[number] for number in best[row])):
                    changed = [*words[:place], *([other] if other else []), *words[place + 1 :]]
                    variants.append(" ".join(changed))
                    owner.append(row)
        vectors = estimator.encode_text(variants)
        of = torch.tensor(owner)
        found = (image[of] * vectors).sum(dim=1)
        text, after = text.clone(), cosine.clone()
        for row in range(len(now)):
            own = (of == row).nonzero()[:, 0]
            if len(own) and found[own].max() > cosine[row]:
                top = own[found[own].argmax()]
                now[row], text[row], after[row] = variants[top], vectors[top], found[top]
        gains.append(after - cosine)
        cosine = after
    kept = (first * text).sum(dim=1)
    return torch.stack([start, cosine - start, gains[0], gains[-1], kept], dim=1).numpy()


def compared(shards: Path, estimator: Estimator, most: int) -> dict[str, Any]:
    """AUROC of each way."""
    samples = [s for shard in resolve_shards([str(shards)]) for s in read_samples(shard)][:most]
    decode = ImageDecoder(estimator.preprocessing)
    pixels = [cast(DecodedImage, decode(cast(bytes, s.image))).pixels for s in samples]
    image = estimator.encode_image(torch.stack(pixels))
    captions = [cast(str, sample.caption) for sample in samples]
    noisy = np.array([noise_of(sample.metadata, 0) is True for sample in samples])
    whole = (image * estimator.encode_text(captions)).sum(dim=1).numpy()
    way = edited(estimator, image, captions)
    learner = make_pipeline(StandardScaler(), LogisticRegression())

    def learnt(features: np.ndarray) -> np.ndarray:
        return np.asarray(
            cross_val_predict(learner, features, noisy, cv=5, method="predict_proba")[:, 1]
        )

    scores = {
        "whole": learnt(whole[:, None]),
        "sentences": by_parts(estimator, image, captions, sentence_starts, whole),
        "phrases": by_parts(estimator, image, captions, phrase_starts, whole),
        "words": np.array([len(caption.split()) for caption in captions]),
        "edits, gain": way[:, 1],
        "edits, learnt": learnt(way),
    }
    auroc = {name: float(roc_auc_score(noisy, score)) for name, score in scores.items()}
    return {"pairs": len(noisy), "noisy": int(noisy.sum()), "auroc": auroc}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--pairs", type=int, default=600)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--record", type=Path, metavar="FILE.json")
    arguments = parser.parse_args()
    out, rows = arguments.out, []
    for seed in arguments.seeds:
        for kind, sentences in CORPORA:
            scenes = out / f"alternatives-{kind}-{sentences}-{seed}"
            corpus = CorpusOptions(pairs=arguments.pairs, sentences=sentences, duplicates=0.0)
            noise = {"hard": RATE} if kind == "hard" else {"noise": RATE, "kind": kind}
            settings: dict[str, Any] = {"noise": 0.0, **noise}
            Synth(out=str(scenes), corpus=corpus, held_out=0, seed=seed, **settings).run()
            table = captions_in_a_row(arguments.data, out, sentences, ("val", "test"))
            photographs = spoilt(table, out / "images", kind, RATE, seed)
            for name, shards, model in (
                ("rendered", scenes, "demo"),
                ("Flickr8k", photographs, f"local-dir:{out}/estimator-{seed}"),
            ):
                estimator = Estimator.load(model, None, precision="fp32")
                found = compared(shards, estimator, arguments.pairs)
                rows.append(
                    {"corpus": name, "kind": kind, "sentences": sentences, "seed": seed, **found}
                )
                print(json.dumps(rows[-1]), flush=True)
    if arguments.record is not None:
        settings = {"pairs": arguments.pairs, "rate": RATE, "steps": _STEPS, "words": _WORDS}
        write_record(arguments.record, make_record(rows, settings=settings, seeds=arguments.seeds))


if __name__ == "__main__":
    main()
