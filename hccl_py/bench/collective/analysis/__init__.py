"""Evaluation of the numbers: limits, trust, links and the profile of a call."""
