"""The page that evaluates a conversation at once and stores nothing."""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from evald import InvalidInput
from evald.catalog import EvaluatorType
from evald.convert.requests import evaluate_request
from evald.v1 import evaluation_service_pb2, result_pb2
from evald_server.http.calls import CallFailed
from evald_server.http.site import Site
from evald_server.http.streams import NDJSON, Framing, StreamedCall, json_bytes
from evald_server.loop import in_thread_if_large
from evald_server.methods import SCENARIOS
from evald_server.pages.environment import shown_text
from evald_server.pages.formats import Mark, mark, score
from evald_server.suites.recorded_turns import last_turn
from evald_server.suites.reports.case_view import ResultView, result_view, warnings_of
from evald_server.suites.reports.report import is_metric

from .evaluator_types import evaluator_types
from .forms import Posted, Problems, read_json
from .page_edit import (
    Form,
    Types,
    boxes_of,
    read_posted,
    read_specs,
    rearrange,
    show_form,
    spec_field,
)
from .page_run import result_data
from .rendering import render
from .resources import Resources, note

_EVALUATE: Final = "evald.v1.EvaluationService/Evaluate"
_SPEAKER: Final = re.compile(r"(?i)^(user|assistant|system|tool|developer)\s*:\s?")
_EXAMPLE: Final = "user: I need to move my booking.\nassistant: Moved to Friday at 10:00."


class Outcome(NamedTuple):
    """The outcome of an evaluation."""

    mark: Mark
    score: str
    reason: str
    assertions: list[ResultView]
    metrics: list[ResultView]
    warnings: list[str]


def read_conversation(text: str) -> dict[str, Any]:
    """Parse a conversation from JSON, JSON Lines or plain text. Raises InvalidInput."""
    stripped = text.strip()
    if not stripped:
        raise InvalidInput("conversation", "empty", "messages")
    if stripped[0] not in "[{":
        return {"messages": _plain(stripped)}
    try:
        found = read_json(stripped)
    except (ValueError, RecursionError) as problem:
        try:
            found = [read_json(line) for line in stripped.split("\n") if line.strip()]
        except (ValueError, RecursionError):
            raise InvalidInput("conversation", f"not valid JSON: {problem}", "messages") from None
    if isinstance(found, dict):
        found = [found] if "role" in found else found
    return {"messages": found} if isinstance(found, list) else dict(found)


def _plain(text: str) -> list[dict[str, Any]]:
    """Parse messages from plain text. Text before any speaker is the assistant's."""
    spoken: list[tuple[str, list[str]]] = []
    for line in text.split("\n"):
        speaker = _SPEAKER.match(line)
        if speaker:
            spoken.append((speaker[1].lower(), [line[speaker.end() :]]))
        elif spoken:
            spoken[-1][1].append(line)
        else:
            spoken.append(("assistant", [line]))
    return [{"role": role, "content": "\n".join(lines)} for role, lines in spoken]


async def try_it(site: Site, request: Request) -> Response:
    """Show the page with an example, and with the evaluator in the URL."""
    wanted = request.query_params.get("type", "")
    form = Form({"evaluators": [{"type": wanted}] if wanted else []})
    types = await evaluator_types(site, request)
    return await _show(site, request, {"conversation": _EXAMPLE}, form, types, Problems())


async def change_try(site: Site, request: Request) -> Response:
    """Do the action of a button."""
    posted = await read_posted(request)
    action, _, place = posted.pop("do", "evaluate").partition(":")
    types = await evaluator_types(site, request)
    problems = Problems()
    specs = read_specs(posted, problems, types, site.settings.max_evaluators)
    form = Form({"evaluators": specs}, boxes_of(posted, action, place))
    if action == "scenario":
        return await _as_scenario(site, request, posted, form, types, problems)
    outcome = None
    if action == "evaluate":
        asked = await _request(posted, specs, problems)
        if asked is not None:
            try:
                outcome = await _evaluate(site, request, asked)
            except CallFailed as problem:
                note(problem, problems, "")
    else:
        rearrange(form.data, action, place, posted.get("add-type", ""))
    return await _show(site, request, posted, form, types, problems, outcome)


async def results(site: Site, request: Request) -> Response:
    """Stream one line of JSON for each result, and the summary or an error as the last line."""
    posted = await read_posted(request)
    posted.pop("do", None)
    types = await evaluator_types(site, request)
    problems = Problems()
    specs = read_specs(posted, problems, types, site.settings.max_evaluators)
    asked = await _request(posted, specs, problems)
    if asked is None:
        return Response(_line({"error": shown_text("; ".join(problems.rest()))}), media_type=NDJSON)
    messages = site.calls.stream(_EVALUATE, asked.SerializeToString(), site.access.caller(request))
    return StreamedCall(messages, Framing(NDJSON, _lines, _failed, starts_at_once=True))


def _lines(message: bytes) -> bytes:
    found = evaluation_service_pb2.EvaluateResponse.FromString(message)
    shown = [{"result": result_data(result)} for result in found.results]
    if found.HasField("summary"):
        shown.append({"summary": _summary(found.summary)})
    return b"".join(map(_line, shown))


def _failed(problem: CallFailed) -> bytes:
    return _line({"error": shown_text(problem.message)})


def _summary(summary: result_pb2.AggregatedEvaluation) -> dict[str, Any]:
    return {
        "mark": mark(summary.verdict)._asdict(),
        "score": f"score {score(summary.score)}" if summary.HasField("score") else "",
        "reason": shown_text(summary.reason),
        "warnings": warnings_of(summary),
    }


def _line(data: Mapping[str, Any]) -> bytes:
    return json_bytes(data) + b"\n"


async def _evaluate(site: Site, request: Request, asked: evaluation_service_pb2.EvaluateRequest) -> Outcome:
    answer = await site.ask(request, evaluation_service_pb2.EvaluateUnaryRequest(request=asked))
    summary = answer.summary
    rows = [(is_metric(result), result_view(result)) for result in summary.results]
    return Outcome(
        mark(summary.verdict),
        score(summary.score) if summary.HasField("score") else "",
        summary.reason,
        [row for metric, row in rows if not metric],
        [row for metric, row in rows if metric],
        warnings_of(summary),
    )


async def _request(
    posted: Posted, specs: list[dict[str, Any]], problems: Problems
) -> evaluation_service_pb2.EvaluateRequest | None:
    """Return the request of a form; None if it is invalid. problems: receives the errors."""
    if problems:
        return None
    text = posted.get("conversation", "")

    def read() -> evaluation_service_pb2.EvaluateRequest:
        data = read_conversation(text)
        if posted.get("latency"):
            data["latency_ms"] = float(posted["latency"])
        if posted.get("expected"):
            data["expected"] = posted["expected"]
        return evaluate_request(last_turn(data, recorded=False).to_proto(), specs, None, None, "")

    try:
        return await in_thread_if_large(len(text), read)
    except InvalidInput as problem:
        problems.add("", str(problem))
    except ValueError:
        problems.add("", f"latency: got {posted['latency'][:50]!r}, wanted a number of milliseconds")
    return None


async def _as_scenario(
    site: Site,
    request: Request,
    posted: Posted,
    form: Form,
    types: Mapping[str, EvaluatorType],
    problems: Problems,
) -> Response:
    """Show the form of a new scenario with the conversation up to the user's last message, and the evaluators."""
    try:
        text = posted.get("conversation", "")
        messages = (await in_thread_if_large(len(text), read_conversation, text)).get("messages", [])
    except InvalidInput as problem:
        problems.add("", str(problem))
        return await _show(site, request, posted, form, types, problems)
    spoken = [one for one in messages if isinstance(one, dict)] if isinstance(messages, list) else []
    while spoken and spoken[-1].get("role") != "user":
        spoken.pop()
    data = {"messages": spoken, "evaluators": form.data["evaluators"]}
    store = Resources(SCENARIOS, site, request)
    scenario = Form({key: value for key, value in data.items() if value}, form.edited_as_json)
    return await show_form(store, "", scenario, Types(types), problems, unsaved=True)


async def _show(
    site: Site,
    request: Request,
    posted: Posted,
    form: Form,
    types: Mapping[str, EvaluatorType],
    problems: Problems,
    outcome: Outcome | None = None,
) -> Response:
    bad = bool(problems)
    specs = form.data["evaluators"]
    return await render(
        site,
        request,
        "try.html",
        status=400 if bad else 200,
        conversation=posted.get("conversation", ""),
        latency=posted.get("latency", ""),
        expected=posted.get("expected", ""),
        evaluators=[
            spec_field(spec, index, types, problems, form.edited_as_json) for index, spec in enumerate(specs)
        ],
        types=types.values(),
        problems=problems.rest() or (["correct the marked fields"] if bad else []),
        summary=outcome,
    )
