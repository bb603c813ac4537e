"""What is refused when a connector is saved, with the field and the next step; no secret is stored or shown."""

import json
from typing import Any

import pytest

from evald.evaluator import check_config
from evald_server.config import Settings
from evald_server.connectors.build import Connectors
from evald_server.connectors.connector import ConnectorFailure
from evald_server.connectors.headers import HeaderSecrets, mask

from .building import connectors, stored

URL = "http://127.0.0.1:8000"
CHAT = {"model": "gpt-x"}
TOOL = {"type": "function", "function": {"name": "book", "parameters": {}}}

REFUSED: dict[str, tuple[Any, str, str]] = {
    "no-type": (stored(""), "type", "wanted one of grpc, http, langgraph, openai-chat, replay"),
    "misspelled-type": (stored("openai_chat"), "type", 'did you mean "openai-chat"'),
    "no-url": (stored("http"), "base_url", "wanted http://HOST or https://HOST"),
    "another-scheme": (stored("http", "ftp://x"), "base_url", "wanted http://HOST"),
    "file": (stored("http", "file:///etc/passwd"), "base_url", "wanted http://HOST"),
    "password": (stored("http", "http://a:b@127.0.0.1"), "base_url", "without user, password"),
    "key": (stored("http", f"{URL}?key=1"), "base_url", "looks like a secret; wanted it in a header"),
    "api-key": (
        stored("openai-chat", f"{URL}?v=1&Api-Key=x", {"model": "m"}),
        "base_url",
        "looks like a secret",
    ),
    "sig": (stored("http", f"{URL}/x?sv=2&sig=abc%2B"), "base_url", "looks like a secret"),
    "code": (stored("http", f"{URL}/api/ask?code=abc"), "base_url", "looks like a secret"),
    "a-key-as-value": (stored("http", f"{URL}?v=sk-12345678abc"), "base_url", "looks like a secret"),
    "a-key-alone": (stored("http", f"{URL}?sk-12345678abc"), "base_url", "looks like a secret"),
    "fragment": (stored("http", f"{URL}#a"), "base_url", "without user, password and fragment"),
    "a-bad-port": (stored("http", "http://127.0.0.1:99999"), "base_url", "not the address of an agent"),
    "an-odd-notation": (stored("http", "http://0x7f000001"), "base_url", "usual notation"),
    "a-space": (stored("http", "http://127.0.0.1/a b"), "base_url", "without spaces"),
    "metadata-service": (stored("http", "http://169.254.169.254/latest"), "base_url", "metadata service"),
    "mapped": (stored("http", "http://[::ffff:169.254.169.254]/"), "base_url", "not allowed"),
    "grpc-url": (stored("grpc", URL), "base_url", "got 'http://127.0.0.1:8000'"),
    "grpc-metadata": (stored("grpc", "169.254.169.254:80"), "base_url", "metadata service"),
    "grpc-socket": (stored("grpc", "unix:/run/docker.sock"), "base_url", "connector_allowed"),
    "grpc-profile": (stored("grpc", "127.0.0.1:1", {"tls": "x"}), "config.tls", "unknown profile 'x'"),
    "replay-url": (stored("replay", URL, {"messages": ["x"]}), "base_url", "a recording has no address"),
    "no-model": (stored("openai-chat", URL), "config.model", "missing"),
    "own-parameter": (
        stored("openai-chat", URL, {**CHAT, "parameters": {"stream": True}}),
        "config.parameters",
        "the connector sets itself",
    ),
    "tool-without-answer": (
        stored("openai-chat", URL, {**CHAT, "tools": [TOOL], "toolResults": {"find": 1}}),
        "config",
        "no result for the tool 'book'",
    ),
    "tool-without-a-function": (
        stored("openai-chat", URL, {**CHAT, "tools": [{"function": 3}], "toolResults": {"find": 1}}),
        "config",
        "no result for the tool '?'",
    ),
    "timeout": (stored("http", URL, {"timeoutSeconds": 0}), "config.timeoutSeconds", "greater than 0"),
    "timeout-nan": (stored("http", URL, {"timeoutSeconds": "1"}), "config.timeoutSeconds", "valid number"),
    "attempts": (stored("http", URL, {"maxAttempts": 99}), "config.maxAttempts", "less than or equal to 10"),
    "unknown-key": (stored("http", URL, {"timeoutSecond": 1}), "config.timeoutSecond", "did you mean"),
    "a-bad-path": (stored("http", URL, {"textPath": "a..b"}), "config.textPath", "wanted a path such as"),
    "a-bad-pointer": (stored("http", URL, {"textPath": "/a~2"}), "config.textPath", "JSON Pointer"),
    "an-empty-path": (stored("http", URL, {"textPath": ""}), "config.textPath", "wanted a path such as"),
    "a-bad-usage-path": (
        stored("http", URL, {"usagePath": {"input": "["}}),
        "config.usagePath",
        "wanted a path",
    ),
    "a-relative-path": (stored("http", URL, {"path": "chat"}), "config.path", "begins with /"),
    "unknown-in-the-path": (stored("http", URL, {"path": "/{{message}}"}), "config.path", "unknown variable"),
    "unknown-variable": (
        stored("http", URL, {"body": {"a": [{"b": "{{mesage}}"}]}}),
        "config.body.a[0].b",
        "unknown variable {{mesage}}",
    ),
    "messages-in-a-text": (
        stored("http", URL, {"body": "x {{messages}}"}),
        "config.body",
        "as the whole value",
    ),
    "a-long-url": (stored("http", f"{URL}/{'x' * 2048}"), "base_url", "wanted at most 2048"),
    "a-long-path": (stored("http", URL, {"path": "/" + "x" * 2048}), "config.path", "2048"),
    "messages-again-and-again": (
        stored("http", URL, {"body": ["{{messages}}"] * 11}),
        "config.body",
        "{{messages}} 11 times; wanted at most 10",
    ),
    "a-message-again-and-again": (
        stored("http", URL, {"body": "{{message}}" * 101}),
        "config.body",
        "at most 100",
    ),
    "a-header-of-http-alone": (
        stored("grpc", "127.0.0.1:1", headers={"x!y": "1"}),
        "headers['x!y']",
        "gRPC cannot send",
    ),
    "no-assistant": (stored("langgraph", URL), "config.assistantId", "missing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused_with_its_field(name: str) -> None:
    pb, field, words = REFUSED[name]
    found = connectors().violations(pb)
    assert [path for path, _ in found] == [f"connector.{field}"]
    assert words in found[0][1]
    with pytest.raises(ConnectorFailure, match="connector") as failed:
        connectors().build(pb)
    assert failed.value.code == "CONNECTOR_CONFIG"


@pytest.mark.parametrize(
    "pb",
    [
        stored("http", URL),
        stored(
            "http", "https://agent.example/v1/", {"path": "/chat?x={{turn}}", "body": {"q": "{{message}}"}}
        ),
        stored("http", "http://[::1]:8000"),
        stored("openai-chat", f"{URL}/v1", {**CHAT, "tools": [TOOL], "toolResults": {"book": "ok"}}),
        stored("openai-chat", f"{URL}/v1", {**CHAT, "tools": [TOOL], "parameters": {"temperature": 0}}),
        stored("langgraph", URL, {"assistant_id": "agent", "configurable": {"user": "x"}}),
        stored("grpc", "dns:///agents.svc:50051"),
        stored("grpc", "127.0.0.1:50051", {"timeoutSeconds": 5}),
    ],
    ids=lambda pb: f"{pb.type} {pb.base_url}",
)
def test_what_can_work_is_accepted(pb: Any) -> None:
    assert connectors().violations(pb) == []
    connectors().build(pb)


def test_numbers_that_json_cannot_carry_are_refused() -> None:
    pb = stored("http", URL)
    pb.config.fields["body"].number_value = float("nan")
    assert connectors().violations(pb)[0][0] == "connector.config"


def test_all_that_is_wrong_is_told_at_once() -> None:
    pb = stored(
        "http", URL, {"timeoutSeconds": 0, "maxAttempts": 0}, {"Authorization": "Bearer x", "Host": "y"}
    )
    assert len(connectors().violations(pb, "request.connector")) == 4


def test_types_describe_themselves_and_their_schemas_are_what_is_checked() -> None:
    types = {one.type: one for one in connectors().types()}
    assert list(types) == ["grpc", "http", "langgraph", "openai-chat", "replay"]
    for one in types.values():
        assert one.label
        assert one.description.endswith(".")
    schema = json.loads(types["openai-chat"].config_schema_json)
    check_config(schema, {"model": "x", "toolResults": {"a": [1]}, "timeoutSeconds": 5})
    with pytest.raises(ValueError, match="unknown key"):
        check_config(schema, {"model": "x", "toolResult": {}})


PUBLIC: dict[str, Any] = {"listen": "0.0.0.0:0", "insecure_public": True}


@pytest.mark.parametrize(
    ("settings", "url", "allowed"),
    [
        ({}, "http://10.1.2.3", True),
        (PUBLIC, "http://10.1.2.3", False),
        (PUBLIC, "http://127.0.0.1", False),
        (PUBLIC, "http://agent.svc", False),
        ({**PUBLIC, "connector_allowed": ["*"]}, "http://127.0.0.1", True),
        ({**PUBLIC, "connector_allowed": ["10.0.0.0/8"]}, "http://10.1.2.3", True),
        ({**PUBLIC, "connector_allowed": ["10.0.0.0/8"]}, "http://11.1.2.3", False),
        ({"connector_allowed": []}, "http://127.0.0.1", False),
        ({"connector_allowed": ["0.0.0.0/0"]}, "http://127.0.0.1", False),
    ],
)
def test_only_a_server_that_no_other_machine_reaches_calls_any_agent(
    settings: dict[str, Any], url: str, allowed: bool
) -> None:
    found = Connectors(Settings(**settings)).violations(stored("http", url))
    assert (not found) == allowed
    assert all("connector_allowed" in message for _, message in found)


def test_a_server_without_targets_plays_recordings() -> None:
    recording = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    assert not connectors(**PUBLIC).violations(stored("replay", config={"messages": recording}))


def test_rules_that_mean_nothing_are_refused_with_the_setting() -> None:
    with pytest.raises(ValueError, match=r"connector_allowed: '10\.0\.0\.0/99'"):
        connectors(connector_allowed=["10.0.0.0/99"])


HEADERS: dict[str, tuple[dict[str, str], str]] = {
    "authorization": ({"Authorization": "Bearer abc"}, "got a literal value"),
    "proxy": ({"proxy-authorization": "Basic x"}, "got a literal value"),
    "cookie": ({"Cookie": "session=1"}, "got a literal value"),
    "x-api-key": ({"X-Api-Key": "abc"}, "got a literal value"),
    "api-key": ({"api-key": "abc"}, "got a literal value"),
    "a-token": ({"X-Access-Token": "abc"}, "${EVALD_SECRET_AGENT}"),
    "a-secret": ({"client-secret": "abc"}, "got a literal value"),
    "a-subscription": ({"Ocp-Apim-Subscription-Key": "abc"}, "got a literal value"),
    "a-key-in-a-plain-header": ({"x-note": "sk-abcdefghijklmnop"}, "got a literal value"),
    "a-bearer-in-a-plain-header": ({"x-note": "Bearer abcdefghijkl"}, "got a literal value"),
    "a-word-beside-a-variable": ({"Authorization": "Basic abc${EVALD_SECRET_A}"}, "got a literal value"),
    "a-word-that-is-no-scheme": ({"Authorization": "abc ${EVALD_SECRET_A}"}, "got a literal value"),
    "a-cookie-beside-a-variable": ({"Cookie": "session=abc; a=${EVALD_SECRET_A}"}, "got a literal value"),
    "a-key-beside-a-variable": ({"x-note": "sk-abcdefghijklmnop ${EVALD_SECRET_A}"}, "got a literal value"),
    "x-authorization": ({"X-Authorization": "abc"}, "got a literal value"),
    "x-cookie": ({"X-Cookie": "a=abc"}, "got a literal value"),
    "x-session": ({"X-Session-Id": "abc"}, "got a literal value"),
    "x-user-jwt": ({"X-User-Jwt": "abc"}, "got a literal value"),
    "x-signature": ({"x_signature": "abc"}, "got a literal value"),
    "another-variable": (
        {"x-a": "${PATH}"},
        "'PATH' is not allowed; wanted one that begins with EVALD_SECRET_",
    ),
    "an-empty-variable": ({"x-a": "${}"}, "'' is not allowed"),
    "the-judge's-key": ({"x-a": "${EVALD_JUDGE_API_KEY}"}, "is not allowed"),
    "host": ({"Host": "x"}, "sets this header itself"),
    "length": ({"content-length": "1"}, "sets this header itself"),
    "idempotency": ({"Idempotency-Key": "${EVALD_SECRET_A}"}, "sets this header itself"),
    "grpc": ({"grpc-timeout": "1S"}, "sets this header itself"),
    "binary": ({"x-bin": "abc"}, "wanted a header of text"),
    "a-line-break": ({"x-a": "b\r\nx-c: d"}, "printable ASCII"),
    "not-ascii": ({"x-a": "ü"}, "printable ASCII"),
    "a-bad-name": ({"x a": "b"}, "wanted a header's name"),
    "a-mask": ({"x-a": "***"}, "stands for the stored value"),
    "too-many": ({f"x-{number}": "1" for number in range(51)}, "at most 50"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_that_would_store_a_secret_or_break_a_request_are_refused(name: str) -> None:
    headers, words = HEADERS[name]
    ((path, message),) = connectors().violations(stored("http", URL, headers=headers))
    assert path.startswith("connector.headers")
    assert words in message
    assert "abc" not in message


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer ${EVALD_SECRET_AGENT}"},
        {"X-Tenant": "acme", "traceparent": "00-1-1-01"},
        {"cookie": "a=${EVALD_SECRET_A}; b=${OTHER}"},
    ],
)
def test_variables_and_plain_values_are_accepted_and_only_names_are_shown(headers: dict[str, str]) -> None:
    assert not connectors(connector_secrets=["OTHER"]).violations(stored("http", URL, headers=headers))
    shown = dict(headers)
    mask(shown)
    for name, value in shown.items():
        assert value == (headers[name] if "${" in headers[name] else "***")


def test_a_value_with_more_than_variables_is_not_shown() -> None:
    headers = {"x-note": "hunter2 ${EVALD_SECRET_A}"}
    assert not connectors().violations(stored("http", URL, headers=headers))
    mask(headers)
    assert headers == {"x-note": "***"}


def test_a_later_header_of_the_same_name_counts_and_variables_are_filled_in() -> None:
    secrets = HeaderSecrets(["OTHER"], {"EVALD_SECRET_A": "first-secret\n", "OTHER": "second-secret"})
    resolved = secrets.resolve({"X-A": "1", "x-b": "${OTHER}-${OTHER}"}, {"x-a": "Bearer ${EVALD_SECRET_A}"})
    assert resolved.values == {"x-a": "Bearer first-secret", "x-b": "second-secret-second-secret"}
    assert resolved.secrets == {"first-secret", "second-secret"}
