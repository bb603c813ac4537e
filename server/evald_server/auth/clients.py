"""The file that maps names in client certificates to principals, denies names, and limits principals without an API
key."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Strict, StringConstraints, model_validator

from evald_server.files import FileProblem, WatchedFiles

from .files import read_table, read_toml
from .principal import ClientNames, Limits, Name, Principal, Roles, Types, limits_of
from .refusals import denied

# Stands for a principal's name: the limits of all tokens whose principals have none of their own.
_ALL_TOKENS: Final = "jwt:*"


def client_names(context: Mapping[str, Sequence[bytes]]) -> ClientNames | None:
    """Return the URIs and the DNS names in a connection's client certificate; None if it has no certificate.

    context: gRPC's auth_context. The common name is not among them: anybody may choose it.
    """
    if "x509_pem_cert" not in context:
        return None
    uris, hosts = context.get("peer_uri", ()), context.get("peer_dns", ())
    names = [_name(name.decode("utf-8", "replace")) for name in (*uris, *hosts)]
    return tuple(dict.fromkeys(names))


def _name(san: str) -> str:
    """Return a name as it is compared: a URI as it is, of a DNS name neither case nor a dot at the end count."""
    return san if ":" in san else san.lower().removesuffix(".")


_San: TypeAlias = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9*][\x21-\x29\x2b-\x7e]{0,2047}$"), AfterValidator(_name)
]


class _Client(BaseModel):
    """A table [[clients]]. san: a whole name in a certificate, a URI or a DNS name, not a pattern."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    san: _San
    principal: Name
    roles: Roles
    types: Types = ()


class _Limited(Limits):
    """A table [[principals]]: the limits of a principal of a certificate or a token."""

    principal: Name | Annotated[str, StringConstraints(pattern="^jwt:")]

    @model_validator(mode="after")
    def _check(self) -> "_Limited":
        if not any(limit is not None for limit in limits_of(self).values()):
            raise ValueError(f"wanted at least one of {', '.join(Limits.model_fields)}")
        return self


class _File(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    denied: Annotated[tuple[_San, ...], Strict(strict=False)] = ()
    clients: list[Any] = []
    principals: list[Any] = []


class _Clients(NamedTuple):
    """The file's content. by_san: principals. limits: by the principal's name."""

    denied: frozenset[str]
    by_san: Mapping[str, Principal]
    limits: Mapping[str, Mapping[str, Any]]


class ClientFile(WatchedFiles[_Clients]):
    """The principals of client certificates, and the limits of these and of tokens.

    count: see WatchedFiles. The constructor raises FileProblem.
    """

    def __init__(self, path: Path, count: Callable[[str], None] = lambda _outcome: None) -> None:
        super().__init__("tls_clients_file", (path,), lambda: _read(path), count)

    def principal(self, sans: ClientNames) -> Principal:
        """Return the principal of a certificate with these names. Raises AccessDenied.

        Exactly one of the names must be in the file, and none of them denied.
        """
        content = self.content
        known = [san for san in sans if san in content.by_san]
        owner = content.by_san[known[0]] if len(known) == 1 else None
        if not content.denied.isdisjoint(sans):
            raise denied("certificate: denied", owner)
        if owner is None:
            raise denied(
                "certificate: several of its names are in the file"
                if known
                else "certificate: no principal for it"
                if sans
                else "certificate: no name in it"
            )
        return self.limited(replace(owner, key_id=known[0], kind="certificate", sans=sans))

    def limited(self, principal: Principal) -> Principal:
        """Return a principal with its own limits; without any, a token's principal has the limits of all tokens."""
        limits = self.content.limits
        own = limits.get(principal.name) or (limits.get(_ALL_TOKENS) if principal.kind == "jwt" else None)
        return principal if own is None else replace(principal, **own)


_M = TypeVar("_M", bound=BaseModel)


def _read(path: Path) -> _Clients:
    data = read_toml(
        path,
        missing="docs/security.md describes its content",
        wanted="wanted TOML: a list `denied`, tables [[clients]] with san, principal and roles, and tables "
        "[[principals]] with principal and limits",
    )
    file = read_table(_File, data, str(path))
    clients = _tables(_Client, file.clients, "san", f"{path}: clients")
    limited = _tables(_Limited, file.principals, "principal", f"{path}: principals")
    return _Clients(
        frozenset(file.denied),
        {
            san: Principal(client.principal, frozenset(client.roles), client.types)
            for san, client in clients.items()
        },
        {name: limits_of(limits) for name, limits in limited.items()},
    )


def _tables(model: type[_M], tables: list[Any], key: str, place: str) -> dict[str, _M]:
    """Return the tables of a list by the value of a field. Raises FileProblem, also if a value is listed twice."""
    found: dict[str, _M] = {}
    for number, table in enumerate(tables):
        entry = read_table(model, table, f"{place}[{number}]")
        name = getattr(entry, key)
        if name in found:
            raise FileProblem(f"{place}[{number}]: {name[:100]!r} is listed twice")
        found[name] = entry
    return found
