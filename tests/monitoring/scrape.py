"""A scrape, read as Prometheus reads it."""

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from evald_server.monitoring import Telemetry

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


class Clock:
    """Time that only passes when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def families(telemetry: Telemetry, accept: str = "") -> list[Metric]:
    """What a scrape holds. The OpenMetrics parser is strict: it raises for buckets out of order and the like."""
    body, content_type = telemetry.exposition(accept)
    parse = parse_openmetrics if "openmetrics" in content_type else parse_text
    return list(parse(body.decode("utf-8")))


def samples(telemetry: Telemetry, name: str = "", accept: str = "", **labels: str) -> Iterator[Sample]:
    """Samples of this exact name, or all, that carry these labels."""
    for family in families(telemetry, accept):
        for sample in family.samples:
            if name in ("", sample.name) and labels.items() <= sample.labels.items():
                yield sample


def value(telemetry: Telemetry, name: str, **labels: str) -> float | None:
    """The one sample of this name and these labels; None when there is none."""
    found = [sample.value for sample in samples(telemetry, name, **labels)]
    assert len(found) < 2, (name, labels, found)
    return found[0] if found else None


def histogram(telemetry: Telemetry, name: str, **labels: str) -> tuple[Mapping[str, float], float, float]:
    """Buckets by upper bound, sum and count of one histogram."""
    buckets = {one.labels["le"]: one.value for one in samples(telemetry, f"{name}_bucket", **labels)}
    total, count = value(telemetry, f"{name}_sum", **labels), value(telemetry, f"{name}_count", **labels)
    assert total is not None
    assert count is not None
    return buckets, total, count
