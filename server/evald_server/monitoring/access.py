"""Metrics of access control: checks of credentials, limits of principals, certificates and reloads."""

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric

from .prometheus import add_count, counter, counts


class AccessMetrics:
    """The metrics of access control. A server without credentials and certificates exports none of the series."""

    def __init__(self) -> None:
        self._checks: Counter[tuple[str, str]] = Counter()
        self._limits: Counter[str] = Counter()
        self._reloads: Counter[str] = Counter()
        self._key_sets: Counter[str] = Counter()
        self._file_reads: Counter[tuple[str, str]] = Counter()
        self._expiries: Mapping[str, float] = {}

    def checked(self, kind: str, outcome: str) -> None:
        """Count one check of credentials."""
        self._checks[kind, outcome] += 1

    def limited(self, limit: str) -> None:
        """Count a call, turns or a request to a judge that a limit of their principal refuses or delays."""
        self._limits[limit] += 1

    def reloaded(self, outcome: str) -> None:
        """Count one reload of certificates: "ok" or "failed"."""
        self._reloads[outcome] += 1

    def key_set_read(self, outcome: str) -> None:
        """Count one read of the tokens' key set (JWKS): "ok" or "failed"."""
        self._key_sets[outcome] += 1

    def file_read(self, setting: str, outcome: str) -> None:
        """Count one read of the changed file of a setting, of keys or clients: "ok" or "failed"."""
        self._file_reads[setting, outcome] += 1

    def expire_at(self, expiries: Mapping[str, float]) -> None:
        """Set the expiry of the certificates in use, by setting: Unix times in seconds."""
        self._expiries = expiries

    def families(self) -> Iterator[Metric]:
        """Yield the current metric families."""
        if self._checks:
            checks = counter(
                "evald_auth", "Checks of credentials, by their kind and the outcome. A call is checked once."
            )
            for (kind, outcome), count in self._checks.copy().items():
                add_count(checks, {"kind": kind, "outcome": outcome}, count)
            yield checks
        if self._limits:
            text = (
                "Calls and requests to judges refused, and turns delayed, because of their principal's limits, by the "
                "limit."
            )
            yield counts("evald_principal_limited", text, "limit", self._limits)
        if self._reloads:
            text = "Reloads of changed certificates, by outcome."
            yield counts("evald_tls_reloads", text, "outcome", self._reloads)
        if self._key_sets:
            text = "Reloads of the keys that verify tokens, by outcome."
            yield counts("evald_jwks_reads", text, "outcome", self._key_sets)
        if self._file_reads:
            reads = counter(
                "evald_auth_file_reads", "Reads of changed files of keys and clients, by outcome."
            )
            for (setting, outcome), count in self._file_reads.copy().items():
                add_count(reads, {"file": setting, "outcome": outcome}, count)
            yield reads
        if self._expiries:
            expiry = GaugeMetricFamily(
                "evald_tls_certificate_expiry_seconds",
                "Expiry of the certificate in use, as Unix time.",
                labels=["file"],
            )
            for file, seconds in self._expiries.items():
                expiry.add_metric([file], seconds)
            yield expiry
