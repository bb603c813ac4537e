"""The models of a server, made out of its settings."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from evald_server.config import JudgeSettings, Settings

from .cache import Cache, DiskCache, MemoryCache, NoCache
from .endpoint import OPENAI, Endpoint, EndpointOptions
from .forms import Form
from .ledger import FileLedger
from .models import ConfiguredModels, JudgeTally
from .prices import Price
from .purse import Forgetful, Ledger, Purse
from .redaction import Redactor

DEFAULT: Final = "default"
"""Name of the judge that EVALD_JUDGE_BASE_URL, EVALD_JUDGE_MODEL and EVALD_JUDGE_API_KEY describe."""


def build_models(
    settings: Settings, tally: JudgeTally, environ: Mapping[str, str] = os.environ
) -> ConfiguredModels:
    """The judges of these settings. Imports no client and opens no connection.

    Raises ValueError: a key cannot be had, or the default judge is none of the judges.
    """
    judges = dict(settings.judges)
    keys = {name: _key(name, judge, environ) for name, judge in judges.items()}
    given = (
        settings.judge_base_url,
        settings.judge_model,
        settings.judge_api_key,
        settings.judge_api_key_file,
    )
    if any(value is not None for value in given):
        own = {"base_url": settings.judge_base_url, "model": settings.judge_model}
        judges[DEFAULT] = judges.get(DEFAULT, JudgeSettings.model_validate({})).model_copy(
            update={name: value for name, value in own.items() if value is not None}
        )
        keys[DEFAULT] = _default_key(settings) or keys.get(DEFAULT, "")
    default = settings.judge
    if default is None:
        default = DEFAULT if DEFAULT in judges else next(iter(judges)) if len(judges) == 1 else None
    elif default not in judges:
        known = ", ".join(sorted(judges)) or "none"
        raise ValueError(f'judge: unknown judge "{default}"; configured are {known}')
    redactor = Redactor(keys.values())
    ledger: Ledger = Forgetful()
    if settings.data_dir is not None and settings.judge_max_usd_per_day is not None:
        ledger = FileLedger(settings.data_dir / "judge-spending.json")
    return ConfiguredModels(
        {name: Endpoint(_options(name, judge, keys[name]), redactor) for name, judge in judges.items()},
        default,
        purse=Purse(
            per_call_usd=settings.judge_max_usd_per_call,
            per_day_usd=settings.judge_max_usd_per_day,
            ledger=ledger,
        ),
        cache=_cache(settings),
        tally=tally,
    )


def _options(name: str, judge: JudgeSettings, key: str) -> EndpointOptions:
    return EndpointOptions(
        name,
        base_url=judge.base_url or OPENAI,
        model=judge.model,
        models=frozenset(judge.models),
        api_key=key,
        prices={model: Price(price.input, price.output) for model, price in judge.prices.items()},
        form=Form(judge.form),
        timeout_seconds=judge.timeout,
        attempts=judge.attempts,
        concurrency=judge.concurrency,
        stream=judge.stream,
    )


def _cache(settings: Settings) -> Cache:
    if not settings.judge_cache_bytes:
        return NoCache()
    if settings.data_dir is None:
        return MemoryCache(settings.judge_cache_bytes)
    return DiskCache(settings.data_dir / "judge-cache.sqlite", settings.judge_cache_bytes)


def _default_key(settings: Settings) -> str:
    if settings.judge_api_key_file is not None:
        return _read("judge_api_key_file", settings.judge_api_key_file)
    return settings.judge_api_key.get_secret_value().strip() if settings.judge_api_key else ""


def _key(name: str, judge: JudgeSettings, environ: Mapping[str, str]) -> str:
    if judge.api_key_env is not None:
        key = environ.get(judge.api_key_env, "").strip()
        if not key:
            raise ValueError(
                f"judges.{name}.api_key_env: the environment variable {judge.api_key_env} is not set or empty"
            )
        return key
    return "" if judge.api_key_file is None else _read(f"judges.{name}.api_key_file", judge.api_key_file)


def _read(setting: str, path: Path) -> str:
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else "it is no text"
        raise ValueError(f"{setting} {path}: {why}") from None
    if not key:
        raise ValueError(f"{setting} {path}: the file is empty")
    return key
