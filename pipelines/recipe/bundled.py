"""Find the recipes that come with ncclean. Imports nothing heavy: listing them is instant."""

from __future__ import annotations

from pathlib import Path

import yaml

from ncclean.base.options import closest
from ncclean.base.regular_files import why_missing
from ncclean.recipes.source import RecipeError

FOLDER = Path(__file__).parent.parent / "recipes"


def bundled_recipes() -> dict[str, str]:
    """Return a description of each bundled recipe, with its choices, by name."""
    recipes = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        content = yaml.safe_load(path.read_text("utf-8"))
        lines = [str(content.get("about") or "")]
        for choice, values in content.get("choices", {}).items():
            lines.append(f"--set {choice}={' | '.join(values)}")
        recipes[path.stem] = "\n".join(lines)
    return recipes


def find_recipe(name: str) -> Path:
    """Return the file of a recipe: a path, or the name of a bundled one. Raises `RecipeError`."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        if not path.is_file():
            raise RecipeError(why_missing(name))
        return path
    inside = FOLDER / f"{name}.yaml"
    if inside.is_file():
        return inside
    names = sorted(path.stem for path in FOLDER.glob("*.yaml"))
    raise RecipeError(
        f"{name} is neither a file nor a bundled recipe{closest(name, names)}; the bundled ones "
        f"are {', '.join(names)}"
    )
