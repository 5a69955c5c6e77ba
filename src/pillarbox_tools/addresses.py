# SPDX-License-Identifier: Apache-2.0
"""Network addresses of the tools' servers."""

from __future__ import annotations

import socket
from ipaddress import ip_address

from pillarbox._errors import ConfigurationError


def url_of(host: str, port: int, path: str) -> str:
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/{path}"


def cannot_listen(server: str, method: str, host: str, port: int, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"{server} cannot listen on {host}:{port} ({error.strerror or error}): choose another port, or any free port"
        f" by {method}(query, port=0)"
    )


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
