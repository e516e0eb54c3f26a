"""Folders that are made once: each under a name with a hash of everything that determines it."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

ABOUT = "about.json"


def digest(facts: Mapping[str, Any]) -> str:
    """Ten hex digits of the facts, whatever their order."""
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def source_digest(*sources: ModuleType | Callable[..., Any]) -> str:
    """Ten hex digits of the code: what a changed renderer or training loop makes is another."""
    text = "".join(inspect.getsource(source) for source in sources)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


class Artefacts:
    """Artefacts in a folder, `KIND-HASH/` with an `about.json` that says what each is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(
        self, kind: str, facts: Mapping[str, Any], make: Callable[[Path], Mapping[str, Any] | None]
    ) -> Path:
        """The folder of the artefact; `make` fills it if it does not exist, and may add facts.

        A folder is complete or absent: it is filled under another name first.
        """
        folder = self._folder / f"{kind}-{digest(facts)}"
        if folder.exists():
            return folder
        aside = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        start, processor = time.perf_counter(), time.process_time()
        found = make(aside) or {}
        seconds = round(time.perf_counter() - start, 1)
        core = round(time.process_time() - processor, 1)
        times = {"seconds": seconds, "processor_seconds": core}
        about = {"kind": kind, **facts, "found": dict(found), **times}
        (aside / ABOUT).write_text(json.dumps(about, indent=1) + "\n")
        print(f"{folder.name}: {seconds:.0f} s ({core:.0f} s of a core)", flush=True)
        if folder.exists():  # another process was faster
            shutil.rmtree(aside)
        else:
            aside.rename(folder)
        return folder


def found(folder: Path) -> dict[str, Any]:
    """What `make` found out about the artefact."""
    about: dict[str, Any] = json.loads((folder / ABOUT).read_text())
    return dict(about["found"])
