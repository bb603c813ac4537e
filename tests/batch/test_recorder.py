"""What a recorder tells is what it has heard and has not been told to forget."""

from typing import Any

from evald_server.batch.recorder import Recorder


def tally(recorder: Recorder) -> Any:
    return recorder.tally("contains", 1, enforced=True, origin="built_in", metric=None)


def test_a_use_measures_where_the_servers_tally_does() -> None:
    recorder = Recorder([True, False])
    assert [tally(recorder).measures for _ in range(3)] == [True, False, False]


def test_what_came_after_a_mark_can_be_forgotten() -> None:
    recorder = Recorder([True, False])
    first, second = tally(recorder), tally(recorder)
    second.usual[0] += 3
    second.usual[1] += 700
    first.add(1, 0.25, 1.0, 4.5)
    mark = recorder.mark()
    second.usual[0] += 1
    first.add(2, 0.5, 0.0, None)
    first.error("TIMEOUT")
    recorder.forget(mark)
    second.error("MISSING_DATA")
    heard = recorder.take()
    assert heard.usual == [[0, 0], [3, 700]]
    assert heard.notes == [(0, 1, 0.25, 1.0, 4.5), (1, "MISSING_DATA")]


def test_nothing_is_told_twice() -> None:
    recorder = Recorder([False])
    only = tally(recorder)
    only.usual[0] += 1
    only.error("TIMEOUT")
    recorder.take()
    assert recorder.take() == ([[0, 0]], [])
    only.usual[0] += 1
    assert recorder.take().usual == [[1, 0]]
