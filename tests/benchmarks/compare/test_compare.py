"""What tests/benchmarks/compare/study.py counts and converts."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import process
import torch

from compare import models, rows, study

TRUTH = {
    "0": {"is_noisy": False},
    "1": {"is_noisy": True},
    "2": {"is_noisy": False},
    "3": {"is_noisy": False, "copy": "exact", "copy_of": "0"},
    "4": {"is_noisy": False, "copy": "jpeg 40", "copy_of": "0"},
}


def test_copies_do_not_count_among_the_kept() -> None:
    row = rows.kept_row("tool", "rule", {"0", "1", "3", "9"}, TRUTH)
    assert (row["pairs"], row["noisy"], row["kept"], row["kept_noisy"]) == (3, 1, 2, 1)


def test_the_original_of_a_copy_is_not_wrongly_flagged() -> None:
    flagged = {"0", "2", "3", "4"}
    row = rows.duplicates_row("tool", "rule", flagged, TRUTH)
    assert row["copies"]["exact"] == [1, 1]
    assert (row["alone"], row["alone_flagged"]) == (2, 1)


def test_words_of_a_caption_are_its_labels() -> None:
    tags = study.tags(["a crimson disc", "a red circle", "no greenery"])
    assert np.array_equal(tags[0], tags[1])
    assert tags[0].sum() == 2
    assert tags[2].sum() == 0


def test_a_folded_normalisation_gives_the_same_patches() -> None:
    generator = torch.Generator().manual_seed(0)
    kernel = torch.randn(5, 3, 4, 4, generator=generator)
    weights = {
        "visual.conv1.weight": kernel,
        "visual.positional_embedding": torch.randn(2, 5, generator=generator),
    }
    mean, deviation = [0.5, 0.4, 0.3], [0.5, 0.6, 0.7]
    folded = models._normalisation_folded(weights, {"mean": mean, "std": deviation})
    pixels = torch.rand(1, 3, 4, 4, generator=generator)

    def first_layer(weights: Any, mean: Any, deviation: Any) -> torch.Tensor:
        mean, deviation = (torch.tensor(each)[:, None, None] for each in (mean, deviation))
        patch = torch.conv2d((pixels - mean) / deviation, weights["visual.conv1.weight"])
        return patch.flatten() + weights["visual.positional_embedding"][1]

    openai = models.open_clip.OPENAI_DATASET_MEAN, models.open_clip.OPENAI_DATASET_STD
    torch.testing.assert_close(
        first_layer(folded, *openai), first_layer(weights, mean, deviation), atol=1e-5, rtol=1e-5
    )


def test_a_kill_ends_the_processes_of_a_command(tmp_path: Path) -> None:
    command = ["sh", "-c", f"sleep 60 & echo $! > {tmp_path}/child; wait"]
    killed = process.run(command, tmp_path / "log", kill_after=0.5)
    assert killed.exit == -9
    child = (tmp_path / "child").read_text().strip()
    state = subprocess.run(["ps", "-o", "stat=", "-p", child], capture_output=True, text=True)
    assert state.stdout.strip()[:1] in ("", "Z")  # gone, or dead and not waited for


def test_time_and_output_are_of_all_processes(tmp_path: Path) -> None:
    loop = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"
    finished = process.run(["sh", "-c", f"({loop}); echo done"], tmp_path / "log")
    assert finished.exit == 0
    assert finished.output == "done\n"
    assert finished.processor_seconds > 0.02
