"""All settings of a server: one table of fields, each also `EVALD_<NAME>` and a key of the config file.

The order of precedence: command line, environment, config file, default.
"""

import difflib
import ipaddress
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from evald.fields import did_you_mean, schema_keys

PREFIX: Final = "EVALD_"

# How alike a name must be to one of a setting to be taken for a slip: one or two letters of a usual name.
_SLIP: Final = 0.88

# Settings of the client that share the prefix.
_NOT_SERVER_SETTINGS: Final = frozenset(
    ("EVALD_SERVER", "EVALD_DEBUG", "EVALD_CONFIG", "EVALD_REQUIRE_TOOLS")
)


# Where the judge's settings come from when nothing else says them: the variables of OpenAI's own client.
_FALLBACKS: Final = {"judge_base_url": "OPENAI_BASE_URL", "judge_api_key": "OPENAI_API_KEY"}


class SettingsError(ValueError):
    """A setting is wrong. The message names it, what it got and what it wants."""


_TABLE: Final = ConfigDict(
    frozen=True,
    extra="forbid",
    alias_generator=to_camel,
    validate_by_name=True,
    validate_by_alias=True,
)


class JudgePrice(BaseModel):
    """What a model costs, in US dollars for a million tokens."""

    model_config = _TABLE

    input: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    output: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class JudgeSettings(BaseModel):
    """One judge: `[judges.NAME]` in the config file."""

    model_config = _TABLE

    base_url: str | None = Field(None, description="Address of an OpenAI-compatible API, up to /v1.")
    model: str | None = Field(None, description="The model that is asked when a use names none.")
    models: list[str] = Field(
        default_factory=list, description="Models that a use may name; empty for any that the endpoint has."
    )
    api_key_env: str | None = Field(None, description="Environment variable with the API key.")
    api_key_file: Path | None = Field(None, description="File with the API key.")
    prices: dict[str, JudgePrice] = Field(
        default_factory=dict, description="Prices of models, in US dollars for a million tokens."
    )
    form: Literal["json_schema", "json_object", "text"] = Field(
        "json_schema", description="The surest form of answer that is tried."
    )
    stream: bool = Field(False, description="Have answers sent as they are written.")
    timeout: Annotated[float, Field(gt=0, le=3600)] = Field(
        30.0, description="Silence of the endpoint after which an attempt is given up."
    )
    attempts: Annotated[int, Field(ge=1, le=10)] = Field(4, description="Most requests for one answer.")
    concurrency: Annotated[int, Field(ge=1, le=1000)] = Field(64, description="Most requests at a time.")

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
    """How to dial with TLS: PEM files. Without `ca_file` the system's roots are trusted; with `cert_file` and
    `key_file` the server shows a certificate of its own."""

    model_config = _TABLE

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file are given together or not at all")
        return self


class Settings(BaseModel):
    """Settings of one server. Times are in seconds, sizes in bytes."""

    model_config = _TABLE

    listen: str = Field(
        "127.0.0.1:50051", description="Address of the gRPC port, HOST:PORT; port 0 picks one."
    )
    http: str | None = Field(
        "127.0.0.1:9464",
        description="Address of the HTTP port with /metrics, /healthz and /readyz; port 0 picks one; "
        "empty for none.",
    )
    data_dir: Path | None = Field(
        None, description="Directory for what must outlive the process; one server's alone."
    )
    insecure_public: bool = Field(
        False,
        description="Allow addresses that other machines reach, although calls are neither encrypted nor "
        "authenticated. Only behind something that does both.",
    )
    plugins: list[str] = Field(
        default_factory=list,
        description="Evaluator plugins: paths of Python files, or names of installed packages.",
    )
    auto: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description='Evaluators that run on every call: config by type, for example {"tool-call-count": {}}.',
    )
    on_error: Literal["fail_closed", "fail_open"] = Field(
        "fail_closed", description="What an evaluator's own error does where the call does not say."
    )
    labels: list[str] = Field(
        default_factory=list,
        description="Keys of the callers' labels that become labels of evald_evaluations_total, at most a few "
        "with few values each.",
    )
    reflection: bool = Field(True, description="Serve gRPC reflection.")

    remote_connect: bool = Field(True, description="Let plugins dial in (RegistryService.Connect).")
    remote_targets: list[RemoteTarget] = Field(
        default_factory=list,
        description="Listening plugins to dial: gRPC targets, or tables with target and tls_profile.",
    )
    remote_allowed: list[str] = Field(
        default_factory=list,
        description="Where to dial back to when a plugin registers: networks (10.0.0.0/8), host names "
        "(*.evals.svc), directories of Unix sockets (unix:/run/evald/). None: plugins cannot register.",
    )
    remote_blocked: list[str] = Field(
        default_factory=list, description="Names of plugins that may not register; their leases are revoked."
    )
    remote_tls: dict[str, TlsProfile] = Field(
        default_factory=dict,
        description="TLS profiles by name: tables with ca_file, cert_file and key_file.",
    )
    remote_max_inflight: Annotated[int, Field(ge=1)] = Field(
        64, description="Most tasks of one remote evaluator at a time."
    )
    remote_max_queued: Annotated[int, Field(ge=0)] = Field(
        32, description="Most calls that wait for a place of one remote evaluator."
    )
    remote_max_queue_seconds: Annotated[float, Field(gt=0)] = Field(
        1.0, description="Longest wait for a place of a remote evaluator."
    )
    remote_max_instances: Annotated[int, Field(ge=1)] = Field(
        1000, description="Most instances of plugins, and most remote evaluator types."
    )
    remote_max_task_bytes: Annotated[int, Field(ge=1024)] = Field(
        4_000_000, description="Largest task that is sent to a plugin; gRPC's default limit is 4 MiB."
    )
    remote_lease_seconds: Annotated[float, Field(gt=0, le=300)] = Field(
        30.0, description="Lease of a plugin that registers without saying how long."
    )
    remote_health_seconds: Annotated[float, Field(gt=0)] = Field(
        2.0, description="Time between two health checks of a listening plugin, and its time to answer."
    )
    remote_ping_seconds: Annotated[float, Field(gt=0)] = Field(
        5.0, description="Time between two pings of a plugin that has dialled in, and its time to answer."
    )

    max_message_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = Field(
        16 << 20, description="Largest message that is accepted."
    )
    max_evaluators: Annotated[int, Field(ge=1)] = Field(
        100, description="Most evaluators in one call, those inside combinators included."
    )
    max_messages: Annotated[int, Field(ge=1)] = Field(5000, description="Most messages in one conversation.")
    max_config_bytes: Annotated[int, Field(ge=1)] = Field(
        256 << 10,
        description="Largest config of one evaluator; those of a call may have twice as much together.",
    )
    max_concurrent_streams: Annotated[int, Field(ge=1)] = Field(
        100, description="Most calls at a time on one connection."
    )
    max_connections: Annotated[int, Field(ge=1, le=1 << 20)] | None = Field(
        None,
        description="Most gRPC connections at a time, further ones are closed at once; half of the file descriptors "
        "that the process may have, but at most 10000, when not given.",
    )
    handshake_timeout: Annotated[float, Field(gt=0, le=3600)] = Field(
        10.0, description="Time in which a new connection has to begin to speak HTTP/2, or is closed."
    )
    max_connection_idle: Annotated[float, Field(gt=0, le=86_400)] = Field(
        600.0,
        description="Time after which a connection without a call is closed; gRPC clients open it again.",
    )
    max_inflight: Annotated[int, Field(ge=1)] = Field(
        256, description="Most evaluations at a time that wait for something (a remote, a judge, a thread)."
    )
    max_queued: Annotated[int, Field(ge=0)] = Field(
        256, description="Most evaluations that wait for a place; more are refused at once."
    )
    max_queue_seconds: Annotated[float, Field(ge=0)] = Field(1.0, description="Longest wait for a place.")
    max_streams: Annotated[int, Field(ge=1)] = Field(
        10_000, description="Most sessions, batches and watches that are open at a time."
    )
    batch_processes: Annotated[int, Field(ge=0, le=64)] = Field(
        default_factory=lambda: min(4, _processors()),
        description="Most processes that large batches are evaluated in; as many as processors, but at most 4, when "
        "not given; 0 evaluates them in the server's own process.",
    )
    code_allow: list[str] = Field(
        default_factory=list,
        description="Commands that the code evaluator may run: absolute paths, each perhaps followed by "
        "@sha256: and the file's digest. None: it is off.",
    )
    code_shell: bool = Field(
        False,
        description="Allow any shell script in a config of the code evaluator. Only where every caller is trusted.",
    )
    code_isolation: Literal["require", "prefer", "off"] = Field(
        "prefer",
        description="Run scripts with no network and a read-only view of few files, by bubblewrap or Landlock: "
        "always, or refuse; where the machine can; or never.",
    )
    code_read: list[str] = Field(
        default_factory=list,
        description="What isolated scripts may read beside the system's programs and libraries: absolute paths.",
    )
    code_directory: Path = Field(Path("/"), description="Working directory of scripts.")
    code_environment: list[str] = Field(
        default_factory=list,
        description="Environment variables of scripts: NAME=VALUE, or NAME for the server's own value.",
    )
    code_timeout: Annotated[float, Field(gt=0)] = Field(30.0, description="Longest time of one script.")
    code_concurrency: Annotated[int, Field(ge=1)] = Field(
        4, description="Most scripts at a time; further ones wait for as long as their call has time."
    )
    code_memory_bytes: Annotated[int, Field(ge=16 << 20)] = Field(
        512 << 20, description="Most memory of one process of a script."
    )
    code_processes: Annotated[int, Field(ge=1)] = Field(
        64, description="Most processes and threads of one script."
    )
    code_output_bytes: Annotated[int, Field(ge=1024)] = Field(
        1 << 20, description="Most that a script may write to its standard output, and to its standard error."
    )

    default_timeout: Annotated[float, Field(gt=0)] = Field(
        60.0, description="Time of a call that brings no deadline."
    )
    max_timeout: Annotated[float, Field(gt=0)] = Field(600.0, description="Longest time of one evaluation.")
    concurrency: Annotated[int, Field(ge=1)] = Field(
        16, description="Most waiting evaluators at a time in one call that does not say."
    )
    plan_cache_bytes: Annotated[int, Field(ge=0)] = Field(
        64 << 20, description="Memory for compiled plans that are kept, estimated."
    )
    answer_cache_bytes: Annotated[int, Field(ge=0)] = Field(
        64 << 20, description="Answers that are kept for calls that bring a request_id."
    )
    drain_delay: Annotated[float, Field(ge=0)] = Field(
        0.0, description="Time between turning NOT_SERVING and refusing calls, for load balancers to notice."
    )
    drain_grace: Annotated[float, Field(ge=0)] = Field(
        10.0, description="Time that open calls get to finish when the server stops."
    )
    judge_base_url: str | None = Field(
        None, description="Address of the default judge's API, up to /v1; OPENAI_BASE_URL when not set."
    )
    judge_model: str | None = Field(None, description="The default judge's model.")
    judge_api_key: SecretStr | None = Field(
        None, description="The default judge's API key; OPENAI_API_KEY when not set, empty for none."
    )
    judge_api_key_file: Path | None = Field(None, description="File with the default judge's API key.")
    judge: str | None = Field(None, description="Which of several judges is the default one.")
    judges: dict[str, JudgeSettings] = Field(
        default_factory=dict, description="Judges by name; [judges.default] adds to the settings above."
    )
    judge_max_usd_per_call: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None, description="Most that one evaluation by a judge may cost, in US dollars."
    )
    judge_max_usd_per_day: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None, description="Most that all judges of this server may cost in a day (UTC), in US dollars."
    )
    judge_cache_bytes: Annotated[int, Field(ge=0)] = Field(
        64 << 20, description="Answers of judges that are kept, in data_dir or in memory; 0 for none."
    )
    log_format: Literal["auto", "text", "json"] = Field(
        "auto", description="auto: text on a terminal, JSON elsewhere."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level to log.")
    log_calls: bool = Field(False, description="Log a line for every call.")

    @field_validator("listen", "http")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if not value:
            return None
        split_address(value)
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
                    f"remote_targets: {one.target}: there is no TLS profile {one.tls_profile!r} in remote_tls"
                )
        return self

    @model_validator(mode="after")
    def _not_public(self) -> Self:
        for name, address in (("listen", self.listen), ("http", self.http)):
            if address and not self.insecure_public and not is_loopback(split_address(address)[0]):
                raise ValueError(
                    f"{name}: {address} can be reached from other machines, and calls are neither encrypted "
                    f"nor authenticated. Listen on 127.0.0.1, or set insecure_public if something in "
                    f"front of evald does both"
                )
        return self


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT" or "[IPv6]:PORT". Raises ValueError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"got {address!r}, wanted HOST:PORT, for example 127.0.0.1:50051")
    return host.removeprefix("[").removesuffix("]"), int(port)


def checked_url(url: str) -> str:
    """The address of an API. Raises ValueError, which does not repeat it: it might hold a password."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as problem:
        raise ValueError(f"not an address: {problem}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("wanted http://HOST/v1 or https://HOST/v1")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("wanted an address without user, password, query and fragment")
    return url


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the host. Names but localhost are taken for public."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load_settings(
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    config_file: str | Path | None = None,
) -> Settings:
    """Settings from the command line (`overrides`), the environment and a TOML or JSON file.

    Raises SettingsError that names every wrong setting and where it came from.
    """
    environ = os.environ if environ is None else environ
    config_file = config_file or environ.get(f"{PREFIX}CONFIG")
    sources: dict[str, str] = {}
    values: dict[str, Any] = {}
    names = _names()
    if config_file:
        for key, value in _read(Path(config_file)).items():
            name = names.get(key, key)
            values[name], sources[name] = value, f"{config_file}: {key}"
    for key, text in environ.items():
        name = key.removeprefix(PREFIX).lower()
        if key.startswith(PREFIX) and key not in _NOT_SERVER_SETTINGS and name in Settings.model_fields:
            values[name], sources[name] = _from_text(name, text), key
    _refuse_mistyped(environ, values)
    for name, variable in _FALLBACKS.items():
        if name not in values and environ.get(variable):
            values[name], sources[name] = environ[variable], variable
    for name, value in (overrides or {}).items():
        if value is not None:
            values[name], sources[name] = value, f"--{name.replace('_', '-')}"
    try:
        return Settings.model_validate(values)
    except ValidationError as problem:
        lines = []
        for error in problem.errors():
            message = error["msg"].removeprefix("Value error, ")
            name = str(error["loc"][0]) if error["loc"] else ""
            name = names.get(name, name)
            where = sources.get(name, name)
            inner = ".".join(map(str, error["loc"][1:]))
            if error["type"] == "extra_forbidden":
                message = _unknown(error["loc"])
            if inner:
                message = f"{inner}: {message}"
            lines.append(f"{where}: {message}" if where else message)
        raise SettingsError("\n".join(lines)) from None


def _unknown(location: Sequence[int | str]) -> str:
    """What is said of a key that nobody knows."""
    *path, key = location
    known = schema_keys(Settings.model_json_schema(by_alias=False), path)
    hint = did_you_mean(str(key), known)
    if path:
        return f"unknown key{hint}"
    return f"unknown setting{hint}" if hint else f"unknown setting; known are {', '.join(sorted(known))}"


def _refuse_mistyped(environ: Mapping[str, str], values: Mapping[str, Any]) -> None:
    """Refuse variables whose names are those of settings but for a slip.

    Others are somebody else's: Kubernetes sets EVALD_PORT beside a service "evald", and settings name variables
    with keys in them. Raises SettingsError.
    """
    named = json.dumps(values, default=str)
    for variable in sorted(environ):
        name = variable.removeprefix(PREFIX).lower()
        if not variable.startswith(PREFIX) or variable in _NOT_SERVER_SETTINGS or variable in named:
            continue
        near = difflib.get_close_matches(name, Settings.model_fields, n=1, cutoff=_SLIP)
        if near and name not in Settings.model_fields:
            raise SettingsError(f"{variable}: unknown setting; did you mean {PREFIX}{near[0].upper()}?")


def _processors() -> int:
    """Those that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def _names() -> dict[str, str]:
    names: dict[str, str] = {}
    for name in Settings.model_fields:
        names[name] = names[to_camel(name)] = names[name.replace("_", "-")] = name
    return names


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise SettingsError(f"config file {path}: {problem}") from None
    try:
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except ValueError as problem:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise SettingsError(f"config file {path}: not valid {kind}: {problem}") from None
    if not isinstance(data, dict):
        raise SettingsError(f"config file {path}: got {type(data).__name__}, wanted a table of settings")
    return data


def _from_text(name: str, text: str) -> Any:
    annotation = str(Settings.model_fields[name].annotation)
    if annotation.startswith("list"):
        return [part.strip() for part in text.split(",") if part.strip()]
    if annotation.startswith("dict"):
        try:
            return json.loads(text)
        except ValueError as problem:
            raise SettingsError(f"{PREFIX}{name.upper()}: not valid JSON: {problem}") from None
    return text
