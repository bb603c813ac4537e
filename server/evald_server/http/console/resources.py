"""The resources that users edit in the console: scenarios, personas, connectors; their forms and their calls."""

import re
from collections.abc import Mapping
from typing import Any, Final

import grpc
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2
from starlette.requests import Request

from evald.errors import InvalidInput
from evald_server.connectors.headers import may_be_shown
from evald_server.http.calls import CallFailed
from evald_server.http.errors import error_info, status_of
from evald_server.http.site import Site
from evald_server.methods import CONNECTORS, PERSONAS, SCENARIOS, StandardMethods
from evald_server.redaction import Redactor

from .failures import ignore_not_found
from .forms import Problems, RawText, pointer_of

# A user and a password in a URL.
_SIGNED_IN: Final = re.compile(r"://[^/@\s]*@")
_REDACTOR: Final = Redactor(())
_MAX_DEPTH: Final = 50


def _field(kind: str, title: str, description: str = "", **more: Any) -> dict[str, Any]:
    return {"type": kind, "title": title, "description": description, **more}


def _one_line(title: str, description: str = "", most: int = 200) -> dict[str, Any]:
    return _field("string", title, description, maxLength=most)


def _lines(title: str, description: str = "") -> dict[str, Any]:
    return _field("string", title, description)


def _choice(title: str, *names: str, **more: Any) -> dict[str, Any]:
    return {"title": title, "enum": list(names), **more}


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


_NAME: Final = _one_line("Name")
_HEADERS: Final = _field(
    "array",
    "Headers",
    "Write a secret as the name of an environment variable of the server: ${NAME}. "
    '"***" is a stored value that is not shown.',
    items=_object({"name": _NAME, "value": _one_line("Value")}, "name", "value"),
)

SCENARIO_FORM: Final = _object(
    {
        "name": _NAME,
        "maxMessages": _field(
            "integer", "Max messages", "Maximum messages of the user and the agent together; 10 if not set."
        ),
        "instructions": _lines("Instructions", "Instructions for the simulated user."),
        "goal": _lines("Goal", "What the simulated user wants to achieve."),
        "messages": _field(
            "array",
            "Seed messages",
            "The conversation starts with these messages.",
            items=_object(
                {
                    "role": _choice("Role", "user", "assistant", "system", "tool"),
                    "content": _lines("Content"),
                },
                "role",
                "content",
            ),
        ),
        "successCriteria": _lines("Success criteria", "The scenario succeeds when they are met."),
        "failureCriteria": _lines("Failure criteria", "The scenario fails when they are met."),
        "failureCriteriaMode": _choice(
            "Failure criteria apply", "every_turn", "on_max_messages", default="on_max_messages"
        ),
        "criteriaPolicy": _choice("Criteria with evaluators", "both", "evaluatorsOnly", default="both"),
        "onAssertionFailure": _choice("When an assertion fails", "stop", "continue", default="stop"),
    },
    "name",
)
SCENARIO_CRITERIA: Final = ("successCriteria", "failureCriteria", "failureCriteriaMode")

SPEC_FORM: Final = _object(
    {
        "name": _one_line("Name", "Name of this evaluator in results."),
        "when": _choice("Runs", "every_turn", "final", default="every_turn"),
        "weight": _field("number", "Weight", "Weight in weighted means.", minimum=0),
        "threshold": _field("number", "Threshold", "Lowest passing score.", minimum=0, maximum=1),
        "required": _field("boolean", "Required", default=False),
        "negate": _field("boolean", "Negate", default=False),
        "reasoning": _choice("Reasoning in the answer", "strip", "keep", default="strip"),
        "shadow": _field(
            "boolean", "Shadow", "Runs and is reported, but its verdict does not count.", default=False
        ),
    },
)

PERSONA_FORM: Final = _object(
    {
        "name": _NAME,
        "judge": _one_line(
            "Judge", "Name of the configured judge whose model simulates the user; empty: the default judge."
        ),
        "description": _lines("Description"),
        "systemPrompt": _lines("System prompt", "Describes the simulated user to the model."),
        "script": _field(
            "array",
            "Script",
            "Messages of the user, in order. With a script, no model simulates the user.",
            items={"type": "string"},
        ),
        "headers": _HEADERS,
    },
    "name",
)

CONNECTOR_FORM: Final = _object(
    {
        "name": _NAME,
        "baseUrl": _one_line("Address", "A URL; for grpc HOST:PORT; empty for replay.", 2000),
        "headers": _HEADERS,
    },
    "name",
)


FORMS: Final = {SCENARIOS.word: SCENARIO_FORM, PERSONAS.word: PERSONA_FORM, CONNECTORS.word: CONNECTOR_FORM}


class Resources:
    """The resources of one kind, for the caller of a request. All methods raise CallFailed."""

    def __init__(self, kind: StandardMethods, site: Site, request: Request) -> None:
        self.kind = kind
        self.site = site
        self.request = request

    async def call(self, verb: str, **fields: Any) -> Any:
        """Call a standard method, and return its response."""
        return await self.site.ask(self.request, self.kind.request(verb, **fields))

    async def page(self, token: str = "", size: int = 50) -> tuple[list[Any], str]:
        """Return a page of resources, and the token of the next page."""
        answer = await self.call("List", page_size=size, page_token=token)
        return list(getattr(answer, self.kind.plural)), answer.next_page_token

    async def get(self, resource_id: str) -> Any:
        """Return a resource."""
        return getattr(await self.call("Get", **{f"{self.kind.word}_id": resource_id}), self.kind.word)

    async def save(
        self,
        resource_id: str,
        data: Mapping[str, Any],
        problems: Problems,
        *,
        new_id: str = "",
        expected: Timestamp | None = None,
    ) -> Any:
        """Replace a resource, or create one if `resource_id` is "". Returns it; None if the data are invalid.

        problems: receives the errors. new_id: the id of a resource to create. expected: the time of the last change of
        the resource to replace, None for any.
        """
        _check_headers(data, problems)
        if problems:
            return None
        try:
            message = self.kind.shape.read(_with_header_map(data))
        except InvalidInput as problem:
            problems.add(pointer_of(problem.path), f"{problem.got}; wanted {problem.wanted}")
            return None
        message.id = resource_id or new_id
        try:
            if not resource_id:
                return await self.create(message)
            return await self._update(message, expected)
        except CallFailed as problem:
            note(problem, problems, self.kind.word)
            return None

    async def create(self, message: Any) -> Any:
        """Store a new resource and return it. The same one may already be stored, because a form may be sent twice."""
        word = self.kind.word
        try:
            return getattr(await self.call("Create", **{word: message}), word)
        except CallFailed as problem:
            if not message.id or error_info(problem).metadata.get("field") != f"{word}.id":
                raise
            if problem.code is not grpc.StatusCode.ALREADY_EXISTS:
                raise
        # No resource was last changed at time 0, so this succeeds only if it changes nothing.
        return await self._update(message, Timestamp())

    async def delete(self, resource_id: str, expected: Timestamp | None) -> None:
        """Delete a resource, if it exists. expected: the time of its last change, None for any."""
        with ignore_not_found():
            await self.call("Delete", **{f"{self.kind.word}_id": resource_id}, expected_update_time=expected)

    async def _update(self, message: Any, expected: Timestamp | None) -> Any:
        word = self.kind.word
        return getattr(await self.call("Update", **{word: message}, expected_update_time=expected), word)

    def data(self, message: Any) -> dict[str, Any]:
        """Convert a resource to the data of its form."""
        data = self.kind.shape.write(message)
        if "headers" in data:
            data["headers"] = [
                {"name": name, "value": value} for name, value in sorted(data["headers"].items())
            ]
        return {key: value for key, value in data.items() if key not in ("id", "createdAt", "updatedAt")}


def note(problem: CallFailed, problems: Problems, word: str) -> None:
    """Add a failed call's errors to the fields. Raises the failure if it is not about the data. word: of the kind."""
    if problem.code is grpc.StatusCode.ALREADY_EXISTS:
        problems.add("/name", problem.message)
        return
    of_the_data = problem.code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
    if not of_the_data or error_info(problem).reason == "RESOURCE_NOT_FOUND":
        raise problem
    found = False
    for detail in status_of(problem).details:
        violations = error_details_pb2.BadRequest()
        if detail.Unpack(violations):
            for one in violations.field_violations:
                found = True
                pointer = pointer_of(one.field.removeprefix(f"{word}."))
                problems.add(_place(pointer), one.description.removeprefix(f"{one.field}: "))
    if not found:
        if problem.code is grpc.StatusCode.NOT_FOUND:
            raise problem
        problems.add("", problem.message)


def without_secrets(kind: StandardMethods, data: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the data of a form without possible secrets, and whether any were removed: values of headers that are no
    names of variables, and texts like keys in the rest of a connector."""
    found = dict(data)
    if kind is CONNECTORS:
        found = {key: found[key] if key == "headers" else _redacted(found[key]) for key in found}
    headers = found.get("headers")
    if headers is not None:
        found["headers"] = [
            {key: value for key, value in one.items() if key != "value" or may_be_shown(str(value))}
            for one in (headers if isinstance(headers, list) else [])
            if isinstance(one, dict)
        ]
    return found, found != data


def _redacted(value: Any, depth: int = 0) -> Any:
    if isinstance(value, str):
        return type(value)(_REDACTOR.redact_text(_SIGNED_IN.sub("://", value)))
    if depth > _MAX_DEPTH:
        return None
    if isinstance(value, dict):
        return {key: _redacted(one, depth + 1) for key, one in value.items()}
    return [_redacted(one, depth + 1) for one in value] if isinstance(value, list) else value


def _check_headers(data: Mapping[str, Any], problems: Problems) -> None:
    """Add errors for headers without a value. A page may have left the value out, and saving would lose it."""
    headers = data.get("headers")
    for one in headers if isinstance(headers, list) else []:
        if isinstance(one, dict) and one.get("name") and not one.get("value"):
            problems.add("/headers", f"{one['name']}: missing value; enter one, or remove the header")


def _place(pointer: str) -> str:
    """Convert the pointer of a message's field to that of the form. Keys in configs stay as they are."""
    if pointer.startswith("/headers/"):
        return "/headers"
    outer, config, inner = pointer.partition("/config/")
    return re.sub("_([a-z])", lambda found: found[1].upper(), outer) + config + inner


def _with_header_map(data: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the headers in a form's data from a list to a mapping."""
    headers = data.get("headers")
    if headers is None or isinstance(headers, RawText):
        return dict(data)
    return {**data, "headers": {one.get("name", ""): one.get("value", "") for one in headers}}
