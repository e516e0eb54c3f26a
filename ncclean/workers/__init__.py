"""Processes for work that may abort, never end or exhaust memory; and how they return results."""
