"""Recognise loopback addresses."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address, with or without brackets. Names except localhost are not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False
