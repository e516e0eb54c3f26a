"""Locate a score table and its working files.

`--out scores.parquet` is one file with its working folder `scores.parquet.work` beside it; any
other path is a folder of files with a hidden working folder inside. Working folders hold the record
of the run, the list of its shards and the parts not yet in the table; readers of the table never
look into them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from upath import UPath

from ncclean.base import stores
from ncclean.base.file_names import WORKING_FOLDER
from ncclean.base.text_files import parse_json, read_text
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError
from ncclean.storage.made_files import Leftovers
from ncclean.storage.run_record import LARGEST_RECORD, RUN, exists, reading, refusal
from ncclean.storage.shard_records import ShardList, present_files
from ncclean.storage.tables import FINALIZING, tables_at

COMMAND = "score"
_BESIDE = "beside the table: "
_TABLE_FILE = re.compile(r"part-[^/]+\.parquet")
WORD_CLASSES, BOILERPLATE = "word-classes.txt", "boilerplate.txt"
POOL, CANONICAL = "pool", "canonical"
# Facts about the corpus, see `ncclean.execution.corpus_facts`, and the options that ask for them.
_ASKED_BY = {
    POOL: "--pool",
    CANONICAL: "--canonical",
    WORD_CLASSES: "--word-classes corpus",
    BOILERPLATE: "--signals text",
}
_FACTS = re.compile(rf"{WORD_CLASSES}|{BOILERPLATE}|({POOL}|{CANONICAL})-[^/]+\.arrays")


@dataclass(frozen=True)
class ScoreLayout:
    out: UPath

    @property
    def is_single_file(self) -> bool:
        return self.out.suffix == ".parquet"

    @property
    def work(self) -> UPath:
        """The working folder of a scoring run."""
        if self.is_single_file:
            return self.out.with_name(self.out.name + ".work")
        return self.out / WORKING_FOLDER

    @property
    def shard_list(self) -> UPath:
        """The path of the list of shards."""
        return self.work / "shards.parquet"

    @property
    def finalizing(self) -> UPath:
        """The path of a file that exists while the files of the table are inconsistent."""
        return self.work / FINALIZING

    def part(self, shard: ShardRef) -> UPath:
        """Return the path of a shard's part, which holds its rows until the table is finalized."""
        return self.work / shard.part_name

    def recorded_embeddings(self, folder: str | None) -> str | None:
        """Return the embeddings folder as the run records it: relative if beside the table."""
        if folder is None:
            return None
        beside, _, name = stores.absolute(folder).rstrip("/").rpartition("/")
        is_beside = beside == stores.absolute(str(self.out)).rstrip("/").rpartition("/")[0]
        return f"{_BESIDE}{name}" if is_beside else folder

    def embeddings(self, recorded: str) -> UPath:
        """Return the embeddings folder from the value of `recorded_embeddings`."""
        if recorded.startswith(_BESIDE):
            return self.out.parent / recorded.removeprefix(_BESIDE)
        return stores.location(recorded)

    def table_file(self, name: str) -> UPath:
        """Return the path of a file of the score table."""
        return self.out if self.is_single_file else self.out / name

    def own_files(self, names: Iterable[str]) -> list[UPath]:
        """Return the paths of a score table's files from recorded names, which are not trusted.

        The list is empty for a table of a single file, which may have been renamed since.
        """
        if self.is_single_file:
            return []
        return [self.out / name for name in names if _TABLE_FILE.fullmatch(name)]

    def gathered(self) -> list[str]:
        """Return the options for which the run has gathered facts about its corpus."""
        facts = [name for name in present_files(self.work) if _FACTS.fullmatch(name)]
        return [said for fact, said in _ASKED_BY.items() if any(n.startswith(fact) for n in facts)]

    def recorded_files(self) -> Iterator[UPath]:
        """Yield all files that the recorded run may have written, except the record."""
        listed = ShardList.read(self.shard_list)
        shards = listed.shards.values() if listed is not None else ()
        yield from (self.part(one.ref) for one in shards)
        if self.is_single_file:
            yield self.out
        names = [one.file for one in shards if one.file]
        yield from self.own_files({*names, *Leftovers.read(self.finalizing).table})
        # Facts about another corpus, or by other options, must not outlive their run.
        yield from (
            path for name, path in present_files(self.work).items() if _FACTS.fullmatch(name)
        )
        yield self.finalizing
        yield self.shard_list

    def taken(self) -> UPath | None:
        """Return the path of an existing table that a new one would replace, or None.

        Raises `InputError` if the output is a folder but its name is a file's, or the other way
        round.
        """
        if stores.is_url(self.out):
            tables = stores.ask("list", self.out, tables_at, self.out)
        else:
            if self.is_single_file and self.out.is_dir():
                raise InputError(
                    f"{self.out} is a folder, and a path ending in .parquet is for a file: choose "
                    "another --out"
                )
            if not self.is_single_file and self.out.is_file():
                raise InputError(
                    f"{self.out} is a file: choose an --out that ends in .parquet, or a folder"
                )
            tables = tables_at(self.out)
        return tables[0] if tables else None

    def check_usable(self) -> None:
        """Raise `InputError` if `out` holds something that no scoring run made."""
        if not exists(self.work / RUN) and (table := self.taken()) is not None:
            raise refusal(table, COMMAND)


def written_embeddings(tables: Sequence[str]) -> list[str]:
    """Return the existing folder of embeddings that the run of a table wrote, or None."""
    if len(tables) > 1:
        return []
    layout = ScoreLayout(stores.location(tables[0]))
    path = layout.work / RUN
    try:  # one request; asking for the record would take several
        run = parse_json(read_text(str(path), LARGEST_RECORD), path)
        with reading(path):
            folder = run["identity"]["options"].get("embeddings")
            is_own = run["command"] == COMMAND and not run.get("cleared")
            place = layout.embeddings(folder) if is_own and folder else None
    except InputError:
        return []
    is_there = place is not None and stores.ask("read", place, place.is_dir)
    return [str(place)] if is_there else []
