"""What is asked of a model, and what comes back: the seam between the judge and the endpoints."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from evald.result import TokenUsage


class Question(NamedTuple):
    """One request to a model.

    instructions: the system message. material: the user message.
    schema: JSON Schema of the answer's object; None asks for plain text.
    max_tokens: most tokens of the answer. temperature: 0 to 2.
    sample: number of the sample, from 0, so that a cache keeps samples apart.
    again: what was wrong with the answer before; empty when this is no re-ask.
    cache_key: digest of everything that the answer depends on except the endpoint and the model, the
    random nonce of the fence left out; empty when the answer must not be kept.
    usable: whether an answer can be used; a cache keeps no other, or a slip of the model would be
    repeated for ever.
    """

    instructions: str
    material: str
    schema: Mapping[str, Any] | None
    schema_name: str = "verdict"
    max_tokens: int = 1024
    temperature: float = 0.0
    sample: int = 0
    again: tuple["Turn", ...] = ()
    cache_key: str = ""
    usable: "Callable[[Answer], bool]" = lambda _answer: True


class Turn(NamedTuple):
    """A message that follows the material. role: "assistant" or "user"."""

    role: str
    text: str


@dataclass(slots=True)
class Spending:
    """What a call has spent on models so far, failed attempts included.

    usage: None when no attempt reported any. cost_usd: None when no price is known.
    reserved_usd: what requests under way, and those that ended without saying what they cost, may have
    cost at most; it counts towards the ceiling of the call.
    """

    attempts: int = 0
    usage: TokenUsage | None = None
    cost_usd: float | None = None
    reserved_usd: float = 0.0


class Answer(NamedTuple):
    """What a model said.

    data: the answer's JSON object, unchecked against the schema; None where plain text was asked for.
    text: the answer as it came. model: as the endpoint names it.
    request: what was sent, secrets removed, as JSON-like data.
    cached: it was found in the cache, and cost nothing now.
    """

    text: str
    data: Mapping[str, Any] | None
    model: str
    request: Mapping[str, Any]
    cached: bool = False


class JudgeFault(Exception):
    """No usable answer. code: one of evald.errorcodes.CODES, a JUDGE_ one or TIMEOUT.

    unusable: the model answered, but with nothing that can be used (a refusal, an answer that reached its limit,
    no JSON object), so that asking again with what was wrong may help; `text` is what it said.
    """

    def __init__(self, code: str, message: str, *, unusable: bool = False, text: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.unusable = unusable
        self.text = text


class Asker(Protocol):
    """A model behind an endpoint. Made once per plan, by name and model."""

    @property
    def model(self) -> str:
        """The model that is asked, as configured."""

    @property
    def endpoint(self) -> str:
        """Name of the endpoint in the config; never its address or key."""

    async def ask(self, question: Question, spending: Spending) -> Answer:
        """Ask, with retries within `current_scope().deadline`. Adds every attempt to `spending`, also
        when it raises. Raises JudgeFault."""


class Models(Protocol):
    """All models that the operator has configured."""

    def asker(self, judge: str | None, model: str | None) -> Asker:
        """The endpoint of that name, or the default one, with its model or another one.

        Raises ValueError, with the known names, for an unknown judge, and when no model is configured.
        """
