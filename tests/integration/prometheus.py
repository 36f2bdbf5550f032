"""Prometheus scrapes a real daemon: up is 1, what mlad counted is there, promtool finds nothing to say of the metrics, and
Prometheus understands every expression of the dashboard. By hand, on Debian: apt-get install prometheus, then
    python3 tests/integration/prometheus.py BUILD
BUILD is a build tree with mlad, mlactl and mla_example_worker. Exit 77 when there is no prometheus."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PATIENCE = 60


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def find(build, name):
    for folder, _, names in os.walk(build):
        path = os.path.join(folder, name)
        if name in names and os.access(path, os.X_OK):
            return path
    sys.exit(f"FAILED: no {name} in {build}")


def until(what, condition):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        result = condition()
        if result:
            return result
        time.sleep(0.2)
    sys.exit(f"FAILED: not within {PATIENCE} s: {what}")


class Prometheus:
    def __init__(self, folder, target):
        self.port = free_port()
        config = os.path.join(folder, "prometheus.yml")
        with open(config, "w") as f:
            f.write("global: {scrape_interval: 1s}\nscrape_configs:\n  - job_name: mlad\n    static_configs:\n"
                    f"      - targets: ['127.0.0.1:{target}']\n")
        subprocess.run(["promtool", "check", "config", config], check=True, capture_output=True)
        self.log = open(os.path.join(folder, "prometheus.log"), "w")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/tsdb",
             f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn"], stdout=self.log, stderr=self.log)

    def query(self, expression):
        url = f"http://127.0.0.1:{self.port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                return json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            sys.exit(f"FAILED: Prometheus refuses {expression}: {error.read().decode()}")
        except (urllib.error.URLError, ConnectionError):
            return []  # not up yet

    def value(self, expression):
        result = self.query(expression)
        return float(result[0]["value"][1]) if result else None


def expressions(node):
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "expr":
                yield value
            yield from expressions(value)
    elif isinstance(node, list):
        for value in node:
            yield from expressions(value)


def check_dashboard(prometheus):
    """Every expression is understood; all that need no fault or client to have happened have something to show."""
    dashboard = json.load(open(os.path.join(ROOT, "deploy", "grafana", "mlad.json"), encoding="utf-8"))
    texts, shown = list(expressions(dashboard)), 0
    for text in texts:
        text = text.replace("$__rate_interval", "30s").replace("$instance", ".*")
        shown += bool(prometheus.query(text))
    check(shown > len(texts) * 3 // 4, f"{shown} of {len(texts)} expressions show something")
    print(f"{len(texts)} expressions of the dashboard, {shown} of them show something")


def main(build):
    programs = [shutil.which(name) for name in ("prometheus", "promtool")]
    if None in programs:
        print("no prometheus here: apt-get install prometheus")
        return 77
    mlad, mlactl, worker = (find(build, name) for name in ("mlad", "mlactl", "mla_example_worker"))
    with tempfile.TemporaryDirectory() as folder:
        port, path = free_port(), os.path.join(folder, "socket")
        log = open(os.path.join(folder, "mlad.log"), "w")
        daemon = subprocess.Popen([mlad, "--socket", path, "--set", f"daemon.http_port={port}"], stdout=log, stderr=log)
        prometheus = Prometheus(folder, port)
        try:
            until("the socket", lambda: os.path.exists(path))
            until("up == 1", lambda: prometheus.value('up{job="mlad"}') == 1)
            for _ in range(3):
                subprocess.run([worker, path], check=True, capture_output=True, timeout=PATIENCE)
                time.sleep(2)
            text = subprocess.run([mlactl, "--socket", path, "metrics"], check=True, capture_output=True, text=True).stdout
            said = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
            check(said.returncode == 0, f"promtool: {said.stdout}{said.stderr}")
            decodes = float(re.search(r'^mlad_jobs_total\{status="OK"\} (\S+)$', text, re.M).group(1))
            check(decodes > 0, "the worker decoded")
            until("all decodes", lambda: prometheus.value('mlad_jobs_total{status="OK"}') == decodes)
            check(prometheus.value("mlad_ready") == 1, "mlad_ready")
            check(prometheus.value("increase(mlad_batches_total[1m]) > bool 0") == 1, "launches grew")
            check(prometheus.value("histogram_quantile(0.5, rate(mlad_job_seconds_bucket[1m]))") > 0, "a quantile")
            names = {series["metric"]["__name__"] for series in prometheus.query('{job="mlad",__name__=~"mlad_.*"}')}
            print(f"up 1; {decodes:.0f} decodes; {len(names)} names of series")
            check_dashboard(prometheus)
            daemon.send_signal(signal.SIGTERM)
            check(daemon.wait(PATIENCE) == 0, "mlad's exit code")
            until("up == 0", lambda: prometheus.value('up{job="mlad"}') == 0)
            print("up 0 once the daemon is gone")
        finally:
            for process in (daemon, prometheus.process):
                if process.poll() is None:
                    process.kill()
                process.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
