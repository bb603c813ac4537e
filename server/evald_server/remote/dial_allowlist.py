"""Allowlist of addresses that the server may dial for plugins and connectors: protection against SSRF.

Nothing is allowed until the operator allows it. Names are resolved here, every address is checked, and the
server connects to the checked addresses only.
"""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from .errors import Refusal

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Resolves a host name and port to addresses."""

# A separate pool: names whose servers do not answer would otherwise occupy all threads of asyncio, which calls need.
_RESOLVERS: Final = ThreadPoolExecutor(16, "evald-resolver")

_MAX_LENGTH: Final = 255
_SCHEMES: Final = ("dns", "ipv4", "ipv6", "unix")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
# Forms that some resolvers accept as an IPv4 address: 2852039166, 0xa9fea9fe, 0251.0376.0251.0376, 169.254.43518.
_NUMERIC = re.compile(r"0x[0-9a-f]*|[0-9]+")


def _networks(*texts: str) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)


# Never dialled, whatever the rules allow.
_NEVER: Final = _networks(
    "0.0.0.0/8",  # this host
    "169.254.0.0/16",  # link-local; the metadata services of most clouds
    "100.100.100.200/32",  # metadata of Alibaba Cloud
    "168.63.129.16/32",  # Azure's wire server
    "192.0.0.0/24",  # protocol assignments; metadata of Oracle Cloud
    "224.0.0.0/4",  # multicast
    "240.0.0.0/4",  # reserved, broadcast
    "::/96",  # unspecified, and IPv4-compatible addresses; ::1 is checked earlier
    "::ffff:0:0/96",  # IPv4-mapped
    "::ffff:0:0:0/96",  # IPv4-translated
    "64:ff9b::/96",  # NAT64
    "64:ff9b:1::/48",  # NAT64, local
    "2001::/32",  # Teredo
    "2002::/16",  # 6to4
    "fd00:ec2::254/128",  # metadata of AWS
    "fd20:ce::254/128",  # metadata of Google Cloud
    "fe80::/10",  # link-local
    "fec0::/10",  # site-local
    "ff00::/8",  # multicast
)
# ISATAP embeds an IPv4 address behind any prefix.
_ISATAP: Final = (0x00005EFE, 0x02005EFE)
_LOOPBACK: Final = _networks("127.0.0.0/8", "::1/128")


class Target(NamedTuple):
    """A parsed gRPC target. host: in lower case, without brackets. path: of a Unix socket, else ""."""

    scheme: str
    host: str
    port: int
    path: str = ""

    @property
    def authority(self) -> str:
        """The :authority of calls, and the name required in the certificate."""
        if self.path:
            return "localhost"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_target(text: str) -> Target:
    """Parse HOST:PORT, dns:///HOST:PORT, ipv4:ADDRESS:PORT, ipv6:[ADDRESS]:PORT or unix:PATH.

    Raises Refusal for anything else, and for addresses in an unusual notation.
    """
    if not text or len(text) > _MAX_LENGTH or not text.isascii() or not text.isprintable() or " " in text:
        raise _unreadable(text, "wanted up to 255 printable ASCII characters without spaces")
    scheme, separator, rest = text.partition(":")
    scheme = scheme.lower()
    if not separator:
        raise _unreadable(text, "wanted HOST:PORT")
    if scheme == "unix":
        return _read_unix(text, rest)
    if scheme in _SCHEMES and rest and not (rest.isdigit() and scheme == text.partition(":")[0]):
        return _read_host(text, scheme, rest.removeprefix("///") if scheme == "dns" else rest)
    if "//" in text:
        raise _unreadable(text, f"wanted one of the schemes {', '.join(_SCHEMES)}")
    return _read_host(text, "dns", text)


def _read_unix(text: str, rest: str) -> Target:
    path = f"/{rest.lstrip('/')}" if rest.startswith("/") else rest
    if not path.startswith("/") or (rest.startswith("//") and not rest.startswith("///")):
        raise _unreadable(text, "wanted unix:PATH with an absolute path")
    if any(part in ("", ".", "..") for part in path.split("/")[1:]):
        raise _unreadable(text, "wanted a path without the parts '.' and '..' and without empty parts")
    # gRPC reads a path as a part of a URI: "%2e%2e" would become "..".
    if any(character in path for character in "%?#"):
        raise _unreadable(text, "wanted a path without '%', '?' and '#'")
    return Target("unix", "", 0, path)


def _read_host(text: str, scheme: str, rest: str) -> Target:
    host, separator, digits = rest.rpartition(":")
    if not separator or not host:
        raise _unreadable(text, "wanted HOST:PORT")
    if not digits.isdigit() or not 0 < int(digits) <= 65535 or digits.startswith("0"):
        raise _unreadable(text, "wanted a port from 1 to 65535")
    host = host.lower()
    if host.startswith("[") and host.endswith("]"):
        address = _literal(text, host[1:-1])
        if address.version != 6 or scheme == "ipv4":
            raise _unreadable(text, "wanted an IPv6 address in brackets, and a scheme other than ipv4")
        return Target("ipv6", str(address), int(digits))
    if ":" in host or "[" in host or "]" in host:
        raise _unreadable(text, "wanted an IPv6 address in brackets")
    name = host.removesuffix(".")
    if _NUMERIC.fullmatch(name.rpartition(".")[2]):
        address = _literal(text, host)
        if scheme == "ipv6":
            raise _unreadable(text, "wanted an IPv6 address after ipv6:")
        return Target("ipv4", str(address), int(digits))
    if scheme != "dns":
        raise _unreadable(text, f"wanted an address after {scheme}:")
    if not all(_LABEL.fullmatch(label) for label in name.split(".")):
        raise _unreadable(text, "wanted a host name of letters, digits, '-' and '_'")
    return Target("dns", name, int(digits))


def _literal(text: str, host: str) -> Address:
    """Parse an address strictly: no octal, hexadecimal or missing parts, no zone, no trailing dot."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise _unreadable(text, "wanted an address in the usual notation, such as 10.0.0.7") from None
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        raise _unreadable(text, "wanted an address without a zone")
    return address


class DialAllowlist:
    """The targets that the operator allows.

    A rule is a network (`10.0.0.0/8`, `fd12::/16`, `127.0.0.1`), a host name (`pii.evals.svc`, or
    `*.evals.svc` for its subdomains) or a directory of Unix sockets (`unix:/run/evald/`). Addresses without a rule
    and addresses that cannot be a plugin are refused in every notation. Loopback needs its own rule: a rule for all
    addresses does not include it.

    setting: name of the setting with the rules, for errors.
    """

    def __init__(self, rules: Iterable[str], setting: str = "remote_allowed") -> None:
        """Raises ValueError that names the rule."""
        self.setting = setting
        self._networks: list[Network] = []
        self._names: list[str] = []
        self._directories: list[str] = []
        for rule in rules:
            self._add(rule.strip().lower() if not rule.startswith("unix:") else rule.strip())

    def __bool__(self) -> bool:
        return bool(self._networks or self._names or self._directories)

    def _add(self, rule: str) -> None:
        if rule.startswith("unix:"):
            path = rule.removeprefix("unix:")
            if not path.startswith("/"):
                raise ValueError(f"{rule!r}: wanted unix:/DIRECTORY/")
            self._directories.append(f"{path.rstrip('/')}/")
            return
        try:
            self._networks.append(ipaddress.ip_network(rule))
        except ValueError as problem:
            name = rule.removeprefix("*.")
            if "/" in rule or _NUMERIC.fullmatch(name.rpartition(".")[2]):
                raise ValueError(f"{rule!r}: not a network: {problem}") from None
            if not all(_LABEL.fullmatch(label) for label in name.split(".")):
                raise ValueError(
                    f"{rule!r}: wanted a network such as 10.0.0.0/8, a host name such as *.evals.svc, "
                    "or unix:/DIRECTORY/"
                ) from None
            self._names.append(rule)

    def check_socket(self, target: Target) -> None:
        """Raise Refusal if a Unix socket is not allowed."""
        if not any(target.path.startswith(directory) for directory in self._directories):
            raise _not_allowed(f"unix:{target.path}", "no rule allows its directory", self.setting)

    def check(self, target: Target, address: Address) -> None:
        """Raise Refusal if an address of a target is not allowed."""
        shown = target.authority if target.scheme != "dns" else f"{target.authority}, which is {address},"
        if any(address in network for network in _LOOPBACK):
            if not any(_within(address, network, _LOOPBACK) for network in self._networks):
                raise _not_allowed(shown, "no rule allows loopback addresses", self.setting)
            return
        if any(address in network for network in _NEVER) or _is_isatap(address):
            why = "link-local, multicast, metadata service and other special addresses are never allowed"
            raise _not_allowed(shown, why, self.setting)
        if target.scheme == "dns" and any(_matches(target.host, name) for name in self._names):
            return
        if not any(address in network for network in self._networks):
            raise _not_allowed(shown, "no rule allows it", self.setting)


class Dial(NamedTuple):
    """A checked target. pinned: a gRPC target of checked addresses, without names."""

    pinned: str
    authority: str


class Resolver:
    """Resolves targets to checked addresses, again for every connection.

    allowlist: None for targets of the operator's config, which are not checked.
    """

    def __init__(self, allowlist: DialAllowlist | None, resolve: Resolve | None = None) -> None:
        self._allowlist = allowlist
        self._resolve = resolve or look_up

    async def dial(self, text: str) -> Dial:
        """Resolve a target. Raises Refusal, or OSError if its name has no address."""
        target = read_target(text)
        allowlist = self._allowlist
        if target.scheme == "unix":
            if allowlist is not None:
                allowlist.check_socket(target)
            return Dial(f"unix:{target.path}", target.authority)
        addresses = await self.addresses(target)
        # A gRPC target accepts addresses of one family only.
        version = addresses[0].version
        same = [address for address in addresses if address.version == version]
        hosts = [f"[{address}]" if version == 6 else str(address) for address in same]
        pinned = f"ipv{version}:" + ",".join(f"{host}:{target.port}" for host in hosts)
        return Dial(pinned, target.authority)

    async def addresses(self, target: Target) -> list[Address]:
        """Return the checked addresses of a target that is no Unix socket. Raises as `dial` does."""
        allowlist = self._allowlist
        found = await self._resolve(target.host, target.port) if target.scheme == "dns" else [target.host]
        setting = allowlist.setting if allowlist is not None else ""
        addresses = [_parsed(target, address, setting) for address in dict.fromkeys(found)]
        if not addresses:
            raise OSError(f"{target.host} has no address")
        if allowlist is not None:
            for address in addresses:
                allowlist.check(target, address)
        return addresses


async def look_up(host: str, port: int) -> list[str]:
    """Resolve a host name with the system's resolver."""
    look = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_RESOLVERS, look)
    return [str(entry[4][0]) for entry in found]


def _parsed(target: Target, text: str, setting: str) -> Address:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise _not_allowed(
            target.authority, "its name resolves to an address that cannot be parsed", setting
        ) from None
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        raise _not_allowed(target.authority, "its name resolves to a link-local address", setting)
    return address


def _within(address: Address, rule: Network, kinds: Sequence[Network]) -> bool:
    return address in rule and any(
        rule.version == kind.version and rule.subnet_of(kind)  # type: ignore[arg-type]
        for kind in kinds
    )


def _is_isatap(address: Address) -> bool:
    return address.version == 6 and (int(address) >> 32) & 0xFFFFFFFF in _ISATAP


def _matches(host: str, name: str) -> bool:
    return host.endswith(name[1:]) if name.startswith("*.") else host == name


def _unreadable(text: str, wanted: str) -> Refusal:
    # Not shown if it may contain a password or a token.
    got = "" if "@" in text or "?" in text else f"got {text[:100]!r}, "
    return Refusal("INVALID_FIELD", f"target: {got}{wanted}", "target")


def _not_allowed(shown: str, why: str, setting: str) -> Refusal:
    hint = f". The operator of the server allows targets with the setting {setting}" if setting else ""
    return Refusal("TARGET_NOT_ALLOWED", f"target: {shown} is not allowed: {why}{hint}", "target")
