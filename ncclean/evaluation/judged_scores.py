"""Scores of judged captions: by a model, or out of a score table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa
import torch

from ncclean.errors import InputError
from ncclean.evaluation.judged_images import JudgedImages, plain_name
from ncclean.evaluation.judgement_table import Judgements
from ncclean.evaluation.noise_choice import NoiseChoice
from ncclean.models.estimator import Estimator
from ncclean.scoring.clip_loss import normalised_score
from ncclean.storage.catalog import first_line
from ncclean.storage.joined import JoinedScores

_CHUNK = 512


@dataclass(frozen=True)
class JudgedScores:
    """(N,) values of each score, higher is better, NaN for a caption that has none.

    `missing` counts what has none, by reason; `reversed` are the scores whose sign was changed.
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
    """`similarity` and `neg_clip_loss` of each judged caption.

    The rivals of `neg_clip_loss` are all judged images and all judged captions, each once.
    `prefix` and a blank go before every caption.
    """
    captions = list(dict.fromkeys(judgements.caption))
    number = {caption: place for place, caption in enumerate(captions)}
    prompts = [f"{prefix} {caption}" if prefix else caption for caption in captions]
    text = estimator.encode_text(prompts, batch_size).float()
    image = images.image.float().to(text.device)
    rows = np.array([images.row.get(name, -1) for name in judgements.image])
    there = rows >= 0
    # Only what was judged counts as a rival: a source may have a name twice.
    used, i = np.unique(rows[there], return_inverse=True)
    j = torch.tensor([number[c] for c, has in zip(judgements.caption, there, strict=True) if has])
    image, i2t = image[torch.from_numpy(used)], []
    t2i = torch.full((len(text),), -torch.inf, device=text.device)
    for start in range(0, len(image), _CHUNK):
        logits = estimator.scale * (image[start : start + _CHUNK] @ text.T)
        i2t.append(logits.logsumexp(dim=1))
        t2i = torch.logaddexp(t2i, logits.logsumexp(dim=0))
    places = torch.from_numpy(i).to(text.device)
    j = j.to(text.device)
    own = (image[places] * text[j]).sum(dim=1)
    scores = {
        "similarity": own,
        "neg_clip_loss": normalised_score(own, torch.cat(i2t)[places], t2i[j], estimator.scale),
    }
    values = {}
    for name, score in scores.items():
        values[name] = np.full(len(rows), np.nan)
        values[name][there] = score.double().cpu().numpy()
    return JudgedScores(values, images.missing)


def scores_of_table(
    paths: Sequence[str],
    judgements: Judgements,
    *,
    expressions: Sequence[str] = (),
    memory_limit: str | None = None,
) -> JudgedScores:
    """The scores of a table that has the judged captions, joined by image and caption.

    They are those that `evaluate noise` takes, and SQL, where higher is better. An image is known
    by the last part of its key, or by all of it where judged images share the last part. Raises
    `InputError` for a table without captions, without any of those that were judged, or where two
    images may be the one that was.
    """
    with JoinedScores.open(paths, (), memory_limit) as pairs:
        lacking = [name for name in ("key", "text") if name not in pairs.names.types]
        if lacking:
            raise InputError(f"{paths[0]} has no column {lacking[0]} to know the pairs by")
        choice = NoiseChoice(pairs)
        choice.add_expressions(expressions)
        if not choice.scores:
            raise InputError(f"{paths[0]} has no score to compare with people: name one by --score")
        pairs.prepare(("key", "text", "status"), choice.columns.values())
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
                f"SELECT place, min(key) AS one, max(key) AS other, {columns} "
                "FROM scores JOIN judged_captions "
                "ON regexp_extract(key, '[^/]*$') = judged_image "
                "AND (is_alone OR key = judged_key) "
                "AND trim(regexp_replace(text, '\\s+', ' ', 'g')) = judged_caption "
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
