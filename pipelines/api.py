# Made by docs/generate.py; edit that instead.
"""Every command as a typed function: `ncclean.score(...)`, `ncclean.select(...)` and so on.

Each takes the options of its command by the same names, and returns a `Result`.
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ncclean.errors import InputError

from .calls import Result, call
from .recipe.bundled import find_recipe
from .recipe.load import load_recipe
from .recipe.run import RunSummary
from .recipe.run import run as run_recipe

__all__ = ["Result", "RunSummary", "adapt", "evaluate", "evaluate_compare", "evaluate_linear_probe", "evaluate_noise", "evaluate_retrieval", "evaluate_similarity", "evaluate_zeroshot", "export", "finetune", "inject_noise", "neighbours", "run", "score", "select", "synth", "write_report"]


def run(
    recipe: str, out: str, set: Sequence[str] = (), start_from: str | None = None
) -> RunSummary:
    """Run a recipe, a file or a bundled one; `set` holds `KEY=VALUE` texts."""
    return run_recipe(load_recipe(find_recipe(recipe), Path(out), list(set)), None, start_from)


Task = Literal["noise", "zeroshot", "retrieval", "linear-probe", "compare", "similarity"]


def evaluate(task: Task, *inputs: Any, **options: Any) -> Result:
    """`ncclean evaluate TASK`, with what the function `evaluate_...` of the task takes."""
    tasks: Mapping[str, Callable[..., Result]] = {
        name.removeprefix("evaluate_").replace("_", "-"): function
        for name, function in globals().items()
        if name.startswith("evaluate_")
    }
    if task not in tasks:
        raise InputError(f"evaluate takes {', '.join(sorted(tasks))}, got {task!r}")
    return tasks[task](*inputs, **options)


def synth(
    out: str,
    *,
    pairs: int = 20000,
    noise: float = 0.2,
    kind: str = 'ncr',
    hard: float = 0.0,
    junk: float = 0.0,
    broken: float = 0.0,
    duplicates: float = 0.01,
    shard_size: int = 1000,
    held_out: int = 500,
    workers: int | None = None,
    seed: int = 0,
) -> Result:
    """Render a corpus with known noise, and held-out sets to evaluate on."""
    return call("synth", locals())


def inject_noise(
    shards: str | Sequence[str],
    out: str,
    *,
    kind: str | Sequence[str] = (),
    rate: float | Sequence[float] = (),
    noise: Mapping[str, float] | Sequence[str] = {},
    seed: int = 0,
    batch_size: int = 128,
    caption_key: str | None = None,
    workers: int | None = None,
    overwrite: bool = False,
) -> Result:
    """Write shards with known noise, to measure how well it is found."""
    return call("inject-noise", locals())


def score(
    shards: str | Sequence[str],
    out: str,
    *,
    model: str = 'ViT-B-32',
    pretrained: str | None = 'laion2b_s34b_b79k',
    precision: str = 'auto',
    device: str = 'auto',
    compile: bool = False,
    shift: str | float = 'noise',
    caption_key: str | None = None,
    block_size: int = 2048,
    forget_percent: float = 10.0,
    text: bool = True,
    seed: int = 0,
    batch_size: int = 256,
    decode_threads: int | None = None,
    decode_on: str = 'cpu',
    embeddings: str | None = None,
    engine: str = 'auto',
    ray_address: str | None = None,
    workers: int | None = None,
    gpus_per_worker: float | None = None,
    cpus_per_worker: float | None = None,
    overwrite: bool = False,
) -> Result:
    """Score every pair of webdataset shards into a Parquet table."""
    return call("score", locals())


def neighbours(
    embeddings: str,
    out: str,
    *,
    image_threshold: float | None = None,
    text_threshold: float | None = None,
    whiten: bool | None = None,
    linkage: str = 'representative',
    k: int = 30,
    index: str = 'auto',
    recall: float = 0.95,
    seed: int = 0,
    overwrite: bool = False,
) -> Result:
    """Find near-duplicates and false negatives over the whole corpus."""
    return call("neighbours", locals())


def adapt(
    scores: str | Sequence[str],
    shards: str | Sequence[str],
    out: str,
    *,
    model: str = 'ViT-B-32',
    pretrained: str | None = 'laion2b_s34b_b79k',
    precision: str = 'auto',
    device: str = 'auto',
    threshold: float = 0.9,
    steps: int = 50,
    batch_size: int = 256,
    learning_rate: float = 1e-05,
    warmup: float = 0.1,
    decode_threads: int | None = None,
    seed: int = 0,
) -> Result:
    """Warm an estimator up on the strictly clean pairs of a corpus (OSA's domain adaptation)."""
    return call("adapt", locals())


def select(
    scores: str | Sequence[str],
    out: str,
    *,
    where: str | None = None,
    method: str | None = None,
    score: str | None = None,
    keep_fraction: float | None = None,
    threshold: float | None = None,
    weights: str | None = None,
    lowest: bool = False,
    dedup_by: str | None = None,
    with_forget: bool = False,
    dedup: str | None = None,
    memory_limit: str | None = None,
) -> Result:
    """Decide which pairs to keep, and with what weight."""
    return call("select", locals())


def export(
    selection: str,
    out: str,
    *,
    shards: str | Sequence[str] = (),
    samples_per_shard: int = 10000,
    scores: str | Sequence[str] = (),
    columns: str | Sequence[str] = ('similarity', 'noise_probability', 'osa_weight', 'neg_clip_loss'),
    repeat: bool = False,
    workers: int | None = None,
    overwrite: bool = False,
) -> Result:
    """Write the selected samples as shards, copied byte for byte, or DataComp's uid file."""
    return call("export", locals())


def finetune(
    method: str,
    shards: str | Sequence[str],
    out: str,
    *,
    selection: str | None = None,
    model: str = 'ViT-B-32',
    pretrained: str | None = 'laion2b_s34b_b79k',
    precision: str = 'auto',
    device: str = 'auto',
    learning_rate: float | None = None,
    epochs: int | None = None,
    warmup: float = 0.1,
    normalize_weights: bool = False,
    prompt_epochs: int = 2,
    forget_percent: float = 10.0,
    split: Literal['model', 'table'] = 'model',
    negative: Literal['prompt', 'prefixes'] = 'prompt',
    prompt_length: int = 8,
    alpha: float = -0.7,
    beta: float = -0.2,
    relation: Literal['cross', 'intra', 'distance'] = 'cross',
    negative_weight: float = 10.0,
    gamma: float = 0.7,
    epsilon: float = 0.03,
    max_iterations: int = 100,
    tolerance: float = 0.0001,
    last_column: Literal['uniform', 'forget_share'] = 'uniform',
    unlearn: Literal['both', 'false_negatives', 'false_positives'] = 'both',
    bayes_mode: Literal['paper', 'strict', 'proper_prior'] = 'paper',
    a_pos: float = 5.0,
    a_neg: float = 10.0,
    b_pos: float | None = None,
    b_neg: float | None = None,
    a_u: float = 1.0,
    b_u: float = 0.0,
    sweeps: int = 2,
    moving_average: float | None = None,
    hidden_dim: int = 256,
    dim: int = 512,
    disncl_gamma: float = 0.5,
    beta1: float = 0.1,
    beta2: float = 0.1,
    beta3: float = 0.5,
    disncl_alpha: float = 0.2,
    m: float = 10.0,
    temperature: float = 0.05,
    reverse: bool = False,
    mask_noisy: bool = False,
    bounded_adversary: bool = False,
    disentangle: bool = True,
    soften: bool = True,
    regularize: bool = True,
    alignment_epochs: int = 5,
    warmup_negatives: Literal['all', 'hardest'] = 'all',
    freeze_towers: bool = False,
    tower_rate: float = 0.05,
    discriminator_rate: float = 10.0,
    discriminator_steps: int = 1,
    batch_size: int = 256,
    engine: str = 'auto',
    ray_address: str | None = None,
    workers: int | None = None,
    gpus_per_worker: float | None = None,
    cpus_per_worker: float | None = None,
    seed: int = 0,
    chunk: int = 8192,
    shuffle: bool = True,
    augment: bool = True,
    drop_last: bool = True,
    decode_threads: int | None = None,
    caption_key: str | None = None,
    parts: int = 1,
    clip_norm: float = 1.0,
    weight_decay: float = 0.2,
    betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-08,
    ema: float | None = None,
    gradient_checkpointing: bool = False,
    compile: bool = False,
    log_steps: int = 10,
    save_steps: int | None = None,
    save_minutes: float = 10.0,
    keep: int = 2,
    tensorboard: bool = True,
    overwrite: bool = False,
    resume: bool = False,
) -> Result:
    """Train a CLIP model on selected pairs, straight from the original shards."""
    return call("finetune", locals())


def evaluate_noise(
    scores: str | Sequence[str],
    *,
    out: str | None = None,
    column: str | Sequence[str] = (),
    lower_is_noisier: str | Sequence[str] = (),
    join: str | Sequence[str] = (),
    threshold: Mapping[str, float] | Sequence[str] = {},
    rule: str | Sequence[str] = (),
    plot: str | None = None,
    memory_limit: str | None = None,
) -> Result:
    """Compare scores and rules with the truth: what was found of each kind of noise."""
    return call("evaluate noise", locals())


def evaluate_zeroshot(
    model: str | Sequence[str],
    data: str | Sequence[str],
    *,
    space: str = 'auto',
    out: str | None = None,
    pretrained: str | Sequence[str] = (),
    batch_size: int = 256,
    precision: str = 'auto',
    device: str = 'auto',
    decode_threads: int | None = None,
) -> Result:
    """Classify images by the prompts of each class: accuracy and mean recall per class."""
    return call("evaluate zeroshot", locals())


def evaluate_retrieval(
    model: str | Sequence[str],
    data: str | Sequence[str],
    *,
    space: str = 'auto',
    out: str | None = None,
    pretrained: str | Sequence[str] = (),
    batch_size: int = 256,
    precision: str = 'auto',
    device: str = 'auto',
    decode_threads: int | None = None,
) -> Result:
    """Retrieve captions by images and images by captions: recall at 1, 5 and 10."""
    return call("evaluate retrieval", locals())


def evaluate_linear_probe(
    model: str | Sequence[str],
    data: str | Sequence[str],
    *,
    space: str = 'auto',
    out: str | None = None,
    pretrained: str | Sequence[str] = (),
    batch_size: int = 256,
    precision: str = 'auto',
    device: str = 'auto',
    decode_threads: int | None = None,
    solver: str = 'lbfgs',
    epochs: int = 60,
    learning_rate: float = 0.0003,
    seed: int = 0,
) -> Result:
    """Train a linear classifier on frozen image embeddings and measure it on the test images."""
    return call("evaluate linear-probe", locals())


def evaluate_similarity(
    model: str | Sequence[str],
    data: str | Sequence[str],
    *,
    space: str = 'auto',
    out: str | None = None,
    pretrained: str | Sequence[str] = (),
    batch_size: int = 256,
    precision: str = 'auto',
    device: str = 'auto',
    decode_threads: int | None = None,
    against: str | None = None,
    plot: str | None = None,
) -> Result:
    """Show how far matched pairs stand above mismatched ones, before and after."""
    return call("evaluate similarity", locals())


def evaluate_compare(
    a: str,
    b: str,
    *,
    out: str | None = None,
    draws: int = 2000,
    seed: int = 0,
) -> Result:
    """Compare two models on the same data: each metric's difference with its 95 % interval."""
    return call("evaluate compare", locals())


def write_report(
    scores: str | Sequence[str],
    out: str,
    *,
    shards: str | Sequence[str] = (),
    title: str | None = None,
    pairs: int = 24,
    figures: str | None = None,
    memory_limit: str | None = None,
) -> Result:
    """Show what a score table says about a corpus, in one HTML file."""
    return call("report", locals())
