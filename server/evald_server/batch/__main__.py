"""The program of a batch process: `python -m evald_server.batch`, started by the server."""

import os
import sys
from importlib.util import find_spec, module_from_spec


def bare(name: str) -> None:
    """Make a package importable without running it. The SDK's loads the clients, and with them gRPC: 60 ms and
    15 MB that a batch process has no use for."""
    spec = find_spec(name)
    assert spec is not None, f"{name} is not installed"
    sys.modules[name] = module_from_spec(spec)


if __name__ == "__main__":
    bare("evald")
    from .child import serve

    # What a library may print must not get between the answers.
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        serve(sys.stdin.buffer, answers)
