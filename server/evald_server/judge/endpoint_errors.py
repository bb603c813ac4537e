"""Errors between a request and its answer: the code of each error, and whether a retry may help."""

from typing import Any, Final

import re2

from evald_server.redaction import Redactor

from .chat_completion import ChatCompletion
from .prompt_request import JudgeError, PromptRequest
from .response_format import EndpointProblem

# Codes of an account without quota, which no retry changes. OpenAI sends them with status 429.
_NO_QUOTA: Final = ("insufficient_quota", "billing_hard_limit_reached")

_TOO_LONG: Final = ("context_length_exceeded", "string_above_max_length")
_TOO_LONG_TEXTS: Final = (
    "maximum context length",
    "context window",
    "prompt is too long",
    "exceeds the available context",
)

# Groq's code for a model that broke the response format; the codes of OpenAI's and Azure's content filters.
_BROKEN_FORMAT: Final = "json_validate_failed"
_FILTERED: Final = ("content_filter", "content_policy_violation")

_OVERLOADED: Final = (503, 529)
_RETRYABLE: Final = (408, 409, 425)

# Finish reasons in lower case: the protocol's, and those that compatible servers pass on from their models.
_FINISH_LENGTH: Final = ("length", "max_tokens", "model_length")
_FINISH_FILTER: Final = ("content_filter", "safety", "recitation", "refusal")
_FINISH_TOOLS: Final = ("tool_calls", "function_call", "tool_use")
_FINISH_STOP: Final = ("stop", "end_turn", "eos", "eos_token", "stop_sequence", "complete")

_MAX_QUOTE: Final = 200
_MAX_FINISH: Final = 40

# An error message that has a run of this many characters in common with the request repeats the request.
_SHARED_CHARACTERS: Final = 32


def _shares(words: str, text: str) -> bool:
    """Return whether the text contains _SHARED_CHARACTERS consecutive characters of `words`.

    Searches for all of them at once: 5 ns per byte.
    """
    starts = range(len(words) - _SHARED_CHARACTERS + 1)
    pieces = [re2.escape(words[start : start + _SHARED_CHARACTERS]) for start in starts]
    found = pieces and re2.search("|".join(pieces).encode(), text.encode("utf-8", "surrogatepass"))
    return bool(found)


class AttemptFailed(Exception):
    """An attempt without a completion.

    error: raised to the caller if no further attempt succeeds. retryable: the same request may succeed later.
    retry_after: seconds to wait, as the endpoint asked. overloaded: there were too many concurrent requests.
    free: the endpoint answered with an error, which costs nothing.
    problem: the endpoint's description of the error, None if it gave none.
    """

    def __init__(
        self,
        error: JudgeError,
        *,
        retryable: bool = False,
        retry_after: float | None = None,
        overloaded: bool = False,
        free: bool = False,
        problem: EndpointProblem | None = None,
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.retryable = retryable
        self.retry_after = retry_after
        self.overloaded = overloaded
        self.free = free
        self.problem = problem


class EndpointErrors:
    """Builds the errors of one model, with messages for the caller and the operator.

    name: of the judge in the config. model: as requested.
    """

    def __init__(self, name: str, model: str, redactor: Redactor) -> None:
        self._judge = f'Judge "{name}"'
        self._model = model[:100]
        self._redactor = redactor

    def of_problem(
        self,
        problem: EndpointProblem,
        request: PromptRequest,
        retry_after: float | None = None,
        *,
        free: bool = True,
    ) -> AttemptFailed:
        """Return the failure for an error response of the endpoint. free: see AttemptFailed."""
        status, code = problem.status, problem.code
        said = self._quote(problem, request)

        def failed(error_code: str, text: str, **flags: Any) -> AttemptFailed:
            return self.failed(error_code, text, free=free, problem=problem, **flags)

        if status == 429 and code in _NO_QUOTA:
            return failed(
                "JUDGE_RATE_LIMITED",
                f"the account has no quota left; the operator adds credit or raises its limit{said}",
            )
        if status == 429:
            return failed(
                "JUDGE_RATE_LIMITED",
                f"the endpoint's rate limit is exceeded (HTTP 429){said}",
                retryable=True,
                overloaded=True,
                retry_after=retry_after,
            )
        if status >= 500 or status in _RETRYABLE:
            return failed(
                "JUDGE_UNAVAILABLE",
                f"the endpoint failed (HTTP {status}){said}",
                retryable=True,
                overloaded=status in _OVERLOADED,
                retry_after=retry_after,
            )
        if status in (401, 407):
            return failed(
                "JUDGE_UNAVAILABLE",
                f"the endpoint does not accept the API key (HTTP {status}){said}; the operator sets it with "
                "EVALD_JUDGE_API_KEY, or with api_key_env or api_key_file of this judge",
            )
        if status in (402, 403):
            return failed(
                "JUDGE_UNAVAILABLE",
                f"the endpoint forbids the request (HTTP {status}){said}; the operator checks "
                f'that the account may use model "{self._model}"',
            )
        if code in _FILTERED:
            return failed("JUDGE_REFUSED", f"a content filter of the endpoint refused the prompt{said}")
        if code in _TOO_LONG or any(words in problem.message.lower() for words in _TOO_LONG_TEXTS):
            return failed("INPUT_TOO_LARGE", f'the prompt is longer than model "{self._model}" accepts{said}')
        if code == _BROKEN_FORMAT:
            # The model generated a completion, so the request may have a cost.
            return AttemptFailed(
                self.unusable("the model's answer does not have the requested format"), problem=problem
            )
        if status == 404 or code == "model_not_found":
            return failed(
                "JUDGE_UNAVAILABLE",
                f'the endpoint does not know model "{self._model}", or has no chat completions at its '
                f"base_url (HTTP {status}){said}; the operator checks both",
            )
        if 300 <= status < 400:
            return failed(
                "JUDGE_UNAVAILABLE",
                f"the endpoint redirects (HTTP {status}), and redirects are not followed; the "
                "operator sets base_url to the address that it redirects to",
            )
        return failed("JUDGE_UNAVAILABLE", f"the endpoint refuses the request (HTTP {status}){said}")

    def failed(self, code: str, text: str, **flags: Any) -> AttemptFailed:
        """Return a failure with this code and text. flags: keyword arguments of AttemptFailed."""
        return AttemptFailed(JudgeError(code, f"{self._judge}: {text}"), **flags)

    def unusable(self, why: str, text: str = "", code: str = "JUDGE_UNPARSEABLE") -> JudgeError:
        """Return the error for an answer that the judge cannot use. text: the model's answer."""
        return JudgeError(code, f"{self._judge}: {why}", unusable=True, text=text)

    def of_completion(self, completion: ChatCompletion, max_tokens: int) -> JudgeError | None:
        """Return the error of a completion, whatever its text; None when it is complete."""
        finish = completion.finish.lower()
        if not completion.choices:
            return self.unusable("the completion has no choices")
        if completion.choices > 1:
            return self.unusable(
                f"the completion has {completion.choices} different answers, although one was asked for"
            )
        if completion.refusal:
            return self.unusable("the model refused to judge", completion.refusal, "JUDGE_REFUSED")
        if finish in _FINISH_FILTER:
            return self.unusable("a content filter of the endpoint cut the answer off", code="JUDGE_REFUSED")
        if finish in _FINISH_LENGTH:
            why = f"the answer reached its limit of {max_tokens} tokens; raise maxOutputTokens"
            return self.unusable(why, completion.text or "", "JUDGE_TRUNCATED")
        if completion.calls_tools or finish in _FINISH_TOOLS:
            return self.unusable("the model called a tool, although the request offered none")
        if finish not in _FINISH_STOP:
            finish = self._describe_finish(completion.finish)
            return self.unusable(f"the completion does not say that the answer is complete: {finish}")
        if completion.text is None:
            return self.unusable("the answer has no content")
        if not completion.text.strip():
            return self.unusable("the answer is empty")
        return None

    def _quote(self, problem: EndpointProblem, request: PromptRequest) -> str:
        """Return the endpoint's message as a quotation, "" if it repeats the request."""
        words = " ".join(self._redactor.redact_text(problem.message).split())[:_MAX_QUOTE]
        sent = (request.system_message, request.user_message, *(one.text for one in request.follow_up))
        if not words or not words.isprintable() or any(_shares(words, text) for text in sent):
            return ""
        return f': it says "{words}"'

    def _describe_finish(self, finish: str) -> str:
        if not finish:
            return "it has no finish_reason"
        shown = self._redactor.redact_text(finish)
        if len(shown) <= _MAX_FINISH and shown.replace("_", "").isalnum():
            return f'finish_reason "{shown}" is not known'
        return "its finish_reason is not known"
