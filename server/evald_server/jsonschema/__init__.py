"""JSON Schemas that come from callers, plugins and judges: compiled once, checked safely.

Nothing is ever fetched, patterns run in linear time, and a schema that could take long on the value at hand is
checked in a process that can be killed.
"""
