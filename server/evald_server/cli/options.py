"""Functions that add options to a parser, and parsers of their values."""

import argparse
import math
from collections.abc import Callable
from typing import Any


def add_option(parser: Any, form: str, text: str, *, repeated: str = "", **more: Any) -> None:
    """Add an option, a flag or a positional argument to a parser or a group.

    form: as in the help: "--json", "--listen HOST:PORT", "-o --output FILE", or "FILE" for a positional argument.
    text: the help. repeated: makes the option repeatable; the attribute with the list of its values, empty by
    default. more: further arguments of `add_argument`.
    """
    names = [word for word in form.split() if word.startswith("-")]
    for metavar in form.split()[len(names) :]:
        more["metavar"] = metavar
    if repeated:
        more = {"action": "append", "dest": repeated, "default": [], **more}
    parser.add_argument(*names, help=text, **more or {"action": "store_true"})


def positive_seconds(text: str) -> float:
    """Parse a number of seconds above 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted seconds above 0, for example 30")
    return seconds


def number_between(low: float, high: float, *, above: bool = False) -> Callable[[str], float]:
    """Return a parser of numbers from `low` to `high`. above: without `low` itself."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high or (above and value == low):
            least = f"above {low:g}, up" if above else f"from {low:g}"
            raise argparse.ArgumentTypeError(f"got {text!r}, wanted a number {least} to {high:g}")
        return value

    return number


def whole_number(most: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from 1 to `most`."""

    def number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"got {text!r}, wanted a whole number from 1 to {most}")
        return int(text)

    return number


def add_server_option(parser: Any, text: str) -> None:
    """Add --server and the options of its connection."""
    add_option(parser, "--server HOST:PORT", text)
    add_option(parser, "--tls", "use TLS [EVALD_TLS]")
    add_option(parser, "--ca FILE", "CA of the server's certificate, PEM [EVALD_CA_FILE]")
    add_option(parser, "--cert FILE", "certificate of the client, PEM [EVALD_CERT_FILE]")
    add_option(parser, "--key FILE", "key of that certificate, PEM [EVALD_KEY_FILE]")
    add_token_file(parser, "file with the API key or token [EVALD_TOKEN_FILE, EVALD_TOKEN]")


def add_token_file(parser: Any, text: str) -> None:
    """Add --token-file and a --token that is always refused.

    argparse would read --token as an abbreviation of --token-file, and the error about a missing file would print
    the token.
    """
    add_option(parser, "--token-file FILE", text)
    add_option(parser, "--token", argparse.SUPPRESS, type=_no_token)


def _no_token(_: str) -> None:
    raise argparse.ArgumentTypeError(
        "other users of this machine can read the command line; wanted --token-file FILE, or EVALD_TOKEN"
    )


def add_inside_options(parser: argparse.ArgumentParser) -> None:
    """Add --server and the options of a server that runs inside the command."""
    group = parser.add_argument_group("server")
    add_server_option(group, "server to use [EVALD_SERVER]; default: the command starts its own")
    add_plugins(
        group,
        "Python file or package with evaluators for the command's own server; repeatable",
        "a command that the `code` evaluator of the command's own server may run; repeatable",
    )
    add_option(group, "--config FILE", "settings file of the command's own server, TOML or JSON")


def add_plugins(parser: Any, text: str, code: str) -> None:
    """Add --plugin and --allow-code. text: help of --plugin. code: help of --allow-code."""
    add_option(parser, "--plugin PATH|PACKAGE", text, repeated="plugins", default=None)
    add_option(parser, "--allow-code PATH[@sha256:DIGEST]", code, repeated="code_allow", default=None)
