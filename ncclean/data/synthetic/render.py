"""Render scenes to pixels: Pillow does the drawing, masks are supersampled once and cached."""

from __future__ import annotations

import io
import math
import random
from functools import lru_cache

from PIL import Image, ImageChops, ImageDraw, ImageFilter, ImageFont

from ncclean.data.synthetic.scene import COLOURS, Group, Placement, Scene, generator, pick

FORMATS = (("JPEG", 0.9), ("PNG", 0.05), ("WEBP", 0.05))
# width, height in pixels; the scene sits in the centred square, so a centre crop keeps it whole
CANVASES = ((96, 96), (112, 112), (128, 128), (144, 108), (108, 144), (160, 120), (160, 160))
TURNS = (-14, 0, 14)  # degrees
_SUPERSAMPLE = 4
_PATTERN_SIDE = 256


def draw_scene(
    scene: Scene, rng: random.Random, canvas: tuple[int, int] | None = None
) -> Image.Image:
    """Render `scene` as an RGB image; `rng` decides what the scene leaves open (pixel jitter)."""
    width, height = canvas or pick(rng, CANVASES)
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    image = _ground(scene, rng, width, height)
    tints = [_jittered(group.colour, rng) for group in scene.groups]
    for placement in scene.placements:
        group = scene.groups[placement.group]
        _draw_object(image, group, placement, tints[placement.group], side, left, top)
    return _image_only_effects(image, scene, rng)


def encode(image: Image.Image, rng: random.Random) -> tuple[str, bytes]:
    """Encode an image as JPEG (90 %), PNG or WebP; returns the file extension and the bytes."""
    draw, quality = rng.random(), 72 + int(rng.random() * 24)
    buffer = io.BytesIO()
    if draw < FORMATS[0][1]:
        image.save(buffer, "JPEG", quality=quality)
        return "jpg", buffer.getvalue()
    if draw < FORMATS[0][1] + FORMATS[1][1]:
        image.save(buffer, "PNG", compress_level=1)
        return "png", buffer.getvalue()
    image.save(buffer, "WEBP", quality=quality, method=0)
    return "webp", buffer.getvalue()


def _jittered(colour: str, rng: random.Random) -> tuple[int, int, int]:
    red, green, blue = COLOURS[colour]
    shift = int(rng.random() * 21) - 10
    return (
        _byte(red + shift + int(rng.random() * 9) - 4),
        _byte(green + shift + int(rng.random() * 9) - 4),
        _byte(blue + shift + int(rng.random() * 9) - 4),
    )


def _byte(value: float) -> int:
    return max(0, min(255, int(value)))


def _ground(scene: Scene, rng: random.Random, width: int, height: int) -> Image.Image:
    tint = _jittered(scene.ground, rng)
    offset = int(rng.random() * 64)
    image = Image.new("RGB", (width, height), tint)
    if scene.background == "flat":
        return image
    # The second colour only tints: the name of the ground colour stays true.
    second = tuple(
        _byte(0.6 * a + 0.4 * b) for a, b in zip(tint, COLOURS[scene.ground2], strict=True)
    )
    if scene.background == "gradient":
        image.paste(second, (0, 0), _gradient(width, height, offset % 2 == 0))
    elif scene.background == "horizon":
        image.paste(second, (0, height * (55 + offset // 4) // 100, width, height))
    elif scene.background == "speckled":
        image.paste(
            second, (0, 0), _speckle().crop((offset, offset, offset + width, offset + height))
        )
    else:
        image.paste(
            second, (0, 0), _tiles().crop((offset, offset, offset + width, offset + height))
        )
    return image


def _draw_object(
    image: Image.Image,
    group: Group,
    placement: Placement,
    tint: tuple[int, int, int],
    side: int,
    left: int,
    top: int,
) -> None:
    radius = max(4, round(placement.radius * side))
    corner = (left + round(placement.x * side) - radius, top + round(placement.y * side) - radius)
    image.paste(tint, corner, _shape_mask(group.shape, radius, placement.turn))
    if group.texture != "plain":
        # Dark colours get light marks and light colours dark ones.
        light = sum(tint) > 300
        mark = tuple(_byte(c * 0.42) if light else _byte(c + (255 - c) * 0.6) for c in tint)
        mask = _texture_mask(group.shape, group.texture, radius, placement.turn)
        image.paste(mark, corner, mask)


def _image_only_effects(image: Image.Image, scene: Scene, rng: random.Random) -> Image.Image:
    effects = scene.image_only
    offset = int(rng.random() * 64)
    strength = rng.random()
    if effects.watermark:
        mark = _watermark()
        image.paste(
            (255, 255, 255) if strength < 0.5 else (40, 40, 40),
            ((image.width - mark.width) // 2, image.height - mark.height - offset // 3 - 2),
            mark,
        )
    if effects.blur:
        image = image.filter(ImageFilter.BoxBlur(0.8 + 0.5 * strength))
    if effects.grain:
        grain = _grain().crop((offset, offset, offset + image.width, offset + image.height))
        image = Image.blend(image, grain, 0.1 + 0.1 * strength)
    if effects.brightness != "normal":
        image = image.point(_brightness_table(effects.brightness))
    return image


@lru_cache(maxsize=2)
def _brightness_table(level: str) -> list[int]:
    gain, lift = (0.72, 0) if level == "dark" else (0.85, 38)
    return [_byte(value * gain + lift) for value in range(256)] * 3


@lru_cache(maxsize=64)
def _gradient(width: int, height: int, vertical: bool) -> Image.Image:
    ramp = Image.linear_gradient("L")
    return (ramp if vertical else ramp.transpose(Image.Transpose.ROTATE_90)).resize((width, height))


@lru_cache(maxsize=1)
def _speckle() -> Image.Image:
    noise = generator("speckle").randbytes(_PATTERN_SIDE * _PATTERN_SIDE)
    image = Image.frombytes("L", (_PATTERN_SIDE, _PATTERN_SIDE), noise)
    return image.filter(ImageFilter.GaussianBlur(1.2)).point(lambda v: 110 if v > 128 else 0)


@lru_cache(maxsize=1)
def _grain() -> Image.Image:
    noise = generator("grain").randbytes(3 * _PATTERN_SIDE * _PATTERN_SIDE)
    return Image.frombytes("RGB", (_PATTERN_SIDE, _PATTERN_SIDE), noise)


@lru_cache(maxsize=1)
def _tiles() -> Image.Image:
    image = Image.new("L", (_PATTERN_SIDE, _PATTERN_SIDE), 0)
    draw = ImageDraw.Draw(image)
    for position in range(0, _PATTERN_SIDE, 24):
        draw.line((position, 0, position, _PATTERN_SIDE), fill=170, width=2)
        draw.line((0, position, _PATTERN_SIDE, position), fill=170, width=2)
    return image


@lru_cache(maxsize=1)
def _watermark() -> Image.Image:
    mark = Image.new("L", (78, 14), 0)
    ImageDraw.Draw(mark).text((2, 1), "(c) SAMPLE", fill=150, font=ImageFont.load_default(11))
    return mark


@lru_cache(maxsize=4096)
def _shape_mask(shape: str, radius: int, turn: int) -> Image.Image:
    """Return the antialiased (2r, 2r) mask of a shape, drawn large and scaled down."""
    big = 2 * radius * _SUPERSAMPLE
    mask = Image.new("L", (big, big), 0)
    _draw_shape(ImageDraw.Draw(mask), shape, big / 2)
    if shape not in ("circle", "ring"):
        mask = mask.rotate(TURNS[turn], Image.Resampling.BILINEAR)
    return mask.resize((2 * radius, 2 * radius), Image.Resampling.BOX)


@lru_cache(maxsize=8192)
def _texture_mask(shape: str, texture: str, radius: int, turn: int) -> Image.Image:
    """Return the part of a shape's mask that carries the marks of its texture."""
    big = 2 * radius * _SUPERSAMPLE
    pattern = Image.new("L", (big, big), 0)
    draw = ImageDraw.Draw(pattern)
    # Marks of at least 2 px on the canvas, else they vanish in the estimator's 64 px.
    period = max(5 * _SUPERSAMPLE, big // 5)
    if texture == "striped":
        for start in range(0, big, period):
            draw.rectangle((0, start, big, start + period // 2), fill=255)
    elif texture == "dotted":
        dot = period * 0.34
        for row, y in enumerate(range(period // 2, big + period, period)):
            for x in range((row % 2) * period // 2, big + period, period):
                draw.ellipse((x - dot, y - dot, x + dot, y + dot), fill=255)
    else:
        half = max(4 * _SUPERSAMPLE, big // 6)
        for row, y in enumerate(range(0, big, half)):
            for x in range((row % 2) * half, big, 2 * half):
                draw.rectangle((x, y, x + half, y + half), fill=255)
    pattern = pattern.rotate(TURNS[turn], Image.Resampling.BILINEAR)
    pattern = pattern.resize((2 * radius, 2 * radius), Image.Resampling.BOX)
    return ImageChops.multiply(pattern, _shape_mask(shape, radius, turn))


def _draw_shape(draw: ImageDraw.ImageDraw, shape: str, half: float) -> None:
    """Draw a white shape of circumradius 0.95 half around (half, half)."""
    r = 0.95 * half

    def box(scale: float, dx: float = 0.0, dy: float = 0.0) -> tuple[float, float, float, float]:
        return (
            half - scale * r + dx,
            half - scale * r + dy,
            half + scale * r + dx,
            half + scale * r + dy,
        )

    def points(*pairs: tuple[float, float]) -> list[tuple[float, float]]:
        return [(half + x * r, half + y * r) for x, y in pairs]

    def regular(
        corners: int, start: float, inner: float | None = None
    ) -> list[tuple[float, float]]:
        steps = corners * (2 if inner else 1)
        out = []
        for step in range(steps):
            length = inner if inner and step % 2 else 1.0
            angle = math.radians(start + 360 * step / steps)
            out.append((half + length * r * math.cos(angle), half + length * r * math.sin(angle)))
        return out

    if shape == "circle":
        draw.ellipse(box(0.95), fill=255)
    elif shape == "square":
        draw.rectangle(box(0.78), fill=255)
    elif shape == "triangle":
        draw.polygon(regular(3, -90), fill=255)
    elif shape == "star":
        draw.polygon(regular(5, -90, 0.42), fill=255)
    elif shape == "hexagon":
        draw.polygon(regular(6, 0), fill=255)
    elif shape == "pentagon":
        draw.polygon(regular(5, -90), fill=255)
    elif shape == "diamond":
        draw.polygon(points((0, -1), (0.62, 0), (0, 1), (-0.62, 0)), fill=255)
    elif shape == "ring":
        draw.ellipse(box(0.95), fill=255)
        draw.ellipse(box(0.52), fill=0)
    elif shape == "cross":
        draw.rectangle((half - 0.9 * r, half - 0.3 * r, half + 0.9 * r, half + 0.3 * r), fill=255)
        draw.rectangle((half - 0.3 * r, half - 0.9 * r, half + 0.3 * r, half + 0.9 * r), fill=255)
    elif shape == "crescent":
        draw.ellipse(box(0.95), fill=255)
        draw.ellipse(box(0.8, 0.5 * r, -0.12 * r), fill=0)
    elif shape == "arrow":
        draw.rectangle((half - r, half - 0.26 * r, half + 0.15 * r, half + 0.26 * r), fill=255)
        draw.polygon(points((0.05, -0.75), (1, 0), (0.05, 0.75)), fill=255)
    elif shape == "heart":
        draw.ellipse(box(0.5, -0.42 * r, -0.3 * r), fill=255)
        draw.ellipse(box(0.5, 0.42 * r, -0.3 * r), fill=255)
        draw.polygon(points((-0.87, -0.08), (0.87, -0.08), (0, 0.95)), fill=255)
    else:
        raise ValueError(f"unknown shape {shape!r}")
