"""Threads for evaluators that the operator loaded: the SDK's, which workers use as well."""

from evald.threads import MAX_PER_TYPE, Busy, Threads

__all__ = ["MAX_PER_TYPE", "Busy", "Threads"]
