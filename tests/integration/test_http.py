"""The HTTP endpoint of a real daemon: what Prometheus reads is what the socket's METRICS says; who does not speak HTTP, or
does so slowly or in numbers, harms nobody; without a port there is none. Usage: test_http.py MLAD MLACTL"""
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

MLAD, MLACTL = sys.argv[1:3]
CONNECTIONS = 8  # as HTTP_CONNECTIONS
PATIENCE = 60


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def same(got, want, what):
    check(got == want, f"{what}: got {got!r}, want {want!r}")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Daemon:
    def __init__(self, folder, port):
        self.path = os.path.join(folder, "socket")
        self.port = port
        self.log = open(os.path.join(folder, "log"), "w+")
        self.process = subprocess.Popen([MLAD, "--socket", self.path, "--set", "device.cpu_threads=1", "--set",
                                         "device.workspace_bytes=16M", "--set", f"daemon.http_port={port}"],
                                        stderr=self.log)
        until = time.monotonic() + PATIENCE
        while not os.path.exists(self.path):
            check(self.process.poll() is None and time.monotonic() < until, f"mlad does not start: {self.text()}")
            time.sleep(0.01)

    def text(self):
        self.log.flush()
        return open(self.log.name).read()

    def fds(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        same(self.process.wait(PATIENCE), 0, "exit code")

    def ask(self, path="/metrics", method="GET", body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request(method, path, body)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer, text

    def metric(self, name):
        return float(re.search(rf"^{re.escape(name)} (\S+)$", self.ask()[1], re.M).group(1))


def socket_metrics(daemon):
    return subprocess.run([MLACTL, "--socket", daemon.path, "metrics"], capture_output=True, text=True, check=True,
                          timeout=PATIENCE).stdout


def without_values(text):
    """All lines, samples without their values and without the series of single clients, of which mlactl is one."""
    return [line if line.startswith("#") else line.rsplit(" ", 1)[0] for line in text.splitlines()
            if not line.startswith("mlad_client_mapped_bytes{")]


def same_as_the_socket(daemon):
    answer, text = daemon.ask()
    same(answer.status, 200, "status")
    same(answer.getheader("Content-Type"), "text/plain; version=0.0.4; charset=utf-8", "type")
    check(text.endswith("\n"), "the last line ends")
    same(without_values(text), without_values(socket_metrics(daemon)), "HTTP and the socket")
    # What stands still has the same values in both.
    still = [line for line in text.splitlines() if line.startswith(("mlad_build_info", "mlad_units", "mlad_workspace",
                                                                    "mlad_jobs_total", "mlad_health", "mlad_ready"))]
    check(len(still) > 40, "lines that stand still")
    of_socket = set(socket_metrics(daemon).splitlines())
    for line in still:
        check(line in of_socket, f"{line} is not what the socket says")


def other_requests(daemon):
    answer, text = daemon.ask(method="HEAD")
    same((answer.status, text), (200, ""), "HEAD")
    check(int(answer.getheader("Content-Length")) > 1000, "length that HEAD tells")
    for path in ("/", "/metrics/", "/metrics2", "/../etc/passwd", "/" + 200 * "x", "/%2e"):
        same(daemon.ask(path)[0].status, 404, path)
    same(daemon.ask("/metrics?x=y")[0].status, 200, "a query means nothing")
    same(daemon.ask(body=b"x" * 5000)[0].status, 200, "a body means nothing")
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "NONSENSE"):
        answer, _ = daemon.ask(method=method)
        same((answer.status, answer.getheader("Allow")), (405, "GET, HEAD"), method)


def strangers(daemon):
    """Those who send no request, half of one, too much of one, or something else."""
    for what in (b"", b"GET /metrics", b"GET /metrics HTTP/1.1\r\nHost: x\r\n", b"\r\n\r\n", b"\0" * 1000, b"MLAD" + b"\xff" * 20,
                 b"GET / HTTP/9.9\r\n\r\n", b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 100000 + b"\r\n\r\n",
                 b"GET " + b"/" * 100000 + b" HTTP/1.1\r\n\r\n",
                 b"POST /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nx",
                 b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
                 b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 50):
        with socket.create_connection(("127.0.0.1", daemon.port), PATIENCE) as s:
            s.settimeout(0.1)  # whether it answers or waits for more is its own affair
            try:
                s.sendall(what)
                s.shutdown(socket.SHUT_WR)
                while s.recv(65536):
                    pass
            except OSError:
                pass
    same(daemon.ask()[0].status, 200, "after strangers")
    whole = daemon.fds()  # some of them are still waited for
    # More than there may be: the rest waits or is cut, clients of the socket notice nothing.
    for _ in range(10):
        many = [socket.create_connection(("127.0.0.1", daemon.port), PATIENCE) for _ in range(4 * CONNECTIONS)]
        check(daemon.fds() <= whole + CONNECTIONS, f"{daemon.fds()} descriptors, {whole} before")
        check("mlad_clients 1" in socket_metrics(daemon), "the socket answers meanwhile")
        for s in many:
            s.close()
        same(daemon.ask()[0].status, 200, "after many")
    until = time.monotonic() + PATIENCE
    while daemon.fds() > whole:
        check(time.monotonic() < until, f"{daemon.fds()} descriptors are left of {whole}")
        time.sleep(0.01)
    same(daemon.ask()[0].status, 200, "after many")


def only_on_loopback(daemon):
    for address in ("127.0.0.2", "::1"):
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as s:
            s.settimeout(PATIENCE)
            try:
                s.connect((address, daemon.port))
                sys.exit(f"FAILED: {address} answers")
            except OSError:
                pass


def taken_port(folder):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        done = subprocess.run([MLAD, "--socket", os.path.join(folder, "other"), "--set", f"daemon.http_port={port}"],
                              capture_output=True, text=True, timeout=PATIENCE)
        same(done.returncode, 1, "exit code when the port is taken")
        check(f"127.0.0.1:{port}" in done.stderr and "daemon.http_port" in done.stderr, done.stderr)


def off_unless_asked_for(folder):
    daemon = Daemon(folder, 0)
    inodes = set()
    for table in ("tcp", "tcp6"):
        for line in open(f"/proc/{daemon.process.pid}/net/{table}").readlines()[1:]:
            inodes.add(f"socket:[{line.split()[9]}]")
    for fd in os.listdir(f"/proc/{daemon.process.pid}/fd"):
        check(os.readlink(f"/proc/{daemon.process.pid}/fd/{fd}") not in inodes, "a daemon without a port has a TCP socket")
    daemon.stop()


with tempfile.TemporaryDirectory() as folder:
    daemon = Daemon(folder, free_port())
    for test in (same_as_the_socket, other_requests, strangers, only_on_loopback, same_as_the_socket):
        test(daemon)
    idle = socket.create_connection(("127.0.0.1", daemon.port), PATIENCE)  # an open connection holds no exit up
    daemon.stop()
    idle.close()
    taken_port(folder)
    off_unless_asked_for(folder)
print("ok")
