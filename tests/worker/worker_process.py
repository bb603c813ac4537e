"""A worker as a process of its own: worker_process.py connect|serve HOST:PORT"""

import sys
import time

import evald


class Slow(evald.Evaluator, type="acme.slow", kind=evald.ASSERTION):
    """An evaluator that sleeps."""

    seconds: float = 0.0

    def evaluate(self, ctx: evald.EvaluatorContext) -> evald.Result:
        print("began", flush=True)
        time.sleep(self.seconds)
        return evald.passed("slept")


if sys.argv[1] == "connect":
    evald.connect(Slow, server=sys.argv[2])
else:
    evald.serve(Slow, register=sys.argv[2])
