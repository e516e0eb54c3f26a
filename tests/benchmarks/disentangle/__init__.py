"""DisNCL's halves: what each holds, on features whose parts are known and on a CLIP model."""
