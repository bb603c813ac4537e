"""Headers of connectors and personas, as callers may see and send them."""

from collections.abc import Mapping, MutableMapping

from evald_server.connectors.headers import MASK, mask_headers


def mask(headers: MutableMapping[str, str]) -> None:
    """Replace values that may be secrets. Names of environment variables stay readable."""
    for name, value in mask_headers(headers).items():
        headers[name] = value


def may_be_shown(value: str) -> bool:
    """Return whether a value is no secret: it is of names of environment variables alone, or a mask."""
    return mask_headers({"": value})[""] == value


def masked(headers: Mapping[str, str]) -> list[str]:
    """Return the names of the headers whose values are masks: they are not known here."""
    return [name for name, value in headers.items() if value == MASK]


def unmask(headers: MutableMapping[str, str], stored: Mapping[str, str]) -> None:
    """Put the stored values in place of masks that a caller has sent back."""
    for name in list(headers):
        if headers[name] == MASK and name in stored:
            headers[name] = stored[name]
