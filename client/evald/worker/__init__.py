"""Workers: processes that offer evaluators to evald servers. They listen or dial out.

`serve` and `connect` block; `ListeningWorker` and `DiallingWorker` are for
programs with an event loop.
"""

from .blocking import connect, serve
from .dialling import DiallingWorker
from .listening import ListeningWorker

__all__ = ["DiallingWorker", "ListeningWorker", "connect", "serve"]
