"""The server's own counters, read over HTTP in the text format of Prometheus, before and after a level."""

from __future__ import annotations

import http.client
import re
import time
import urllib.request
from dataclasses import dataclass
from urllib.parse import urlsplit

#: Stages copy their counters into Triton's every 0.1 s; after three times that, a copy has surely been made.
MIRROR_S = 0.3
PREFIX = "voxstage_"
_TYPE = re.compile(r"^# TYPE (?P<name>\S+) (?P<type>\w+)\s*$")
_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_MODEL = re.compile(r'(?:^|,)model="(?P<model>[^"]*)"')
_BOUND = re.compile(r'(?:^|,)le="(?P<le>[^"]*)"')


@dataclass(frozen=True)
class Metrics:
    """One reading. ``values``: by name, summed over labels; of a histogram NAME_sum, NAME_count and, by upper
    bound, NAME_bucket{le=BOUND}. ``gauges``: the names among them that go up and down."""

    values: dict[str, float]
    gauges: frozenset[str]

    def since(self, before: Metrics) -> dict[str, float]:
        """How much every counter has grown. Gauges are left out: the difference of two moments says nothing."""
        return {
            name: value - before.values.get(name, 0.0) for name, value in self.values.items() if name not in self.gauges
        }


def parse(text: str, others: tuple[str, ...] = ()) -> Metrics:
    """Read the text format. Only names that begin with ``voxstage_`` are kept, and nothing of models whose names begin
    with one of ``others``: two pipelines in a server have counters of the same names."""
    types: dict[str, str] = {}
    values: dict[str, float] = {}
    for line in text.splitlines():
        if kind := _TYPE.match(line):
            types[kind["name"]] = kind["type"]
        elif (sample := _SAMPLE.match(line)) and sample["name"].startswith(PREFIX):
            name = sample["name"]
            model = _MODEL.search(sample["labels"] or "")
            if others and model and model["model"].startswith(others):
                continue
            if bound := _BOUND.search(sample["labels"] or ""):
                name = f"{name}{{le={bound['le']}}}"
            values[name] = values.get(name, 0.0) + float(sample["value"])
    return Metrics(values, frozenset(name for name in values if types.get(name) == "gauge"))


def metrics_address(given: str | None, url: str) -> str:
    """The address to read: ``given`` (host:port or a whole URL), else port 8002 of the host in ``url``."""
    if given is None:
        given = f"{url.rpartition(':')[0] or url}:8002"
    if "://" not in given:
        given = f"http://{given}"
    return given if urlsplit(given).path.strip("/") else f"{given.rstrip('/')}/metrics"


def read_metrics(address: str, others: tuple[str, ...] = ()) -> Metrics:
    """One reading, without ``others`` as in ``parse``, once the stages' last copies have been made. Raises OSError when
    nothing answers as it should."""
    time.sleep(MIRROR_S)
    host = urlsplit(address).hostname or ""
    # A proxy cannot reach our own loopback.
    local = host in ("localhost", "::1") or host.startswith("127.")
    opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if local else []))
    try:
        with opener.open(address, timeout=10) as answer:
            return parse(answer.read().decode("utf-8", "replace"), others)
    except http.client.HTTPException:
        raise OSError("what answers there does not speak HTTP") from None
