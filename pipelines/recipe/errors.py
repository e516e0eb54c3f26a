"""What is wrong with a recipe, and in which line."""

from __future__ import annotations

from ncclean.errors import InputError


class RecipeError(InputError):
    """A mistake in a recipe; the message begins with the file and the line."""
