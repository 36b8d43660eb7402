"""OpenMetrics text of the processes of a node, over HTTP and in a file, by prometheus_client.

Importing this module imports prometheus_client.
"""

import hmac
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from hccl_py.observe.metrics.counters import METRICS, Metric
from hccl_py.observe.metrics.node import RankSample
from hccl_py.observe.metrics.settings import MetricsSettings
from hccl_py.transport.network.interfaces import address_family
from hccl_py.transport.threads import start_without_signals

Family = CounterMetricFamily | GaugeMetricFamily
Values = defaultdict[tuple[str, ...], float]
_CLIENT_S = 10.0
"""How long a client may take for its request: a silent one holds a thread."""


class _NodeCollector(Collector):
    def __init__(self, read: Callable[[], Iterable[RankSample]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Family]:
        ranks = list(self._read())
        up = GaugeMetricFamily(
            "hccl_rank_up", "Whether the rank answers.", labels=["run", "node", "rank"]
        )
        for rank in ranks:
            up.add_metric([rank.run, rank.node, rank.rank], float(rank.is_up))
        yield up
        for name, metric in METRICS.items():
            of_ranks: Values = defaultdict(float)
            of_nodes: Values = defaultdict(float)
            for rank in ranks:
                for sample, labels, value in rank.samples:
                    if sample == name:
                        own = () if metric.labels_of_node else tuple(labels)
                        of_rank = (rank.run, rank.node, rank.rank, *own)
                        of_node = (rank.run, rank.node, *labels)
                        of_ranks[of_rank] += value
                        of_nodes[of_node] += value
            own_labels = () if metric.labels_of_node else metric.labels
            yield _family(f"hccl_{name}", metric, ("run", "node", "rank", *own_labels), of_ranks)
            node_labels = ("run", "node", *metric.labels)
            yield _family(f"hccl_node_{name}", metric, node_labels, of_nodes)


def _family(name: str, metric: Metric, labels: tuple[str, ...], values: Values) -> Family:
    kind = GaugeMetricFamily if metric.is_gauge else CounterMetricFamily
    made = kind(name, metric.help, labels=labels)
    for key, value in values.items():
        made.add_metric(key, value)
    return made


class Exposition:
    """Serves the text, and writes it."""

    def __init__(self, settings: MetricsSettings, read: Callable[[], Iterable[RankSample]]) -> None:
        """Listen at the port, if there is one; OSError: it is taken."""
        self._registry = CollectorRegistry()
        self._registry.register(_NodeCollector(read))
        self._app = make_wsgi_app(self._registry)
        self._token = settings.token
        self._file = settings.file
        self._server: Any = None
        if settings.port:
            family = address_family(settings.host)
            kind = type("Server", (ThreadingWSGIServer,), {"address_family": family})
            self._server = make_server(settings.host, settings.port, self._answer, kind, _Handler)
            serve = self._server.serve_forever
            name = "hccl-metrics-http"
            start_without_signals(threading.Thread(target=serve, name=name, daemon=True))

    def write(self) -> None:
        """Replace the file atomically; OSError: that failed."""
        if self._file is not None:
            write_to_textfile(str(self._file), self._registry)

    def close(self) -> None:
        """Stop serving, and give the port back."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def close_in_child(self) -> None:
        """In a forked child: close the copy of the listening socket."""
        if self._server is not None:
            self._server.socket.close()

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        given = environ.get("HTTP_AUTHORIZATION", "").encode("latin-1")
        if self._token and not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
            start("401 Unauthorized", [("WWW-Authenticate", "Bearer")])
            return [b"expected the bearer token of HCCL_SECRET, see docs/jobs/metrics.md\n"]
        if "text/plain" not in environ.get("HTTP_ACCEPT", ""):
            environ["HTTP_ACCEPT"] = "application/openmetrics-text"
        found: Iterable[bytes] = self._app(environ, start)
        return found


class _Handler(WSGIRequestHandler):
    timeout = _CLIENT_S

    def log_message(self, *_: object) -> None:
        """Log no request."""
