"""Summaries of runs."""

from evald.v1 import result_pb2
from evald_server.engine.response import fill_aggregated
from evald_server.engine.run import EvaluationRun


def aggregated(run: EvaluationRun) -> result_pb2.AggregatedEvaluation:
    """Return the summary of a finished run, with all results."""
    pb = result_pb2.AggregatedEvaluation()
    fill_aggregated(pb, run)
    return pb
