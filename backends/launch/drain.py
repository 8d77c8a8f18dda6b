"""How much is still running in a server that is about to stop."""

from __future__ import annotations

import http.client


def running(host: str, metrics_port: int) -> int | None:
    """Requests inside the stages by their own metrics (0.1 s old at most); None when the metrics route is silent.

    Triton has a count of its own, but a request that it lost (2.51) would stay in it for ever.
    """
    wildcard = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    connection = http.client.HTTPConnection(wildcard.get(host, host), metrics_port, timeout=2)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode(errors="replace").splitlines()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()

    def gauge(name: str) -> int:
        return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if line.startswith(name))

    # A request is in the decoder, in the vocoder, or in both.
    decoding = gauge("voxstage_decoder_slots") + gauge("voxstage_decoder_waiting")
    return max(decoding, gauge("voxstage_vocoder_streams"))
