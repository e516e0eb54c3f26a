"""Draw scenes: what a rendered image shows, and what a caption may say about it.

A scene is drawn from a seeded generator and every fact in it is used twice: the renderer turns it
into pixels, the caption writer into words. Facts fall into three classes, on which the evaluation
of disentanglement relies:

- shared: shapes, colours, textures, sizes, counts, relations, background;
- image only (`ImageOnly`): watermark, blur, film grain, brightness;
- text only: "stock photo", dates, prices, opinions (chosen by the caption writer).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

T = TypeVar("T")

SHAPES = (
    "circle",
    "square",
    "triangle",
    "star",
    "heart",
    "hexagon",
    "diamond",
    "ring",
    "cross",
    "crescent",
    "arrow",
    "pentagon",
)
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (214, 30, 34),
    "orange": (250, 134, 10),
    "yellow": (248, 222, 40),
    "green": (32, 150, 52),
    "blue": (28, 72, 214),
    "purple": (132, 34, 168),
    "pink": (252, 140, 190),
    "brown": (122, 70, 26),
    "black": (16, 16, 18),
    "white": (248, 248, 246),
    "gray": (134, 136, 138),
}
TEXTURES = ("plain", "striped", "dotted", "checkered")
SIZES = ("small", "medium", "large")

# Radius as a share of the shorter image side. The upper ends keep four objects apart.
_RADIUS = {"small": (0.115, 0.135), "medium": (0.165, 0.185), "large": (0.22, 0.26)}
# Confusable against one another at 64 px, so never used as figure and ground.
_CONFUSABLE = frozenset(
    frozenset(pair)
    for pair in (("white", "gray"), ("brown", "red"), ("orange", "yellow"), ("brown", "black"))
)
_LAYOUTS: dict[int, tuple[tuple[tuple[float, float], ...], ...]] = {
    1: (((0.5, 0.5),),),
    2: (((0.28, 0.5), (0.72, 0.5)), ((0.5, 0.28), (0.5, 0.72))),
    3: (
        ((0.28, 0.28), (0.72, 0.28), (0.5, 0.73)),
        ((0.28, 0.72), (0.72, 0.72), (0.5, 0.27)),
        ((0.27, 0.3), (0.27, 0.72), (0.73, 0.5)),
    ),
    4: (((0.27, 0.27), (0.73, 0.27), (0.27, 0.73), (0.73, 0.73)),),
}


@dataclass(frozen=True, slots=True)
class Group:
    """`count` identical objects of a scene; captions speak of groups, not of single objects."""

    shape: str
    colour: str
    texture: str
    size: str
    count: int


@dataclass(frozen=True, slots=True)
class Placement:
    """One object of a scene on the canvas; lengths are shares of the shorter image side."""

    group: int
    x: float
    y: float
    radius: float
    turn: int  # index of the rotation, see render.TURNS


@dataclass(frozen=True, slots=True)
class ImageOnly:
    """Properties of a rendered image that no caption mentions."""

    watermark: bool
    blur: bool
    grain: bool
    brightness: str  # "dark", "normal", "bright"


@dataclass(frozen=True, slots=True)
class Scene:
    groups: tuple[Group, ...]
    placements: tuple[Placement, ...]
    relation: str | None  # of group 0 to group 1, when both are single objects
    background: str
    ground: str  # colour name of the background
    ground2: str  # second colour, for gradients, horizons and tiles
    image_only: ImageOnly

    @property
    def objects(self) -> int:
        return len(self.placements)


def pick(rng: random.Random, items: Sequence[T]) -> T:
    """Choose uniformly from a sequence, always consuming one random draw.

    `random.choice` may consume several, depending on the length; with one draw each, changing a
    single fact of a scene leaves every later decision of the caption writer as it was.
    """
    return items[int(rng.random() * len(items))]


def generator(*key: object) -> random.Random:
    """Return a random generator seeded by `key` alone: pairs are rendered in any order."""
    return random.Random(":".join(map(str, key)))


def sample_scene(rng: random.Random) -> Scene:
    """Draw a random scene of one to four objects."""
    ground, ground2 = _sample_ground(rng)
    total = _weighted(rng, ((1, 0.2), (2, 0.36), (3, 0.26), (4, 0.18)))
    groups = _sample_groups(rng, total, ground, ground2)
    placements, relation = _place(rng, groups)
    image_only = ImageOnly(
        watermark=rng.random() < 0.15,
        blur=rng.random() < 0.12,
        grain=rng.random() < 0.2,
        brightness=_weighted(rng, (("normal", 0.7), ("dark", 0.15), ("bright", 0.15))),
    )
    background = _weighted(
        rng,
        (
            ("flat", 0.3),
            ("gradient", 0.25),
            ("speckled", 0.2),
            ("horizon", 0.125),
            ("tiled", 0.125),
        ),
    )
    return Scene(groups, placements, relation, background, ground, ground2, image_only)


def sample_probe(
    rng: random.Random,
    shape: str | None = None,
    colour: str | None = None,
    texture: str | None = None,
    count: int = 1,
) -> Scene:
    """Return a scene of `count` identical objects with the given facts, for the zero-shot sets."""
    scene = sample_scene(rng)
    ground, ground2 = scene.ground, scene.ground2
    colour = colour or _figure_colour(rng, {ground, ground2})
    if not _contrasts(colour, {ground, ground2}):
        ground = ground2 = _figure_colour(rng, {colour})
    group = Group(
        shape=shape or pick(rng, SHAPES),
        colour=colour,
        texture=texture or pick(rng, TEXTURES),
        size=pick(rng, SIZES[1:] if count == 1 else SIZES[:2]),
        count=count,
    )
    placements, relation = _place(rng, (group,))
    return replace(
        scene,
        groups=(group,),
        placements=placements,
        relation=relation,
        ground=ground,
        ground2=ground2,
    )


def alter_one_fact(scene: Scene, rng: random.Random) -> Scene:
    """Copy a scene with one fact changed to one that the image does not show.

    Only the words change (a caption is written from the result, the image from the original):
    this is the `hard` noise kind.
    """
    index = int(rng.random() * len(scene.groups))
    group = scene.groups[index]
    shown_shapes = {g.shape for g in scene.groups}
    shown_colours = {g.colour for g in scene.groups} | {scene.ground, scene.ground2}
    options: list[Scene] = [
        _with_group(scene, index, replace(group, shape=_other(rng, SHAPES, shown_shapes))),
        _with_group(scene, index, replace(group, colour=_other(rng, COLOURS, shown_colours))),
    ]
    if group.texture != "plain":
        other = _other(rng, TEXTURES[1:], {group.texture})
        options.append(_with_group(scene, index, replace(group, texture=other)))
    if group.count > 1:
        other_count = _other(rng, (2, 3, 4), {group.count})
        options.append(_with_group(scene, index, replace(group, count=other_count)))
    if scene.relation is not None and scene.relation != "in front of":
        opposite = {
            "left of": "right of",
            "right of": "left of",
            "above": "below",
            "below": "above",
        }
        options.append(replace(scene, relation=opposite[scene.relation]))
    return pick(rng, options)


def _with_group(scene: Scene, index: int, group: Group) -> Scene:
    groups = (*scene.groups[:index], group, *scene.groups[index + 1 :])
    return replace(scene, groups=groups)


def _other(rng: random.Random, items: Iterable[T], taken: set[T]) -> T:
    return pick(rng, [item for item in items if item not in taken])


def _weighted(rng: random.Random, table: Sequence[tuple[T, float]]) -> T:
    draw = rng.random()
    for value, weight in table:
        draw -= weight
        if draw < 0:
            return value
    return table[-1][0]


def _contrasts(colour: str, grounds: set[str]) -> bool:
    return all(
        colour != ground and frozenset((colour, ground)) not in _CONFUSABLE for ground in grounds
    )


def _figure_colour(rng: random.Random, grounds: set[str]) -> str:
    return pick(rng, [colour for colour in COLOURS if _contrasts(colour, grounds)])


def _sample_ground(rng: random.Random) -> tuple[str, str]:
    ground = pick(rng, ("white", "gray", "black", *COLOURS))
    return ground, pick(rng, tuple(COLOURS))


def _sample_groups(rng: random.Random, total: int, ground: str, ground2: str) -> tuple[Group, ...]:
    grounds = {ground, ground2}
    alike = total > 1 and rng.random() < 0.4
    counts = [total] if alike else [1] * total
    if alike and total > 2 and rng.random() < 0.5:  # a group and one more object
        counts = [total - 1, 1]
    biggest = SIZES if total <= 2 else SIZES[:2]
    groups: list[Group] = []
    taken: set[tuple[str, str]] = set()
    for count in counts:
        while True:
            shape, colour = pick(rng, SHAPES), _figure_colour(rng, grounds)
            if (shape, colour) not in taken:
                break
        taken.add((shape, colour))
        texture = "plain" if rng.random() < 0.5 else pick(rng, TEXTURES[1:])
        groups.append(Group(shape, colour, texture, pick(rng, biggest), count))
    return tuple(groups)


def _place(
    rng: random.Random, groups: tuple[Group, ...]
) -> tuple[tuple[Placement, ...], str | None]:
    owners = [index for index, group in enumerate(groups) for _ in range(group.count)]
    cells = list(pick(rng, _LAYOUTS[len(owners)]))
    start = int(rng.random() * len(cells))
    cells = cells[start:] + cells[:start]
    occluded = len(owners) == 2 and len(groups) == 2 and rng.random() < 0.15
    jitter = 0.16 if len(owners) == 1 else 0.045
    placed: list[Placement] = []
    for owner, (cx, cy) in zip(owners, cells, strict=True):
        low, high = _RADIUS[groups[owner].size]
        radius = low + (high - low) * rng.random()
        x = cx + (2 * rng.random() - 1) * jitter
        y = cy + (2 * rng.random() - 1) * jitter
        placed.append(Placement(owner, x, y, radius, int(rng.random() * 3)))
    angle = rng.random() * 2 * math.pi
    if occluded:
        # Group 0 is drawn last and covers part of group 1.
        back = placed[1]
        offset = 0.8 * (back.radius + placed[0].radius)
        front = replace(
            placed[0],
            x=min(0.82, max(0.18, back.x + offset * math.cos(angle))),
            y=min(0.82, max(0.18, back.y + offset * math.sin(angle))),
        )
        return (back, front), "in front of"
    relation = None
    if len(groups) == 2 and all(group.count == 1 for group in groups):
        dx, dy = placed[0].x - placed[1].x, placed[0].y - placed[1].y
        if abs(dx) > abs(dy):
            relation = "left of" if dx < 0 else "right of"
        else:
            relation = "above" if dy < 0 else "below"
    return tuple(placed), relation
