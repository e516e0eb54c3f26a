"""A score table as a report: measurements, figures and the HTML page."""
