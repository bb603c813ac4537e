"""A setting that nobody knows, or with a wrong value, is refused: its place, what was given, and what was meant."""

from pathlib import Path

import pytest

from evald_server.config import SettingsError, load_settings

FILES: dict[str, tuple[str, str]] = {
    "a letter": ("lisen = '127.0.0.1:1'", 'lisen: unknown setting; did you mean "listen"?'),
    "camelCase": ("maxEvaluaters = 3", 'maxEvaluaters: unknown setting; did you mean "max_evaluators"?'),
    "nothing like it": (
        "frobnicate = 1",
        "frobnicate: unknown setting; known settings: answer_cache_bytes, audit_calls",
    ),
    "in a judge": (
        "[judges.main]\nbase_url = 'http://127.0.0.1:1/v1'\nmodle = 'm'",
        'judges: main.modle: unknown key; did you mean "model"?',
    ),
    "in a price": (
        "[judges.main.prices.m]\ninput = 1\noutptu = 2\noutput = 2",
        'judges: main.prices.m.outptu: unknown key; did you mean "output"?',
    ),
    "in a list": (
        "[[remote_targets]]\ntarget = '127.0.0.1:1'\ntls_profil = 'x'",
        'remote_targets: [0].tls_profil: unknown key; did you mean "tls_profile"?',
    ),
}


@pytest.mark.parametrize(("text", "message"), FILES.values(), ids=FILES.keys())
def test_a_mistyped_key_of_a_file_names_the_one_that_was_meant(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "evald.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as refused:
        load_settings({}, {}, path)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("EVALD_LISEN", "EVALD_LISTEN"),
        ("EVALD_JUDGE_MAX_USD_PER_CAL", "EVALD_JUDGE_MAX_USD_PER_CALL"),
        ("EVALD_LOG_LEVELS", "EVALD_LOG_LEVEL"),
        ("EVALD_MAX_INFLIGHTS", "EVALD_MAX_INFLIGHT"),
    ],
)
def test_a_mistyped_variable_is_not_passed_over_in_silence(variable: str, meant: str) -> None:
    with pytest.raises(SettingsError, match=f"^{variable}: unknown setting; did you mean {meant}\\?$"):
        load_settings({}, {variable: "1"})


@pytest.mark.parametrize(
    ("variables", "text", "message"),
    [
        (
            {"EVALD_MAX_EVALUATORS": "abc"},
            "",
            "EVALD_MAX_EVALUATORS: got 'abc' (str), wanted a valid integer",
        ),
        (
            {"EVALD_MAX_EVALUATORS": "0"},
            "",
            "EVALD_MAX_EVALUATORS: got '0' (str), wanted greater than or equal to 1",
        ),
        (
            {"EVALD_DEFAULT_TIMEOUT": "soon"},
            "",
            "EVALD_DEFAULT_TIMEOUT: got 'soon' (str), wanted a valid number",
        ),
        (
            {"EVALD_REMOTE_CONNECT": "maybe"},
            "",
            "EVALD_REMOTE_CONNECT: got 'maybe' (str), wanted a valid boolean",
        ),
        (
            {"EVALD_AUTH_ANONYMOUS_ROLES": "viewer,boss"},
            "",
            "EVALD_AUTH_ANONYMOUS_ROLES: [1]: got 'boss' (str), wanted 'caller' or 'viewer'",
        ),
        (
            {"EVALD_AUTO": '{"regex": {"pattern": "a"}, "regex": {"pattern": "b"}}'},
            "",
            "EVALD_AUTO: not valid JSON: got a duplicate key 'regex'",
        ),
        (
            {},
            "auth_anonymous_roles = [3]",
            "auth_anonymous_roles: [0]: got 3 (int), wanted 'caller' or 'viewer'",
        ),
        ({}, "plugins = {a = 1}", "plugins: got an object with the keys a, wanted a valid list"),
        ({}, "remote_targets = [1]", "remote_targets: [0]: got 1 (int), wanted an object"),
        ({}, "remote_targets = [{}]", "remote_targets: [0].target: missing"),
        (
            {},
            "judges.main.attempts = 11",
            "judges: main.attempts: got 11 (int), wanted less than or equal to 10",
        ),
        ({}, "listen = ['http://a:hidden@b']", "listen: got list, wanted a valid string"),
        ({}, "judge_api_key = 1234", "judge_api_key: got int, wanted a valid string"),
    ],
)
def test_a_wrong_value_is_shown_with_its_place_and_what_is_wanted(
    tmp_path: Path, variables: dict[str, str], text: str, message: str
) -> None:
    path = tmp_path / "evald.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as refused:
        load_settings({}, variables, path)
    assert str(refused.value).startswith(message if variables else f"{path}: {message}")


def test_a_duplicate_key_of_a_json_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evald.json"
    path.write_text('{"auto": {"regex": {"pattern": "a"}, "regex": {"pattern": "b"}}}')
    with pytest.raises(SettingsError, match=r"evald\.json: not valid JSON: got a duplicate key 'regex'"):
        load_settings({}, {}, path)


def test_a_server_has_an_address() -> None:
    with pytest.raises(SettingsError, match=r"EVALD_LISTEN: .*wanted HOST:PORT"):
        load_settings({}, {"EVALD_LISTEN": ""})


def test_only_exact_names_of_variables_are_settings() -> None:
    settings = load_settings({}, {"evald_insecure_public": "1", "Evald_Listen": "0.0.0.0:1"})
    assert settings == load_settings({}, {})


def test_a_key_that_begins_with_an_underscore_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "evald.toml"
    path.write_text("_env_file = '/etc/evald.env'\n")
    with pytest.raises(SettingsError, match="_env_file: unknown setting"):
        load_settings({}, {}, path)


@pytest.mark.parametrize(
    "variable",
    [
        "EVALD_PORT",
        "EVALD_PORT_50051_TCP_ADDR",
        "EVALD_SERVICE_HOST",
        "EVALD_SERVICE_PORT_GRPC",
        "EVALD_HTTP_PORT",
        "EVALD_SERVER",
        "EVALD_DEBUG",
        "EVALD_HOME",
        "LISEN",
    ],
)
def test_variables_of_others_are_left_alone(variable: str) -> None:
    load_settings({}, {variable: "tcp://10.0.0.1:50051"})


def test_a_variable_that_a_setting_names_is_no_slip(tmp_path: Path) -> None:
    path = tmp_path / "evald.toml"
    path.write_text("[judges.main]\nmodel = 'm'\napi_key_env = 'EVALD_JUDGE_API_KEY_2'\n")
    load_settings({}, {"EVALD_JUDGE_API_KEY_2": "secret"}, path)
    with pytest.raises(SettingsError, match="did you mean EVALD_JUDGE_API_KEY"):
        load_settings({}, {"EVALD_JUDGE_API_KEY_2": "secret"})
