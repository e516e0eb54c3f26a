"""Audits simulated on corpora whose truth is known: do the intervals cover it?"""
