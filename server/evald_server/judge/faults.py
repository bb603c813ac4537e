"""What can go wrong between a question and its answer: which code it gets, and whether asking again may help."""

from typing import Final

from .forms import Problem
from .question import JudgeFault, Question
from .redaction import Redactor
from .reply import Reply


class Failed(Exception):
    """One attempt gave no usable answer.

    fault: what the caller gets when nothing better comes. again: the same request may work later.
    retry_after: seconds that the endpoint asked for. limited: there were too many requests at a time.
    free: the endpoint has answered with an error, which costs nothing.
    problem: what the endpoint said, when it said something about the request.
    """

    def __init__(
        self,
        fault: JudgeFault,
        *,
        again: bool = False,
        retry_after: float | None = None,
        limited: bool = False,
        free: bool = False,
        problem: Problem | None = None,
    ) -> None:
        super().__init__(str(fault))
        self.fault = fault
        self.again = again
        self.retry_after = retry_after
        self.limited = limited
        self.free = free
        self.problem = problem


# The account is empty, which no waiting changes. OpenAI sends these with 429.
_NO_QUOTA: Final = ("insufficient_quota", "billing_hard_limit_reached")

_TOO_LONG: Final = ("context_length_exceeded", "string_above_max_length")
_TOO_LONG_TEXTS: Final = (
    "maximum context length",
    "context window",
    "prompt is too long",
    "exceeds the available context",
)

# Groq's code for a model that broke the form it was held to; OpenAI's filters, and Azure's.
_BROKE_FORM: Final = "json_validate_failed"
_FILTERED: Final = ("content_filter", "content_policy_violation")

_OVERLOADED: Final = (503, 529)
_PASSING: Final = (408, 409, 425)

# Finish reasons in lower case: the protocol's, and what servers that imitate it pass on from their models.
_LENGTH: Final = ("length", "max_tokens", "model_length")
_FILTER: Final = ("content_filter", "safety", "recitation", "refusal")
_TOOLS: Final = ("tool_calls", "function_call", "tool_use")
_FINISHED: Final = ("stop", "end_turn", "eos", "eos_token", "stop_sequence", "complete")

_LONGEST_QUOTE: Final = 200
_LONGEST_WORD: Final = 40

# A text that shares so many characters with the question repeats it.
_SHARED: Final = 32


class Faults:
    """Faults of one judge, in words for whoever asked and for the operator.

    name: of the judge in the config. model: as asked for.
    """

    def __init__(self, name: str, model: str, redactor: Redactor) -> None:
        self._who = f'Judge "{name}"'
        self._model = model[:100]
        self._redactor = redactor

    def status(self, problem: Problem, question: Question, retry_after: float | None = None) -> Failed:
        """An error that the endpoint answered with."""
        status, code, message = problem.status, problem.code, problem.message
        said = self._said(problem, question)
        if status == 429:
            if code in _NO_QUOTA:
                text = f"{self._who}: the account has no quota left: add credit or raise its limit{said}"
                return self._failed("JUDGE_RATE_LIMITED", text, problem)
            text = f"{self._who}: the endpoint limits the rate (HTTP 429){said}"
            failed = self._failed("JUDGE_RATE_LIMITED", text, problem)
            failed.again, failed.limited, failed.retry_after = True, True, retry_after
            return failed
        if status >= 500 or status in _PASSING:
            text = f"{self._who}: the endpoint is out of order (HTTP {status}){said}"
            failed = self._failed("JUDGE_UNAVAILABLE", text, problem)
            failed.again, failed.limited, failed.retry_after = True, status in _OVERLOADED, retry_after
            return failed
        if status in (401, 407):
            text = (
                f"{self._who}: the endpoint does not accept the API key (HTTP {status}){said}; the operator sets it with "
                f"EVALD_JUDGE_API_KEY, or with api_key_env or api_key_file of this judge"
            )
        elif status in (402, 403):
            text = (
                f"{self._who}: the endpoint forbids the request (HTTP {status}){said}; the operator sees to it that "
                f'the account may use model "{self._model}"'
            )
        elif code in _FILTERED:
            return self._failed(
                "JUDGE_REFUSED", f"{self._who}: a filter of the endpoint refused the question{said}", problem
            )
        elif code in _TOO_LONG or any(words in message.lower() for words in _TOO_LONG_TEXTS):
            text = f'{self._who}: the question is longer than model "{self._model}" can read{said}'
            return self._failed("INPUT_TOO_LARGE", text, problem)
        elif code == _BROKE_FORM:
            fault = self.unusable("the model broke the form of its answer")
            return Failed(fault, problem=problem)
        elif status == 404 or code == "model_not_found":
            text = (
                f'{self._who}: the endpoint does not know model "{self._model}", or has no chat completions at its '
                f"base_url (HTTP {status}){said}; the operator checks both"
            )
        elif 300 <= status < 400:
            text = (
                f"{self._who}: the endpoint redirects (HTTP {status}), and questions go nowhere but to the base_url; "
                f"the operator sets it to the place that it redirects to"
            )
        else:
            text = f"{self._who}: the endpoint refuses the request (HTTP {status}){said}"
        return self._failed("JUDGE_UNAVAILABLE", text, problem)

    def unreachable(self, why: str) -> Failed:
        """No connection. Nothing was sent."""
        text = f"{self._who}: the endpoint cannot be reached ({why})"
        return Failed(JudgeFault("JUDGE_UNAVAILABLE", text), again=True, free=True)

    def reset(self, why: str) -> Failed:
        """The connection ended before there was an answer."""
        text = f"{self._who}: the endpoint ended the connection without an answer ({why})"
        return Failed(JudgeFault("JUDGE_UNAVAILABLE", text), again=True)

    def silent(self, seconds: float) -> Failed:
        """Nothing came for so long."""
        text = f"{self._who}: the endpoint was silent for {seconds:.3g} s"
        return Failed(JudgeFault("JUDGE_TIMEOUT", text), again=True)

    def broke_off(self, how: str) -> Failed:
        """The answer has no end."""
        return Failed(JudgeFault("JUDGE_TRUNCATED", f"{self._who}: the answer breaks off: {how}"), again=True)

    def too_large(self, limit: int) -> Failed:
        """The answer goes on and on."""
        text = f"{self._who}: the answer is longer than {limit} bytes"
        return Failed(JudgeFault("JUDGE_UNAVAILABLE", text))

    def foreign(self, what: str) -> Failed:
        """The endpoint speaks another protocol."""
        text = (
            f"{self._who}: got {what}, wanted a chat completion; the operator checks that the base_url is that of an "
            f"OpenAI-compatible API, such as https://api.openai.com/v1"
        )
        return Failed(JudgeFault("JUDGE_UNAVAILABLE", text))

    def unusable(self, why: str, text: str = "", code: str = "JUDGE_UNPARSEABLE") -> JudgeFault:
        """The model has answered, but not with what was asked for."""
        return JudgeFault(code, f"{self._who}: {why}", unusable=True, text=text)

    def reply(self, reply: Reply, max_tokens: int) -> JudgeFault | None:
        """What is wrong with a completion, whatever its text says; None when nothing is."""
        finish = reply.finish.lower()
        if not reply.choices:
            return self.unusable("the completion has no choices")
        if reply.choices > 1:
            return self.unusable(
                f"the completion has {reply.choices} different answers, although one was asked for"
            )
        if reply.refusal:
            return self.unusable("the model refused to judge", reply.refusal, "JUDGE_REFUSED")
        if finish in _FILTER:
            return self.unusable("a filter of the endpoint cut the answer off", code="JUDGE_REFUSED")
        if finish in _LENGTH:
            why = f"the answer reached its limit of {max_tokens} tokens; raise maxOutputTokens"
            return self.unusable(why, reply.text or "", "JUDGE_TRUNCATED")
        if reply.calls_tools or finish in _TOOLS:
            return self.unusable("the model called a tool, although it was offered none")
        if finish not in _FINISHED:
            return self.unusable(
                f"the completion does not say that the answer is whole: {self._finish(reply.finish)}"
            )
        if reply.text is None:
            return self.unusable("the answer has no content")
        if not reply.text.strip():
            return self.unusable("the answer is empty")
        return None

    @staticmethod
    def _failed(code: str, text: str, problem: Problem) -> Failed:
        return Failed(JudgeFault(code, text), free=True, problem=problem)

    def _said(self, problem: Problem, question: Question) -> str:
        """The endpoint's own words, unless they repeat the question."""
        words = " ".join(self._redactor.text(problem.message).split())[:_LONGEST_QUOTE]
        asked = (question.instructions, question.material, *(turn.text for turn in question.again))
        pieces = [words[at : at + _SHARED] for at in range(max(0, len(words) - _SHARED + 1))]
        if any(piece in text for text in asked for piece in pieces):
            words = ""
        return f': it says "{words}"' if words.isprintable() and words else ""

    def _finish(self, finish: str) -> str:
        """The finish reason for a message, where it is a word."""
        if not finish:
            return "it has no finish_reason"
        said = self._redactor.text(finish)
        if len(said) <= _LONGEST_WORD and said.replace("_", "").isalnum():
            return f'finish_reason "{said}" is not known'
        return "its finish_reason is not known"
