"""Which addresses are this machine's own."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host, [::1] or ::1 alike. Names but localhost count as public."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False
