"""What a score table says about a corpus: the numbers, the figures and the HTML page."""
