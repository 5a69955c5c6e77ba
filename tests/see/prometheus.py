"""Debian's Prometheus, which scrapes a server and evaluates rules each second."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

# Time limit of waits (seconds): a busy machine may take minutes for an epoch.
_PATIENCE = 300
_CONFIG = """
global:
  scrape_interval: 1s
  evaluation_interval: 1s
rule_files: [{rules}]
scrape_configs:
  - job_name: queries
    static_configs:
      - targets: ["{target}"]
"""


class Prometheus:
    def __init__(self, url: str) -> None:
        self._url = url

    def _ask(self, path: str, **parameters: str) -> Any:
        with urlopen(f"{self._url}/api/v1/{path}?{urlencode(parameters)}", timeout=60) as answer:
            document = json.load(answer)
        assert document["status"] == "success", document
        return document["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        result = self._ask("query", query=expression)["result"]
        return [(series["metric"], float(series["value"][1])) for series in result]

    def rules(self) -> dict[str, dict[str, Any]]:
        return {rule["name"]: rule for group in self._ask("rules")["groups"] for rule in group["rules"]}

    def firing(self) -> list[dict[str, str]]:
        return [alert["labels"] for alert in self._ask("alerts")["alerts"] if alert["state"] == "firing"]


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + _PATIENCE
    while not (result := condition()):
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.2)
    return result


def quick(rules: str) -> str:
    rules = re.sub(r"\bfor: \w+", "for: 0s", rules)
    rules = re.sub(r"\[\d+[mhd]\]", "[1m]", rules)
    return re.sub(r"\boffset \d+[mhd]", "offset 15s", rules)


@contextmanager
def prometheus(folder: Path, scraped: str, rules: Path) -> Iterator[Prometheus]:
    """Run Prometheus within the block.

    Args:
        scraped: the address to scrape.
    """
    config, copy, log = folder / "prometheus.yml", folder / "rules.yml", folder / "log"
    copy.write_text(quick(rules.read_text()))
    config.write_text(_CONFIG.format(rules=copy, target=urlsplit(scraped).netloc))
    command = [
        *("prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"),
        "--web.listen-address=127.0.0.1:0",
    ]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:

            def ready() -> list[str]:
                text = log.read_text()
                assert process.poll() is None, text
                # It listens before it can answer.
                is_ready = "Server is ready to receive web requests" in text
                return re.findall(r'msg="Listening on" address=(\S+)', text) if is_ready else []

            yield Prometheus(f"http://{wait_until(ready, 'Prometheus')[0]}")
        finally:
            process.terminate()
