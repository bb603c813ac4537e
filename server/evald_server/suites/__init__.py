"""Suites of cases: files, formats of other tools, statistics, comparison and reports. Runs no cases."""
