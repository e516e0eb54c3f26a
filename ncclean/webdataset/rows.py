"""The rows of a table that a selection keeps, for `filter` and `map` of Hugging Face datasets."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ncclean.base.formats import counted
from ncclean.data.images.columns import CAPTION_COLUMNS, caption_places
from ncclean.data.member_samples import caption_keys, own_uid
from ncclean.data.nested_fields import head_of, put_at
from ncclean.data.options import SourceOptions
from ncclean.data.rank_samples import selected_of
from ncclean.data.reader import read_samples
from ncclean.data.samples import CaptionKeys, Sample, SkipReason
from ncclean.data.selection import SelectedSample
from ncclean.data.shards import match_shards
from ncclean.data.sources import resolve_sources
from ncclean.errors import InputError
from ncclean.storage.same_corpus import as_scored, captions_as_scored
from ncclean.webdataset.stage import open_selection


class SelectedRows:
    """Knows which rows of a Hugging Face data set are selected, and their weights.

        rows = ncclean.webdataset.SelectedRows("photos/train-*.parquet", "clean.parquet")
        pairs = load_dataset("parquet", data_files="photos/train-*.parquet", split="train")
        pairs = pairs.filter(rows.keep, with_indices=True).map(rows.weigh, with_indices=True)

    `sources` are what was scored, in the data set's order of files; `total` is their number of
    rows. For a row with several captions the best one counts; each row of an image is a row.
    Raises `InputError` for a selection of other sources, with captions mended in an unknown column,
    and for sources whose rows cannot all be identified.
    """

    def __init__(
        self,
        sources: str | list[str],
        selection: str,
        *,
        caption_key: CaptionKeys = None,
        **source: Any,
    ) -> None:
        self._selected: dict[int, SelectedSample] = {}
        named = [sources] if isinstance(sources, str) else sources
        shards = resolve_sources(named, options=SourceOptions(**source))
        reader = open_selection(selection)
        shards = as_scored([selection], shards)
        self._caption_key = caption_key = captions_as_scored([selection], caption_key)
        names = {ref.name: name for name, ref in match_shards([*reader.counts()], shards).items()}
        self.total = lacking = 0
        for shard in shards:
            first = self.total
            name = names.get(shard.name)
            pairs = {} if name is None else reader.samples(name)
            for sample in read_samples(shard, caption_key, wanted=(), whole=True):
                chosen: Sequence[SelectedSample] = ()
                if sample.status is not SkipReason.DUPLICATE_KEY:
                    named_so = pairs.get(sample.key, [])
                    if chosen := selected_of(named_so, sample, name or ""):
                        pairs[sample.key] = [one for one in named_so if one not in chosen]
                for number, pair in self._rows(sample, chosen, self.total - first):
                    self._selected.setdefault(first + number, pair)
                self.total += len(sample.row_numbers) or 1
            lacking += sum(map(len, pairs.values()))
            if shard.count not in (None, self.total - first):
                raise InputError(
                    f"{shard.url} has {counted(shard.count or 0, 'row')}, and "
                    f"{self.total - first:,} could be read: none can be found by its number"
                )
        if lacking:
            raise InputError(
                f"{selection} selects {counted(lacking, 'row')} that {', '.join(named)} does not "
                "have: name the sources that were scored"
            )
        self._kept = sorted(self._selected)

    def __len__(self) -> int:
        """Number of rows that are kept."""
        return len(self._kept)

    def keep(self, row: Any, index: int) -> bool:
        """Check whether the row of this number is selected: `filter(..., with_indices=True)`."""
        return index in self._selected

    def _rows(
        self, sample: Sample, pairs: Sequence[SelectedSample], following: int
    ) -> Iterator[tuple[int, SelectedSample]]:
        """Yield the number of each selected row, and its best pair: `caption` counts in the row.

        A pair that was drawn several times has the sum of the weights.
        """
        numbers, rows = sample.row_numbers or [following], sample.rows or [{}]
        places = caption_places(rows, caption_keys(self._caption_key))
        for number, row, in_row in zip(numbers, rows, places, strict=True):
            captions = {None: None} | {place.number: n for n, place in enumerate(in_row)}
            if not sample.row_numbers:  # of a tar
                captions = {pair.caption: pair.caption for pair in pairs}
            of_row = [pair for pair in pairs if pair.caption in captions]
            if of_row:
                best = of_row[0]
                yield (
                    number,
                    replace(
                        best,
                        uid=own_uid(row) or best.uid,  # rows of an image may each have one
                        weight=sum(one.weight for one in of_row if one.caption == best.caption),
                        caption=captions[best.caption],
                    ),
                )

    def weigh(self, row: dict[str, Any], index: int) -> dict[str, Any]:
        """The `weight` of a row of the filtered data set, and its caption where that changes.

        A mended caption, or the best of several in a row, replaces the row's first. Raises
        `InputError` for a row that, by its `uid`, is not the selected one.
        """
        pair = self._selected[self._kept[index]]
        fields = {name.lower(): value for name, value in row.items()}
        uid = own_uid(fields) or pair.uid
        if uid != pair.uid:
            raise InputError(
                f"row {index} has the uid {uid}, and the selection {pair.uid}: name the sources in "
                "the order of the data set, and filter before you shuffle"
            )
        weight = {"weight": float(pair.weight)}
        names = caption_keys(self._caption_key)
        (places,) = caption_places([fields], names)
        if pair.text is None and (pair.caption is None or len(places) == 1):
            return weight
        first = places[0].column
        text = places[pair.caption or 0].text if pair.text is None else pair.text
        column = next((name for name in row if name.lower() == head_of(first)), None)
        if column is None or not isinstance(text, str):
            called = " or ".join(names or CAPTION_COLUMNS)
            raise InputError(f"the selection chooses captions, and no column is called {called}")
        changed = {head_of(first): copy.deepcopy(row[column])}
        put_at(changed, first, text if places[0].entry is None else [text])
        return weight | {column: changed[head_of(first)]}
