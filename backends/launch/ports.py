"""Three ports to listen on: those asked for, or free ones."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping

from backends.launch.failure import RUNTIME, USAGE, LaunchError


def pick_ports(host: str, wanted: Mapping[str, int]) -> dict[str, int]:
    """Service → a port that is free on ``host`` now; a wanted port of 0 becomes any free one.

    Raises LaunchError for a port in use or an address that this machine does not have.
    """
    held: dict[str, socket.socket] = {}
    try:
        # All are held until all are found, fixed ones first, so that no free port is handed out twice.
        for service in sorted(wanted, key=lambda name: wanted[name] == 0):
            held[service] = _listen(host, service, wanted[service])
        return {service: held[service].getsockname()[1] for service in wanted}
    finally:
        for listener in held.values():
            listener.close()


def _listen(host: str, service: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise LaunchError(f"--host {host}: no such address ({error.strerror})", USAGE) from None
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port of a server that ended just now is free
        listener.bind(address)
        listener.listen(1)
        return listener
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise LaunchError(
                f"port {port} on {host} is in use; choose another with --{service}-port, or 0 for any free one", RUNTIME
            ) from None
        raise LaunchError(f"cannot listen on {host} port {port} for {service}: {error.strerror}", USAGE) from None
