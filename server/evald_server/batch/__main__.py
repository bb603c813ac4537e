"""The program of a batch process."""

from importlib import import_module

from evald_server.memory import collect_rarely

collect_rarely()
import_module("evald_server.batch.child").main()
