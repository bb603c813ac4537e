"""The error of a refused caller, with its message and the details for the audit log."""

from evald_server.call_errors import CallError

from .principal import Principal


class AccessDenied(CallError):
    """A call is refused.

    why: for the audit log only, because it would help an attacker to guess credentials.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        why: str,
        principal: Principal | None = None,
        retry_seconds: float | None = None,
        **metadata: str,
    ) -> None:
        super().__init__(reason, message, (), **metadata)
        self.why = why
        self.principal = principal
        self.retry_seconds = retry_seconds


def denied(why: str, principal: Principal | None = None) -> AccessDenied:
    """Return the error for invalid credentials. why: "expired" or another reason, for the audit log."""
    if why == "expired":
        return AccessDenied(
            "CREDENTIALS_EXPIRED",
            "the API key or token has expired; get a new one from the operator of the server or the issuer of the token",
            why,
            principal,
        )
    return AccessDenied(
        "CREDENTIALS_INVALID",
        "the credentials are not valid; wanted one API key or token of this server, in a header as "
        "`authorization: Bearer ...`, and on ports that require it a client certificate that is not denied",
        why,
        principal,
    )
