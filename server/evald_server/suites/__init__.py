"""Suites of cases: their files, the formats of others, statistics, comparison and reports. Runs nothing."""
