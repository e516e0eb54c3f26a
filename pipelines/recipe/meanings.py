"""What the options mean that a recipe has and the command line has not.

All others are explained by `ncclean COMMAND --help`; a test wants a meaning for each.
"""

from __future__ import annotations

_OUT_JSON = "JSON file of the result (default: in the stage's folder)."

MEANINGS: dict[tuple[str, str], str] = {
    ("adapt", "decode_threads"): "Threads that decode (default: one per core).",
    ("adapt", "warmup"): "Share of the steps over which the learning rate rises.",
    ("evaluate noise", "out"): _OUT_JSON,
    ("evaluate compare", "out"): _OUT_JSON,
    ("evaluate similarity", "out"): "Folder of the result (default: the stage's).",
    **{
        ("finetune", name): meaning
        for name, meaning in {
            "warmup": "Share of a phase's steps over which the learning rate rises.",
            "negative": "ncu: `prompt` that is learnt, or textual `prefixes` (ablation V1).",
            "prompt_length": "ncu: learnable vectors of the prompt.",
            "alpha": "ncu: lower bound of the cosine of a caption and its opposite.",
            "beta": "ncu: upper bound of that cosine.",
            "relation": "ncu: `cross`, `intra` (the authors' code) or `distance` (ablation V2).",
            "negative_weight": "ncu: lambda, the weight of the separation and the relation.",
            "gamma": "ncu: share of the transport plan in the targets.",
            "epsilon": "ncu: entropy of the transport plan.",
            "max_iterations": "ncu: Sinkhorn iterations.",
            "tolerance": "ncu: where the Sinkhorn iterations may stop.",
            "last_column": "ncu: mass of the opposite captions, `uniform` or `forget_share`.",
            "unlearn": "ncu: `both`, or `false_negatives` or `false_positives` (V3, V4).",
            "a_pos": "bayes: shape of the positive weights' prior.",
            "soften": "disncl: with or without L_soft.",
            "regularize": "disncl: with or without L_reg.",
            "discriminator_rate": "disncl: rate of the discriminators, in units of the heads'.",
            "discriminator_steps": "disncl: steps of the discriminators for each of the heads.",
            "a_neg": "bayes: shape of the negative weights' prior.",
            "b_pos": "bayes: rate of the positive weights' prior (default: by the mode).",
            "b_neg": "bayes: rate of the negative weights' prior (default: by the mode).",
            "a_u": "bayes: shape of the prior of u.",
            "b_u": "bayes: rate of the prior of u.",
            "sweeps": "bayes: Gibbs sweeps of a step.",
            "hidden_dim": "disncl: width of the heads and discriminators.",
            "dim": "disncl: dimensions of the shared and of the exclusive space.",
            "disncl_gamma": "disncl: weight of the shared against the exclusive information.",
            "beta1": "disncl: weight of the divergence of the shared spaces.",
            "beta2": "disncl: weight of what is exclusive but predicts the other modality.",
            "beta3": "disncl: share of the label in the soft targets.",
            "disncl_alpha": "disncl: the largest margin.",
            "m": "disncl: how steeply the margin follows the similarity.",
            "temperature": "disncl: of the soft targets.",
            "reverse": "disncl: the variant `reverse` of `--disncl-variant`.",
            "mask_noisy": "disncl: the variant `mask-noisy` of `--disncl-variant`.",
            "bounded_adversary": "disncl: the variant `bounded-adversary` of `--disncl-variant`.",
            "warmup_negatives": "disncl: negatives of the first phase, `all` or the `hardest`.",
            "tower_rate": "disncl: the towers' learning rate as a share of the heads'.",
            "chunk": "Encoded samples that are shuffled together.",
            "shuffle": "Another order in each epoch.",
            "drop_last": "Leave a batch out that is not full.",
            "caption_key": "Extension or json field of the caption.",
            "clip_norm": "Largest norm of the gradient.",
            "betas": "Of AdamW.",
            "eps": "Of AdamW.",
            "log_steps": "Write losses every so many steps.",
            "keep": "Checkpoints that are kept.",
            "tensorboard": "Write TensorBoard files.",
        }.items()
    },
}
