"""Compare scores, of models or from a table, with people's judgements of captions."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import torch

from ncclean.base.estimates import flattened
from ncclean.base.formats import model_label
from ncclean.base.progress import SILENT, Progress
from ncclean.base.stores import absolute
from ncclean.data.images.folders import Folder
from ncclean.data.images.resolve import resolve_images
from ncclean.data.options import SourceOptions
from ncclean.data.sample_groups import is_image
from ncclean.data.samples import Sample
from ncclean.data.shards import ShardRef
from ncclean.data.sources import resolve_pairs
from ncclean.errors import InputError
from ncclean.evaluation.agreement import Agreement, agreement
from ncclean.evaluation.embedding import EmbeddedImages, EmbeddingSpace, EmptySetError, embed_images
from ncclean.evaluation.judgement_table import Judgements
from ncclean.evaluation.noise_choice import NoiseChoice
from ncclean.evaluation.options import EmbeddingOptions
from ncclean.models.estimator import Estimator
from ncclean.models.request import ModelRequest
from ncclean.scoring.clip_loss import normalised_score
from ncclean.storage.catalog import first_line
from ncclean.storage.joined import JoinedScores

_CHUNK = 512
_BLANKS = r"[\s\v\pZ\x1c-\x1f\x{85}]+"  # what Python's `split` takes for a blank, for DuckDB


@dataclass(frozen=True)
class JudgedImages:
    """The embeddings of K judged images, `image` (K, d); `row` has the row of each name.

    The names are those in the judgements. `captions` are the source's captions of each image by
    name, none for a folder of images. `missing` counts unavailable images by reason.
    """

    row: dict[str, int]
    image: torch.Tensor
    captions: dict[str, frozenset[str]]
    missing: dict[str, int]


def embed_judged(
    space: EmbeddingSpace,
    sources: Sequence[str],
    names: Sequence[str],
    options: EmbeddingOptions,
    source_options: SourceOptions | None = None,
) -> JudgedImages:
    """Embed the images with these names in the judgements, and no others.

    A name is a path in a folder of images, whose captions do not matter. In other sources it is the
    key of the sample, or the last part of it, with or without the ending of the file. Raises what
    `embed_images` raises, and `InputError` for a name that two samples have.
    """
    shards = resolve_pairs(sources, source_options)
    if shards and all(shard.layout == Folder.name for shard in shards):
        return _in_folders(space, sources, names, options)
    wanted = {plain_name(name): name for name in names}
    last = [plain.rpartition("/")[2] for plain in wanted]
    counts = Counter(last)  # of a/1 and b/1, a key 1 identifies neither
    short = {name: plain for name, plain in zip(last, wanted, strict=True) if counts[name] == 1}

    def is_wanted(shard: ShardRef, sample: Sample) -> bool:
        return sample.key in wanted or sample.key.rpartition("/")[2] in short

    with _named_if_none(sources[0], names[0]):
        embedded = embed_images(space, shards, options, keep=is_wanted)
    row: dict[str, int] = {}
    by_last: dict[str, int] = {}
    for number, key in enumerate(embedded.sample_keys):
        if (name := wanted.get(key)) is not None:
            _put(row, name, number, embedded)
        else:
            _put(by_last, wanted[short[key.rpartition("/")[2]]], number, embedded)
    return _judged({**by_last, **row}, embedded, names)


def plain_name(name: str) -> str:
    """Return an image's name without the ending of an image file, like the key of a sample."""
    stem, dot, ending = name.rpartition(".")
    return stem if dot and is_image(ending.lower()) else name


def _in_folders(
    space: EmbeddingSpace, folders: Sequence[str], names: Sequence[str], options: EmbeddingOptions
) -> JudgedImages:
    """Read only listed images of folders, not their other files."""
    if len(folders) != 1:
        raise InputError(f"name one folder of images, not {len(folders)}")
    with tempfile.TemporaryDirectory(prefix="ncclean-") as scratch:
        listed = Path(scratch, "judged.jsonl")
        rows = ({"key": n, "file_name": n, "text": "-"} for n in dict.fromkeys(names))
        listed.write_text("".join(json.dumps(row) + "\n" for row in rows))
        root = SourceOptions(image_root=absolute(folders[0]))
        shards = resolve_images([str(listed)], root)
        with _named_if_none(folders[0], names[0]):
            embedded = embed_images(space, shards, options)
    row = {name: number for number, name in enumerate(embedded.sample_keys)}
    judged = _judged(row, embedded, names)
    return JudgedImages(judged.row, judged.image, {}, judged.missing)


@contextmanager
def _named_if_none(source: str, name: str) -> Iterator[None]:
    """Say which images were sought if none is usable."""
    try:
        yield
    except EmptySetError as error:
        counts = f" ({error.counts})" if error.counts else ""
        raise InputError(
            f"{source} has none of the judged images, such as {name}{counts}"
        ) from None


def _put(rows: dict[str, int], name: str, number: int, embedded: EmbeddedImages) -> None:
    if (other := rows.setdefault(name, number)) != number:
        raise InputError(
            f"{name} may be {embedded.keys[other]} or {embedded.keys[number]}: name the folder or "
            "the shards of one of them"
        )


def _judged(row: dict[str, int], embedded: EmbeddedImages, names: Sequence[str]) -> JudgedImages:
    captions = {
        name: frozenset(" ".join(text.split()) for text in embedded.captions[number])
        for name, number in row.items()
    }
    missing = Counter(embedded.skipped)
    absent = len(set(names)) - len(row) - missing.total()
    if absent > 0:
        missing["not_in_source"] += absent
    return JudgedImages(row, embedded.image, captions, dict(missing))


@dataclass(frozen=True)
class JudgedScores:
    """The values (N,) of each score for N judged captions; higher is better, NaN without one.

    `missing` counts captions without a value, by reason; `reversed` are the scores whose sign was
    changed.
    """

    values: dict[str, np.ndarray]
    missing: dict[str, int]
    reversed: tuple[str, ...] = ()


def scores_of_model(
    estimator: Estimator,
    images: JudgedImages,
    judgements: Judgements,
    *,
    prefix: str = "",
    batch_size: int = 256,
) -> JudgedScores:
    """Compute `similarity` and `neg_clip_loss` of each judged caption by a model.

    The rivals of `neg_clip_loss` are all judged images and all judged captions, each once. `prefix`
    and a blank precede every caption.
    """
    captions = list(dict.fromkeys(judgements.caption))
    number = {caption: position for position, caption in enumerate(captions)}
    prompts = [f"{prefix} {caption}" if prefix else caption for caption in captions]
    text = estimator.encode_text(prompts, batch_size).float()
    image = images.image.float().to(text.device)
    rows = np.array([images.row.get(name, -1) for name in judgements.image])
    has_image = rows >= 0
    # Only judged images count as rivals: a source may have a name twice.
    used, i = np.unique(rows[has_image], return_inverse=True)
    j = torch.tensor(
        [number[c] for c, has in zip(judgements.caption, has_image, strict=True) if has]
    )
    image, i2t = image[torch.from_numpy(used)], []
    t2i = torch.full((len(text),), -torch.inf, device=text.device)
    for start in range(0, len(image), _CHUNK):
        logits = estimator.scale * (image[start : start + _CHUNK] @ text.T)
        i2t.append(logits.logsumexp(dim=1))
        t2i = torch.logaddexp(t2i, logits.logsumexp(dim=0))
    places = torch.from_numpy(i).to(text.device)
    j = j.to(text.device)
    cosine = (image[places] * text[j]).sum(dim=1)
    scores = {
        "similarity": cosine,
        "neg_clip_loss": normalised_score(cosine, torch.cat(i2t)[places], t2i[j], estimator.scale),
    }
    values = {}
    for name, score in scores.items():
        values[name] = np.full(len(rows), np.nan)
        values[name][has_image] = score.double().cpu().numpy()
    return JudgedScores(values, images.missing)


def scores_of_table(
    paths: Sequence[str],
    judgements: Judgements,
    *,
    expressions: Sequence[str] = (),
    memory_limit: str | None = None,
) -> JudgedScores:
    """Return the scores of a table that has the judged captions, joined by image and caption.

    They are the scores of `evaluate noise`, and SQL, where higher is better. An image is identified
    by the last part of its key, or by the whole key if judged images share the last part. Raises
    `InputError` for a table without captions, without any judged caption, or if two images may be
    the judged one: shards may share keys.
    """
    with JoinedScores.open(paths, (), memory_limit) as pairs:
        lacking = [name for name in ("key", "text") if name not in pairs.names.types]
        if lacking:
            raise InputError(f"{paths[0]} has no column {lacking[0]} to know the pairs by")
        choice = NoiseChoice(pairs)
        choice.add_expressions(expressions)
        if not choice.scores:
            raise InputError(f"{paths[0]} has no score to compare with people: name one by --score")
        sample = "concat_ws('/', shard, key)" if "shard" in pairs.names.types else "key"
        pairs.prepare(("shard", "key", "text", "status"), choice.columns.values())
        names = [plain_name(name) for name in judgements.image]
        last = {name: name.rpartition("/")[2] for name in names}
        counts = Counter(last.values())
        judged = pa.table(
            {
                "place": np.arange(len(names)),
                "judged_key": names,
                "judged_image": [last[name] for name in names],
                "is_alone": [counts[last[name]] == 1 for name in names],
                "judged_caption": judgements.caption,
            }
        )
        ok = "status = 'ok'" if "status" in pairs.names.types else "true"
        columns = ", ".join(
            f"any_value({one.sql})::DOUBLE AS v{number}"
            for number, one in enumerate(choice.columns.values())
        )
        try:
            pairs.connection.register("judged_captions", judged)
            rows = pairs.connection.execute(
                f"SELECT place, min({sample}) AS one, max({sample}) AS other, {columns} "
                "FROM scores JOIN judged_captions "
                "ON regexp_extract(key, '[^/]*$') = judged_image "
                "AND (is_alone OR key = judged_key) "
                f"AND trim(regexp_replace(text, '{_BLANKS}', ' ', 'g')) = judged_caption "
                f"WHERE {ok} GROUP BY place ORDER BY place"
            ).fetchnumpy()
        except duckdb.Error as error:
            raise InputError(f"the scores cannot be compared: {first_line(error)}") from error
    place = rows["place"]
    if not len(place):
        raise InputError(
            f"{paths[0]} has none of the judged captions: it must be the score table of these "
            f"images with these captions, such as {judgements.image[0]} with "
            f"{judgements.caption[0]!r}"
        )
    differ = np.flatnonzero(rows["one"] != rows["other"])
    if len(differ):
        name = judgements.image[place[differ[0]]]
        raise InputError(
            f"{name} may be {rows['one'][differ[0]]} or {rows['other'][differ[0]]} of {paths[0]}: "
            "name the table of one of them"
        )
    values = {}
    for number, score in enumerate(choice.scores.values()):
        values[score.column] = np.full(len(judgements.image), np.nan)
        values[score.column][place] = -score.sign * np.ma.filled(rows[f"v{number}"], np.nan)
    reversed_ = tuple(s.column for s in choice.scores.values() if s.higher_is_noisier)
    lost = len(judgements.image) - len(place)
    return JudgedScores(values, {"not_in_scores": lost} if lost else {}, reversed_)


@dataclass(frozen=True)
class ScoreAgreement:
    """The agreement of one score of `source`, a model or a score table, with people.

    `reversed` marks a score whose sign was changed, since lower is better.
    """

    source: str
    score: str
    agreement: Agreement
    reversed: bool = False

    def to_json(self) -> dict[str, Any]:
        figures = dataclasses.asdict(self.agreement, dict_factory=flattened)
        return {
            "source": self.source, "score": self.score, "reversed": self.reversed, **figures
        }  # fmt: skip


@dataclass
class JudgementEvaluation:
    """The agreement of scores with people's judgements, for all scores compared so far.

    `missing` counts images or pairs of each source without a score, by reason; `undefined` says why
    a score was not compared; `references` are judged captions excluded as references.
    """

    judgements: Judgements
    scores: list[ScoreAgreement] = dataclasses.field(default_factory=list)
    missing: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    undefined: dict[str, str] = dataclasses.field(default_factory=dict)
    references: int = 0

    @property
    def left_out(self) -> dict[str, int]:
        """The numbers of rows of the judgements that were left out, by reason."""
        references = {"reference": self.references} if self.references else {}
        return {**self.judgements.left_out, **references}

    def to_json(self) -> dict[str, Any]:
        return {
            "rating_columns": list(self.judgements.rating_columns),
            "scores": [score.to_json() for score in self.scores],
            "left_out": self.left_out,
            "missing": self.missing,
            "undefined": self.undefined,
        }

    def add_model(
        self,
        model: ModelRequest,
        sources: Sequence[str],
        options: EmbeddingOptions,
        source_options: SourceOptions,
        *,
        prefix: str = "",
        drop_references: bool = False,
        progress: Progress = SILENT,
    ) -> None:
        """Embed the judged images and captions, and compare the model's scores with the ratings.

        `drop_references` excludes captions that the source has for the image itself, as in the
        literature. Raises `InputError` for unreadable images.
        """
        progress.say(f"{model.model}: loading")
        estimator = model.load()
        judgements = self.judgements
        progress.say(f"{model.model}: embedding")
        images = embed_judged(estimator, sources, judgements.image, options, source_options)
        if drop_references:
            if not images.captions:
                raise InputError(
                    f"{sources[0]} has no captions of its images, which --drop-references needs: "
                    "name shards or a table with captions, such as Karpathy's json"
                )
            judgements = _without_references(judgements, images.captions)
            self.references = len(self.judgements.image) - len(judgements.image)
        scores = scores_of_model(
            estimator, images, judgements, prefix=prefix, batch_size=options.batch_size
        )
        identity = estimator.identity
        self.add(model_label(identity.model, identity.pretrained), judgements, scores)

    def add(self, source: str, judgements: Judgements, scores: JudgedScores) -> None:
        """Compare scores with the ratings. Raises `InputError` if none of them has an order."""
        count = len(self.scores)
        numbers = {name: number for number, name in enumerate(dict.fromkeys(judgements.image))}
        image = np.array([numbers[name] for name in judgements.image])
        for name, values in scores.values.items():
            is_scored = ~np.isnan(values)
            try:
                figures = agreement(
                    values[is_scored], judgements.ratings[is_scored], image[is_scored]
                )
            except ValueError as error:
                self.undefined[f"{source}, {name}"] = str(error)
                continue
            self.scores.append(ScoreAgreement(source, name, figures, name in scores.reversed))
        if len(self.scores) == count:
            name, reason = next(iter(self.undefined.items()))
            raise InputError(f"{name}: {reason}")
        self.missing[source] = scores.missing


def _without_references(
    judgements: Judgements, captions: Mapping[str, frozenset[str]]
) -> Judgements:
    pairs = zip(judgements.image, judgements.caption, strict=True)
    return judgements.select(
        np.flatnonzero([text not in captions.get(name, ()) for name, text in pairs])
    )
