"""How questions are put, and which words of an endpoint mean that it does not know a form."""

import json

import pytest

from evald_server.judge.chat_completion import parse_problem
from evald_server.judge.prompt_request import ChatMessage
from evald_server.judge.response_format import EndpointProblem, ModelCapabilities, ResponseFormat

from .asking import SCHEMA, question

PLAIN = ModelCapabilities()
OBJECT = ModelCapabilities(ResponseFormat.OBJECT)

# What servers were seen to say: status, code, param, message; and the dialect to use then.
WORDS: dict[str, tuple[ModelCapabilities, EndpointProblem, ModelCapabilities | None]] = {
    "OpenAI": (
        PLAIN,
        EndpointProblem(
            400,
            "",
            "response_format",
            "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model. "
            "Learn more about supported models at the Structured Outputs guide.",
        ),
        OBJECT,
    ),
    "Groq": (
        PLAIN,
        EndpointProblem(
            400, "invalid_request_error", "", "This model does not support response format `json_schema`."
        ),
        OBJECT,
    ),
    "DeepSeek": (PLAIN, EndpointProblem(400, "", "", "This response_format type is unavailable now"), OBJECT),
    "LM Studio": (
        OBJECT,
        EndpointProblem(400, "", "", "'response_format.type' must be 'json_schema' or 'text'"),
        ModelCapabilities(ResponseFormat.TEXT),
    ),
    "vLLM": (
        PLAIN,
        EndpointProblem(422, "", "", "body.response_format.type: Input should be 'text' or 'json_object'"),
        OBJECT,
    ),
    "no extras": (
        PLAIN,
        EndpointProblem(422, "", "", "body.response_format: Extra inputs are not permitted"),
        OBJECT,
    ),
    "Gemini": (
        PLAIN,
        EndpointProblem(400, "INVALID_ARGUMENT", "", "Json mode is not enabled for models/x"),
        OBJECT,
    ),
    "reasoning limit": (
        PLAIN,
        EndpointProblem(
            400,
            "unsupported_parameter",
            "max_tokens",
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        ),
        ModelCapabilities(limit="max_completion_tokens"),
    ),
    "reasoning temperature": (
        PLAIN,
        EndpointProblem(
            400, "unsupported_value", "temperature", "'temperature' does not support 0.0 with this model."
        ),
        ModelCapabilities(temperature=False),
    ),
    "reasoning temperature, as a parameter only": (
        PLAIN,
        EndpointProblem(400, "unsupported_value", "temperature", "Unsupported value: 0.0"),
        ModelCapabilities(temperature=False),
    ),
    "reasoning system": (
        PLAIN,
        EndpointProblem(
            400,
            "unsupported_value",
            "messages[0].role",
            "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
        ),
        ModelCapabilities(system=False),
    ),
    "chat template": (
        PLAIN,
        EndpointProblem(400, "", "", "System role not supported"),
        ModelCapabilities(system=False),
    ),
    "text has no next": (
        ModelCapabilities(ResponseFormat.TEXT),
        EndpointProblem(400, "", "", "response_format not supported"),
        None,
    ),
    "bad schema": (
        PLAIN,
        EndpointProblem(
            400,
            "invalid_request_error",
            "response_format",
            "Invalid schema for response_format 'verdict': In context=(), 'minimum' is not permitted.",
        ),
        None,
    ),
    "another parameter": (PLAIN, EndpointProblem(400, "", "n", "Unsupported parameter: 'n'"), None),
    "another tool": (
        PLAIN,
        EndpointProblem(400, "", "", "Web search options not supported with this model."),
        None,
    ),
    "busy": (PLAIN, EndpointProblem(503, "", "", "The server is busy answering with response_format"), None),
    "nothing": (PLAIN, EndpointProblem(500), None),
}


@pytest.mark.parametrize("name", WORDS)
def test_only_words_that_say_so_change_the_dialect(name: str) -> None:
    used, problem, wanted = WORDS[name]
    assert used.without(problem) == wanted


def test_whatever_an_endpoint_says_it_is_asked_in_six_ways_at_most() -> None:
    everything = " ".join(
        words.message for _, words, _ in WORDS.values() if "schema for" not in words.message
    )
    dialect: ModelCapabilities | None = PLAIN
    seen = []
    while dialect is not None:
        assert dialect not in seen
        seen.append(dialect)
        dialect = dialect.without(EndpointProblem(400, message=everything))
    assert len(seen) == 6
    assert seen[-1] == ModelCapabilities(
        ResponseFormat.TEXT, "max_completion_tokens", temperature=False, system=False
    )


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ('{"error": {"message": "m", "type": "t", "param": "p", "code": null}}', ("t", "p", "m")),
        ('{"error": {"message": "m", "code": 400}}', ("400", "", "m")),
        ('{"error": "m"}', ("", "", "m")),
        ('{"message": "m"}', ("", "", "m")),
        ('{"detail": "m"}', ("", "", "m")),
        ('{"detail": [{"loc": ["body", "x"], "msg": "m", "input": "secret"}]}', ("", "", "body.x: m")),
        ('[{"error": {"message": "m", "status": "INVALID"}}]', ("", "", "m")),
        ('{"error": {"message": {"a": 1}}}', ("", "", "")),
        ('{"error": null}', ("", "", "")),
        ("[]", ("", "", "")),
        ("<html>", ("", "", "")),
        ("", ("", "", "")),
        ("[" * 100_000, ("", "", "")),
    ],
)
def test_the_words_of_an_error_are_found_wherever_a_server_puts_them(
    body: str, wanted: tuple[str, str, str]
) -> None:
    assert parse_problem(400, body.encode()) == (400, *wanted)


def test_the_question_is_put_in_each_form() -> None:
    asked = question(follow_up=(ChatMessage("assistant", "9"), ChatMessage("user", "That is no JSON.")))
    surest = PLAIN.request_body("m", asked)
    assert [message["role"] for message in surest["messages"]] == ["system", "user", "assistant", "user"]
    assert surest["messages"][0]["content"] == asked.system_message
    assert surest["response_format"]["json_schema"] == {"name": "verdict", "strict": True, "schema": SCHEMA}
    assert surest["temperature"] == 0.0
    for form, how in [
        (ResponseFormat.OBJECT, "one JSON object and nothing else"),
        (ResponseFormat.TEXT, "one fenced code block"),
    ]:
        body = ModelCapabilities(form).request_body("m", asked._replace(temperature=0.5))
        assert body["temperature"] == 0.5
        assert json.dumps(SCHEMA) in body["messages"][0]["content"]
        assert how in body["messages"][0]["content"]
        assert body["messages"][1:] == surest["messages"][1:]
    assert OBJECT.request_body("m", asked)["response_format"] == {"type": "json_object"}
    assert "response_format" not in ModelCapabilities(ResponseFormat.TEXT).request_body("m", asked)


def test_without_a_system_message_nothing_is_lost() -> None:
    body = ModelCapabilities(system=False, temperature=False, limit="max_completion_tokens").request_body(
        "m", question()
    )
    (message,) = body["messages"]
    assert message == {"role": "user", "content": f"{question().system_message}\n\n{question().user_message}"}
    assert "temperature" not in body
    assert (body["max_completion_tokens"], "max_tokens" in body) == (1024, False)


@pytest.mark.parametrize("form", ResponseFormat)
def test_a_question_for_plain_text_asks_for_no_form(form: ResponseFormat) -> None:
    body = ModelCapabilities(form).request_body("m", question(None))
    assert "response_format" not in body
    assert body["messages"][0]["content"] == question().system_message
