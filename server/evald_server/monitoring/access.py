"""Metrics of access control: checks of credentials, limits of principals, certificates and reloads."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric

from .prometheus import Counts
from .series_limit import SeriesLimit


class AccessMetrics:
    """The metrics of access control. A server without credentials and certificates exports none of them.

    expiries: of the certificates in use, by setting: Unix times in seconds.
    """

    def __init__(self, limit: SeriesLimit) -> None:
        text = "Checks of credentials, by their kind and the outcome. A call is checked once."
        self.checks = Counts(limit, "evald_auth", text, more=18, kind=(), outcome=())
        text = (
            "Calls and requests to judges refused, and turns delayed, because of their principal's limits, by the "
            "limit."
        )
        self.limited = Counts(limit, "evald_principal_limited", text, more=5, limit=())
        text = "Reloads of changed certificates, by outcome."
        self.reloads = Counts(limit, "evald_tls_reloads", text, more=2, outcome=())
        text = "Reloads of the keys that verify tokens, by outcome."
        self.key_set_reads = Counts(limit, "evald_jwks_reads", text, more=2, outcome=())
        text = "Reads of changed files of keys and clients, by outcome."
        self.file_reads = Counts(limit, "evald_auth_file_reads", text, more=4, file=(), outcome=())
        limit.add_fixed(2)
        self.expiries: Mapping[str, float] = {}

    def families(self) -> Iterator[Metric]:
        """Yield the current metric families, without empty ones."""
        expiry = GaugeMetricFamily(
            "evald_tls_certificate_expiry_seconds",
            "Expiry of the certificate in use, as Unix time.",
            labels=["file"],
        )
        for file, seconds in self.expiries.items():
            expiry.add_metric([file], seconds)
        counts = (self.checks, self.limited, self.reloads, self.key_set_reads, self.file_reads)
        return (family for family in (*(one.family() for one in counts), expiry) if family.samples)
