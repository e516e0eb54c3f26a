"""Audits: people judge a sample; their answers measure a corpus and correct its calibration."""
