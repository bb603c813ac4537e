"""The process of `evald`, also as `python -m evald_server`."""

import gc
import signal
import sys

# The conventional exit code 128 + SIGINT.
_INTERRUPTED = 130


def main() -> int:
    """Run the process's command line and return its exit code."""
    try:
        # SIGTERM ends a command as Ctrl-C does, from its first moment on.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        from .cli import main as run_command
        from .memory import collect_rarely

        collect_rarely()
        code = run_command()
    except KeyboardInterrupt:
        sys.stderr.write("evald: interrupted\n")
        code = _INTERRUPTED
    # The interpreter's last collection would take a tenth of a second to take apart what ends with the process.
    gc.freeze()
    return code


if __name__ == "__main__":
    sys.exit(main())
