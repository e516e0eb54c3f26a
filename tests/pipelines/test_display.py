"""Notes on samples without scores say what to do."""

from ncclean_pipelines.display import failure_notes


def texts(*args):
    return [note.text for note in failure_notes(*args)]


def test_what_to_do_about_samples_without_scores():
    assert texts(10, 10, {}) == []
    assert texts(10, 8, {"image_corrupt": 2}) == []
    (note,) = texts(10, 9, {"caption_not_text": 1})
    assert note.startswith("1 caption cannot be read as UTF-8 without NUL: convert")
    (note,) = texts(10, 0, {"caption_missing": 10}, ["alt"])
    assert "mostly caption_missing; name the caption with --caption-key: there are alt" in note
    assert "no shard could be read" in texts(10, 0, {})[0]
