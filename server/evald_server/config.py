"""The settings of a server. Each field is also the variable `EVALD_<NAME>` and a key of the config file.

Precedence: command line, environment, config file, default.
"""

import difflib
import ipaddress
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args, get_origin
from urllib.parse import SplitResult, parse_qsl, urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from evald.addresses import is_loopback
from evald.fields import did_you_mean, found_and_wanted, schema_keys, snake
from evald.strict_json import TooLarge, parse_json

from .input_files import read_bytes
from .redaction import names_secret, without_keys

__all__ = [
    "JudgePrice",
    "JudgeSettings",
    "RemoteTarget",
    "Settings",
    "SettingsError",
    "TlsProfile",
    "checked_url",
    "is_public",
    "load_settings",
    "split_address",
]

PREFIX: Final = "EVALD_"

SECRET_PREFIX: Final = f"{PREFIX}SECRET_"
"""Prefix of the variables that headers of connectors may always name."""

# Variables of the client and the command line, with the same prefix.
_OTHER_VARIABLES: Final = frozenset(
    (
        "EVALD_SERVER",
        "EVALD_TLS",
        "EVALD_CA_FILE",
        "EVALD_CERT_FILE",
        "EVALD_KEY_FILE",
        "EVALD_TOKEN",
        "EVALD_TOKEN_FILE",
        "EVALD_DEBUG",
        "EVALD_CONFIG",
        "EVALD_REQUIRE_TOOLS",
    )
)

# Variables of OpenAI's client, used where nothing else configures the default judge.
# Names of query parameters whose values are secrets, besides those that `names_secret` knows: signed addresses, and
# the keys of Azure's functions.
_SECRET_QUERIES: Final = ("sig", "code", "pass", "pwd", "sas")
_FALLBACKS: Final = {"judge_base_url": "OPENAI_BASE_URL", "judge_api_key": "OPENAI_API_KEY"}

# Minimum similarity of an unknown variable to a setting to count as misspelled: one or two letters differ.
_MISSPELLED: Final = 0.88

_TABLE: Final = ConfigDict(
    frozen=True,
    extra="forbid",
    alias_generator=to_camel,
    validate_by_name=True,
    validate_by_alias=True,
)


class SettingsError(ValueError):
    """A setting, or the config file, is wrong. The message names every wrong setting and its source."""


class JudgePrice(BaseModel):
    """The price of a model, in US dollars per million tokens."""

    model_config = _TABLE

    input: float = Field(ge=0, allow_inf_nan=False)
    output: float = Field(ge=0, allow_inf_nan=False)


class JudgeSettings(BaseModel):
    """One judge: `[judges.NAME]` in the config file."""

    model_config = _TABLE

    base_url: str | None = Field(None, description="Address of an OpenAI-compatible API, up to /v1.")
    model: str | None = Field(
        None, description="Model that is used if an evaluator or simulated user names none."
    )
    models: list[str] = Field([], description="Models that evaluators may name; empty: any.")
    api_key_env: str | None = Field(None, description="Environment variable with the API key.")
    api_key_file: Path | None = Field(None, description="File with the API key.")
    prices: dict[str, JudgePrice] = Field({}, description="Prices of models.")
    cards: dict[str, Path] = Field({}, description="Files with the calibration cards of models.")
    form: Literal["json_schema", "json_object", "text"] = Field(
        "json_schema", description="Strictest response format to try first."
    )
    stream: bool = Field(False, description="Request streamed responses.")
    timeout: float = Field(
        30.0, gt=0, le=3600, description="Seconds without data before an attempt is aborted."
    )
    attempts: int = Field(4, ge=1, le=10, description="Maximum requests for one answer.")
    concurrency: int = Field(64, ge=1, le=1000, description="Maximum concurrent requests.")

    @field_validator("base_url")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        return None if value is None else checked_url(value)

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if self.api_key_env and self.api_key_file:
            raise ValueError("got both api_key_env and api_key_file, wanted one of them")
        return self


class RemoteTarget(BaseModel):
    """A listening plugin: a gRPC target, and the name of a TLS profile or ""."""

    model_config = _TABLE

    target: str
    tls_profile: str = ""

    @model_validator(mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        return {"target": value} if isinstance(value, str) else value


class TlsProfile(BaseModel):
    """PEM files for dialling with TLS.

    Without `ca_file` the system's roots are trusted. `cert_file` and `key_file` are the client certificate.
    """

    model_config = _TABLE

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("got only one of cert_file and key_file, wanted both or none")
        return self


def _processors() -> int:
    """Return how many processors this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


class Settings(BaseModel):
    """Settings of one server. Times are in seconds, sizes in bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    listen: str = Field(
        "127.0.0.1:50051", description="Address of the gRPC port, HOST:PORT; port 0: any free one."
    )
    listen_mtls: str | None = Field(
        None,
        description="Address of a second gRPC port, whose callers need a certificate signed by "
        "tls_client_ca_file, HOST:PORT. Default: none.",
    )
    http: str | None = Field(
        "127.0.0.1:9464",
        description="Address of the HTTP port with /metrics, /healthz and /readyz; port 0: any "
        "free one; empty: none.",
    )
    web: str | None = Field(
        "127.0.0.1:50080",
        description="Address of the web port with the console and the HTTP API, HOST:PORT; port 0: any free one; "
        "empty: none. Needs evald[web].",
    )
    web_console: bool = Field(
        True,
        description="Serve the console on the web port; if false, the web port serves only the HTTP API.",
    )
    web_hosts: list[str] = Field(
        [],
        description="Host names of this server that requests may use for the web port and for /metrics, besides "
        "their own addresses.",
    )
    web_origins: list[str] = Field(
        [],
        description="Origins of other web pages, as https://HOST, whose scripts may call the web port.",
    )
    data_dir: Path | None = Field(
        None, description="Directory for persistent data; used by one server at a time."
    )
    store: SecretStr | None = Field(
        None,
        description="Database of scenarios, runs and leases: postgresql://USER:PASSWORD@HOST/NAME; "
        "used by one server at a time. Default: a SQLite file in data_dir, or in "
        "memory without data_dir.",
    )
    runs_max_age: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Seconds after which runs and suite runs that have ended are deleted. Default: never.",
    )
    runs_max_count: int | None = Field(
        None,
        ge=1,
        description="Maximum stored runs, and maximum stored suite runs: the oldest that have ended are deleted. "
        "Default: no limit.",
    )
    insecure_public: bool = Field(
        False,
        description="Allow addresses that other machines can reach without tls_cert_file and "
        "keys_file: only behind a proxy that encrypts and authenticates.",
    )
    keys_file: Path | None = Field(
        None,
        description="File of API keys, written by `evald keys`; every call needs a key. Default: "
        "none; every caller may do everything.",
    )
    auth_anonymous_roles: list[Literal["caller", "viewer"]] = Field(
        [],
        description="Roles of callers without credentials on a server that has keys_file, jwt_issuer or "
        "tls_clients_file: caller, viewer. Default: none, and such callers are refused.",
    )
    audit_calls: bool = Field(
        False, description="Log every call to the logger evald.audit, not only refused ones and changes."
    )
    jwt_issuer: str | None = Field(
        None,
        min_length=1,
        description="Issuer (claim `iss`) of JSON Web Tokens that callers may send instead of a "
        "key. Needs evald[jwt]. Default: none.",
    )
    jwt_audience: str | None = Field(
        None, min_length=1, description="Value that the claim `aud` of tokens must equal or contain."
    )
    jwt_jwks_file: Path | None = Field(
        None, description="File with the issuer's keys, a JSON Web Key Set; read again when it changes."
    )
    jwt_jwks_url: str | None = Field(
        None,
        description="Address of the issuer's keys, https; read every ten minutes, and for an unknown key.",
    )
    jwt_roles_claim: str = Field(
        "roles",
        min_length=1,
        description="Claim with the caller's roles: a list, or a string separated by spaces.",
    )
    jwt_types_claim: str = Field(
        "evald_types",
        min_length=1,
        description="Claim with the evaluator types that a plugin may register: a list, or a "
        "string separated by spaces.",
    )
    tls_cert_file: Path | None = Field(
        None,
        description="File with the server's certificate and its chain, PEM; it turns on TLS on the "
        "gRPC, HTTP and web ports. Read again when it changes, like the other TLS "
        "files.",
    )
    tls_key_file: Path | None = Field(
        None, description="File with the private key of the certificate, PEM, without a password."
    )
    tls_client_ca_file: Path | None = Field(
        None, description="File with the CA that signs the certificates of clients, PEM."
    )
    tls_client_auth: Literal["none", "require"] = Field(
        "none",
        description="Whether callers of the gRPC port need a certificate signed by tls_client_ca_file.",
    )
    tls_clients_file: Path | None = Field(
        None,
        description="TOML file with the principals of client certificates, and the limits of "
        "principals of certificates and tokens; read again when it changes. Default: "
        "none; certificates identify no principal.",
    )
    tls_reload_seconds: float = Field(
        10.0, gt=0, le=3600, description="Interval at which the TLS files are checked for changes."
    )
    http_tls: bool = Field(True, description="Use TLS on the HTTP port too if there is a certificate.")
    metrics_public: bool = Field(
        False, description="Serve /metrics without a key at an address that other machines can reach."
    )
    plugins: list[str] = Field(
        [], description="Evaluator plugins: paths of Python files, or names of installed packages."
    )
    auto: dict[str, dict[str, Any]] = Field(
        {},
        description='Evaluators to run on every call: config by type, for example {"tool-call-count": {}}.',
    )
    on_error: Literal["fail_closed", "fail_open"] = Field(
        "fail_closed",
        description="Error policy of calls that set none: fail_closed or fail_open.",
    )
    labels: list[str] = Field(
        [],
        description="Keys of the callers' labels to export on evald_evaluations_total: few, with "
        "few values each.",
    )
    reflection: bool = Field(True, description="Serve gRPC reflection.")

    remote_connect: bool = Field(True, description="Allow plugins to dial in (RegistryService.Attach).")
    remote_targets: list[RemoteTarget] = Field(
        [], description="Listening plugins to dial: gRPC targets, or tables with target and tls_profile."
    )
    remote_allowed: list[str] = Field(
        [],
        description="Addresses at which the server may dial registered plugins: networks "
        "(10.0.0.0/8), host names (*.evals.svc), directories of Unix sockets "
        "(unix:/run/evald/). Empty: plugins cannot register.",
    )
    remote_blocked: list[str] = Field(
        [], description="Names of plugins that may not register; their leases are revoked."
    )
    remote_tls: dict[str, TlsProfile] = Field(
        {}, description="TLS profiles by name: tables with ca_file, cert_file and key_file."
    )
    remote_max_inflight: int = Field(
        64, ge=1, description="Maximum concurrent tasks of one remote evaluator."
    )
    remote_max_queued: int = Field(32, ge=0, description="Maximum calls waiting for one remote evaluator.")
    remote_max_queue_seconds: float = Field(
        1.0, gt=0, description="Maximum wait for a remote evaluator's slot."
    )
    remote_max_instances: int = Field(
        1000, ge=1, description="Maximum plugin instances, and maximum remote evaluator types."
    )
    remote_max_task_bytes: int = Field(
        4_000_000, ge=1024, description="Maximum size of a task for a plugin; gRPC's default limit is 4 MiB."
    )
    remote_lease_seconds: float = Field(
        30.0, gt=0, le=300, description="Lease of a plugin that registers without asking for one."
    )
    remote_health_seconds: float = Field(
        2.0, gt=0, description="Interval and timeout of health checks of listening plugins."
    )
    remote_ping_seconds: float = Field(
        5.0, gt=0, description="Interval and timeout of pings of plugins that dialled in."
    )

    connector_allowed: list[str] | None = Field(
        None,
        description="Addresses that connectors may call agents at: networks, host names, "
        "directories of Unix sockets as in remote_allowed, or * for all; never "
        "link-local addresses and metadata services. Default: * when listen is a "
        "loopback address, else none.",
    )
    connector_secrets: list[str] = Field(
        [],
        description="Environment variables that headers of connectors and personas may name as ${NAME}, besides "
        "those whose names begin with EVALD_SECRET_.",
    )

    max_message_bytes: int = Field(16 << 20, ge=1024, le=1 << 30, description="Maximum size of a message.")
    max_evaluators: int = Field(
        100, ge=1, description="Maximum evaluators in one call, including those inside combinators."
    )
    max_messages: int = Field(5000, ge=1, description="Maximum messages in one conversation.")
    max_config_bytes: int = Field(
        256 << 10,
        ge=1,
        description="Maximum size of one evaluator's config; the configs of a call together may "
        "have twice this size.",
    )
    max_concurrent_streams: int = Field(100, ge=1, description="Maximum concurrent calls on one connection.")
    max_connections: int | None = Field(
        None,
        ge=1,
        le=1 << 20,
        description="Maximum gRPC connections; further ones are closed at once. Default: half of "
        "the maximum file descriptors of the process, but at most 10000.",
    )
    handshake_timeout: float = Field(
        10.0, gt=0, le=3600, description="Time limit for a new connection to start HTTP/2; then it is closed."
    )
    max_connection_idle: float = Field(
        600.0,
        gt=0,
        le=86_400,
        description="Time after which a connection without calls is closed; clients reconnect.",
    )
    max_connection_age: float = Field(
        1800.0,
        gt=0,
        le=31_536_000,
        description="Time after which clients of an encrypted gRPC port are asked to connect "
        "again; calls and streams go on.",
    )
    max_inflight: int = Field(
        256, ge=1, description="Maximum evaluations that wait for a remote evaluator, a judge or a thread."
    )
    max_queued: int = Field(256, ge=0, description="Maximum evaluations queued for a slot; more are refused.")
    max_queue_seconds: float = Field(1.0, ge=0, description="Maximum seconds in that queue.")
    max_runs: int = Field(64, ge=1, description="Maximum runs of scenarios at a time; the others queue.")
    max_streams: int = Field(
        10_000, ge=1, description="Maximum open sessions, batches, suite runs and watches."
    )
    max_principal_calls: int | None = Field(
        None,
        ge=1,
        description="Maximum calls, sessions and watches in flight of one principal that has no "
        "limit of its own. Default: a quarter of the capacity of a port, which is "
        "max_streams + 4 * max_inflight + max_queued.",
    )
    batch_processes: int = Field(
        default_factory=lambda: min(4, _processors()),
        ge=0,
        le=64,
        description="Maximum processes for large batches; 0: evaluate them in the server's own process. "
        "Default: the number of processors, but at most 4.",
    )

    code_allow: list[str] = Field(
        [],
        description="Commands that the code evaluator may run: absolute paths, each optionally followed by "
        "@sha256: and the file's digest. Empty: the evaluator is off.",
    )
    code_shell: bool = Field(
        False,
        description="Allow any shell script in a config of the code evaluator. Only where every "
        "caller is trusted.",
    )
    code_isolation: Literal["bubblewrap", "none"] = Field(
        "bubblewrap",
        description="bubblewrap: isolate scripts from the network and most files, and refuse them where "
        "bubblewrap does not work; none: scripts reach what their user may.",
    )
    code_read: list[str] = Field(
        [],
        description="Absolute paths that isolated scripts may read, besides the system's programs and libraries.",
    )
    code_directory: Path = Field(Path("/"), description="Working directory of scripts.")
    code_environment: list[str] = Field(
        [], description="Environment variables of scripts: NAME=VALUE, or NAME for the server's own value."
    )
    code_timeout: float = Field(30.0, gt=0, description="Maximum run time of a script.")
    code_concurrency: int = Field(
        4, ge=1, description="Maximum concurrent scripts; further ones wait until their call times out."
    )
    code_memory_bytes: int = Field(
        512 << 20, ge=16 << 20, description="Maximum memory of one process of a script."
    )
    code_processes: int = Field(64, ge=1, description="Maximum processes and threads of one script.")
    code_output_bytes: int = Field(
        1 << 20, ge=1024, description="Maximum size of a script's standard output, and of its standard error."
    )

    default_timeout: float = Field(60.0, gt=0, description="Deadline of a call that has none.")
    max_timeout: float = Field(600.0, gt=0, description="Maximum deadline of an evaluation.")
    concurrency: int = Field(
        16,
        ge=1,
        description="Maximum concurrent waiting evaluators of a call that does not set max_concurrency.",
    )
    plan_cache_bytes: int = Field(64 << 20, ge=0, description="Memory for cached plans, estimated.")
    answer_cache_bytes: int = Field(
        64 << 20, ge=0, description="Memory for the answers to calls that have a request_id."
    )
    drain_delay: float = Field(
        0.0, ge=0, description="Time from NOT_SERVING to refusing calls, for load balancers to notice."
    )
    drain_grace: float = Field(10.0, ge=0, description="Time for open calls to finish when the server stops.")

    judge_base_url: str | None = Field(
        None, description="Address of the default judge's API, up to /v1. Default: OPENAI_BASE_URL."
    )
    judge_model: str | None = Field(None, description="The default judge's model.")
    judge_api_key: SecretStr | None = Field(
        None, description="The default judge's API key; empty: none. Default: OPENAI_API_KEY."
    )
    judge_api_key_file: Path | None = Field(None, description="File with the default judge's API key.")
    judge: str | None = Field(None, description="Name of the default judge, if there are several.")
    judges: dict[str, JudgeSettings] = Field(
        {},
        description="Judges by name; [judges.default] adds to the settings judge_base_url to judge_api_key_file.",
    )
    judge_max_usd_per_call: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="Maximum cost of one judge evaluation, in US dollars."
    )
    judge_max_usd_per_day: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="Maximum cost of all judges in a day (UTC), in US dollars.",
    )
    judge_cache_bytes: int = Field(
        64 << 20, ge=0, description="Size of the cache of judges' answers, in data_dir or in memory; 0: none."
    )

    judge_cache_scope: Literal["all", "principal"] = Field(
        "all",
        description="Who may get a cached answer of a judge: all callers, or only the principal whose call asked for "
        "it, so that no caller can tell from the time of an answer what others have judged.",
    )

    log_format: Literal["auto", "text", "json"] = Field(
        "auto", description="auto: text on a terminal, else JSON."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Minimum level to log."
    )
    log_calls: bool = Field(False, description="Log a line for every call.")

    @field_validator("*", mode="before")
    @classmethod
    def _from_text(cls, value: Any, info: ValidationInfo) -> Any:
        """Parse the text of a variable: commas separate the items of a list, and a table is JSON."""
        annotation = cls.model_fields[str(info.field_name)].annotation
        kinds = {get_origin(one) for one in (annotation, *get_args(annotation))}
        if isinstance(value, str) and list in kinds:
            return [part.strip() for part in value.split(",") if part.strip()]
        if isinstance(value, str) and dict in kinds:
            try:
                return parse_json(value)
            except (ValueError, TooLarge) as problem:
                raise ValueError(f"not valid JSON: {problem}") from None
        return value

    @field_validator("listen", "listen_mtls", "http", "web")
    @classmethod
    def _address(cls, value: str | None, info: ValidationInfo) -> str | None:
        if not value and info.field_name != "listen":
            return None
        value = value or ""
        split_address(value)
        return value

    @field_validator("store", mode="before")
    @classmethod
    def _database(cls, value: Any) -> Any:
        """Check the address of the database. Error messages omit it, because it contains a password."""
        if not value:
            return None
        url = value.get_secret_value() if isinstance(value, SecretStr) else value
        if not isinstance(url, str) or not url.startswith(("postgresql://", "postgres://")):
            raise ValueError("wanted postgresql://USER:PASSWORD@HOST/NAME")
        # An unescaped "@", "/", "?" or "#" in a password makes the text after it the host or the database, which
        # error messages contain.
        if url.count("@") > ("@" in _split(url).netloc):
            raise ValueError("wanted @, /, ? and # in user and password written as %40, %2F, %3F and %23")
        return value

    @field_validator("jwt_jwks_url")
    @classmethod
    def _https(cls, value: str | None) -> str | None:
        if not value:
            return None
        parts = _split(value)
        if parts.scheme != "https" or not parts.hostname or "@" in parts.netloc or parts.fragment:
            raise ValueError("wanted https://HOST/PATH, without user, password and fragment")
        if not value.isascii() or not value.isprintable() or " " in value:
            raise ValueError("wanted an address of ASCII characters; write others as %XX")
        return value

    @field_validator("judge_base_url")
    @classmethod
    def _judge_url(cls, value: str | None) -> str | None:
        return checked_url(value) if value else None

    @field_validator("code_read")
    @classmethod
    def _absolute(cls, value: list[str]) -> list[str]:
        for path in value:
            if not path.startswith("/"):
                raise ValueError(f"got {path!r}, wanted an absolute path")
        return value

    @field_validator("code_environment")
    @classmethod
    def _variables(cls, value: list[str]) -> list[str]:
        for entry in value:
            if not entry.partition("=")[0] or "\0" in entry:
                raise ValueError("wanted NAME or NAME=VALUE")
        return value

    @model_validator(mode="after")
    def _tls_profiles(self) -> Self:
        for one in self.remote_targets:
            if one.tls_profile and one.tls_profile not in self.remote_tls:
                raise ValueError(
                    f"remote_targets: {one.target}: unknown TLS profile {one.tls_profile!r}; wanted "
                    "one of remote_tls"
                )
        return self

    @model_validator(mode="after")
    def _whole_tls(self) -> Self:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("got only one of tls_cert_file and tls_key_file, wanted both or none")
        if self.tls_client_ca_file is not None and self.tls_cert_file is None:
            raise ValueError("tls_client_ca_file needs tls_cert_file and tls_key_file")
        asked_for = self.tls_client_auth == "require" or self.listen_mtls is not None
        if asked_for != (self.tls_client_ca_file is not None):
            raise ValueError(
                'tls_client_ca_file needs tls_client_auth = "require" or listen_mtls, and they '
                "need tls_client_ca_file"
            )
        if self.tls_client_auth == "require" and self.listen_mtls is not None:
            raise ValueError('listen_mtls needs tls_client_auth = "none" for the other port')
        if self.tls_clients_file is not None and not asked_for and self.jwt_issuer is None:
            raise ValueError(
                "tls_clients_file needs a port that asks for certificates, tls_client_auth = "
                '"require" or listen_mtls, or, for the limits of tokens, jwt_issuer'
            )
        return self

    @model_validator(mode="after")
    def _roles_beside_credentials(self) -> Self:
        if self.auth_anonymous_roles and not self.authenticates:
            raise ValueError(
                "auth_anonymous_roles needs keys_file, jwt_issuer or tls_clients_file: without them every caller may do "
                "everything"
            )
        return self

    @model_validator(mode="after")
    def _whole_jwt(self) -> Self:
        given = (self.jwt_issuer, self.jwt_audience, self.jwt_jwks_file or self.jwt_jwks_url)
        if any(given) and not all(given):
            raise ValueError(
                "got only some of jwt_issuer, jwt_audience and jwt_jwks_file or jwt_jwks_url, "
                "wanted all or none"
            )
        if self.jwt_jwks_file and self.jwt_jwks_url:
            raise ValueError("got both jwt_jwks_file and jwt_jwks_url, wanted one of them")
        return self

    @property
    def max_calls(self) -> int:
        """The maximum of open calls on one gRPC port: all streams, four times max_inflight, and max_queued."""
        return self.max_streams + 4 * self.max_inflight + self.max_queued

    @property
    def authenticates(self) -> bool:
        """Whether callers need credentials."""
        return any((self.keys_file, self.jwt_issuer, self.tls_clients_file))

    @model_validator(mode="after")
    def _not_public(self) -> Self:
        if self.insecure_public:
            return self
        tls, keys = self.tls_cert_file is not None, self.authenticates
        public = next(filter(is_public, (self.listen, self.listen_mtls)), None)
        if public is not None and not (tls and keys):
            missing = {
                (
                    False,
                    False,
                ): "calls are neither encrypted nor authenticated: set tls_cert_file, tls_key_file "
                "and keys_file",
                (True, False): "calls are not authenticated: set keys_file",
                (False, True): "keys would be sent in plaintext: set tls_cert_file and tls_key_file",
            }[tls, keys]
            raise ValueError(
                f"listen: {public} can be reached from other machines, and {missing}. Or listen on 127.0.0.1, or "
                "set insecure_public if something in front of evald encrypts and authenticates"
            )
        if is_public(self.web) and not (tls and keys):
            raise ValueError(
                f"web: {self.web} can be reached from other machines, and calls need "
                "tls_cert_file, tls_key_file and keys_file. Or listen on 127.0.0.1, or set "
                "insecure_public if something in front of evald encrypts and authenticates"
            )
        if is_public(self.http) and not self.metrics_public and not (tls and keys and self.http_tls):
            raise ValueError(
                f"http: {self.http} can be reached from other machines, and keys for /metrics "
                "need tls_cert_file, tls_key_file, keys_file and http_tls. Or listen on "
                "127.0.0.1, or set metrics_public, or insecure_public if something in front of "
                "evald encrypts and authenticates"
            )
        return self


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of "HOST:PORT" or "[IPv6]:PORT". Raises ValueError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"got {address!r}, wanted HOST:PORT, for example 127.0.0.1:50051")
    return host.removeprefix("[").removesuffix("]"), int(port)


def checked_url(url: str) -> str:
    """Return the address of an API if it is valid.

    Raises ValueError. The message omits the address, because it might contain a password.
    """
    parts = _split(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("wanted http://HOST/v1 or https://HOST/v1")
    if "@" in parts.netloc or parts.fragment:
        raise ValueError("wanted an address without user, password and fragment")
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        # Everybody who may read settings or connectors sees the address.
        if (
            names_secret(name)
            or name.lower() in _SECRET_QUERIES
            or without_keys(found := f"{name}={value}") != found
        ):
            raise ValueError(
                "the query has a value that looks like a secret; wanted it in a header, because an address is shown"
            )
    return url


def _split(url: str) -> SplitResult:
    """Return the parts of an address.

    Raises ValueError. The message omits the library's text, which repeats a part of the address.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ValueError("not an address; wanted SCHEME://HOST:PORT/PATH with a port of digits") from None
    return parts


def answers_to(settings: Settings, bound: str, host: str) -> bool:
    """Return whether a port of HTTP answers requests with this Host header: DNS rebinding needs a name of others.

    bound: host of the address on which the port listens.
    """
    name, _, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
    name = (name if port.isdecimal() else host).lower().removesuffix(".")
    if name in {"localhost", bound.lower(), *map(str.lower, settings.web_hosts)} - {""}:
        return True
    try:
        ipaddress.ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name)
    except ValueError:
        return False
    return True


def is_public(address: str | None) -> bool:
    """Return whether other machines can reach HOST:PORT; False for None."""
    return address is not None and not is_loopback(split_address(address)[0])


def load_settings(
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    config_file: str | Path | None = None,
) -> Settings:
    """Load settings from the command line (`overrides`), the environment and a TOML or JSON file.

    Raises SettingsError, which names every wrong setting and its source.
    """
    environ = os.environ if environ is None else environ
    config_file = config_file or environ.get(f"{PREFIX}CONFIG")
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if config_file:
        for key, value in _flat(_read(Path(config_file))).items():
            name = snake(key)
            values[name], origins[name] = value, f"{config_file}: {key}"
    for name in Settings.model_fields:
        variable = f"{PREFIX}{name.upper()}"
        if variable in environ:
            values[name], origins[name] = environ[variable], variable
    _refuse_misspelled(environ, values)
    for name, variable in _FALLBACKS.items():
        if name not in values and environ.get(variable):
            values[name], origins[name] = environ[variable], variable
    for name, value in (overrides or {}).items():
        if value is not None:
            values[name], origins[name] = value, f"--{name.replace('_', '-')}"
    try:
        return Settings.model_validate(values)
    except ValidationError as problem:
        raise SettingsError(_explain(problem, origins)) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        text = read_bytes(path).decode()
    except OSError as problem:
        raise SettingsError(f"config file {path}: {problem.strerror}") from None
    except UnicodeDecodeError as problem:
        raise SettingsError(f"config file {path}: {problem}") from None
    try:
        data = parse_json(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, TooLarge) as problem:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise SettingsError(f"config file {path}: not valid {kind}: {problem}") from None
    if not isinstance(data, dict):
        raise SettingsError(f"config file {path}: got {type(data).__name__}, wanted a table of settings")
    return data


def _flat(data: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with the tables `[tls]` and `[jwt]` flattened: `tls.cert_file` becomes `tls_cert_file`."""
    found: dict[str, Any] = {}
    for name, value in data.items():
        if name in ("tls", "jwt") and isinstance(value, dict):
            found |= {f"{name}_{snake(key)}": inner for key, inner in value.items()}
        else:
            found[name] = value
    return found


def _refuse_misspelled(environ: Mapping[str, str], values: Mapping[str, Any]) -> None:
    """Raise SettingsError for a variable whose name resembles a setting.

    Ignores other variables with the prefix: Kubernetes sets EVALD_PORT for a service "evald", and settings
    (`values`) name variables that hold API keys.
    """
    named = json.dumps(values, default=str)
    for variable in sorted(environ):
        name = variable.removeprefix(PREFIX).lower()
        if not variable.startswith(PREFIX) or variable in _OTHER_VARIABLES or variable in named:
            continue
        if variable.startswith(SECRET_PREFIX):
            continue
        near = difflib.get_close_matches(name, Settings.model_fields, n=1, cutoff=_MISSPELLED)
        if near and name not in Settings.model_fields:
            raise SettingsError(f"{variable}: unknown setting; did you mean {PREFIX}{near[0].upper()}?")


def _explain(problem: ValidationError, origins: Mapping[str, str]) -> str:
    """Return one line: for each error the setting's source, the path inside the setting, and the message."""
    lines = []
    for error in problem.errors():
        location = error["loc"]
        name = str(location[0]) if location else ""
        if error["type"] == "extra_forbidden":
            message = _unknown(location)
        elif error["type"] == "value_error":
            message = error["msg"].removeprefix("Value error, ")
        else:
            # Lists may hold passwords in addresses, and values of variables.
            is_secret = SecretStr in get_args(Settings.model_fields[name].annotation)
            message = found_and_wanted(error, hidden=is_secret or isinstance(error["input"], list))
        inner = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in location[1:]).lstrip(".")
        lines.append(": ".join(part for part in (origins.get(name, name), inner, message) if part))
    return "; ".join(lines)


def _unknown(location: Sequence[int | str]) -> str:
    """Return the message for an unknown key."""
    *path, key = location
    known = schema_keys(Settings.model_json_schema(by_alias=False), path)
    hint = did_you_mean(str(key), known)
    if path:
        return f"unknown key{hint}"
    return (
        f"unknown setting{hint}" if hint else f"unknown setting; known settings: {', '.join(sorted(known))}"
    )
