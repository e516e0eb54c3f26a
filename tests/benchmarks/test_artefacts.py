"""What determines an artefact is in its name, and it is complete or absent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks.artefacts import ABOUT, Artefacts, digest, found


def test_other_facts_are_another_artefact(tmp_path: Path) -> None:
    artefacts = Artefacts(tmp_path)
    calls: list[int] = []

    def shards(pairs: int) -> Path:
        def make(folder: Path) -> dict[str, int]:
            calls.append(pairs)
            (folder / "pairs").write_text(str(pairs))
            return {"kept": pairs - 1}

        return artefacts.get("shards", {"pairs": pairs, "noise": {"ncr": 0.4}}, make)

    few, many = shards(10), shards(20)
    assert few != many
    assert shards(10) == few
    assert calls == [10, 20]
    assert (few / "pairs").read_text() == "10"
    assert json.loads((few / ABOUT).read_text())["pairs"] == 10
    assert found(many) == {"kept": 19}


def test_an_interrupted_artefact_is_made_again(tmp_path: Path) -> None:
    artefacts = Artefacts(tmp_path)

    def broken(folder: Path) -> None:
        (folder / "half").write_text("")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        artefacts.get("start", {"seed": 0}, broken)
    folder = artefacts.get("start", {"seed": 0}, lambda folder: None)
    assert [path.name for path in folder.iterdir()] == [ABOUT]


def test_the_order_of_the_facts_does_not_matter() -> None:
    assert digest({"a": 1, "b": {"c": 2, "d": 3}}) == digest({"b": {"d": 3, "c": 2}, "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})
