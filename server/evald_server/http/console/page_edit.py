"""Pages that list, edit and test scenarios, personas and connectors."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl
from uuid import NAMESPACE_URL, uuid4, uuid5

from google.protobuf.timestamp_pb2 import Timestamp
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from evald.catalog import EvaluatorType
from evald.v1 import connector_service_pb2, run_service_pb2
from evald_server.http.api.catalog import authorise
from evald_server.http.calls import CallFailed
from evald_server.http.errors import error_info, http_status
from evald_server.http.site import Site
from evald_server.loop import in_thread_if_large
from evald_server.methods import CONNECTORS, PERSONAS, SCENARIOS, StandardMethods
from evald_server.store.resources import ResourceKind, ResourceStore
from evald_server.store.runs import UNFINISHED

from .evaluator_types import evaluator_types, parsed
from .failures import bad_address
from .forms import Field, Posted, Problems, data_of, fields_of, unescape
from .page_run import outcome
from .rendering import link, listed, render
from .resources import (
    FORMS,
    SCENARIO_CRITERIA,
    SPEC_FORM,
    Resources,
    without_secrets,
)

_JSON: Final = "json:"
_OF_SPEC: Final = re.compile(r"(?:json:|count:)?(/evaluators/[0-9]+)/")
_MAX_FIELDS: Final = 5000
_MAX_DIGITS: Final = 6
# The newest runs, whose verdicts are shown beside their scenarios.
_RECENT_RUNS: Final = 500
_VERDICTS_EACH: Final = 5
_CHOICES: Final = 250  # more make the page large
_AT_A_GLANCE: Final = 20
# The buttons' actions that change stored data.
_STORING: Final = ("save", "run", "test", "delete")


class Form(NamedTuple):
    """The content of a form. data: of the resource. edited_as_json: the pointers of fields that are edited as JSON.

    sent: all posted fields. "form" is a random key by which the server detects a form that is sent twice; "read" is the
    time of the resource's last change when the form was filled.
    """

    data: dict[str, Any]
    edited_as_json: frozenset[str] = frozenset()
    sent: Posted = MappingProxyType({})


class EditConflict(NamedTuple):
    """A conflict: the resource was changed after the form was filled. action: of the pressed button. time: of the
    change."""

    action: str
    time: Timestamp


class Notes(NamedTuple):
    """The messages above a form's fields. problems: those that no field shows. hidden: secrets are left out."""

    saved: bool
    unsaved: bool
    refused: bool
    problems: Sequence[str]
    conflict: EditConflict | None
    gone: bool
    hidden: bool


class Choices(NamedTuple):
    """Resources to choose from. names: by id. find: the text to find in names. searched: show a search field. more:
    some are left out."""

    names: Mapping[str, str]
    find: str = ""
    searched: bool = False
    more: bool = False


class Types(NamedTuple):
    """The types that a kind of resource uses. evaluators: types by name. connectors: config schemas by type."""

    evaluators: Mapping[str, EvaluatorType] = MappingProxyType({})
    connectors: Mapping[str, Any] = MappingProxyType({})


class EvaluatorField(NamedTuple):
    """The fields of one evaluator in a form. known: None for an unknown type. more: settings beside the config."""

    pointer: str
    type: str
    known: EvaluatorType | None
    config: Field
    more: Field
    edited_as_json: bool
    errors: tuple[str, ...]
    given: bool


async def read_posted(request: Request) -> dict[str, str]:
    """Parse a posted form: the last value of each name. Raises CallFailed."""
    data = await request.body()
    if data.count(b"&") >= _MAX_FIELDS:
        raise bad_address(f"form: got more than {_MAX_FIELDS:,} fields, wanted fewer")
    return await in_thread_if_large(len(data), _fields, data)


def _fields(data: bytes) -> dict[str, str]:
    return dict(parse_qsl(data.decode("utf-8", "replace"), keep_blank_values=True))


async def resources(kind: StandardMethods, site: Site, request: Request) -> Response:
    """Show a page of the resources of a kind."""
    token = request.query_params.get("page", "")
    found, following = await Resources(kind, site, request).page(token)
    marks: dict[str, list[Any]] = {}
    if kind is SCENARIOS:
        recent = await site.ask(request, run_service_pb2.ListRunsRequest(page_size=_RECENT_RUNS))
        for run in recent.runs:
            seen = marks.setdefault(run.scenario_id, [])
            if run.status not in UNFINISHED and len(seen) < _VERDICTS_EACH:
                seen.append((run.id, outcome(run)))
    return await render(
        site,
        request,
        f"{kind.plural}.html",
        kind=kind,
        found=found,
        marks=marks,
        newest=request.url.path,
        **listed(request, following),
        deleted=request.query_params.get("deleted", ""),
    )


async def edit(kind: StandardMethods, site: Site, request: Request) -> Response:
    """Show the form of a resource, new or stored."""
    resource_id = request.path_params.get("id", "")
    store = Resources(kind, site, request)
    if not resource_id:
        await authorise(site, request)
    types = await _types(kind, site, request)
    if resource_id:
        form = _filled(store, await store.get(resource_id))
    else:
        # Without a choice, browsers show the first type of the list.
        form = Form(
            {"type": request.query_params.get("type") or min(types.connectors, default="")}
            if kind is CONNECTORS
            else {}
        )
    saved = "saved" in request.query_params
    return await show_form(store, resource_id, form, types, Problems(), saved=saved)


async def change(kind: StandardMethods, site: Site, request: Request) -> Response:
    """Do the action of a form's button."""
    resource_id = request.path_params.get("id", "")
    await authorise(site, request)
    store = Resources(kind, site, request)
    posted = await read_posted(request)
    action, _, place = posted.pop("do", "save").partition(":")
    problems = Problems()
    types = await _types(kind, site, request)
    data = _data(kind, posted, problems, types, site.settings.max_evaluators)
    form = Form(data, boxes_of(posted, action, place), posted)
    if action in _STORING:
        try:
            return await _store(store, resource_id, form, types, problems, action, place)
        except CallFailed as problem:
            info = error_info(problem)
            if info.reason == "RESOURCE_CHANGED":
                conflict = EditConflict(action, Timestamp())
                conflict.time.FromJsonString(info.metadata["update_time"])
                values: dict[str, Any] = {"conflict": conflict}
                if not resource_id:
                    # The form was sent before and created a resource; now it is sent again with other data.
                    resource_id = posted["form"]
                    form = form._replace(sent={**posted, "read": Timestamp().ToJsonString()})
            elif info.reason == "RESOURCE_NOT_FOUND" and info.metadata["field"] == f"{kind.word}_id":
                # The resource was deleted. Saving the form again creates a new one.
                resource_id, values = "", {"gone": True}
            else:
                raise
            status = http_status(problem)
        return await show_form(store, resource_id, form, types, problems, status=status, **values)
    if action == "migrate":
        migrate(form.data)
    else:
        rearrange(form.data, action, place, posted.get("add-type", ""))
    return await show_form(store, resource_id, form, types, problems, unsaved=True)


async def _store(
    store: Resources,
    resource_id: str,
    form: Form,
    types: Types,
    problems: Problems,
    action: str,
    place: str,
) -> Response:
    """Save or delete the resource, and return the next page. place: the time of the change to overwrite; "" for the
    form's own time."""
    expected = _time(place or form.sent.get("read", ""))
    if action == "delete":
        await store.delete(resource_id, expected)
        return RedirectResponse(link(f"/console/{store.kind.plural}", deleted="1"), 303)
    key = form.sent.get("form", "")
    saved = await store.save(resource_id, form.data, problems, new_id=key, expected=expected)
    if saved is None:
        return await show_form(store, resource_id, form, types, problems, status=400)
    return await _after(store, saved, types, action, form.sent)


def _time(text: str) -> Timestamp | None:
    """Parse the time in a form, None for "". Raises CallFailed."""
    if not text:
        return None
    found = Timestamp()
    try:
        found.FromJsonString(text)
    except ValueError:
        raise bad_address(f"read: got {text[:100]!r}, wanted the unchanged time of the form") from None
    return found


def _filled(store: Resources, stored: Any) -> Form:
    """Return the form of a stored resource."""
    return Form(store.data(stored), sent={"read": stored.update_time.ToJsonString()})


async def _types(kind: StandardMethods, site: Site, request: Request) -> Types:
    if kind is SCENARIOS:
        return Types(evaluators=await evaluator_types(site, request))
    return Types(connectors=await _connector_schemas(site, request)) if kind is CONNECTORS else Types()


async def _after(store: Resources, saved: Any, types: Types, action: str, posted: Posted) -> Response:
    """Start a run or test a connector after saving. Returns the next page: the run, the test's result, or the form."""
    path = f"/console/{store.kind.plural}/{saved.id}"
    if action == "run":
        start = run_service_pb2.StartRunRequest(
            scenario_id=saved.id,
            persona_id=posted.get("persona", ""),
            connector_id=posted.get("connector", ""),
        )
        if key := posted.get("form"):
            # A form that is sent twice starts one run. Another change, persona or connector starts another one.
            parts = (key, saved.update_time.ToJsonString(), saved.id, start.persona_id, start.connector_id)
            start.request_id = str(uuid5(NAMESPACE_URL, json.dumps(parts)))
        answer = await store.site.ask(store.request, start)
        return RedirectResponse(link(f"/console/runs/{answer.run.id}"), 303)
    if action == "test":
        tested = await store.site.ask(
            store.request,
            connector_service_pb2.TestConnectorRequest(connector_id=saved.id, message=posted.get("say", "")),
        )
        form = _filled(store, saved)
        return await show_form(store, saved.id, form, types, Problems(), tested=tested)
    return RedirectResponse(link(path, saved="1"), 303)


def boxes_of(posted: Posted, action: str, place: str) -> frozenset[str]:
    """Return the pointers of the fields that are edited as JSON after a button was pressed."""
    before = frozenset(name.removeprefix(_JSON) for name in posted if name.startswith(f"{_JSON}/"))
    return (
        before | {place} if action == "json" and place else before - {place} if action == "form" else before
    )


def migrate(data: dict[str, Any]) -> None:
    """Move a scenario's criteria into one `llm-judge`, as the first evaluator."""
    config = {key: data.pop(key) for key in SCENARIO_CRITERIA if key in data}
    if config.keys() & {"successCriteria", "failureCriteria"}:
        data["evaluators"] = [{"type": "llm-judge", "config": config}, *data.get("evaluators", [])]


def rearrange(data: dict[str, Any], action: str, place: str, add_type: str) -> None:
    """Add, remove or move up an item of a list in the data. Unknown places and other actions change nothing."""
    parts = [unescape(part) for part in place.split("/")[1:]]
    if not parts or action not in ("add", "remove", "up"):
        return
    if action == "add":
        items = _at(data, parts[:-1])
        if isinstance(items, dict):
            items = items.setdefault(parts[-1], [])
        if isinstance(items, list) and (place != "/evaluators" or add_type):
            items.append({"type": add_type} if place == "/evaluators" else {})
    elif isinstance(items := _at(data, parts[:-1]), list) and _is_index(parts[-1], items):
        index = int(parts[-1])
        if action == "remove":
            del items[index]
        elif action == "up" and index:
            items[index - 1], items[index] = items[index], items[index - 1]


def _at(data: Any, parts: list[str]) -> Any:
    """Return the list or object at a place, and create missing objects; None if the place is invalid."""
    for part in parts:
        if isinstance(data, dict):
            # An optional group may be missing.
            data = data.setdefault(part, {})
        elif isinstance(data, list) and _is_index(part, data):
            data = data[int(part)]
        else:
            return None
    return data


def _is_index(part: str, items: list[Any]) -> bool:
    return part.isascii() and part.isdigit() and len(part) <= _MAX_DIGITS and int(part) < len(items)


def _data(
    kind: StandardMethods, posted: Posted, problems: Problems, types: Types, most: int
) -> dict[str, Any]:
    """Return the data of a posted form. most: of its evaluators."""
    data: dict[str, Any] = data_of(FORMS[kind.word], posted, problems) or {}
    if kind is SCENARIOS:
        data["personaIds"] = [name.removeprefix("persona:") for name in posted if name.startswith("persona:")]
        data["evaluators"] = read_specs(posted, problems, types.evaluators, most)
    if kind is CONNECTORS:
        data["type"] = posted.get("/type", "")
        config = data_of(types.connectors.get(data["type"], {}), posted, problems, "/config")
        if config:
            data["config"] = config
    return {key: value for key, value in data.items() if value != []}


def read_specs(
    posted: Posted, problems: Problems, types: Mapping[str, EvaluatorType], most: int
) -> list[dict[str, Any]]:
    """Return the evaluators of a posted form. Raises CallFailed for more than `most`, whose forms would take long."""
    # Group the fields by evaluator first: searching all fields for each evaluator takes minutes.
    own: dict[str, dict[str, str]] = {}
    for name, value in posted.items():
        if place := _OF_SPEC.match(name):
            own.setdefault(place[1], {})[name] = value
    found: list[dict[str, Any]] = []
    while (type_name := posted.get(f"/evaluators/{len(found)}/type")) is not None:
        if len(found) >= most:
            raise bad_address(
                f"form: got more than {most} evaluators, wanted at most {most} (max_evaluators)"
            )
        pointer = f"/evaluators/{len(found)}"
        known = types.get(type_name)
        fields = own[pointer]
        config = data_of(
            parsed(known.config_schema_json) if known else {}, fields, problems, f"{pointer}/config"
        )
        more = data_of(SPEC_FORM, fields, problems, pointer) or {}
        found.append({"type": type_name, **({"config": config} if config else {}), **more})
    return found


def spec_field(
    spec: Mapping[str, Any],
    index: int,
    types: Mapping[str, EvaluatorType],
    problems: Problems,
    edited_as_json: frozenset[str],
) -> EvaluatorField:
    """Return the fields of one evaluator."""
    pointer = f"/evaluators/{index}"
    known = types.get(str(spec.get("type", "")))
    schema = parsed(known.config_schema_json) if known else {}
    config = fields_of(schema, spec.get("config", {}), f"{pointer}/config", problems, edited_as_json)
    settings = {key: value for key, value in spec.items() if key not in ("type", "config")}
    settings["shadow"] = settings.pop("enforcement", "") == "shadow" or settings.get("shadow", False)
    more = fields_of(SPEC_FORM, settings, pointer, problems)
    errors = problems.take(pointer, below=True)
    given = len(settings) > 1 or settings["shadow"] or any(one.errors for one in more.fields)
    as_json = f"{pointer}/config" in edited_as_json
    return EvaluatorField(pointer, str(spec.get("type", "")), known, config, more, as_json, errors, given)


async def _connector_schemas(site: Site, request: Request) -> dict[str, Any]:
    answer = await site.ask(request, connector_service_pb2.ListConnectorTypesRequest())
    return {one.type: parsed(one.config_schema_json) for one in answer.connector_types}


async def _choices(
    site: Site, request: Request, kind: StandardMethods, sent: Posted, kept: Iterable[str]
) -> Choices:
    """Return resources to choose from: those in `kept`, and those whose names contain the search text. Returns none for
    callers who may not list them."""
    if not site.access.may(request, kind.method("List")):
        return Choices({})
    find = sent.get(f"find-{kind.word}", "").strip()
    names = ResourceStore(site.database).names
    found = await names(ResourceKind(kind.word), _CHOICES + 1, contains=find)
    more = len(found) > _CHOICES
    known = await names(ResourceKind(kind.word), _CHOICES, ids=[one for one in kept if one])
    shown = known | dict(list(found.items())[:_CHOICES])
    return Choices(shown, find, more or bool(find) or len(shown) > _AT_A_GLANCE, more)


async def show_form(
    store: Resources,
    resource_id: str,
    form: Form,
    types: Types,
    problems: Problems,
    *,
    status: int = 200,
    saved: bool = False,
    unsaved: bool = False,
    tested: Any = None,
    conflict: EditConflict | None = None,
    gone: bool = False,
) -> Response:
    """Show the form of a resource. tested: the result of a connector's test. gone: the resource was deleted."""
    kind, site, request, data, hidden = store.kind, store.site, store.request, form.data, False
    values: dict[str, Any] = {}
    if status >= 400:
        data, hidden = without_secrets(kind, data)
    known = {key: value for key, value in data.items() if key in FORMS[kind.word]["properties"]}
    group = fields_of(FORMS[kind.word], known, "", problems, form.edited_as_json)
    fields = {field.pointer.removeprefix("/"): field for field in group.fields}
    if kind is SCENARIOS:
        values["evaluators"] = [
            spec_field(spec, index, types.evaluators, problems, form.edited_as_json)
            for index, spec in enumerate(data.get("evaluators", []))
        ]
        values["types"] = types.evaluators.values()
        chosen = data.get("personaIds", [])
        values["speaker"] = form.sent.get("persona", chosen[0] if chosen else "")
        values["personas"] = await _choices(site, request, PERSONAS, form.sent, [*chosen, values["speaker"]])
        values["chosen"] = chosen
        values["unlisted"] = [one for one in chosen if one not in values["personas"].names]
        values["connector"] = form.sent.get("connector", "")
        values["connectors"] = await _choices(site, request, CONNECTORS, form.sent, [values["connector"]])
        values["origin"] = f"{request.url.scheme}://{request.url.netloc}"
        values["migratable"] = any(data.get(key) for key in ("successCriteria", "failureCriteria"))
    if kind is CONNECTORS:
        values["type"] = data.get("type", "")
        values["connector_types"] = sorted(types.connectors)
        schema = types.connectors.get(values["type"], {})
        values["config"] = fields_of(schema, data.get("config", {}), "/config", problems, form.edited_as_json)
        values["type_errors"] = problems.take("/type")
        values["tested"] = tested
    return await render(
        site,
        request,
        f"{kind.word}.html",
        status=status,
        kind=kind,
        id=resource_id,
        name=data.get("name", ""),
        fields=fields,
        key=form.sent.get("form") or str(uuid4()),
        read=form.sent.get("read", "") if resource_id else "",
        form_notes=Notes(saved, unsaved, status == 400, problems.rest(), conflict, gone, hidden),
        **values,
    )
