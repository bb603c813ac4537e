"""Mask the secrets in headers of connectors and personas."""

from collections.abc import Mapping, MutableMapping

from evald_server.connectors.headers import MASK, mask_headers


def mask(headers: MutableMapping[str, str]) -> None:
    """Replace values that may be secrets by masks. Names of environment variables stay readable."""
    for name, value in mask_headers(headers).items():
        headers[name] = value


def may_be_shown(value: str) -> bool:
    """Return whether a value is no secret: it contains only names of environment variables, or is a mask."""
    return mask_headers({"": value})[""] == value


def masked(headers: Mapping[str, str]) -> list[str]:
    """Return the names of the headers whose values are masks, so that their real values are unknown."""
    return [name for name, value in headers.items() if value == MASK]


def unmask(headers: MutableMapping[str, str], stored: Mapping[str, str]) -> None:
    """Replace masks that a caller has sent back by the stored values."""
    for name in list(headers):
        if headers[name] == MASK and name in stored:
            headers[name] = stored[name]
