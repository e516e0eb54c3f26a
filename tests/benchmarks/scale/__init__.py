"""Corpora that are too large to run: simulated tables, costs and prices."""
