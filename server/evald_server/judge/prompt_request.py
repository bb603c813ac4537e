"""The seam between the judge and the models: what is sent to a model, what comes back, and the errors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from evald.result import TokenUsage


class ChatMessage(NamedTuple):
    """A message of the chat. role: "assistant" or "user"."""

    role: str
    text: str


class PromptRequest(NamedTuple):
    """One request to a model.

    schema: JSON Schema of the answer's object; None asks for plain text.
    max_tokens: most tokens of the answer. temperature: 0 to 2.
    sample: number of the sample, from 0; a cache keeps samples apart.
    follow_up: messages after the user message; empty unless an unusable answer is asked for again.
    cache_key: digest of everything that the answer depends on except endpoint, model and sample, without
    the fence's random nonce; empty when the answer must not be cached.
    is_usable: whether the judge can use an answer. Others are not cached, or one slip of the model would
    be repeated on every later call.
    """

    system_message: str
    user_message: str
    schema: Mapping[str, Any] | None
    max_tokens: int = 1024
    temperature: float = 0.0
    sample: int = 0
    follow_up: tuple[ChatMessage, ...] = ()
    cache_key: str = ""
    is_usable: "Callable[[ModelAnswer], bool]" = lambda _answer: True


class ModelAnswer(NamedTuple):
    """What a model answered.

    data: the answer's JSON object, unchecked against the schema; None where plain text was asked for.
    model: as the endpoint names it. request: the body that was sent, without secrets.
    cached: the answer comes from the cache and cost nothing now.
    """

    text: str
    data: Mapping[str, Any] | None
    model: str
    request: Mapping[str, Any]
    cached: bool = False


@dataclass(slots=True)
class CallSpending:
    """What one evaluation has spent on models so far, failed attempts included.

    usage: None when no attempt reported any. cost_usd: None when no price is known.
    reserved_usd: most that requests in flight, and those that ended without a reported cost, may cost;
    it counts towards the ceiling of the call.
    """

    attempts: int = 0
    usage: TokenUsage | None = None
    cost_usd: float | None = None
    reserved_usd: float = 0.0


class JudgeError(Exception):
    """There is no usable answer. code: one of evald.errorcodes.CODES, a JUDGE_ one or TIMEOUT.

    unusable: the model did answer, but with a refusal, a cut-off text or no JSON object, so that asking
    again with a correction may help; `text` is what it said.
    """

    def __init__(self, code: str, message: str, *, unusable: bool = False, text: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.unusable = unusable
        self.text = text


class JudgeModel(Protocol):
    """A model behind an endpoint."""

    @property
    def model(self) -> str:
        """The model's name, as configured."""

    @property
    def endpoint(self) -> str:
        """Name of the endpoint in the config; never its address or key."""

    @property
    def calibration_card(self) -> str:
        """Id of the calibration card that the operator names for the model, "" for none."""

    async def ask(self, request: PromptRequest, spending: CallSpending) -> ModelAnswer:
        """Send the request, with retries until `current_scope().deadline`.

        Adds every attempt to `spending`, also when it raises. Raises JudgeError.
        """


class JudgeModels(Protocol):
    """All models that the operator has configured."""

    def get(self, judge: str | None, model: str | None) -> JudgeModel:
        """Return a model of the named judge, or of the default one.

        model: another than the configured one.
        Raises ValueError, with the known names, for an unknown judge or when none is configured.
        """
