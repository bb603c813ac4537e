"""What a server counts. The event loop writes it, a scrape in another thread reads it, without locks.

A file a subject: its tallies, and the Prometheus families that are built out of them.
"""

from .evaluations import EvaluationTally
from .rpcs import RpcTally
from .tally import Tally
from .telemetry import Telemetry

__all__ = ["EvaluationTally", "RpcTally", "Tally", "Telemetry"]
