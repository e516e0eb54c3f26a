"""Models repaired on noisy corpora, beside their controls."""
