"""A token issuer: its keys, signed tokens, and an endpoint that serves the key set."""

import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from joserfc import jwk, jws, jwt

ISSUER, AUDIENCE = "https://issuer.example.org", "evald"

KINDS: dict[str, tuple[Any, Any]] = {
    "RS256": ("RSA", 2048),
    "PS256": ("RSA", 2048),
    "ES256": ("EC", "P-256"),
    "Ed25519": ("OKP", "Ed25519"),
}


class Issuer:
    """Signs tokens. Its key set is a file that `publish` writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keys: dict[str, Any] = {}
        self.algorithms: dict[str, str] = {}

    def add(self, kid: str, algorithm: str = "ES256") -> None:
        """Make a key."""
        kind, size = KINDS[algorithm]
        self.keys[kid] = jwk.generate_key(kind, size, {"kid": kid})
        self.algorithms[kid] = algorithm

    def key_set(self, *kids: str) -> bytes:
        """Return all or some of the public keys."""
        keys = [self.keys[kid].as_dict(private=False) for kid in kids or self.keys]
        return json.dumps({"keys": keys}).encode()

    def publish(self, *kids: str) -> Path:
        """Replace the file atomically."""
        fresh = self.path.with_suffix(".fresh")
        fresh.write_bytes(self.key_set(*kids))
        return fresh.replace(self.path)

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings of a server that accepts the issuer's tokens."""
        return {"jwt_issuer": ISSUER, "jwt_audience": AUDIENCE, "jwt_jwks_file": self.path}

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Return valid claims that expire in a minute. changes: None removes a claim."""
        found = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "alice",
            "exp": int(time.time()) + 60,
            "roles": ["caller"],
            **changes,
        }
        return {name: value for name, value in found.items() if value is not None}

    def token(self, kid: str = "one", header: dict[str, Any] | None = None, **changes: Any) -> str:
        """Return a signed token."""
        algorithm = self.algorithms[kid]
        fields = {"alg": algorithm, "kid": kid, **(header or {})}
        registry = jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False)
        return jwt.encode(fields, self.claims(**changes), self.keys[kid], registry=registry)


class Endpoint:
    """The answers of a key set endpoint. held: answers wait for this event."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.body = b""
        self.status = 200
        self.location = ""
        self.held = threading.Event()
        self.held.set()
        self.asked = 0


@contextmanager
def endpoint(certs: Path) -> Iterator[Endpoint]:
    """Serve a key set over HTTPS, with a certificate for localhost."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked += 1
            served.held.wait(20)
            self.send_response(served.status)
            if served.location:
                self.send_header("location", served.location)
            self.send_header("content-length", str(len(served.body)))
            self.end_headers()
            self.wfile.write(served.body)

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """Ignore callers that disconnect."""

    server = Server(("0.0.0.0", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certs / "server.pem", certs / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    served = Endpoint(f"https://localhost:{server.server_address[1]}/keys")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield served
    finally:
        served.held.set()
        server.shutdown()
        thread.join()
        server.server_close()
