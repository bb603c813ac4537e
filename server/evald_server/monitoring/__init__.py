"""The monitoring port: Prometheus metrics and health probes over HTTP.

The event loop writes the counters, and a scrape in another thread reads them, without locks. Each module of a
subject (evaluators, evaluations, rpcs, judges, remotes, runs, saturation) holds its counters and their metric families.
"""

from .evaluations import EvaluationTally
from .evaluators import EvaluatorTally
from .http_server import HttpServer
from .rpcs import RpcTally
from .runs import RunMetrics
from .telemetry import Telemetry

__all__ = ["EvaluationTally", "EvaluatorTally", "HttpServer", "RpcTally", "RunMetrics", "Telemetry"]
