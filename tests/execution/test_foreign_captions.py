"""Captions in languages that the model may not know are said to be that."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ncclean.data import languages
from ncclean.errors import InputError
from ncclean.execution import foreign_captions
from ncclean.execution.foreign_captions import foreign_languages

ENGLISH = "a dog runs over the green meadow and a child is looking at it"
GERMAN = "ein Hund läuft über die grüne Wiese und ein Kind schaut ihm dabei zu"
FRENCH = "un chien court dans la prairie verte et un enfant le regarde faire"


def write(path, captions, wrong, row_group=100, **more):
    table = pa.table({
        "status": ["ok"] * len(captions), "text": captions,
        "noise_probability": pa.array(wrong, pa.float32()), **more,
    })  # fmt: skip
    pq.write_table(table, path, row_group_size=row_group)
    return str(path)


def test_a_language_whose_captions_look_wrong_is_named(tmp_path):
    captions = [ENGLISH, ENGLISH, GERMAN, FRENCH] * 150
    wrong = [0.1, 0.1, 0.9, 0.2] * 150
    (found,) = foreign_languages(write(tmp_path / "s.parquet", captions, wrong))
    assert found.language == "de"
    assert found.share == pytest.approx(0.25, abs=0.01)
    assert found.wrong == pytest.approx(0.9)
    assert found.wrong_in_english == pytest.approx(0.1)
    said = str(found)
    assert "about 25% of the captions are in the language de; 90% of them look wrong" in said
    assert "of those in English 10%" in said


@pytest.mark.parametrize(("wrong", "names"), [(0.8, ["de"]), (0.2, [])])
def test_without_english_captions_most_must_look_wrong(tmp_path, wrong, names):
    table = write(tmp_path / "s.parquet", [GERMAN] * 200, [wrong] * 200)
    found = foreign_languages(table)
    assert [one.language for one in found] == names
    assert all("English" not in str(one) for one in found)


def test_few_captions_of_a_language_say_nothing(tmp_path):
    captions, wrong = [ENGLISH] * 950 + [GERMAN] * 45, [0.1] * 950 + [1.0] * 45
    assert foreign_languages(write(tmp_path / "s.parquet", captions, wrong)) == []


def test_a_language_that_is_only_guessed_says_nothing(tmp_path, monkeypatch):
    table = write(tmp_path / "s.parquet", [GERMAN] * 200, [0.9] * 200)
    for score, names in ((0.4, []), (0.9, ["de"])):

        def detect(texts, score=score):
            return {"language": ["de"] * len(texts), "language_score": [score] * len(texts)}

        monkeypatch.setattr(foreign_captions, "shared_detector", lambda detect=detect: detect)
        assert [one.language for one in foreign_languages(table)] == names


def test_captions_are_taken_from_all_over_the_table(tmp_path):
    captions, wrong = [ENGLISH] * 6000 + [GERMAN] * 4000, [0.1] * 6000 + [0.9] * 4000
    folder = tmp_path / "s"
    folder.mkdir()
    for number, rows in enumerate(np.array_split(np.arange(10_000), 4)):
        write(folder / f"{number}.parquet", [captions[n] for n in rows], [wrong[n] for n in rows])
    (found,) = foreign_languages(str(folder))
    assert found.share == pytest.approx(0.4, abs=0.08)


def test_without_captions_probabilities_or_a_detector_nothing_is_said(tmp_path, monkeypatch):
    plain = pa.table({"status": ["ok"], "noise_probability": [0.5]})
    pq.write_table(plain, tmp_path / "plain.parquet")
    assert foreign_languages(str(tmp_path / "plain.parquet")) == []
    assert foreign_languages(write(tmp_path / "s.parquet", [GERMAN] * 50, [None] * 50)) == []

    def refuse():
        raise InputError("it is an extra")

    monkeypatch.setattr(foreign_captions, "shared_detector", refuse)
    assert foreign_languages(write(tmp_path / "s.parquet", [GERMAN] * 50, [1.0] * 50)) == []


def test_texts_are_in_a_language_together():
    assert languages.foreign_language([GERMAN, "ein Haus"]) == "de"
    assert languages.foreign_language([ENGLISH, "ein Haus"]) is None
    assert languages.foreign_language(["IMG_1234.jpg"]) is None
