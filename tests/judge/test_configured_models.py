"""Which judges there are, by settings and environment, and what is wrong when there is none."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from evald_server.app import App, StartError
from evald_server.config import Settings, SettingsError, load_settings
from evald_server.judge.budget import Caller, Price
from evald_server.judge.cache import DiskCache, MemoryCache
from evald_server.judge.configured_models import ConfiguredModels, build_models
from evald_server.judge.endpoint import OPENAI, behind_proxy
from evald_server.judge.prompt_request import CallSpending, JudgeError
from evald_server.judge.response_format import ResponseFormat

from ..loop import run
from ..rpc.live import until
from .asking import Counted

KEY = "sk-canary-0123456789abcdef"
NOTHING: dict[str, str] = {}


def models(environ: dict[str, str], config: str = "", tmp_path: Path | None = None) -> ConfiguredModels:
    """The models of an environment and a config file."""
    file = None
    if config:
        assert tmp_path
        file = tmp_path / "evald.toml"
        file.write_text(config)
    return build_models(load_settings(environ=environ, config_file=file), Counted(), environ)


@pytest.mark.parametrize(
    "settings",
    [
        {"EVALD_JUDGE_MAX_USD_PER_DAY": "5"},
        {"EVALD_KEYS_FILE": "keys.toml"},
        {"EVALD_JWT_ISSUER": "i", "EVALD_JWT_AUDIENCE": "a", "EVALD_JWT_JWKS_FILE": "jwks.json"},
    ],
    ids=["ceiling", "keys", "tokens"],
)
def test_a_restart_gives_no_principal_its_money_back(settings: dict[str, str], tmp_path: Path) -> None:
    environ = {"EVALD_DATA_DIR": str(tmp_path), **settings}

    async def spend(usd: float) -> None:
        loaded = load_settings(environ=environ)
        found = build_models(loaded, Counted(), environ, caller=lambda: Caller("ci", 5.0))
        try:
            found._budget.reserve(usd, CallSpending()).settle(usd)
        finally:
            await found.close()

    run(spend(4.0))
    with pytest.raises(JudgeError, match="of its limit of"):
        run(spend(4.0))


def test_three_variables_make_a_judge() -> None:
    found = models(
        {
            "EVALD_JUDGE_BASE_URL": "http://127.0.0.1:8000/v1",
            "EVALD_JUDGE_MODEL": "m1",
            "EVALD_JUDGE_API_KEY": KEY,
        }
    )
    model = found.get(None, None)
    assert (model.endpoint, model.model) == ("default", "m1")
    assert found.get("default", "m2").model == "m2"
    endpoint = found.endpoints["default"]
    assert (endpoint.base_url, endpoint.api_key) == ("http://127.0.0.1:8000/v1", KEY)


@pytest.mark.parametrize(
    ("environ", "url", "key"),
    [
        ({"OPENAI_API_KEY": KEY}, OPENAI, KEY),
        ({"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "http://a/v1"}, "http://a/v1", KEY),
        ({"OPENAI_API_KEY": KEY, "EVALD_JUDGE_BASE_URL": "http://b/v1"}, "http://b/v1", KEY),
        ({"OPENAI_API_KEY": KEY, "EVALD_JUDGE_API_KEY": "other-key"}, OPENAI, "other-key"),
        ({"OPENAI_API_KEY": KEY, "EVALD_JUDGE_API_KEY": ""}, OPENAI, ""),
        ({"OPENAI_BASE_URL": "http://a/v1", "EVALD_JUDGE_BASE_URL": "http://b/v1"}, "http://b/v1", ""),
        ({"EVALD_JUDGE_MODEL": "m1"}, OPENAI, ""),
    ],
)
def test_the_variables_of_openai_stand_in_for_ours(environ: dict[str, str], url: str, key: str) -> None:
    endpoint = models({"EVALD_JUDGE_MODEL": "m"} | environ).endpoints["default"]
    assert (endpoint.base_url, endpoint.api_key) == (url, key)


CONFIG = """
judge_model = "m1"
judge_base_url = "http://127.0.0.1:1/v1"
judge_max_usd_per_day = 5

[judges.default]
timeout = 12.5
attempts = 2

[judges.default.prices]
m1 = { input = 1, output = 2 }

[judges.strict]
base_url = "http://127.0.0.1:2/v1"
model = "s1"
models = ["s2"]
api_key_env = "STRICT_KEY"
form = "text"
stream = true
concurrency = 3
prices = { s1 = { input = 0, output = 0 }, s2 = { input = 0.5, output = 1.5 } }
"""


def test_several_judges_stand_in_the_config_file(tmp_path: Path) -> None:
    found = models({"STRICT_KEY": f" {KEY}\n"}, CONFIG, tmp_path)
    default, strict = (found.endpoints[name] for name in ("default", "strict"))
    assert (default.settings.model, default.settings.timeout, default.settings.attempts) == ("m1", 12.5, 2)
    assert (strict.settings.model, strict.api_key, strict.settings.stream) == ("s1", KEY, True)
    assert strict.limiter.limit == 3
    assert strict.capabilities("s1").format is ResponseFormat.TEXT
    assert strict.price("s2") == Price(0.5, 1.5)
    assert (found.get(None, None).model, found.get("strict", None).model) == ("m1", "s1")
    assert found.get("strict", "s2").model == "s2"


@pytest.mark.parametrize(
    ("judge", "model", "words"),
    [
        ("strikt", None, 'unknown judge "strikt"; did you mean "strict"?; configured are default, strict'),
        ("strict", "zzz", 'may not ask model "zzz"; allowed are s1, s2'),
        (None, "mystery", 'price of model "mystery"'),
    ],
)
def test_a_judge_or_model_that_there_is_not_is_refused_with_those_there_are(
    judge: str | None, model: str | None, words: str, tmp_path: Path
) -> None:
    found = models({"STRICT_KEY": KEY}, CONFIG, tmp_path)
    with pytest.raises(ValueError) as problem:
        found.get(judge, model)
    assert words in str(problem.value)


def test_without_any_judge_the_refusal_says_what_to_set() -> None:
    with pytest.raises(ValueError, match=r"no judge is configured.*EVALD_JUDGE_BASE_URL, EVALD_JUDGE_MODEL"):
        models(NOTHING).get(None, None)
    with pytest.raises(ValueError, match='unknown judge "x"; none is configured'):
        models(NOTHING).get("x", None)
    with pytest.raises(ValueError, match=r'judge "default" has no model.*EVALD_JUDGE_MODEL'):
        models({"OPENAI_API_KEY": KEY}).get(None, None)
    assert models({"OPENAI_API_KEY": KEY}).get(None, "m").model == "m"


def test_which_of_several_judges_is_the_default(tmp_path: Path) -> None:
    two = '[judges.a]\nmodel = "m"\n[judges.b]\nmodel = "m"\n'
    with pytest.raises(ValueError, match=r"several judges.*set judge to one of a, b"):
        models(NOTHING, two, tmp_path).get(None, None)
    assert models(NOTHING, f'judge = "b"\n{two}', tmp_path).get(None, None).endpoint == "b"
    assert models(NOTHING, '[judges.only]\nmodel = "m"\n', tmp_path).get(None, None).endpoint == "only"
    with pytest.raises(ValueError, match='judge: unknown judge "c"; configured are a, b'):
        models(NOTHING, f'judge = "c"\n{two}', tmp_path)


WRONG: dict[str, tuple[str, str]] = {
    "scheme": ('[judges.a]\nbase_url = "ftp://x/v1"', "a.base_url: wanted http://"),
    "user": (f'[judges.a]\nbase_url = "https://me:{KEY}@x/v1"', "a.base_url: wanted an address without user"),
    "port": ('[judges.a]\nbase_url = "http://x:99999/v1"', "a.base_url: not an address"),
    "query": (f'judge_base_url = "https://x/v1?key={KEY}"', "looks like a secret"),
    "unknown key": ('[judges.a]\nmodle = "m"', "a.modle: unknown key"),
    "price below 0": ("[judges.a.prices]\nm = { input = -1, output = 1 }", "a.prices.m.input"),
    "price without output": ("[judges.a.prices]\nm = { input = 1 }", "a.prices.m.output"),
    "attempts": ("[judges.a]\nattempts = 0", "a.attempts"),
    "two keys": (
        '[judges.a]\napi_key_env = "A"\napi_key_file = "b"',
        "a: got both api_key_env and api_key_file",
    ),
    "key in the file": (f'[judges.a]\napi_key = "{KEY}"', "a.api_key: unknown key"),
    "ceiling": ("judge_max_usd_per_call = -1", "judge_max_usd_per_call"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_settings_are_refused_by_name_and_without_what_may_be_secret(name: str, tmp_path: Path) -> None:
    config, words = WRONG[name]
    with pytest.raises(SettingsError) as problem:
        models(NOTHING, config, tmp_path)
    assert words in str(problem.value)
    assert KEY not in str(problem.value)


def test_keys_come_from_files_too(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    found = models(NOTHING, f'[judges.a]\napi_key_file = "{file}"\nmodel = "m"', tmp_path)
    assert found.endpoints["a"].api_key == KEY
    found = models(
        {"EVALD_JUDGE_API_KEY_FILE": str(file), "OPENAI_API_KEY": "other", "EVALD_JUDGE_MODEL": "m"}
    )
    assert found.endpoints["default"].api_key == KEY


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            '[judges.a]\napi_key_env = "NOT_SET"',
            "judges.a.api_key_env: the environment variable that it names is not set",
        ),
        ('[judges.a]\napi_key_file = "/nowhere/key"', "judges.a.api_key_file /nowhere/key: No such file"),
        ('[judges.a]\napi_key_file = "/dev/null"', "judges.a.api_key_file /dev/null: the file is empty"),
        ('judge_api_key_file = "/nowhere/key"', "judge_api_key_file /nowhere/key: No such file"),
    ],
)
def test_a_key_that_cannot_be_had_stops_the_start(config: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "evald.toml"
    file.write_text(config)
    with pytest.raises(StartError) as problem:
        App(load_settings(environ=NOTHING, config_file=file))
    assert words in str(problem.value)


def test_settings_do_not_show_the_key() -> None:
    settings = load_settings(environ={"EVALD_JUDGE_API_KEY": KEY, "EVALD_JUDGE_MODEL": "m"})
    assert KEY not in repr(settings)
    assert KEY not in settings.model_dump_json()
    found = build_models(settings, Counted(), NOTHING)
    assert KEY not in repr(found.endpoints["default"])


def test_where_answers_are_kept(tmp_path: Path) -> None:
    async def main() -> None:
        for given, kind in (
            ({}, MemoryCache),
            ({"data_dir": tmp_path}, DiskCache),
            ({"judge_cache_bytes": 0, "data_dir": tmp_path}, MemoryCache),
        ):
            settings = Settings.model_validate(given)
            found = build_models(settings, Counted(), NOTHING)
            assert type(found._cache) is kind
            await found.close()

    run(main())
    assert list(tmp_path.iterdir()) == [], "nothing is written before there is anything to keep"


def test_the_client_is_imported_when_a_model_is_first_asked() -> None:
    script = (
        "import sys\n"
        "from evald_server.app import App\n"
        "from evald_server.config import Settings\n"
        "app = App(Settings(listen='127.0.0.1:0', http=None, web=None, judge_model='m'))\n"
        "app.models.get(None, None)\n"
        "assert not {'openai', 'httpx', 'httpx2'} & {name.partition('.')[0] for name in sys.modules}\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_keys_in_variables_reach_no_other_judge(tmp_path: Path) -> None:
    found = models({"OPENAI_API_KEY": KEY}, '[judges.local]\nbase_url = "http://127.0.0.1:9/v1"', tmp_path)
    assert found.endpoints["local"].api_key == ""


def _watched(environ: dict[str, str]) -> list[bool]:
    """What `watch` tells, up to its first look."""

    async def main() -> list[bool]:
        found = models(environ)
        told: list[bool] = []
        task = asyncio.create_task(found.watch(told.append))
        await until(lambda: told and all(one.reachable is not None for one in found.endpoints.values()))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return told

    return run(main())


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


async def test_a_key_alone_is_no_reason_to_connect_anywhere() -> None:
    found = models({"OPENAI_API_KEY": KEY})
    told: list[bool] = []
    async with asyncio.timeout(10):
        await found.watch(told.append)
    assert (told, found.endpoints["default"].reachable) == ([True], None)


def test_without_a_judge_none_is_available() -> None:
    assert _watched(NOTHING) == [False]


def test_an_endpoint_where_nothing_listens_is_not_available() -> None:
    async def free_port() -> int:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port: int = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        return port

    url = f"http://127.0.0.1:{run(free_port())}/v1"
    assert _watched({"EVALD_JUDGE_BASE_URL": url, "EVALD_JUDGE_MODEL": "m"}) == [True, False]


async def test_an_endpoint_where_something_listens_is_available_and_asked_nothing() -> None:
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read())
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    found = models({"EVALD_JUDGE_BASE_URL": url, "EVALD_JUDGE_MODEL": "m"})
    told: list[bool] = []
    task = asyncio.create_task(found.watch(told.append))
    await until(lambda: heard and found.endpoints["default"].reachable)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (set(told), heard) == ({True}, [b""])
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, False),
        ({"HTTPS_PROXY": "http://p:1"}, True),
        ({"all_proxy": "x"}, True),
        ({"HTTP_PROXY": ""}, False),
    ],
)
def test_behind_a_proxy_no_connection_is_tried(environ: dict[str, str], found: bool) -> None:
    assert behind_proxy(environ) is found
