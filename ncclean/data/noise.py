"""Plan noise with known truth: which pairs of a corpus change, and how.

Kinds: `ncr` permutes the captions of a share of the pairs among themselves, `decl` permutes their
images, `per_batch` permutes captions within batches (the Bayesian paper), `ncr_image` permutes all
captions of an image together, `hard` changes one word of the caption, `junk` replaces it by
boilerplate, `donor` by a caption of another corpus. `foreign_sentence` replaces a sentence by one
of another image's caption, `added_detail` adds one. A caption that a permutation leaves with its
image is clean. Images may have several captions: `decl` and `ncr_image` draw images, the other
kinds draw captions.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ncclean.errors import InputError

PERMUTING = ("ncr", "decl", "per_batch", "ncr_image")
WITH_PARTNER = ("foreign_sentence", "added_detail")  # take a sentence of another caption
KINDS = (*PERMUTING, "hard", "junk", "donor", *WITH_PARTNER)
OF_IMAGES = ("decl", "ncr_image")  # draw images, not captions
FROM_FILE = "noise_file"  # captions moved by a file, see `ncclean.data.noise_files`
CODES = ("", *KINDS, FROM_FILE)  # names by their code in a plan
PER_BATCH_SIZE = 128


@dataclass(frozen=True)
class NoisePlan:
    """A plan of injected noise: the source and noise kind of each of I images and C captions.

    `image_source` is (I,) int64. The C captions are ordered by image, `images` (C,) int64;
    `caption_source` (C,) int64 numbers each among the captions of the corpus, continuing with those
    of the donors. `code` is (C,) int8, an index into `CODES`, 0 for clean. `partner` (P,) int64 are
    the captions from which the P captions of a kind in `WITH_PARTNER` take a sentence, in order.
    `planned` counts the captions drawn for each requested kind, including those that a permutation
    left in place.
    """

    image_source: np.ndarray
    images: np.ndarray
    caption_source: np.ndarray
    code: np.ndarray
    planned: dict[str, int]
    partner: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    @functools.cached_property
    def partners(self) -> dict[int, int]:
        """Return the caption that gives a sentence, by the position of the receiving caption."""
        takes = np.isin(self.code, [CODES.index(kind) for kind in WITH_PARTNER])
        return dict(zip(np.flatnonzero(takes).tolist(), self.partner.tolist(), strict=True))

    @functools.cached_property
    def images_moved(self) -> np.ndarray:
        """Return (L,) sorted numbers of the images that change places among samples (`decl`)."""
        return np.asarray(np.unique(self.images[self.code == CODES.index("decl")]))

    @functools.cached_property
    def kind(self) -> np.ndarray:
        """Return (C,) names of the noise kinds of the captions, "" for clean."""
        return np.asarray(np.array(CODES)[self.code])

    @property
    def is_noisy(self) -> np.ndarray:
        """Return (C,) bool: whether each caption is mismatched or wrong by the plan."""
        return np.asarray(self.code != 0)


def check_rates(rates: Mapping[str, float]) -> None:
    """Raise `InputError` for an unknown kind, a rate outside [0, 1] or a sum above 1."""
    unknown = set(rates) - set(KINDS)
    if unknown:
        raise InputError(
            f"unknown kind of noise {sorted(unknown)[0]!r}; use one of {', '.join(KINDS)}"
        )
    # Written so that NaN is refused as well.
    if not all(0 <= rate <= 1 for rate in rates.values()) or not sum(rates.values()) <= 1 + 1e-9:
        raise InputError("noise rates must lie in [0, 1] and sum to at most 1")


def parse_rates(
    kinds: Sequence[str], rates: Sequence[float], pairs: Sequence[str]
) -> dict[str, float]:
    """Parse rates by kind, from kinds with a rate each and from `ncr=0.2,hard=0.05`.

    Raises `InputError` for a kind without a rate, named twice, or a rate that is not a number.
    """
    if rates and not kinds:
        raise InputError(f"--rate needs the --kind of noise: {', '.join(KINDS)}")
    if len(kinds) != len(rates):
        raise InputError(
            f"there are {len(kinds)} --kind and {len(rates)} --rate: give each kind its rate"
        )
    named = list(zip(kinds, rates, strict=True))
    for piece in ",".join(pairs).split(",") if pairs else ():
        kind, _, rate = piece.partition("=")
        try:
            named.append((kind.strip(), float(rate)))
        except ValueError:
            raise InputError(f"--noise takes kind=rate, as in ncr=0.2, got {piece!r}") from None
    rates_by_kind = dict(named)
    if len(rates_by_kind) < len(named):
        raise InputError("each kind of noise can be given only once")
    check_rates(rates_by_kind)
    return rates_by_kind


def noise_count(rate: float, pairs: int) -> int:
    """Return floor(rate N), correctly even if the decimal rate is rounded in binary."""
    return int(rate * pairs + 1e-9)


def plan_noise(
    pairs: int,
    rates: Mapping[str, float],
    seed: int,
    *,
    batch_size: int = PER_BATCH_SIZE,
    changeable: np.ndarray | None = None,
    stream: int = 0,
    donors: int = 0,
    images: np.ndarray | None = None,
) -> NoisePlan:
    """Assign disjoint sets of floor(rate N) pairs to the kinds of noise.

    A pair is a caption with its image; `images` (N,) numbers these, sorted from 0; by default each
    caption has its own. Kinds in `OF_IMAGES` draw floor(rate I) of the I images.

    `per_batch` permutes within batches of `batch_size` consecutive pairs. `hard` takes pairs where
    `changeable` (N,) is true, and fewer than floor(rate N) if there are not enough. `donor` draws
    from `donors` captions, each once before any is drawn again. Plans of another `stream` are
    independent. Needs 25 bytes a pair. Raises `InputError` as `check_rates` does, and for `donor`
    without donors.
    """
    check_rates(rates)
    if rates.get("donor") and not donors:
        raise InputError("--kind donor: --donors has no captions to take")
    rng = np.random.default_rng([seed, pairs, stream] if stream else [seed, pairs])
    # Kinds that take whole images come first, before captions could leave none whole.
    order = KINDS if images is None else sorted(KINDS, key=lambda kind: kind not in OF_IMAGES)
    own = np.arange(pairs) if images is None else images
    image_source = np.arange(int(own[-1]) + 1 if pairs else 0)
    image_of, donated = own.copy(), np.arange(pairs)
    partner: dict[int, int] = {}
    code = np.zeros(pairs, dtype=np.int8)
    planned = dict.fromkeys((kind for kind in KINDS if kind in rates), 0)
    free = rng.permutation(pairs)
    for name in order:
        if not rates.get(name):
            continue
        count = noise_count(rates[name], pairs)
        if name in OF_IMAGES:
            images_drawn = noise_count(rates[name], len(image_source))
            drawn, free = _drawn_images(own, free, images_drawn)
            chosen = np.flatnonzero(np.isin(own, drawn)) if images is not None else drawn
        elif name == "hard" and changeable is not None:
            fit = np.flatnonzero(changeable[free])[:count]
            chosen, free = np.sort(free[fit]), np.delete(free, fit)
        else:
            chosen, free = np.sort(free[:count]), free[count:]
        planned[name] = len(chosen)
        code[chosen] = CODES.index(name)
        if name == "decl":
            image_source[drawn] = rng.permutation(drawn)
        elif name == "ncr_image":
            target = image_source.copy()
            target[rng.permutation(drawn)] = drawn
            image_of[chosen] = target[own[chosen]]
        elif name == "ncr":
            image_of[rng.permutation(chosen)] = own[chosen]
        elif name == "per_batch":
            batches = np.split(chosen, np.flatnonzero(np.diff(chosen // batch_size)) + 1)
            image_of[np.concatenate([rng.permutation(b) for b in batches])] = own[chosen]
        elif name == "donor" and count:
            rounds = [rng.permutation(donors) for _ in range(-(-count // donors))]
            donated[chosen] = pairs + np.concatenate(rounds)[: len(chosen)]
        elif name in WITH_PARTNER:
            shuffled = rng.permutation(chosen)
            givers = np.roll(shuffled, 1)
            code[shuffled[own[givers] == own[shuffled]]] = 0  # its own image's
            partner |= dict(zip(shuffled.tolist(), givers.tolist(), strict=True))
    stayed = (image_of == own) & (image_source[own] == own) & (code <= len(PERMUTING))
    code[stayed] = 0
    source, images_now = placed(own, image_of)
    code = code[source]
    takes = source[np.isin(code, [CODES.index(kind) for kind in WITH_PARTNER])]
    givers = np.array([partner[number] for number in takes.tolist()], dtype=np.int64)
    return NoisePlan(image_source, images_now, donated[source], code, planned, givers)


def _drawn_images(own: np.ndarray, free: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return up to `count` sorted images whose captions are all free, and the captions left."""
    numbers, first, counts = np.unique(own[free], return_index=True, return_counts=True)
    whole = counts == np.bincount(own)[numbers]
    drawn = np.sort(numbers[whole][np.argsort(first[whole])][:count])
    return drawn, free[~np.isin(own[free], drawn)]


def placed(own: np.ndarray, image_of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the captions of each image, in its order, when caption c is with `image_of[c]`.

    `own` (C,), sorted, are the captions' original images. A caption that stays keeps its position;
    an arriving one takes a freed position, or one after the others. A caption of image -1 is
    dropped. Returns the numbers of the captions, at most (C,), and their images.
    """
    stays = image_of == own
    free, moving = np.flatnonzero(~stays), np.flatnonzero(~stays & (image_of >= 0))
    moving = moving[np.argsort(image_of[moving], kind="stable")]
    places = np.arange(len(own))
    if len(free) == len(moving) and (own[free] == image_of[moving]).all():
        source = places
        source[free] = moving
        return source, own
    targets = image_of[moving]
    rank = np.arange(len(moving)) - np.searchsorted(targets, targets)
    begin, end = np.searchsorted(own[free], targets), np.searchsorted(own[free], targets, "right")
    has_place = rank < end - begin
    places[moving] = len(own) + moving
    places[moving[has_place]] = free[(begin + rank)[has_place]]
    filled = np.flatnonzero(image_of >= 0)
    source = filled[np.lexsort((places[filled], image_of[filled]))]
    return source, image_of[source]
