"""What a person's answers on a sample say about a corpus, and a calibration moved to them."""
