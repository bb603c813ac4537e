"""Scrapes, parsed as Prometheus parses them."""

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from evald_server.monitoring import Telemetry

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def families(telemetry: Telemetry, accept: str = "") -> list[Metric]:
    """Parse a scrape. The OpenMetrics parser raises for errors such as buckets out of order."""
    body, content_type = telemetry.exposition(accept)
    parse = parse_openmetrics if "openmetrics" in content_type else parse_text
    return list(parse(body.decode("utf-8")))


def samples(telemetry: Telemetry, name: str = "", accept: str = "", **labels: str) -> Iterator[Sample]:
    """Return the samples with these labels, of one exact name or of all."""
    for family in families(telemetry, accept):
        for sample in family.samples:
            if name in ("", sample.name) and labels.items() <= sample.labels.items():
                yield sample


def value(telemetry: Telemetry, name: str, **labels: str) -> float | None:
    """Return the value of the sample with this name and these labels; None if there is none."""
    values = [sample.value for sample in samples(telemetry, name, **labels)]
    assert len(values) < 2, (name, labels, values)
    return values[0] if values else None


def shown(telemetry: Telemetry, name: str, label: str, **labels: str) -> dict[str, float]:
    """Return the values by one label."""
    return {sample.labels[label]: sample.value for sample in samples(telemetry, name, **labels)}


def histogram(telemetry: Telemetry, name: str, **labels: str) -> tuple[Mapping[str, float], float, float]:
    """Return the buckets by upper bound, the sum and the count of a histogram."""
    buckets = shown(telemetry, f"{name}_bucket", "le", **labels)
    total, count = (value(telemetry, f"{name}_{suffix}", **labels) for suffix in ("sum", "count"))
    assert total is not None
    assert count is not None
    return buckets, total, count
