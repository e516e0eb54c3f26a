"""Describe a scene in words, with synonyms, omitted details and text-only facts."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ncclean.data.synthetic.scene import Group, Scene, pick

_COLOUR_WORDS = {
    "red": ("red", "red", "crimson", "scarlet"),
    "orange": ("orange", "orange", "tangerine"),
    "yellow": ("yellow", "yellow", "lemon-coloured"),
    "green": ("green", "green", "emerald"),
    "blue": ("blue", "blue", "cobalt"),
    "purple": ("purple", "purple", "violet"),
    "pink": ("pink", "pink", "rose"),
    "brown": ("brown", "brown", "chocolate"),
    "black": ("black", "black", "jet black"),
    "white": ("white", "white", "snow white"),
    "gray": ("gray", "grey"),
}
_SHAPE_WORDS = {
    "circle": (("circle", "circles"), ("disc", "discs")),
    "square": (("square", "squares"), ("box", "boxes")),
    "triangle": (("triangle", "triangles"),),
    "star": (("star", "stars"), ("five-pointed star", "five-pointed stars")),
    "heart": (("heart", "hearts"), ("love heart", "love hearts")),
    "hexagon": (("hexagon", "hexagons"),),
    "diamond": (("diamond", "diamonds"), ("rhombus", "rhombuses")),
    "ring": (("ring", "rings"), ("hoop", "hoops")),
    "cross": (("cross", "crosses"), ("plus sign", "plus signs")),
    "crescent": (("crescent", "crescents"), ("half moon", "half moons")),
    "arrow": (("arrow", "arrows"),),
    "pentagon": (("pentagon", "pentagons"),),
}
_TEXTURE_WORDS = {
    "plain": ("plain", "solid"),
    "striped": ("striped", "stripy"),
    "dotted": ("dotted", "spotted"),
    "checkered": ("checkered", "chequered"),
}
_SIZE_WORDS = {
    "small": ("small", "little", "tiny"),
    "medium": ("medium-sized",),
    "large": ("large", "big", "huge"),
}
_COUNT_WORDS = {1: ("a", "a", "a", "one"), 2: ("two", "2"), 3: ("three", "3"), 4: ("four", "4")}
_RELATION_WORDS = {
    "left of": ("to the left of", "left of"),
    "right of": ("to the right of", "right of"),
    "above": ("above", "over", "on top of"),
    "below": ("below", "beneath", "under"),
    "in front of": ("in front of", "partly covering", "overlapping"),
}
_GROUND_WORDS = {
    "flat": ("background", "backdrop"),
    "gradient": ("background", "gradient background", "fading background"),
    "horizon": ("background", "landscape"),
    "speckled": ("background", "speckled background", "grainy wall"),
    "tiled": ("background", "tiled wall", "tiled background"),
}
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_OPINIONS = (
    "love this one",
    "so beautiful",
    "not my favourite",
    "my kids adore it",
    "simply the best",
    "a bit boring",
    "absolutely stunning work",
    "five stars, would buy again",
)
_STOCK = (
    "stock photo",
    "royalty free image",
    "stock illustration",
    "high resolution download",
    "vector clip art",
)

# {all}: every group; {one}: the first group; {pair}: two groups and their relation, else {all};
# {ground}: the background; {t}: something only a text has. Each is written at most once.
TEMPLATES = (
    "{all}",
    "{all}",
    "{pair}",
    "{pair}",
    "{pair} on {ground}",
    "{all} on {ground}",
    "a photo of {all}",
    "an image showing {all}",
    "a picture of {pair}",
    "a drawing of {all} against {ground}",
    "there is {pair}",
    "you can see {all}",
    "{ground} with {all}",
    "close-up of {all}",
    "{all}, {t}",
    "{t}: {all}",
    "{t} - {all} on {ground}",
    "{all} | {t}",
    "poster with {pair}, {t}",
    "a scene with {all} in it, {t}",
    "card showing {pair} in front of {ground}, {t}",
    "{one} and more",
    "graphic design featuring {all}, seen on {ground}",
    "abstract art: {pair}",
    "in this picture {pair} can be seen on {ground}, {t}",
    "simple geometric picture made of {all}",
)


@dataclass(frozen=True, slots=True)
class Caption:
    """A caption of a rendered scene, and its facts that the image does not show."""

    text: str
    text_only: tuple[str, ...]  # of "stock", "date", "price", "opinion"


def write_caption(scene: Scene, rng: random.Random) -> Caption:
    """Write a caption of 3 to 40 tokens for a rendered scene."""
    template = pick(rng, TEMPLATES)
    # Omit sizes and textures sometimes; always for four things in 40 tokens.
    terse = rng.random() < 0.35 or len(scene.groups) > 3
    style = rng.random()
    # Everything is written whether the template uses it or not, so that the number of draws does
    # not depend on the template and one altered fact alters one word.
    everything = _list([_noun_phrase(group, terse, rng) for group in scene.groups])
    first = _noun_phrase(scene.groups[0], False, rng)
    pair = _relation_phrase(scene, terse, rng) or everything
    ground = _ground_phrase(scene, rng)
    remark, kind = _remark(rng)
    if "{one}" in template and len(scene.groups) == 1:
        template = "{one}"
    text = template.format(all=everything, one=first, pair=pair, ground=ground, t=remark)
    if style < 0.2:
        text = text[0].upper() + text[1:]
    elif style < 0.3:
        text = text[0].upper() + text[1:] + "."
    elif style < 0.34:
        text = text.upper()
    return Caption(text, (kind,) if "{t}" in template else ())


def write_sentences(scene: Scene, rng: random.Random, count: int) -> list[str]:
    """Write `count` sentences about a rendered scene, as a captioner would: each names objects."""
    captions = [write_caption(scene, rng).text for _ in range(count)]
    return [text[0].upper() + text[1:].rstrip(".") + "." for text in captions]


def _noun_phrase(group: Group, terse: bool, rng: random.Random) -> str:
    count = pick(rng, _COUNT_WORDS[group.count])
    size = pick(rng, _SIZE_WORDS[group.size])
    texture = pick(rng, _TEXTURE_WORDS[group.texture])
    colour = pick(rng, _COLOUR_WORDS[group.colour])
    noun = pick(rng, _SHAPE_WORDS[group.shape])[group.count > 1]
    keep_size = rng.random() < 0.5 and group.size != "medium" and not terse
    keep_texture = rng.random() < (0.8 if group.texture != "plain" else 0.1) and not terse
    words = [size] * keep_size + [texture] * keep_texture + [colour, noun]
    article = "an" if count == "a" and words[0][0] in "aeiou" else count
    return " ".join([article, *words])


def _relation_phrase(scene: Scene, terse: bool, rng: random.Random) -> str | None:
    draws = [rng.random() for _ in range(2)]
    if scene.relation is None or len(scene.groups) != 2:
        return None
    words = _RELATION_WORDS[scene.relation]
    relation = words[int(draws[0] * len(words))]
    phrases = [_noun_phrase(group, terse or draws[1] < 0.3, rng) for group in scene.groups]
    return f"{phrases[0]} {relation} {phrases[1]}"


def _ground_phrase(scene: Scene, rng: random.Random) -> str:
    colour = pick(rng, _COLOUR_WORDS[scene.ground])
    noun = pick(rng, _GROUND_WORDS[scene.background])
    article = "an" if colour[0] in "aeiou" else "a"
    return f"{article} {colour} {noun}"


def _remark(rng: random.Random) -> tuple[str, str]:
    kind = pick(rng, ("stock", "date", "price", "opinion"))
    draw, second = rng.random(), rng.random()
    if kind == "stock":
        return _STOCK[int(draw * len(_STOCK))], kind
    if kind == "date":
        return f"{_MONTHS[int(draw * 12)]} {2004 + int(second * 20)}", kind
    if kind == "price":
        return f"only ${1 + int(draw * 98)}.{'99' if second < 0.5 else '50'}", kind
    return _OPINIONS[int(draw * len(_OPINIONS))], kind


def _list(phrases: list[str]) -> str:
    if len(phrases) == 1:
        return phrases[0]
    return ", ".join(phrases[:-1]) + " and " + phrases[-1]
