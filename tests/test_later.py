"""What waits for an answer to be on its way is done soon, in order, and whatever becomes of the others."""

import asyncio
import logging

import pytest

from evald_server.later import later

from .rpc.live import run


def test_it_is_done_after_this_turn_of_the_loop_and_in_order() -> None:
    done: list[int] = []

    async def main() -> None:
        later(done.append, 1)
        later(done.append, 2)
        assert not done
        await asyncio.sleep(0)
        assert done == [1, 2]
        later(done.append, 3)
        await asyncio.sleep(0)
        assert done == [1, 2, 3]

    run(main())


def test_what_is_left_for_later_may_leave_more_for_later() -> None:
    done: list[str] = []

    def first() -> None:
        done.append("first")
        later(done.append, "second")

    async def main() -> None:
        later(first)
        await asyncio.sleep(0)
        assert done == ["first"]
        await asyncio.sleep(0)
        assert done == ["first", "second"]

    run(main())


def test_one_that_fails_is_logged_and_keeps_nothing_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []

    def fails() -> None:
        raise RuntimeError("a fault of ours")

    async def main() -> None:
        later(fails)
        later(done.append, "after it")
        await asyncio.sleep(0)

    with caplog.at_level(logging.ERROR, "evald"):
        run(main())
    assert done == ["after it"]
    assert "a fault of ours" in caplog.text


def test_every_loop_does_its_own() -> None:
    done: list[str] = []
    loops = [asyncio.new_event_loop() for _ in range(2)]

    async def leave(name: str) -> None:
        later(done.append, name)

    async def turn() -> None:
        await asyncio.sleep(0)

    # Stopped before it could do what was left for later.
    for loop, name in zip(loops, ("first", "second"), strict=True):
        loop.call_soon(loop.stop)
        task = loop.create_task(leave(name))
        loop.run_forever()
        assert task.done()
    assert done == []
    for loop in loops:
        loop.run_until_complete(turn())
        loop.close()
    assert done == ["first", "second"]
    with pytest.raises(RuntimeError):
        later(done.append, "nobody")
