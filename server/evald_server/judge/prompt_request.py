"""The interface between the judge and the models: request, answer and errors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from evald.result import TokenUsage


class ChatMessage(NamedTuple):
    """A chat message. role: "assistant" or "user"."""

    role: str
    text: str


class PromptRequest(NamedTuple):
    """One request to a model.

    schema: JSON Schema of the answer's object; None requests plain text.
    max_tokens: most tokens of the answer. temperature: 0 to 2.
    sample: number of the sample, from 0. trial: number of the trial of the case, from 1. A cache keeps both apart, because a
    judge that is asked again may answer otherwise, which is what samples and trials measure.
    follow_up: messages after the user message; empty unless the last answer was unusable.
    cache_key: digest of everything that the answer depends on except endpoint, model, sample and trial, without
    the fence's random nonce; empty when the answer must not be cached.
    is_usable: whether the judge can use an answer. Unusable answers are not cached, or a single mistake of the model
    would be repeated on every later call.
    """

    system_message: str
    user_message: str
    schema: Mapping[str, Any] | None
    max_tokens: int = 1024
    temperature: float = 0.0
    sample: int = 0
    trial: int = 1
    follow_up: tuple[ChatMessage, ...] = ()
    cache_key: str = ""
    is_usable: "Callable[[ModelAnswer], bool]" = lambda _answer: True


class ModelAnswer(NamedTuple):
    """A model's answer.

    data: the answer's JSON object, not validated against the schema; None where plain text was requested.
    model: the name that the endpoint reported. request: the body that was sent, without secrets.
    cached: the answer is from the cache and caused no cost now.
    """

    text: str
    data: Mapping[str, Any] | None
    model: str
    request: Mapping[str, Any]
    cached: bool = False


@dataclass(slots=True)
class CallSpending:
    """The spending of one evaluation on models so far, including failed attempts.

    usage: None when no attempt reported any. cost_usd: None when no price is known.
    reserved_usd: maximum cost of the requests in flight and of those that ended without a reported cost; it counts
    towards the ceiling of the call.
    """

    attempts: int = 0
    usage: TokenUsage | None = None
    cost_usd: float | None = None
    reserved_usd: float = 0.0


class JudgeError(Exception):
    """There is no usable answer. code: one of evald.errorcodes.CODES: a JUDGE_ code or INPUT_TOO_LARGE.

    unusable: the model answered with a refusal, a truncated text or no JSON object, so asking again with a correction
    may help. text: the model's answer.
    """

    def __init__(self, code: str, message: str, *, unusable: bool = False, text: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.unusable = unusable
        self.text = text


class JudgeModel(Protocol):
    """A model at an endpoint."""

    @property
    def model(self) -> str:
        """The model's name, as configured."""

    @property
    def endpoint(self) -> str:
        """The name of the endpoint in the config; never its address or key."""

    @property
    def calibration_card(self) -> str:
        """The id of the calibration card that the operator names for the model, "" for none."""

    async def ask(self, request: PromptRequest, spending: CallSpending) -> ModelAnswer:
        """Send the request, with retries until `current_scope().deadline`.

        Adds every attempt to `spending`, even if it raises. Raises JudgeError.
        """


class JudgeModels(Protocol):
    """All models that the operator has configured."""

    def get(self, judge: str | None, model: str | None) -> JudgeModel:
        """Return a model of the named judge, or of the default judge.

        model: overrides the configured model.
        Raises ValueError, with the known names, for an unknown judge or when none is configured.
        """
