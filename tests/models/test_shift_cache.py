"""What is kept of a model: one number, under everything that decides it."""

import dataclasses
import json
from pathlib import Path

import pytest
from torch import nn

from ncclean.data.decode import Preprocessing
from ncclean.models.shift_cache import cache_folder, cached_shift

SETTINGS = {"seed": 0, "tolerance": 1e-3}


@dataclasses.dataclass
class Identity:
    fingerprint: str = "f00d"


@dataclasses.dataclass
class Model:
    """What the cache asks of an estimator."""

    identity: Identity = dataclasses.field(default_factory=Identity)
    model: nn.Module = dataclasses.field(default_factory=nn.GELU)
    preprocessing: Preprocessing = dataclasses.field(
        default_factory=lambda: Preprocessing((4, 4), (0.5,) * 3, (0.5,) * 3)
    )
    precision: str = "fp32"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NCCLEAN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def refuse():
    raise AssertionError("the shift was estimated again")


def test_the_second_run_estimates_nothing(folder):
    assert cached_shift(Model(), SETTINGS, lambda: 0.125) == 0.125
    assert cached_shift(Model(), SETTINGS, refuse) == 0.125
    (entry,) = folder.iterdir()
    assert json.loads(entry.read_text())["weights"] == "f00d"


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (Model(identity=Identity("beef")), SETTINGS),
        (Model(model=nn.ReLU()), SETTINGS),
        (Model(preprocessing=Preprocessing((4, 4), (0.4,) * 3, (0.5,) * 3)), SETTINGS),
        (Model(precision="bf16"), SETTINGS),
        (Model(), {**SETTINGS, "seed": 1}),
        (Model(), {**SETTINGS, "tolerance": 1e-2}),
        (Model(), {**SETTINGS, "version": 2}),
    ],
    ids=["weights", "activation", "preprocessing", "precision", "seed", "tolerance", "version"],
)
def test_nothing_else_shares_the_entry(model, settings):
    cached_shift(Model(), SETTINGS, lambda: 0.125)
    assert cached_shift(model, settings, lambda: 0.25) == 0.25
    assert cached_shift(Model(), SETTINGS, refuse) == 0.125


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"shift": null}', '{"shift": NaN}'])
def test_an_entry_that_cannot_be_read_is_written_again(folder, content):
    cached_shift(Model(), SETTINGS, lambda: 0.125)
    (entry,) = folder.iterdir()
    entry.write_text(content)
    assert cached_shift(Model(), SETTINGS, lambda: 0.25) == 0.25
    assert cached_shift(Model(), SETTINGS, refuse) == 0.25


def test_a_cache_that_cannot_be_written_is_ignored(folder):
    folder.write_text("a file where the folder should be")
    assert cached_shift(Model(), SETTINGS, lambda: 0.125) == 0.125
    assert folder.read_text() == "a file where the folder should be"


def test_an_interrupted_write_leaves_no_entry(folder, monkeypatch):
    def no_space(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", no_space)
    assert cached_shift(Model(), SETTINGS, lambda: 0.125) == 0.125
    assert list(folder.iterdir()) == []


def test_an_empty_name_turns_the_cache_off(monkeypatch):
    monkeypatch.setenv("NCCLEAN_CACHE", "")
    assert cache_folder() is None
    assert cached_shift(Model(), SETTINGS, lambda: 0.125) == 0.125
    assert cached_shift(Model(), SETTINGS, lambda: 0.25) == 0.25


def test_the_folder_is_the_users(monkeypatch):
    monkeypatch.delenv("NCCLEAN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/cache")
    assert cache_folder() == Path("/some/cache/ncclean")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/somebody")
    assert cache_folder() == Path("/somebody/.cache/ncclean")


def test_a_real_model_keys_its_entry(folder, demo_estimator):
    assert cached_shift(demo_estimator, SETTINGS, lambda: 0.125) == 0.125
    assert cached_shift(demo_estimator, SETTINGS, refuse) == 0.125
