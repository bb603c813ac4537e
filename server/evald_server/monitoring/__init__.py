"""The monitoring port: Prometheus metrics and health probes over HTTP.

The event loop writes the counters, and a scrape in another thread reads them, without locks. Each part (access,
evaluators, evaluations, rpcs, judges, remotes, runs, saturation) has a module with its counters and metric families.
"""

from .evaluations import EvaluationTally
from .evaluators import EvaluatorTally
from .http_server import HttpServer
from .rpcs import RpcTally
from .runs import RunMetrics
from .telemetry import Telemetry

__all__ = ["EvaluationTally", "EvaluatorTally", "HttpServer", "RpcTally", "RunMetrics", "Telemetry"]
