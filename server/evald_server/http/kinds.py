"""The kinds of named resources, and their standard methods."""

from importlib import import_module
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message

from evald.convert import resources
from evald.convert.json_shapes import Shape


class StandardMethods(NamedTuple):
    """The standard methods of a kind of resource. word: its name in English and in method names, as "scenario"."""

    word: str
    shape: Shape[Any]

    @property
    def plural(self) -> str:
        """The plural of the word, as in responses of the List method."""
        return f"{self.word}s"

    def method(self, verb: str) -> str:
        """Return the full name of a standard method, as "evald.v1.PersonaService/GetPersona"."""
        return f"evald.v1.{self.word.title()}Service/{self._name(verb)}"

    def request(self, verb: str, **fields: Any) -> Message:
        """Build the request of a standard method."""
        stubs = import_module(f"evald.v1.{self.word}_service_pb2")
        message: Message = getattr(stubs, f"{self._name(verb)}Request")(**fields)
        return message

    def _name(self, verb: str) -> str:
        return verb + (self.plural if verb == "List" else self.word).title()


SCENARIOS: Final = StandardMethods("scenario", resources.SCENARIO)
PERSONAS: Final = StandardMethods("persona", resources.PERSONA)
CONNECTORS: Final = StandardMethods("connector", resources.CONNECTOR)
EXPERIMENTS: Final = StandardMethods("experiment", resources.EXPERIMENT)
