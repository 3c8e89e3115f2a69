"""Evaluation: evaluators, quality by length, intervals, tables and plots."""
