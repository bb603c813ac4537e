"""The methods of evald's services, by name and by type of request; the kinds of resources and their standard methods."""

from collections.abc import Awaitable, Callable
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple, cast

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from evald.convert import resources
from evald.convert.json_shapes import Shape
from evald.fields import snake


class CalledMethod(NamedTuple):
    """A method's name, message types and streaming. name: as "evald.v1.RunService/GetRun"."""

    name: str
    request: type[Message]
    answer: type[Message]
    client_streaming: bool
    server_streaming: bool


@cache
def find_method(name: str) -> CalledMethod:
    """Return the method with a full name. Raises KeyError if it does not exist."""
    service, _, method = name.rpartition("/")
    found = descriptor_pool.Default().FindServiceByName(service).methods_by_name[method]
    return CalledMethod(
        name,
        GetMessageClass(found.input_type),
        GetMessageClass(found.output_type),
        found.client_streaming,
        found.server_streaming,
    )


def method_for(request: Message) -> CalledMethod:
    """Return the method that takes a request of this type: each method has its own, in the service's file."""
    return find_method(_taking(cast("Descriptor", request.DESCRIPTOR)))


@cache
def _taking(request: Descriptor) -> str:
    services = request.file.services_by_name.values()
    found = next(one for service in services for one in service.methods if one.input_type is request)
    return f"{found.containing_service.full_name}/{found.name}"


def handlers_of(service: str, handler: object) -> dict[str, Callable[..., Awaitable[Any]]]:
    """Return the handlers of a service by method: for StartRun the object's `start_run`. service: its full name."""
    described = descriptor_pool.Default().FindServiceByName(service)
    return {name: getattr(handler, snake(name)) for name in described.methods_by_name}


class StandardMethods(NamedTuple):
    """A kind of resource, and its standard methods. word: its name in English and in method names, as "scenario"."""

    word: str
    shape: Shape[Any]

    @property
    def plural(self) -> str:
        """The plural of the word, as in responses of the List method, in files and in commands."""
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
