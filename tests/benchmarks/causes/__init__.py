"""Planted causes: what `ncclean explain` finds of them, and what else it reports."""
