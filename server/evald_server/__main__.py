"""The entry point of the command `evald`, also of `python -m evald_server`."""

import gc
import signal
import sys

# The conventional exit code 128 + SIGINT.
_INTERRUPTED = 130


def main() -> int:
    """Run the process's command line and return its exit code."""
    try:
        # Before the imports below, so that SIGTERM always ends a command as Ctrl-C does.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        from .cli import main as run_command
        from .memory import collect_rarely

        collect_rarely()
        code = run_command()
    except KeyboardInterrupt:
        sys.stderr.write("evald: interrupted\n")
        code = _INTERRUPTED
    # Skip the interpreter's last collection, which takes 0.1 s: the memory is freed with the process anyway.
    gc.freeze()
    return code


if __name__ == "__main__":
    sys.exit(main())
