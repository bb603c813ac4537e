"""JSON Schemas from callers, plugins and judges: compiled once, checked safely.

References are never fetched, patterns run in linear time, and a check that could take long runs in a process that can
be killed.
"""
