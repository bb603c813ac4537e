"""Download of one document over HTTPS: one request, no redirects, limits of size and time."""

import asyncio
import ssl
from typing import Final
from urllib.parse import urlsplit

from .connector import yield_to_calls
from .http_connection import BROKEN, HttpConnection

_HEADERS: Final = {"user-agent": "evald", "accept": "application/json", "accept-encoding": "identity"}


async def fetch_document(url: str, *, seconds: float, max_bytes: int) -> bytes:
    """Return the document at an https URL.

    The certificate must be signed by a CA of the system or of SSL_CERT_FILE. Raises OSError, with a text for the log,
    for any result other than a complete answer with status 200.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        async with asyncio.timeout(seconds):
            # In a thread, because it takes 20 ms. Not cached, because a CA may have been added.
            tls = await asyncio.to_thread(ssl.create_default_context)
            connection = await HttpConnection.open(host, parts.port or 443, tls, host, yield_to_calls)
            try:
                status, _ = await connection.send("GET", target, {"host": parts.netloc, **_HEADERS}, b"")
                if status != 200:
                    text = "redirects are not followed" if 300 <= status < 400 else "wanted 200"
                    raise OSError(f"HTTP status {status}; {text}")
                content = bytearray()
                while piece := await connection.piece():
                    content += piece
                    if len(content) > max_bytes:
                        raise OSError(f"more than {max_bytes} bytes")
                return bytes(content)
            finally:
                connection.close()
    except TimeoutError:
        raise OSError(f"no complete answer within {seconds:g} s") from None
    except ssl.SSLError as problem:
        raise OSError(f"TLS failed: {problem.reason}") from None
    except BROKEN as problem:
        # For data that is not HTTP, h11 quotes a part of it, which may contain the address.
        said = str(problem) if isinstance(problem, OSError) else ""
        raise OSError(said or type(problem).__name__) from None
