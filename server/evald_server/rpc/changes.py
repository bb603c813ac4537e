"""Streams of changes, after a snapshot."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from evald_server.call_errors import CallError, invalid
from evald_server.engine.registry import Registry, RevisionExpired
from evald_server.remote.instances import InstanceRegistry, UnknownRevision

from .server import RpcStream


async def send_changes(
    stream: RpcStream,
    log: Registry | InstanceRegistry,
    after: int,
    response: Callable[..., Any],
    snapshot: Iterable[Mapping[str, Any]],
    fields_of: Callable[[Any], Mapping[str, Any]],
    wait: Callable[[Awaitable[Any]], Awaitable[Any]] = lambda change: change,
) -> None:
    """Send the changes after a revision until the caller disconnects; for revision 0 a snapshot first.

    response: type of the messages. snapshot: lazily, the fields of its messages. fields_of: returns the fields of a
    change's message. wait: awaits the next change. Raises CallError for an unknown revision.
    """
    if after < 0:
        raise invalid("after_revision", f"got {after}, wanted 0 or more")
    changed = asyncio.Event()
    unsubscribe = log.watch(changed.set)
    try:
        if not after:
            after = log.revision
            for fields in snapshot:
                await stream.send(response(revision=after, **fields).SerializeToString())
            complete = response(revision=after)
            complete.snapshot_complete.SetInParent()
            await stream.send(complete.SerializeToString())
        while True:
            changed.clear()
            for change in log.changes_after(after):
                after = change.revision
                await stream.send(response(revision=after, **fields_of(change)).SerializeToString())
            await wait(changed.wait())
    except (RevisionExpired, UnknownRevision) as problem:
        raise CallError("REVISION_GONE", f"{problem}; start again with after_revision 0") from None
    finally:
        unsubscribe()
