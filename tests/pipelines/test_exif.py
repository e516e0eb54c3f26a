"""Pictures of phones are scored as people see them, and the summary says how many were turned."""

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

import ncclean


def write_pictures(folder):
    """The same eight pictures twice: upright, and on their side with the EXIF of a phone."""
    folder.mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    draw = np.random.default_rng(0)
    for number in range(8):
        levels = draw.integers(0, 255, (6, 9, 3), np.uint8)
        upright = Image.fromarray(levels).resize((96, 64), Image.Resampling.BICUBIC)
        upright.save(folder / f"{number}-upright.png")
        side = upright.transpose(Image.Transpose.ROTATE_90)
        side.save(folder / f"{number}-side.png", exif=exif)
        for name in ("upright", "side"):
            (folder / f"{number}-{name}.txt").write_text("a red circle above a blue square")


def similarities(scored):
    rows = pq.read_table(scored["out"], columns=["key", "similarity"]).to_pylist()
    values = {row["key"].rpartition("/")[2]: row["similarity"] for row in rows}
    return [np.array([values[f"{n}-{name}"] for n in range(8)]) for name in ("upright", "side")]


def test_phone_pictures_score_as_upright_ones(tmp_path):
    write_pictures(tmp_path / "photos")
    options = {"model": "demo", "shift": 0.1, "precision": "fp32"}
    scored = ncclean.score(str(tmp_path / "photos"), str(tmp_path / "a.parquet"), **options)
    upright, side = similarities(scored)
    assert np.allclose(upright, side)
    assert scored["turned"] == 8

    left = ncclean.score(
        str(tmp_path / "photos"), str(tmp_path / "b.parquet"), exif=False, **options
    )
    unchanged, lying = similarities(left)
    assert np.array_equal(unchanged, upright)
    assert not np.allclose(lying, side, atol=1e-3)
    assert left["turned"] == 0
