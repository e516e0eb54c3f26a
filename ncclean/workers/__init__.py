"""Processes that do what may abort, never end or take all memory; and what they hand over."""
