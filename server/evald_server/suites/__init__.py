"""Suites: files of cases, formats of others, verdicts over trials, statistics, comparison, reports."""
