"""Headers of connectors and personas, in which `${NAME}` is a variable of the server's environment."""

import os
import re
from base64 import b64decode
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Final, NamedTuple

from evald.v1 import context_pb2
from evald_server.config import SECRET_PREFIX
from evald_server.redaction import Redactor, names_secret, spellings

MASK: Final = "***"
"""The text shown instead of a value."""

MAX_HEADERS: Final = 50
_MAX_VALUE: Final = 8192

_PLACEHOLDER: Final = re.compile(r"\$\{([^{}]*)\}")
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
# The texts allowed around variables (here \0), because they are no secrets: the scheme, and the names of cookies.
_NO_LITERAL: Final = re.compile(
    r"(?i:(?:bearer|basic|digest|token|api-?key|key|dpop|negotiate|bot|splunk|geniekey) +)?\0+(?:[-:,; ]+\0+)*"
    r"|[\w.-]{1,60}=\0+(?:; *[\w.-]{1,60}=\0+)*;?"
)
# Headers that belong to the connection, or that the connector sets itself.
_RESERVED: Final = frozenset(
    (
        "host",
        "connection",
        "content-length",
        "content-type",
        "transfer-encoding",
        "accept-encoding",
        "expect",
        "idempotency-key",
        "keep-alive",
        "te",
        "trailer",
        "upgrade",
        "user-agent",
    )
)


class MissingSecret(Exception):
    """A header cannot be sent. The message says which one and why, without any value."""


class ResolvedHeaders(NamedTuple):
    """Headers to send, with names in lower case. secrets: the secret values. redactor: removes these from texts."""

    values: dict[str, str]
    secrets: frozenset[str]
    redactor: Redactor


class HeaderSecrets:
    """The environment variables that headers may use: EVALD_SECRET_* and those that the settings allow."""

    def __init__(self, allowed: Iterable[str], environ: Mapping[str, str] = os.environ) -> None:
        self._allowed = frozenset(allowed)
        self._environ = environ

    def violations(self, headers: Mapping[str, str], path: str = "headers") -> list[tuple[str, str]]:
        """Return the problems of headers before they are saved, as (path of the field, message)."""
        if len(headers) > MAX_HEADERS:
            return [(path, f"got {len(headers)} headers, wanted at most {MAX_HEADERS}")]
        return [
            (f"{path}[{name[:100]!r}]", problem)
            for name, value in headers.items()
            if (problem := self._problem(name, value)) is not None
        ]

    def _problem(self, name: str, value: str) -> str | None:
        lower = name.lower()
        if not _NAME.fullmatch(name):
            return "wanted a header's name: letters, digits and '-', at most 100"
        if lower in _RESERVED or lower.startswith("grpc-"):
            return "the connector sets this header itself; remove it"
        if lower.endswith("-bin"):
            return "wanted a header of text; '-bin' is for binary metadata"
        if value == MASK:
            return f"{MASK} stands for the stored value, but no value is stored; give the value"
        if len(value) > _MAX_VALUE or not _can_be_sent(value):
            return f"wanted printable ASCII without spaces around it, at most {_MAX_VALUE} characters"
        names = _PLACEHOLDER.findall(value)
        for variable in names:
            if not variable.startswith(SECRET_PREFIX) and variable not in self._allowed:
                # A text that is not a valid name may be the secret itself.
                shown = "" if variable and not variable.isidentifier() else f" {variable[:100]!r}"
                return (
                    f"the variable{shown} is not allowed; wanted one that begins with {SECRET_PREFIX}, or "
                    "one that the operator lists in connector_secrets"
                )
        literal = _PLACEHOLDER.sub("\0", value)
        if (names_secret(name) and not _NO_LITERAL.fullmatch(literal)) or Redactor(()).redact_text(
            literal
        ) != literal:
            return (
                "got a literal value, wanted a variable of the server's environment, such as "
                f"${{{SECRET_PREFIX}AGENT}}, so that the secret is not stored; the operator "
                'sets it. Only a scheme such as "Bearer " may stand before the variable'
            )
        return None

    def resolve(self, *headers: Mapping[str, str]) -> ResolvedHeaders:
        """Fill in the variables. Of two headers with the same name, the later one wins. Raises MissingSecret."""
        merged = {name.lower(): value for one in headers for name, value in one.items()}
        secrets: set[str] = set()
        found = {}
        for name, value in merged.items():
            if problem := self._problem(name, value):
                raise MissingSecret(f"headers[{name!r}]: {problem}")

            def replaced(match: re.Match[str], name: str = name) -> str:
                secret = self._environ.get(match[1], "").strip()
                if not secret or not _can_be_sent(secret):
                    state = "empty or not set" if not secret else "not printable ASCII"
                    raise MissingSecret(
                        f"headers[{name!r}]: the variable {match[1]} of the server's environment is "
                        f"{state}; the operator sets it and restarts the server"
                    )
                secrets.add(secret)
                return secret

            found[name] = _PLACEHOLDER.sub(replaced, value)
            secrets.update(_of_basic(found[name]))
        return ResolvedHeaders(found, frozenset(secrets), Redactor(secrets))


def _of_basic(value: str) -> set[str]:
    """Return the secrets in `Basic` credentials, which an agent may repeat: "user:password", and the password."""
    scheme, _, encoded = value.partition(" ")
    if scheme.lower() != "basic":
        return set()
    try:
        said = b64decode(encoded, validate=True).decode()
    except ValueError:
        return set()
    return {said, said.partition(":")[2]}


def may_be_shown(value: str) -> bool:
    """Return whether a value is no secret: it contains only names of environment variables, or is a mask."""
    return value == MASK or _NO_LITERAL.fullmatch(_PLACEHOLDER.sub("\0", value)) is not None


def mask(headers: MutableMapping[str, str]) -> None:
    """Replace values that may be secrets by masks. Names of environment variables stay readable."""
    for name, value in list(headers.items()):
        if not may_be_shown(value):
            headers[name] = MASK


def masked(headers: Mapping[str, str]) -> list[str]:
    """Return the names of the headers whose values are masks, so that their real values are unknown."""
    return [name for name, value in headers.items() if value == MASK]


def unmask(headers: MutableMapping[str, str], stored: Mapping[str, str]) -> None:
    """Replace masks that a caller has sent back by the stored values."""
    for name in masked(headers):
        if name in stored:
            headers[name] = stored[name]


def without_secrets(invocation: context_pb2.Invocation, secrets: Iterable[str]) -> context_pb2.Invocation:
    """Return an answer in which each repeated secret is replaced by asterisks of the same length."""
    found = sorted((one for secret in secrets for one in spellings(secret)), key=len, reverse=True)
    if not found:
        return invocation
    data = clean = invocation.SerializeToString()
    for spelling in found:
        # The same length, because the serialised data contain it.
        clean = clean.replace(spelling.encode(), b"*" * len(spelling))
    return invocation if clean is data else context_pb2.Invocation.FromString(clean)


def _can_be_sent(value: str) -> bool:
    return value.isascii() and value.isprintable() and value == value.strip()
