"""The rows of a table that a selection keeps, for `filter` and `map` of Hugging Face datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ncclean.base.formats import counted
from ncclean.data.images.columns import CAPTION_COLUMNS
from ncclean.data.member_samples import caption_keys
from ncclean.data.options import SourceOptions
from ncclean.data.rank_samples import selected_of
from ncclean.data.reader import read_samples
from ncclean.data.samples import CaptionKeys, SkipReason
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
    rows. For a row with several captions the best one counts. Raises `InputError` for a selection
    of other sources, with captions mended in an unknown column, and for sources whose rows cannot
    all be identified.
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
        reader = open_selection(selection, "best")
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
                rows = len(sample.rows) or 1  # a broken one, which nothing selects
                for number in range(rows):
                    row = [one for one in chosen if rows == 1 or one.caption in (None, number)]
                    if row:
                        self._selected[self.total + number] = row[0]
                self.total += rows
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

    def weigh(self, row: dict[str, Any], index: int) -> dict[str, Any]:
        """The `weight` of a row of the filtered data set, and its caption where that was mended.

        Raises `InputError` for a row that, by its `uid`, is not the selected one.
        """
        pair = self._selected[self._kept[index]]
        if str(row.get("uid", pair.uid)) != pair.uid:
            raise InputError(
                f"row {index} has the uid {row['uid']}, and the selection {pair.uid}: name the "
                "sources in the order of the data set, and filter before you shuffle"
            )
        if pair.text is None:
            return {"weight": float(pair.weight)}
        return {"weight": float(pair.weight), self._caption_column(row): pair.text}

    def _caption_column(self, row: dict[str, Any]) -> str:
        names = caption_keys(self._caption_key) or CAPTION_COLUMNS
        column = next((name for name in row if name.lower() in names), None)
        if column is None:
            raise InputError(
                f"the selection mends captions, and no column is called {' or '.join(names)}"
            )
        return column
