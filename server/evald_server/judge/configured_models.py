"""The models that the operator has configured: built from the settings, looked up by name, monitored."""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from evald.fields import nearest
from evald.strict_json import TooLarge, parse_json
from evald_server.config import JudgeSettings, Settings
from evald_server.day_totals import SPENDING_FILE, DayTotals
from evald_server.redaction import Redactor

from .budget import Budget, Caller
from .cache import AnswerCache, DiskCache, MemoryCache
from .endpoint import Endpoint, behind_proxy
from .judge_call import EndpointModel, RequestMetrics
from .prompt_request import JudgeModel

DEFAULT: Final = "default"
"""Name of the judge that EVALD_JUDGE_BASE_URL, EVALD_JUDGE_MODEL and EVALD_JUDGE_API_KEY describe."""

# Maximum delay until an endpoint that is reachable again is reported as available.
_PROBE_SECONDS: Final = 15.0


class ConfiguredModels:
    """All judges of a server, by name. default: used when an evaluator names no judge; None for no default."""

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        default: str | None,
        *,
        budget: Budget,
        cache: AnswerCache,
        metrics: RequestMetrics,
        cache_scope: Callable[[], str] = str,
    ) -> None:
        self.endpoints = endpoints
        self._default = default
        self._budget = budget
        self._cache = cache
        self._cache_scope = cache_scope
        self._metrics = metrics

    def get(self, judge: str | None, model: str | None) -> JudgeModel:
        """Return a model of the named judge, or of the default judge. model: overrides the configured model.

        Raises ValueError, whose message says what to set: for an unknown judge or model, when no model is configured,
        and when there is a ceiling on costs but the model has no price.
        """
        endpoint = self._endpoint(judge)
        name, settings = endpoint.name, endpoint.settings
        model = model or settings.model
        if not model:
            raise ValueError(
                f'judge "{name}" has no model: set model in the '
                "evaluator's config, or the operator sets EVALD_JUDGE_MODEL, or model in "
                f"[judges.{name}] of the config file"
            )
        allowed = {*settings.models, *filter(None, (settings.model,))}
        if settings.models and model not in allowed:
            raise ValueError(
                f'judge "{name}" may not ask model "{model[:100]}"{_suggestion(model, allowed)}; '
                f"allowed are {', '.join(sorted(allowed))}"
            )
        if self._budget.has_ceiling and endpoint.price(model) is None:
            raise ValueError(
                f'the price of model "{model[:100]}" is unknown, so the limit on costs cannot '
                "be enforced: the operator sets it in "
                f'[judges.{name}.prices."{model[:100]}"] of the config file, or removes '
                "judge_max_usd_per_call and judge_max_usd_per_day"
            )
        return EndpointModel(
            endpoint,
            model,
            budget=self._budget,
            cache=self._cache,
            cache_scope=self._cache_scope,
            metrics=self._metrics,
        )

    @property
    def available(self) -> bool:
        """Whether the default judge, or any judge if there is no default, may be reachable."""
        endpoints = [self.endpoints[self._default]] if self._default is not None else self.endpoints.values()
        return any(endpoint.reachable is not False for endpoint in endpoints)

    async def watch(self, on_change: Callable[[bool], None]) -> None:
        """Report whether models are available, now and at every change, until cancelled.

        Probes each endpoint that has a model, at the start and while it cannot be reached. After that, the requests
        show whether it is reachable. An API key alone is no reason to connect, because it may serve another purpose.
        """
        on_change(self.available)
        endpoints = list(self.endpoints.values())
        for endpoint in endpoints:
            endpoint.on_change = lambda: on_change(self.available)
        with_model = [endpoint for endpoint in endpoints if endpoint.settings.model]
        while with_model and not behind_proxy():
            for endpoint in with_model:
                if not endpoint.reachable:
                    await endpoint.probe()
            await asyncio.sleep(_PROBE_SECONDS)

    async def close(self) -> None:
        """Close connections and files."""
        for endpoint in self.endpoints.values():
            await endpoint.close()
        await self._cache.close()
        await asyncio.to_thread(self._budget.close)

    def _endpoint(self, judge: str | None) -> Endpoint:
        known = ", ".join(sorted(self.endpoints))
        if judge is None:
            if self._default is not None:
                return self.endpoints[self._default]
            if self.endpoints:
                raise ValueError(
                    f"several judges are configured and none is the default; set judge to one of {known}"
                )
            raise ValueError(
                "no judge is configured: the operator sets EVALD_JUDGE_BASE_URL, "
                "EVALD_JUDGE_MODEL and EVALD_JUDGE_API_KEY, or OPENAI_API_KEY and "
                "EVALD_JUDGE_MODEL, or [judges.NAME] in the config file"
            )
        if judge not in self.endpoints:
            listed = f"configured are {known}" if known else "none is configured"
            raise ValueError(f'unknown judge "{judge[:100]}"{_suggestion(judge, self.endpoints)}; {listed}')
        return self.endpoints[judge]


def build_models(
    settings: Settings,
    metrics: RequestMetrics,
    environ: Mapping[str, str] = os.environ,
    *,
    caller: Callable[[], Caller] = Caller,
    limited: Callable[[], None] = lambda: None,
) -> ConfiguredModels:
    """Return the judges of these settings. Does not import the client and opens no connection.

    caller: returns the current caller. limited: called when a principal's ceiling refuses a request.

    Raises ValueError when an API key cannot be read or the default judge is not configured.
    """
    judges = dict(settings.judges)
    keys = {name: _api_key(name, judge, environ) for name, judge in judges.items()}
    default_judge = {"base_url": settings.judge_base_url, "model": settings.judge_model}
    given = (*default_judge.values(), settings.judge_api_key, settings.judge_api_key_file)
    if any(value is not None for value in given):
        judges[DEFAULT] = judges.get(DEFAULT, JudgeSettings.model_validate({})).model_copy(
            update={name: value for name, value in default_judge.items() if value is not None}
        )
        keys[DEFAULT] = _default_api_key(settings) or keys.get(DEFAULT, "")
    default = settings.judge
    if default is None:
        default = DEFAULT if DEFAULT in judges else next(iter(judges)) if len(judges) == 1 else None
    elif default not in judges:
        known = ", ".join(sorted(judges)) or "none"
        raise ValueError(f'judge: unknown judge "{default}"; configured are {known}')
    redactor = Redactor(keys.values())
    spent = None
    if settings.data_dir is not None and (
        settings.judge_max_usd_per_day is not None or settings.authenticates
    ):
        spent = DayTotals(settings.data_dir / SPENDING_FILE)
    cache: AnswerCache = MemoryCache(settings.judge_cache_bytes)
    if settings.data_dir is not None and settings.judge_cache_bytes:
        cache = DiskCache(settings.data_dir / "judge-cache.sqlite", settings.judge_cache_bytes)
    return ConfiguredModels(
        {
            name: Endpoint(name, judge, redactor, api_key=keys[name], cards=_card_ids(name, judge))
            for name, judge in judges.items()
        },
        default,
        budget=Budget(
            per_call_usd=settings.judge_max_usd_per_call,
            per_day_usd=settings.judge_max_usd_per_day,
            spent=spent,
            caller=caller,
            limited=limited,
        ),
        cache=cache,
        metrics=metrics,
        cache_scope=(lambda: caller().name) if settings.judge_cache_scope == "principal" else str,
    )


def _default_api_key(settings: Settings) -> str:
    if settings.judge_api_key_file is not None:
        return _read_key("judge_api_key_file", settings.judge_api_key_file)
    return settings.judge_api_key.get_secret_value().strip() if settings.judge_api_key else ""


def _api_key(name: str, judge: JudgeSettings, environ: Mapping[str, str]) -> str:
    if judge.api_key_env is not None:
        key = environ.get(judge.api_key_env, "").strip()
        if not key:
            # The variable's name is not quoted, because many operators put the key itself there.
            raise ValueError(
                f"judges.{name}.api_key_env: the environment variable that it names is not set or empty"
            )
        return key
    return "" if judge.api_key_file is None else _read_key(f"judges.{name}.api_key_file", judge.api_key_file)


def _read_key(setting: str, path: Path) -> str:
    key = _read_text(setting, path).strip()
    if not key:
        raise ValueError(f"{setting} {path}: the file is empty")
    return key


def _read_text(setting: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else "not UTF-8 text"
        raise ValueError(f"{setting} {path}: {why}") from None


def _card_ids(name: str, judge: JudgeSettings) -> dict[str, str]:
    return {model: _card_id(f"judges.{name}.cards.{model}", path) for model, path in judge.cards.items()}


def _card_id(setting: str, path: Path) -> str:
    """Return the id of the calibration card in this file, which is the digest of the card's content."""
    from evald_server.calibration.card import FORMAT, card_id

    text = _read_text(setting, path)
    try:
        card = parse_json(text)
    except (ValueError, TooLarge) as problem:
        raise ValueError(f"{setting} {path}: not JSON: {problem}") from None
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        raise ValueError(
            f"{setting} {path}: not a calibration card; wanted a file written by `evald calibrate --card`"
        )
    wanted = card_id(card)
    if card.get("id") != wanted:
        raise ValueError(
            f"{setting} {path}: the card was modified: its id does not match its content, "
            f"whose id is {wanted}; calibrate again"
        )
    return wanted


def _suggestion(name: str, known: Iterable[str]) -> str:
    near = nearest(name, known, cutoff=0.5)
    return f'; did you mean "{near}"?' if near else ""
