# Made by docs/generate.py; edit that instead.
# The commands as functions, for editors and type checkers; see ncclean_pipelines.functions.
# ruff: noqa
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from ncclean_pipelines.command import Result as Result
from ncclean_pipelines.progress import Progress, Report

_Progress = Progress | Callable[[Report], object] | None

__version__: str
__all__: list[str]

def evaluate(task: str, *inputs: Any, **options: Any) -> Result[Any]: ...
def clean(
    source: str | Sequence[str],
    out: str,
    *,
    model: str = "ViT-B-32",
    pretrained: str | None = "laion2b_s34b_b79k",
    caption_key: str | None = None,
    threshold: float = 0.5,
    where: str | None = None,
    samples_per_shard: int = 10000,
    precision: str = "auto",
    device: str = "auto",
    engine: Literal["auto", "local", "ray"] = "auto",
    ray_address: str | None = None,
    progress: _Progress = None,
) -> Result[Any]:
    """Score a corpus, report on it, and write the shards without the mismatched pairs."""

def run(
    recipe: str | None = None,
    out: str | None = None,
    *,
    set: str | Sequence[str] = ...,
    start_from: str | None = None,
    dry_run: bool = False,
    list_recipes: bool = False,
    progress: _Progress = None,
) -> Result[Any]:
    """Run the stages of a recipe, from raw shards to a repaired model."""

def score(
    shards: str | Sequence[str],
    out: str,
    *,
    model: str = "ViT-B-32",
    pretrained: str | None = "laion2b_s34b_b79k",
    caption_key: str | None = None,
    batch_size: int = 256,
    block_size: int = 2048,
    forget_percent: float = 10.0,
    decode_threads: int = ...,
    decode_on: Literal["cpu", "device"] = "cpu",
    embeddings: str | None = None,
    text: bool = True,
    seed: int = 0,
    shift: str | float = "noise",
    precision: str = "auto",
    device: str = "auto",
    compile: bool = False,
    engine: Literal["auto", "local", "ray"] = "auto",
    ray_address: str | None = None,
    workers: int | None = None,
    gpus_per_worker: float | None = None,
    cpus_per_worker: float | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    finalize_only: bool = False,
    progress: _Progress = None,
) -> Result[Any]:
    """Score every pair of webdataset shards into a Parquet table."""

def query(
    sql: str,
    scores: str | Sequence[str],
    *,
    csv: bool = False,
    max_rows: int = 100,
    progress: _Progress = None,
) -> Result[Any]:
    """Ask DuckDB about score tables."""

def select(
    scores: str | Sequence[str],
    out: str,
    *,
    where: str | None = None,
    method: Literal["osa", "ncu", "disncl", "noise-probability"] | None = None,
    score: str | None = None,
    keep_fraction: float | None = None,
    threshold: float | None = None,
    lowest: bool = False,
    weights: str | None = None,
    dedup_by: Literal["image", "text", "both"] | None = None,
    with_forget: bool = False,
    dedup: str | None = None,
    memory_limit: str | None = None,
    progress: _Progress = None,
) -> Result[Any]:
    """Decide which pairs to keep, and with what weight."""

def export(
    selection: str,
    out: str,
    *,
    shards: str | Sequence[str] = ...,
    samples_per_shard: int = 10000,
    scores: str | Sequence[str] = ...,
    columns: str | Sequence[str] = ...,
    repeat: bool = False,
    workers: int | None = None,
    overwrite: bool = False,
    progress: _Progress = None,
) -> Result[Any]:
    """Write the selected samples as shards, copied byte for byte, or DataComp's uid file."""

def neighbours(
    embeddings: str,
    out: str,
    *,
    image_threshold: float | None = None,
    text_threshold: float | None = None,
    whiten: bool | None = None,
    linkage: Literal["representative", "components"] = "representative",
    k: int = 30,
    index: Literal["auto", "flat", "ivf", "hnsw"] = "auto",
    recall: float = 0.95,
    seed: int = 0,
    overwrite: bool = False,
    progress: _Progress = None,
) -> Result[Any]:
    """Find near-duplicates and false negatives over the whole corpus."""

def adapt(
    scores: str | Sequence[str],
    shards: str | Sequence[str],
    out: str,
    *,
    model: str = "ViT-B-32",
    pretrained: str | None = "laion2b_s34b_b79k",
    threshold: float = 0.9,
    steps: int = 50,
    batch_size: int = 256,
    learning_rate: float = 1e-05,
    warmup: float = 0.1,
    decode_threads: int = ...,
    seed: int = 0,
    precision: str = "auto",
    device: str = "auto",
    overwrite: bool = False,
    progress: _Progress = None,
) -> Result[Any]:
    """Warm an estimator up on the strictly clean pairs of a corpus (OSA's domain adaptation)."""

def finetune(
    method: Literal[
        "clip",
        "osa",
        "ncu",
        "bayes",
        "disncl",
        "gradient_ascent",
        "softclip",
        "cyclip",
        "rince",
        "decl",
    ],
    shards: str | Sequence[str],
    out: str,
    *,
    selection: str | None = None,
    model: str = "ViT-B-32",
    pretrained: str | None = "laion2b_s34b_b79k",
    batch_size: int = 256,
    epochs: int | None = None,
    learning_rate: float | None = None,
    warmup: float = 0.1,
    normalize_weights: bool = False,
    prompt_epochs: int = 2,
    forget_percent: float = 10.0,
    split: Literal["model", "table"] = "model",
    gamma: float = 0.7,
    negative: Literal["prompt", "prefixes"] = "prompt",
    relation: Literal["cross", "intra", "distance"] = "cross",
    unlearn: Literal["both", "false_negatives", "false_positives"] = "both",
    last_column: Literal["uniform", "forget_share"] = "uniform",
    prompt_length: int = 8,
    alpha: float = -0.7,
    beta: float = -0.2,
    negative_weight: float = 10.0,
    epsilon: float = 0.03,
    max_iterations: int = 100,
    tolerance: float = 0.0001,
    bayes_mode: Literal["paper", "strict", "proper_prior"] = "paper",
    moving_average: float | None = None,
    a_pos: float = 5.0,
    a_neg: float = 10.0,
    b_pos: float | None = None,
    b_neg: float | None = None,
    a_u: float = 1.0,
    b_u: float = 0.0,
    sweeps: int = 2,
    freeze_towers: bool = False,
    alignment_epochs: int = 5,
    disentangle: bool = True,
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
    soften: bool = True,
    regularize: bool = True,
    warmup_negatives: Literal["all", "hardest"] = "all",
    tower_rate: float = 0.05,
    discriminator_rate: float = 10.0,
    discriminator_steps: int = 1,
    disncl_variant: Literal["reverse", "mask-noisy", "bounded-adversary"]
    | Sequence[Literal["reverse", "mask-noisy", "bounded-adversary"]] = ...,
    parts: int = 1,
    weight_decay: float = 0.2,
    ema: float | None = None,
    gradient_checkpointing: bool = False,
    compile: bool = False,
    save_steps: int | None = None,
    save_minutes: float = 10.0,
    clip_norm: float = 1.0,
    betas: tuple[float, float] = ...,
    eps: float = 1e-08,
    log_steps: int = 10,
    keep: int = 2,
    tensorboard: bool = True,
    augment: bool = True,
    decode_threads: int = ...,
    caption_key: str | None = None,
    chunk: int = 8192,
    shuffle: bool = True,
    drop_last: bool = True,
    precision: str = "auto",
    device: str = "auto",
    engine: Literal["auto", "local", "ray"] = "auto",
    ray_address: str | None = None,
    workers: int | None = None,
    gpus_per_worker: float | None = None,
    cpus_per_worker: float | None = None,
    resume: bool = False,
    overwrite: bool = False,
    seed: int = 0,
    progress: _Progress = None,
) -> Result[Any]:
    """Train a CLIP model on selected pairs, straight from the original shards."""

def write_report(
    scores: str | Sequence[str],
    out: str,
    *,
    shards: str | Sequence[str] = ...,
    title: str | None = None,
    pairs: int = 24,
    figures: str | None = None,
    memory_limit: str | None = None,
    progress: _Progress = None,
) -> Result[Any]:
    """Show what a score table says about a corpus, in one HTML file."""

def synth(
    out: str,
    *,
    pairs: int = 20000,
    broken: float = 0.0,
    duplicates: float = 0.01,
    shard_size: int = 1000,
    noise: float = 0.2,
    kind: Literal["ncr", "decl", "per_batch"] = "ncr",
    hard: float = 0.0,
    junk: float = 0.0,
    held_out: int = 500,
    workers: int | None = None,
    seed: int = 0,
    overwrite: bool = False,
    progress: _Progress = None,
) -> Result[Any]:
    """Render a corpus with known noise, and held-out sets to evaluate on."""

def inject_noise(
    shards: str | Sequence[str],
    out: str,
    *,
    kind: str | Sequence[str] = ...,
    rate: float | Sequence[float] = ...,
    noise: Mapping[str, float] | str | Sequence[str] = ...,
    batch_size: int = 128,
    caption_key: str | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    seed: int = 0,
    progress: _Progress = None,
) -> Result[Any]:
    """Write shards with known noise, to measure how well it is found."""

def evaluate_noise(
    scores: str | Sequence[str],
    out: str | None = None,
    *,
    column: str | Sequence[str] = ...,
    lower_is_noisier: str | Sequence[str] = ...,
    join: str | Sequence[str] = ...,
    threshold: Mapping[str, float] | str | Sequence[str] = ...,
    rule: str | Sequence[str] = ...,
    plot: str | None = None,
    memory_limit: str | None = None,
    progress: _Progress = None,
) -> Result[Any]:
    """Compare scores and rules with the truth: what was found of each kind of noise."""

def evaluate_zeroshot(
    model: str | Sequence[str],
    data: str | Sequence[str],
    out: str | None = None,
    *,
    pretrained: str | Sequence[str] = ...,
    space: str = "auto",
    batch_size: int = 256,
    decode_threads: int = ...,
    precision: str = "auto",
    device: str = "auto",
    progress: _Progress = None,
) -> Result[Any]:
    """Classify images by the prompts of each class: accuracy and mean recall per class."""

def evaluate_retrieval(
    model: str | Sequence[str],
    data: str | Sequence[str],
    out: str | None = None,
    *,
    pretrained: str | Sequence[str] = ...,
    space: str = "auto",
    batch_size: int = 256,
    decode_threads: int = ...,
    precision: str = "auto",
    device: str = "auto",
    progress: _Progress = None,
) -> Result[Any]:
    """Retrieve captions by images and images by captions: recall at 1, 5 and 10."""

def evaluate_linear_probe(
    model: str | Sequence[str],
    data: str | Sequence[str],
    out: str | None = None,
    *,
    pretrained: str | Sequence[str] = ...,
    space: str = "auto",
    batch_size: int = 256,
    decode_threads: int = ...,
    precision: str = "auto",
    device: str = "auto",
    solver: Literal["lbfgs", "adamw"] = "lbfgs",
    epochs: int = 60,
    learning_rate: float = 0.0003,
    seed: int = 0,
    progress: _Progress = None,
) -> Result[Any]:
    """Train a linear classifier on frozen image embeddings and measure it on the test images."""

def evaluate_compare(
    a: str,
    b: str,
    out: str | None = None,
    *,
    draws: int = 2000,
    seed: int = 0,
    progress: _Progress = None,
) -> Result[Any]:
    """Compare two models on the same data: each metric's difference with its 95 % interval."""

def evaluate_similarity(
    model: str | Sequence[str],
    data: str | Sequence[str],
    out: str | None = None,
    *,
    pretrained: str | Sequence[str] = ...,
    space: str = "auto",
    batch_size: int = 256,
    decode_threads: int = ...,
    precision: str = "auto",
    device: str = "auto",
    against: str | None = None,
    plot: str | None = None,
    progress: _Progress = None,
) -> Result[Any]:
    """Show how far matched pairs stand above mismatched ones, before and after."""

def evaluate_disentanglement(
    run: str,
    shards: str | Sequence[str],
    *,
    pairs: int = 2000,
    plot: str | None = None,
    precision: str = "auto",
    device: str = "auto",
    seed: int = 0,
    progress: _Progress = None,
) -> Result[Any]:
    """Measure how far a disncl model keeps apart what is shared and what is not."""

def evaluate_weights(
    run: str,
    *,
    scores: str | Sequence[str] = ...,
    shards: str | Sequence[str] = ...,
    precision: str = "auto",
    device: str = "auto",
    seed: int = 0,
    progress: _Progress = None,
) -> Result[Any]:
    """Compare what the methods believe about each training pair with the truth and one another."""

def demo(
    out: str = "demo_run",
    *,
    pairs: int = 20000,
    seed: int = 0,
    progress: _Progress = None,
) -> Result[Any]:
    """Render a noisy corpus, find the noise, and repair a model that was trained on such noise."""
