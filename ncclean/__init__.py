"""ncclean: find, remove and repair the damage of mismatched image-text pairs."""

from ncclean._version import __version__

__all__ = ["__version__"]
