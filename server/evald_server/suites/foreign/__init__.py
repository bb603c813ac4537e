"""Suites of other systems, each converted to the data of a suite file of ours, or refused with the reason."""
