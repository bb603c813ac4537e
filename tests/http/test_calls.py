"""Calls of the server's own methods, without a connection."""

import grpc
import pytest

from evald.v1 import catalog_service_pb2
from evald_server.app import App
from evald_server.config import Settings
from evald_server.http.calls import CallFailed, Calls, HttpCaller

LIST = "evald.v1.CatalogService/ListEvaluatorTypes"


async def test_a_method_answers_and_a_fault_has_the_status_of_grpc() -> None:
    app = App(Settings.model_validate({"listen": "127.0.0.1:0", "http": None, "web": None}))
    await app.start()
    try:
        calls = Calls(app._gate, 192)
        request = catalog_service_pb2.ListEvaluatorTypesRequest()
        answer = await calls.ask(request, HttpCaller())
        assert answer.evaluator_types
        with pytest.raises(CallFailed) as failed:
            await calls.unary("evald.v1.CatalogService/GetEvaluatorType", b"\xff", HttpCaller())
        assert failed.value.code is grpc.StatusCode.INVALID_ARGUMENT
        assert b"UNREADABLE_MESSAGE" in failed.value.details
        with pytest.raises(CallFailed) as failed:
            await calls.unary("evald.v1.CatalogService/Nonsense", b"", HttpCaller())
        assert failed.value.code is grpc.StatusCode.UNIMPLEMENTED
    finally:
        await app.stop(0)
