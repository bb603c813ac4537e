"""Prometheus metrics, and the port that serves them with the probes."""

from .calls import EvaluationTally, RpcTally
from .evaluators import EvaluatorTally
from .families import total
from .port import HttpServer
from .telemetry import Telemetry

__all__ = ["EvaluationTally", "EvaluatorTally", "HttpServer", "RpcTally", "Telemetry", "total"]
