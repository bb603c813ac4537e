"""Hand-written parts of messages are what protobuf reads and writes."""

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import example, given
from hypothesis import strategies as st

from evald.v1 import evaluation_service_pb2
from evald_server import encoding

# Where a varint gets one byte more, and where DURATIONS ends.
EDGES = [0, 1, 127, 128, 999, 1000, 16_383, 16_384, (1 << 21) - 1, 1 << 21, (1 << 28) - 1, 1 << 28, 10**9]


def _inside(data: bytes) -> bytes:
    """What stands behind a length, which must be right."""
    return evaluation_service_pb2.EvaluateUnaryResponse.FromString(b"\x0a" + data).evaluation_id.encode()


@given(st.integers(0, (1 << 64) - 1))
@example(0)
@example((1 << 64) - 1)
def test_a_varint_reads_back(number: int) -> None:
    read = evaluation_service_pb2.EvaluateSessionResponse.FromString(b"\x08" + encoding.varint(number))
    assert read.turn_id & ((1 << 64) - 1) == number


@pytest.mark.parametrize("size", [0, 1, 127, 128, 4095, 4096, 70_000])
def test_text_of_any_length_reads_back(size: int) -> None:
    assert _inside(encoding.sized(b"x" * size)) == b"x" * size


@given(st.integers(encoding.SHORT_NANOS, 10**15))
def test_a_long_duration_is_exact(nanos: int) -> None:
    read = evaluation_service_pb2.EvaluateOptions.FromString(b"\x2a" + encoding.duration(nanos)).timeout
    assert read.ToNanoseconds() == nanos


@given(st.integers(0, encoding.SHORT_NANOS - 1))
def test_a_short_duration_is_rounded_up_to_a_microsecond(nanos: int) -> None:
    read = evaluation_service_pb2.EvaluateOptions.FromString(b"\x2a" + encoding.duration(nanos)).timeout
    assert 0 <= read.ToNanoseconds() - nanos < 1000
    assert read == Duration(nanos=-(-nanos // 1000) * 1000)


def test_short_durations_have_the_length_that_results_are_prepared_for() -> None:
    sizes = [len(data) for data in encoding.DURATIONS]
    assert set(sizes[1 : encoding.THREE_BYTES]) == {4}
    assert set(sizes[encoding.THREE_BYTES :]) == {5}


@given(st.integers(0, 4 * 10**18))
@example(0)
def test_a_timestamp_reads_back(moment: int) -> None:
    for number in (moment, *(1_700_000_000 * 10**9 + edge for edge in EDGES)):
        data = encoding.timestamp(number)
        assert data[0] == len(data) - 1
        assert Timestamp.FromString(data[1:]).ToNanoseconds() == number
