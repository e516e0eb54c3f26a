"""Captions of several sentences of which one is wrong: what is found, and what mending is worth."""
