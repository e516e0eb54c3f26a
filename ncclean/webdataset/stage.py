"""A stage of webdataset pipelines that applies a selection."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ncclean.base.formats import counted
from ncclean.base.url_secrets import name_without_secrets, without_secrets
from ncclean.data.fingerprints import changed_shards
from ncclean.data.member_samples import Contents, own_uid, take_captions
from ncclean.data.options import SourceOptions
from ncclean.data.rank_samples import ImageCheck, RawSample, raw_sample, selected_of
from ncclean.data.samples import CaptionKeys, Place, Sample
from ncclean.data.selection import SelectedSample
from ncclean.data.selection_reader import SelectionReader
from ncclean.data.shards import SUFFIXES, ShardRef, sizes_and_versions
from ncclean.errors import InputError
from ncclean.storage.same_corpus import another_shard, captions_as_scored, picture_as_scored
from ncclean.storage.tables import fingerprints, local_tables

logger = logging.getLogger(__name__)

_DECODED = b"decoded"  # replaces an image that an earlier stage has decoded


def open_selection(path: str, captions: Literal["all", "best"] = "all") -> SelectionReader:
    """Open a selection, local or in a store, and check its weights. Raises `InputError`."""
    reader = SelectionReader(path, captions, local_tables([path]))
    reader.has_weights()
    return reader


def select(
    selection: str,
    *,
    captions: Literal["all", "best"] = "all",
    caption_key: CaptionKeys = None,
    image_key: str | None = None,
) -> Stage:
    """Return a stage for `wds.WebDataset(urls).compose(...)` that drops, weighs and mends pairs.

    `selection` is a file of `ncclean select`, made from these shards. Samples that it does not name
    are dropped; each other one gets `weight`, a float, and its caption as the member `txt`. An
    image with several captions is yielded once for each selected caption, or once with the `best`.
    `caption_key` and `image_key` are those used for scoring, which the selection knows.

    Compose it before `shuffle`, and best before `decode(..., partial=True)`: without `partial`,
    webdataset decodes only bytes, which a weight is not. Ranks and workers are split by the
    pipeline, as its shards are. Raises `InputError` if the file is not a selection, or names none
    of the shards, or another `caption_key` is given than the selection has, or all samples of a
    shard have other uids; selected pairs of a shard that do not arrive, and local shards that have
    changed since the scoring, are logged as a warning.
    """
    return Stage(selection, captions, caption_key, image_key)


@dataclass
class _Visit:
    """One reading of a shard: its pairs by key whose samples have not arrived.

    `first` is the shard's first sample, `name` the shard's name in the selection, `other` the error
    if a uid differs.
    """

    url: str
    first: Mapping[str, Any]
    name: str
    waiting: dict[str, list[SelectedSample]]
    other: InputError | None = None
    is_same: bool = False

    def take(self, sample: Sample, selection: str) -> Sequence[SelectedSample]:
        """Return the waiting pairs of a sample; note a uid of another one."""
        waiting, uid = self.waiting[sample.key], own_uid(sample.metadata)
        pairs = selected_of(waiting, sample, self.name)
        self.is_same = self.is_same or bool(pairs and uid)
        if not pairs and uid:
            url, there = without_secrets(self.url), waiting[0].uid
            self.other = self.other or another_shard(url, selection, sample.key, uid, there)
        return pairs

    def end(self) -> None:
        """Log the selected pairs that did not arrive. Raises `InputError` if all are others."""
        if self.other is not None and not self.is_same:
            raise self.other
        lacking = sum(map(len, self.waiting.values()))
        if lacking:
            logger.warning(
                "%s of the selection did not come out of %s, such as %r",
                counted(lacking, "pair"),
                without_secrets(self.url),
                next(iter(self.waiting)),
            )


@dataclass
class Stage:
    """A callable made by `select`; data loading processes may receive copies of it."""

    selection: str
    captions: Literal["all", "best"] = "all"
    caption_key: CaptionKeys = None
    image_key: str | None = None

    def __post_init__(self) -> None:
        self._names = frozenset(open_selection(self.selection, self.captions).counts())
        self._check_images = ImageCheck()
        self._scored, self._changed = fingerprints([self.selection]), set[str]()
        self.caption_key = captions_as_scored([self.selection], self.caption_key)
        pictures = SourceOptions(image_key=self.image_key).image_key
        self.image_key = picture_as_scored([self.selection], pictures)

    def __call__(self, samples: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the selected pairs of `samples`, which come shard by shard."""
        reader = SelectionReader(self.selection, self.captions, local_tables([self.selection]))
        visit: _Visit | None = None
        is_named = False
        for sample in samples:
            url = sample["__url__"]
            # Resampled shards may come twice in a row.
            if visit is None or url != visit.url or _is_same(sample, visit.first):
                if visit is not None:
                    visit.end()
                name = shard_name(url, self._names)
                is_named = is_named or name is not None
                pairs = {} if name is None else reader.samples(name)
                if name is not None and os.path.isfile(url):
                    self._check_unchanged(name, url)
                visit = _Visit(url, sample, name or "", pairs)
            yield from self._pairs(sample, visit)
        if visit is None:
            return
        visit.end()
        if not is_named:
            raise InputError(
                f"{self.selection} selects no pair of {without_secrets(visit.url)} or the other "
                f"shards; those that it names are called like {min(self._names)}"
            )

    def _check_unchanged(self, name: str, path: str) -> None:
        """Log a warning, once, for a local shard that has changed since the scoring."""
        ((size, version),) = sizes_and_versions([path])
        now = {name: ShardRef(name, path, size, version).fingerprint}
        if name not in self._changed and changed_shards(self._scored, now):
            self._changed.add(name)
            logger.warning("%s changed since the scoring: the selection is of what was there", path)

    def _pairs(self, sample: Mapping[str, Any], visit: _Visit) -> Iterator[dict[str, Any]]:
        waiting = visit.waiting
        for part in samples_of_keys(sample, waiting):
            key = part["__key__"]
            if key not in waiting:
                continue
            read = self._read(part)
            chosen = visit.take(read, self.selection)
            pairs = [(pair, raw_sample(read, pair)) for pair in chosen]
            usable = [(pair, raw) for pair, raw in pairs if isinstance(raw, RawSample)]
            if not usable:
                continue
            # Among samples that share a key, the first one counts; others of it may be elsewhere.
            waiting[key] = [pair for pair in waiting[key] if pair not in chosen]
            if not waiting[key]:
                del waiting[key]
            self._check_images([pair.uid for pair, raw in usable if raw.is_of_other_image])
            is_decoded = isinstance(part.get("txt"), str) or read.image is _DECODED
            for pair, raw in usable:
                text = raw.caption if is_decoded else raw.caption.encode()
                yield {**part, "txt": text, "weight": float(pair.weight)}

    def _read(self, sample: Mapping[str, Any]) -> Sample:
        """Return the image and the captions of a sample, by the rules of its scoring."""
        contents = Contents(0, sample["__key__"], self.caption_key, self.image_key)
        contents.members = {
            name: json.dumps(value).encode() if isinstance(value, dict | list) else value
            for name, value in sample.items()
            if not name.startswith("__")
        }
        contents.has_dots = any("." in name for name in contents.members)
        image = contents.members.get(contents.picture or "")
        read = Sample(0, contents.key, metadata=contents.metadata, picture=contents.picture)
        read.image = image if isinstance(image, bytes | None) else _DECODED
        if isinstance(image, bytes):
            read.place = Place(image_size=len(image))
        take_captions(read, contents.captions)
        return read


def _is_same(sample: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Check whether a sample is another one come again, and does not only share its key."""
    return sample["__key__"] == other["__key__"] and all(
        sample.get(name) == value for name, value in other.items() if isinstance(value, bytes)
    )


def samples_of_keys(
    sample: Mapping[str, Any], keys: Mapping[str, object]
) -> Iterator[Mapping[str, Any]]:
    """Return the sample, or those into which it splits if `keys` end at the last dot of names.

    `shop.de.0001.jpg` has the key `shop` in webdataset, and may have been scored as
    `shop.de.0001`.
    """
    apart: dict[str, dict[str, Any]] = {}
    for name, value in sample.items():
        stem, dot, extension = name.rpartition(".")
        key = f"{sample['__key__']}.{stem}"
        if dot and key in keys:
            apart.setdefault(key, {})[extension] = value
    about = {name: value for name, value in sample.items() if name.startswith("__")}
    if sample["__key__"] in keys or not apart:
        yield sample
    for key, members in apart.items():
        yield {**about, **members, "__key__": key}


def shard_name(url: str, names: Collection[str]) -> str | None:
    """Return the selection's name for the shard at `url`, which may be the command of a pipe.

    Names carry as many folders as distinguished the shards of the scoring run. Returns None if no
    name fits. Raises `InputError` if several do.
    """
    words = [word.strip("'\"") for word in url.removeprefix("pipe:").split()]
    paths = [name_without_secrets(word).partition("?")[0].split("://", 1)[-1] for word in words]
    stems = [
        path.removesuffix(suffix) for path in paths for suffix in SUFFIXES if path.endswith(suffix)
    ]
    ends = [
        "/".join(folders[start:])
        for folders in (stem.strip("/").split("/") for stem in stems)
        for start in range(len(folders))
    ]
    fitting = list(dict.fromkeys(end for end in ends if end in names))
    # A path relative to its folder has fewer folders than the name.
    fitting = fitting or [n for n in names if any(n.endswith(f"/{stem}") for stem in stems)]
    if len(fitting) > 1:
        raise InputError(
            f"{without_secrets(url)} may be {' or '.join(fitting[:2])} of the selection: name the "
            "shards with more of their folders"
        )
    return fitting[0] if fitting else None
