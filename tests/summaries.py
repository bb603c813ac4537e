"""The summary of a run as callers get it."""

from evald.v1 import result_pb2
from evald_server.engine.response import fill_aggregated
from evald_server.engine.run import EvaluationRun


def aggregated(run: EvaluationRun) -> result_pb2.AggregatedEvaluation:
    """The summary and all results of a finished run."""
    pb = result_pb2.AggregatedEvaluation()
    fill_aggregated(pb, run)
    return pb
