"""Report a score table: measurements, figures and the HTML page."""
