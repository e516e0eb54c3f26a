"""Results as plain data for people, rendered by the command line, notebooks and pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ncclean.base.formats import Table, counted
from ncclean.data.sample_groups import IMAGE_EXTENSIONS


@dataclass(frozen=True)
class Note:
    """A line of text for a person; `kind` is `warning`, `error`, `aside` or `strong`."""

    text: str
    kind: str = "warning"


Shown = Table | Note | str


def failure_notes(
    rows: int, ok: int, failures: Mapping[str, int], fields: Sequence[str] = ()
) -> Iterator[Note]:
    """Yield notes on what to do about samples without scores; `fields` are those of the input."""
    if rows and not ok:
        yield _none_scored(failures, fields)
    if count := failures.get("caption_not_text"):
        yield Note(
            f"{counted(count, 'caption')} cannot be read as UTF-8 without NUL: convert the table "
            "or files, for example by `iconv -f latin1 -t utf-8`, and score again"
        )


def _none_scored(failures: Mapping[str, int], fields: Sequence[str] = ()) -> Note:
    """Return a note for a run that scored nothing, often because the wrong column was named."""
    if not failures:
        return Note("no pair could be scored: no shard could be read", "error")
    most = max(failures, key=lambda status: failures[status])
    hint = "; name the caption with --caption-key" if most == "caption_missing" else ""
    if hint and IMAGE_EXTENSIONS.issuperset(fields) and fields:
        hint = (
            f"; there is nothing but {', '.join(fields)}: a caption lies beside its image, in a "
            ".txt of the same name, or in a metadata.csv with the columns file_name and text"
        )
    elif most == "image_missing":
        hint = (
            "; the column error says why: paths in a table start from its folder, or --image-root"
        )
    elif hint and fields:
        hint += f": there are {', '.join(fields)}"
    return Note(f"no pair could be scored: mostly {most}{hint}", "error")


def partner_lines(joined: Mapping[str, int], rows: int) -> list[str]:
    """Return lines that say how many rows of the scores each joined table has."""
    return [f"{name}: joined to {count:,} of {rows:,} rows" for name, count in joined.items()]
