"""How well scores tell wrong captions, whatever corpus and estimator they come from."""
