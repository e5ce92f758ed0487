"""Metrics in the format of Prometheus. Imported by `redrive.telemetry.metrics` when it is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from redrive.telemetry.metrics import METRICS, STORE_WIDE, Histogram, Labels, Metric, Metrics

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class MetricsCollector(Collector):
    """A collector for prometheus_client, which reads metrics on collection."""

    def __init__(self, metrics: Sequence[Metrics]) -> None:
        self._metrics = tuple(metrics)
        # One set of names for all values of a metric, whichever broker they are of.
        self._shared = tuple(dict.fromkeys(name for each in self._metrics for name in each.labels))

    def describe(self) -> Iterator[Family]:
        """Return all metrics without values, and without reading any store."""
        return (self._family(metric) for metric in METRICS)

    def collect(self) -> Iterator[Family]:
        """Yield all current values. Counts of several brokers on one store are added up."""
        found: dict[Metric, dict[Labels, float | Histogram]] = {}
        for metrics in self._metrics:
            shared = [metrics.labels.get(name, "") for name in self._shared]
            for metric, labels, value in metrics.read():
                values = found.setdefault(metric, {})
                key = (*shared, *labels)
                if key not in values:
                    values[key] = value
                elif metric not in STORE_WIDE:
                    values[key] = _sum(values[key], value)
        for metric, values in found.items():
            family = self._family(metric)
            for key, value in values.items():
                _add(family, key, value)
            yield family

    def _family(self, metric: Metric) -> Family:
        names = (*self._shared, *metric.labels)
        match metric.kind:
            case "counter":
                return CounterMetricFamily(metric.name, metric.help, labels=names)
            case "gauge":
                return GaugeMetricFamily(metric.name, metric.help, labels=names)
            case "histogram":
                return HistogramMetricFamily(metric.name, metric.help, labels=names)


def _sum(one: float | Histogram, other: float | Histogram) -> float | Histogram:
    if isinstance(one, Histogram):
        assert isinstance(other, Histogram)
        return one.plus(other)
    assert not isinstance(other, Histogram)
    return one + other


def _add(family: Family, labels: Labels, value: float | Histogram) -> None:
    if isinstance(family, HistogramMetricFamily):
        assert isinstance(value, Histogram)
        ends = [*map(str, value.bounds), "+Inf"]
        family.add_metric(labels, list(zip(ends, accumulate(value.counts), strict=True)), value.sum)
    else:
        assert not isinstance(value, Histogram)
        family.add_metric(labels, value)


def exposition(metrics: Sequence[Metrics]) -> tuple[bytes, str]:
    """Return all metrics, and those of the process, as text, and its content type."""
    registry = CollectorRegistry()
    registry.register(MetricsCollector(metrics))
    ProcessCollector(registry=registry)
    return generate_latest(registry), CONTENT_TYPE_LATEST


class MetricsServer:
    """An HTTP server for metrics, in a separate thread."""

    def __init__(self, metrics: Sequence[Metrics], port: int, host: str) -> None:
        registry = CollectorRegistry()
        registry.register(MetricsCollector(metrics))
        ProcessCollector(registry=registry)
        self._server, self._thread = start_http_server(port, host, registry)
        self.host = host
        self.port = int(self._server.server_port)
        """The port that it listens on: a free one if 0 was requested."""

    def close(self) -> None:
        """Stop listening. A second call is no error."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
