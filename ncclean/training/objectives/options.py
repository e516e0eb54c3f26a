"""The options of the objectives.

Each is stated once, here, for the command line, recipes, Python and the reference. Imports nothing
heavy: `--help` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, get_args

from ncclean.base.options import Option, Options
from ncclean.errors import InputError

Method = Literal[
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
    "siglip",
]
METHODS: tuple[str, ...] = get_args(Method)

# paper: weights drawn from s = e^cos, as the paper defines s; the loss is on the scaled logits.
# strict: the scaled logits in both, the degenerate control. proper_prior: as paper, but with prior
# rates equal to the shapes (mean 1, as in the paper's Fig. 3), so nothing cancels.
BayesMode = Literal["paper", "strict", "proper_prior"]
LastColumn = Literal["uniform", "forget_share"]
# published: the paper. released: its authors' code.
Variant = Literal["published", "released"]
Unlearn = Literal["both", "false_negatives", "false_positives"]


@dataclass(frozen=True, kw_only=True)
class NcuOptions(Options):
    """NCU's options; the defaults are those for CC3M (supplement, Table 3).

    `split` says which decides what is forgotten: the training model, or the score table.
    `negative`, `relation="distance"` and `unlearn` are the ablations of Table 5 (V1, V2, V3 and
    V4); `relation="intra"` is the authors' code, `last_column="forget_share"` ours. Raises
    `InputError` for a value out of range.
    """

    methods: ClassVar[tuple[str, ...]] = ("ncu",)

    variant: Annotated[
        Variant,
        Option(
            "follow the paper (`published`) or its authors' code (`released`).",
            methods=("ncu", "osa"),
        ),
    ] = "published"
    forget_percent: Annotated[
        float,
        Option(
            "percentage of a batch to forget.", low=0, high=100, methods=("ncu", "gradient_ascent")
        ),
    ] = 10.0
    split: Annotated[
        Literal["model", "table"],
        Option(
            "choose what to forget by the `model` as it trains, or the selection's `table`.",
            name="forget_by",
            former="split",
            methods=("ncu", "gradient_ascent"),
        ),
    ] = "model"
    gamma: Annotated[
        float, Option("share of the transport plan in the targets.", low=0, high=1)
    ] = 0.7
    negative: Annotated[
        Literal["prompt", "prefixes", "none"],
        Option(
            "negative text: a learnt `prompt`, fixed `prefixes`, or `none`, to match "
            "forgotten pairs anew."
        ),
    ] = "prompt"
    relation: Annotated[
        Literal["cross", "intra", "distance"],
        Option("relation of negatives: `cross`, `intra` or `distance`."),
    ] = "cross"
    unlearn: Annotated[
        Unlearn, Option("what is unlearnt: `both`, `false_negatives` or `false_positives`.")
    ] = "both"
    last_column: Annotated[
        LastColumn, Option("mass of the negatives in the plan: `uniform` or `forget_share`.")
    ] = "uniform"
    prompt_length: Annotated[
        int, Option("learnable vectors of the prompt.", low=1, is_listed=False)
    ] = 8
    alpha: Annotated[
        float,
        Option(
            "lower bound of a caption's cosine with its opposite.", low=-1, high=1, is_listed=False
        ),
    ] = -0.7
    beta: Annotated[
        float, Option("upper bound of that cosine.", low=-1, high=1, is_listed=False)
    ] = -0.2
    negative_weight: Annotated[
        float, Option("lambda, the weight of the separation and the relation.", is_listed=False)
    ] = 10.0
    epsilon: Annotated[
        float, Option("entropy of the transport plan.", above=0, is_listed=False)
    ] = 0.03
    max_iterations: Annotated[int, Option("Sinkhorn iterations.", low=1, is_listed=False)] = 100
    tolerance: Annotated[float, Option("tolerance at which Sinkhorn stops.", is_listed=False)] = (
        1e-4
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha > self.beta:
            raise InputError("--alpha and --beta must be cosines, with --alpha at most --beta")
        ablations = (self.negative, self.relation, self.unlearn, self.last_column)
        if self.variant == "released" and ablations != ("prompt", "cross", "both", "uniform"):
            raise InputError(
                "--variant released does what the authors' code does: of ncu's options it takes "
                "only --forget-percent, --forget-by and --gamma"
            )
        if self.negative == "none" and (self.relation, self.last_column) != ("cross", "uniform"):
            raise InputError(
                "--relation and --last-column need negative texts: leave out --negative none"
            )


@dataclass(frozen=True, kw_only=True)
class BayesOptions(Options):
    """Options of Bayesian weights: the priors, and the similarities from which weights are drawn.

    `b_pos` and `b_neg` default to 0, in mode `proper_prior` to the shapes. `moving_average` is the
    paper's alpha: the share of a pair's u kept in a new draw (None: no memory). Raises `InputError`
    for a value out of range.
    """

    methods: ClassVar[tuple[str, ...]] = ("bayes",)

    mode: Annotated[
        BayesMode,
        Option(
            "draw weights from e^cos (`paper`), the logits (`strict`), or e^cos with priors "
            "of mean 1 (`proper_prior`).",
            name="bayes_mode",
        ),
    ] = "paper"
    moving_average: Annotated[
        float | None,
        Option(
            "share of a pair's u to keep at each draw (default: none; decl 0.5).",
            low=0,
            below=1,
            methods=("bayes", "decl"),
        ),
    ] = None
    a_pos: Annotated[
        float, Option("shape of the positive weights' prior.", above=0, is_listed=False)
    ] = 5.0
    a_neg: Annotated[
        float, Option("shape of the negative weights' prior.", above=0, is_listed=False)
    ] = 10.0
    b_pos: Annotated[
        float | None,
        Option(
            "rate of the positive weights' prior (default: by the mode).", low=0, is_listed=False
        ),
    ] = None
    b_neg: Annotated[
        float | None,
        Option(
            "rate of the negative weights' prior (default: by the mode).", low=0, is_listed=False
        ),
    ] = None
    a_u: Annotated[float, Option("shape of the prior of u.", above=0, is_listed=False)] = 1.0
    b_u: Annotated[float, Option("rate of the prior of u.", low=0, is_listed=False)] = 0.0
    sweeps: Annotated[int, Option("Gibbs sweeps of a step.", low=1, is_listed=False)] = 2

    @property
    def rates(self) -> tuple[float, float]:
        """Return the rates of the Gamma priors of positive and negative weights."""
        proper = self.mode == "proper_prior"
        b_pos = self.b_pos if self.b_pos is not None else self.a_pos * proper
        b_neg = self.b_neg if self.b_neg is not None else self.a_neg * proper
        return b_pos, b_neg


@dataclass(frozen=True, kw_only=True)
class DisnclOptions(Options):
    """DisNCL's options; the defaults are the paper's.

    `disentangle="reconstruction"` is the paper's entangled control (Fig. 4): both halves together
    must reproduce the features, replacing L_Dis and L_reg. `none` omits these; with `soften` and
    `regularize` off too, L_soft or L_reg alone, these are the ablations of its Table V.
    `discriminator_input="raw"` is the paper's: discriminators, decoders and compression then see
    lengths as well as directions. `reverse`, `mask_noisy` and `bounded_adversary` are the variants
    of the functions of these losses. `warmup_negatives="hardest"` is the paper's warm-up, in which
    heads on a CLIP model collapse. `freeze_towers` trains only the heads, on features computed
    once. `tower_rate` and `discriminator_rate` are learning rates in units of the heads': at the
    same rate the exclusive halves outrun their discriminators, which take `discriminator_steps`
    steps before each step of the heads. Raises `InputError` for a value out of range.
    """

    methods: ClassVar[tuple[str, ...]] = ("disncl",)

    freeze_towers: Annotated[bool, Option("train the heads alone, on features computed once.")] = (
        False
    )
    warmup_epochs: Annotated[
        int, Option("passes of the first phase, which only aligns.", name="alignment_epochs", low=0)
    ] = 5
    disentangle: Annotated[
        Literal["information", "reconstruction", "none"],
        Option(
            "separate halves by `information` (L_Dis and L_reg), `reconstruction` (the "
            "paper's control) or `none`."
        ),
    ] = "information"
    hidden_dim: Annotated[
        int, Option("width of the heads and discriminators.", low=1, is_listed=False)
    ] = 256
    dim: Annotated[
        int, Option("dimensions of the shared and of the exclusive space.", low=1, is_listed=False)
    ] = 512
    gamma: Annotated[
        float,
        Option(
            "weight of the shared against the exclusive information.",
            name="disncl_gamma",
            low=0,
            high=1,
            is_listed=False,
        ),
    ] = 0.5
    beta1: Annotated[
        float, Option("weight of the divergence of the shared spaces.", low=0, is_listed=False)
    ] = 0.1
    beta2: Annotated[
        float,
        Option(
            "weight of exclusive information that predicts the other modality.",
            low=0,
            is_listed=False,
        ),
    ] = 0.1
    beta3: Annotated[
        float, Option("share of the label in the soft targets.", low=0, high=1, is_listed=False)
    ] = 0.5
    alpha: Annotated[
        float, Option("the largest margin.", name="disncl_alpha", low=0, is_listed=False)
    ] = 0.2
    m: Annotated[
        float, Option("how steeply the margin follows the similarity.", above=1, is_listed=False)
    ] = 10.0
    temperature: Annotated[
        float, Option("temperature of the soft targets.", above=0, is_listed=False)
    ] = 0.05
    reverse: bool = False  # these three: `--disncl-variant`
    mask_noisy: bool = False
    bounded_adversary: bool = False
    soften: Annotated[bool, Option("use L_soft.", is_listed=False)] = True
    regularize: Annotated[bool, Option("use L_reg.", is_listed=False)] = True
    warmup_negatives: Annotated[
        Literal["all", "hardest"],
        Option("negatives of the first phase, `all` or the `hardest`.", is_listed=False),
    ] = "all"
    discriminator_input: Annotated[
        Literal["directions", "raw"],
        Option(
            "what the discriminators see: `directions`, or `raw` features (the paper's).",
            is_listed=False,
        ),
    ] = "directions"
    tower_rate: Annotated[
        float,
        Option("the towers' learning rate as a share of the heads'.", above=0, is_listed=False),
    ] = 0.05
    discriminator_rate: Annotated[
        float,
        Option("rate of the discriminators, in units of the heads'.", above=0, is_listed=False),
    ] = 10.0
    discriminator_steps: Annotated[
        int, Option("steps of the discriminators for each of the heads.", low=1, is_listed=False)
    ] = 1


@dataclass(frozen=True, kw_only=True)
class ObjectiveOptions(Options):
    """The options of all objectives; each reads its own.

    `learning_rate` and `epochs` default to the method's own. `ncu` also has the split of gradient
    ascent, `prompt_epochs` are those of NCU's phase HN, and DeCL also uses `bayes.moving_average`.
    """

    epochs: Annotated[
        int | None,
        Option("Passes over the pairs (default: 5; phase two of ncu 8, of disncl 10).", low=1),
    ] = None
    learning_rate: Annotated[
        float | None,
        Option("Peak learning rate (default: 1e-5; ncu 5e-5; disncl's heads 2e-4).", above=0),
    ] = None
    warmup: Annotated[
        float,
        Option("Share of a phase's steps over which the learning rate rises.", is_listed=False),
    ] = 0.1
    normalize_weights: Annotated[
        bool, Option("scale the weights to mean 1 in a batch.", methods=("osa",))
    ] = False
    prompt_epochs: Annotated[
        int, Option("passes of the first phase, which learns the prompt.", low=0, methods=("ncu",))
    ] = 2
    softclip_temperature: Annotated[
        float,
        Option(
            "temperature of the similarities that soften the targets.",
            above=0,
            methods=("softclip",),
        ),
    ] = 0.07
    rince_scale: Annotated[
        Literal["frozen", "trained"],
        Option("the logit scale, which the loss raises without end.", methods=("rince",)),
    ] = "frozen"
    siglip_weights: Annotated[
        Literal["selection", "bayes"],
        Option(
            "weights of the loss: of pairs, by the `selection`, or of all N^2 terms, drawn as in "
            "`bayes`.",
            methods=("siglip",),
        ),
    ] = "selection"
    ncu: NcuOptions = field(default_factory=NcuOptions)
    bayes: BayesOptions = field(default_factory=BayesOptions)
    disncl: DisnclOptions = field(default_factory=DisnclOptions)
