"""mlactl against a real daemon: every subcommand as text and as JSON, the metrics as Prometheus reads them, every exit
code; and the sample configuration. Usage: test_mlactl.py MLACTL MLAD WORKER SAMPLE_CONF"""
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

MLACTL, MLAD, WORKER, SAMPLE = sys.argv[1:5]
NOBODY = 65534


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def same(got, want, what):
    check(got == want, f"{what}: got {got!r}, want {want!r}")


def run(command, **more):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **more)


def mlactl(path, *arguments, code=0, **more):
    """What it wrote to stdout; on failure it must explain itself on stderr and write nothing else."""
    done = run([MLACTL, "--socket", path, *arguments], **more)
    what = f"mlactl {' '.join(arguments)}"
    check(done.returncode == code, f"{what}: exit code {done.returncode}, want {code}: {done.stdout}{done.stderr}")
    if 1 < code < 5:
        check("mlactl" in done.stderr.split("\n")[0], f"{what}: stderr is {done.stderr!r}")
        same(done.stdout, "", what)
    else:
        same(done.stderr, "", what)
    return done.stdout


def no_constant(name):
    raise ValueError(f"{name} is not JSON")


def as_json(path, *arguments, code=0):
    text = mlactl(path, "--json", *arguments, code=code)
    tool = run([sys.executable, "-m", "json.tool"], input=text)
    check(tool.returncode == 0, f"json.tool refuses {arguments}: {tool.stderr}{text}")
    return json.loads(text, parse_constant=no_constant)


class Daemon:
    started = []

    def __init__(self, folder, *settings):
        self.path = os.path.join(folder, "socket")
        sets = [word for s in ("daemon.socket_mode=0666", "device.cpu_threads=1", "device.workspace_bytes=16M", *settings)
                for word in ("--set", s)]
        self.process = subprocess.Popen(
            [MLAD, "--config", "/dev/null", "--socket", self.path, "--log-level", "warning", *sets])
        Daemon.started.append(self)
        for _ in range(3000):
            check(self.process.poll() is None, "mlad ended at its start")
            if os.path.exists(self.path) and run([MLACTL, "--socket", self.path, "health"]).returncode == 0:
                return
            time.sleep(0.01)
        sys.exit("FAILED: mlad is not ready")

    def ends(self, code):
        same(self.process.wait(30), code, "exit code of mlad")


# ---- what needs no daemon ----

def usage():
    none = "/nonexistent/socket"
    for arguments in ([], ["nonsense"], ["health", "again"], ["--nonsense", "health"], ["--timeout", "soon", "health"],
                      ["--timeout", "-1", "health"], ["--deadline", "nan", "drain"], ["plan"], ["evict"],
                      ["evict", "client"], ["evict", "12", "34"], ["reload", "12"], ["top", "--interval", "0"],
                      ["plan", "--heads", "0", "--q-len", "1", "--kv-len", "1"],
                      ["plan", "--heads", "129", "--q-len", "1", "--kv-len", "1"],
                      ["plan", "--heads", "1", "--q-len", "1", "--kv-len", "1", "--policy", "best"]):
        mlactl(none, *arguments, code=2)
    check(mlactl(none, "--help").startswith("usage: mlactl"), "--help")
    check(re.fullmatch(r"mlactl \d+\.\d+\.\d+\n", mlactl(none, "--version")), "--version")
    check("--heads" in mlactl(none, "plan", "--help"), "plan --help")


def nobody_answers(folder):
    for command in ("health", "status", "clients", "caches", "metrics", "top", "drain", "reload"):
        mlactl(os.path.join(folder, "none"), command, code=3)
    mlactl("/" + 200 * "x", "health", code=3)
    stale = os.path.join(folder, "stale")
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(stale)
    mlactl(stale, "health", code=3)
    silent = os.path.join(folder, "silent")
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(silent)
        s.listen()
        begin = time.monotonic()
        mlactl(silent, "--timeout", "0.2", "health", code=3)
        check(time.monotonic() - begin < 5, "--timeout holds")


def plan():
    shape = ["plan", "--heads", "96", "--q-len", "8", "--batch", "1", "--kv-len", "65536", "--sms", "132",
             "--unit", "4x256"]
    keys = {"tiles", "useful_rows", "row_slots", "items", "units", "splits", "waves", "predicted_us"}
    p = as_json("/none", *shape)
    check(keys <= set(p), f"plan lacks {keys - set(p)}")
    same((p["tiles"], p["useful_rows"], p["row_slots"], p["units"], p["unit"]), (3, 768, 768, 33, "4x256"), "plan")
    # need 3 of 33 units: floor(66 / 3) items per tile
    seed = as_json("/none", *shape, "--policy", "seed")
    same((seed["splits"], seed["items"], seed["waves"]), (22, 66, 2), "plan of policy seed")
    same(as_json("/none", *shape, "--unit", "2x128", "--tile", "128")["tiles"], 6, "tiles of 128 rows")
    compared = as_json("/none", *shape, "--compare")
    same([(v["tile_rows"], v["tiles"]) for v in compared], [(256, 3), (128, 6), (256, 4)], "plan --compare")
    same(run([MLACTL, *shape, "--json"]).stdout, mlactl("/none", "--json", *shape), "--json behind plan and before it")
    check("native M256" in mlactl("/none", *shape), "plan as text")
    few = as_json("/none", "plan", "--heads", "12", "--q-len", "1", "--kv-len", "65536")
    same((few["kernels"], few["unit"]), ("sm90-32", "1x32"), "kind of kernels for few rows")


# ---- Prometheus' text format ----

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\\\|\\"|\\n)*"'
SAMPLE_LINE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\S+)")


def parse_metrics(text):
    """{family: (type, {(sample name, labels): value})}; stops at the first thing that a scraper would stumble over."""
    families, family = {}, None
    check(text.endswith("\n"), "metrics end with a line feed")
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            name, text_of = line[7:].split(" ", 1)
            check(re.fullmatch(NAME, name) and name not in families and text_of, f"metrics: {line}")
            family, families[name] = name, [None, {}]
        elif line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            check(name == family and families[name] == [None, {}], f"metrics: {line}")
            check(kind in ("counter", "gauge", "histogram"), f"metrics: {line}")
            families[name][0] = kind
        else:
            match = SAMPLE_LINE.fullmatch(line)
            check(match and family, f"metrics: {line}")
            name, labels, value = match.groups()
            kind, samples = families[family]
            suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
            check(kind and name in [family + s for s in suffixes], f"metrics: {line} stands under {family}")
            check((name, labels) not in samples, f"metrics: {line} twice")
            samples[name, labels] = float(value)
    return families


def check_families(families):
    for name, (kind, samples) in families.items():
        check(samples, f"{name} has no sample")
        check(all(v >= 0 for v in samples.values()), f"{name} is negative")
        same(name.endswith("_total"), kind == "counter", f"{name}, a {kind}: ends in _total")
        if kind != "histogram":
            continue
        buckets = [(float(re.search(r'le="([^"]+)"', l).group(1)), v) for (n, l), v in samples.items()
                   if n == name + "_bucket"]
        same(buckets, sorted(buckets), f"{name}: buckets in order and cumulative")
        same(buckets[-1], (float("inf"), samples[name + "_count", None]), f"{name}: +Inf is the count")


def metrics(path):
    families = parse_metrics(mlactl(path, "metrics"))
    check_families(families)
    value = {key: v for _, samples in families.values() for key, v in samples.items()}
    same(value["mlad_jobs_total", 'status="OK"'], 1, "jobs answered")
    same(value["mlad_jobs", 'state="waiting"'], 1, "jobs that wait")
    same(value["mlad_batches_total", None], 1, "launches")
    same(value["mlad_job_run_seconds_count", None], 1, "run times seen")
    same((value["mlad_caches", None], value["mlad_published_caches", None]), (1, 1), "caches")
    same(value["mlad_rows_total", None], 2, "rows launched")
    listed = as_json(path, "metrics")
    same([(f["name"], f["type"]) for f in listed], [(n, f[0]) for n, f in families.items()], "families as JSON")
    here = re.compile(r'client="[0-9a-f]{16}",name="mlactl"')  # each of the two is another one
    same([(f["name"] + s["suffix"], here.sub("here", s["labels"]) or None) for f in listed for s in f["samples"]],
         [(name, labels and here.sub("here", labels)) for _, samples in families.values() for name, labels in samples],
         "samples as JSON")


def top(path, worker_pid):
    """One decode of two rows has run, another waits for its word."""
    seen = as_json(path, "top", "--once")
    same({k: seen[k] for k in ("jobs_waiting", "jobs_queued", "jobs_running", "jobs_per_batch", "splits",
                               "steps_per_second")},
         {"jobs_waiting": 1, "jobs_queued": 0, "jobs_running": 0, "jobs_per_batch": 1, "splits": 1,
          "steps_per_second": 0}, "top")
    job, gap = seen["timings"]["job"], seen["timings"]["gap"]
    same((job["count"], gap["count"], gap["p50_us"]), (1, 0, None), "timings of top")
    check(0 < job["p50_us"] <= job["p99_us"] and job["mean_us"] > 0, f"top: {job}")
    check(0 < seen["tile_occupancy"] <= 1 and 0 < seen["gpu_busy"] <= 1 and seen["prediction_mean"] > 0, f"top: {seen}")
    same([(c["name"], c["jobs_in_flight"], c["jobs_answered"]) for c in seen["clients"]],
         [('worker "1" \\', 1, 1), ("mlactl", 0, 0)], "clients of top")
    text = mlactl(path, "top", "--once")
    check("\033" not in text and f" {worker_pid} " in text and "jobs: waiting 1, queued 0" in text, f"top: {text}")
    # Without --once it goes on until it is stopped, or until the daemon is gone.
    drawn = subprocess.Popen([MLACTL, "--socket", path, "top", "--interval", "0.02"], stdout=subprocess.PIPE, text=True)
    heads = 0
    while heads < 3:
        line = drawn.stdout.readline()
        check(line != "", "top ended by itself")
        heads += line.startswith("mlad ")
    drawn.kill()
    drawn.wait()
    drawn.stdout.close()


# ---- a daemon with one worker ----

def reads(path, worker_pid):
    health = as_json(path, "health")
    same((health["state"], health["backend"], health["reason"]), ("ready", "cpu", ""), "health")
    check(health["uptime_seconds"] >= 0 and health["gpu_uuid"].startswith("CPU-"), "health")
    same(json.loads(mlactl(path, "health", "--json"))["state"], "ready", "--json behind the command")
    check(re.match(r"ready, up [0-9.]+ s, version ", mlactl(path, "health")), "health as text")

    status = as_json(path, "status")
    same({k: status[k] for k in ("backend", "health", "clients", "regions", "caches", "jobs_waiting", "jobs_running",
                                 "batches", "workspace_bytes", "device_memory_bytes")},
         {"backend": "cpu", "health": "ready", "clients": 2, "regions": 2, "caches": 1, "jobs_waiting": 1,
          "jobs_running": 0, "batches": 1, "workspace_bytes": 16 << 20,
          "device_memory_bytes": 0}, "status")
    check(re.fullmatch("[0-9a-f]{16}", status["boot_nonce"]), "boot nonce")
    lines = dict(line.split(None, 1) for line in mlactl(path, "status").splitlines())
    same((lines["clients"], lines["jobs_waiting"], lines["gpu_uuid"]), ("2", "1", status["gpu_uuid"]), "status as text")

    clients = as_json(path, "clients")
    same([c["name"] for c in clients], ['worker "1" \\', "mlactl"], "names of clients")
    same({k: clients[0][k] for k in ("pid", "uid", "regions", "caches", "table_sets", "jobs_in_flight", "jobs_answered",
                                     "weight")},
         {"pid": worker_pid, "uid": os.getuid(), "regions": 2, "caches": 1, "table_sets": 1, "jobs_in_flight": 1,
          "jobs_answered": 1, "weight": 1}, "the worker")
    text = mlactl(path, "clients").splitlines()
    same(len(text), 3, "lines of clients")
    check('worker "1" \\' in text[1] and f" {worker_pid} " in text[1], "clients as text")

    caches = as_json(path, "caches")
    same(caches, [{"name": "kv.test-1", "owner": clients[0]["client"], "owner_uid": os.getuid(), "num_pages": 2,
                   "planes": 1, "tokens_per_entry": 64, "attachments": 0, "label": 'label "2"'}], "caches")
    text = mlactl(path, "caches").splitlines()
    same((len(text), text[1].split()[0]), (2, "kv.test-1"), "caches as text")


def refusals(folder):
    """Exit code 4: the daemon answers, and the answer is no."""
    daemon = Daemon(folder, "limits.max_clients=1")
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(daemon.path)
        time.sleep(0.2)
        mlactl(daemon.path, "health", code=4)
    for _ in range(500): # until the daemon has seen that connection end
        if run([MLACTL, "--socket", daemon.path, "drain"]).returncode == 0:
            break
        time.sleep(0.01)
    daemon.ends(0)


def administer(folder):
    """reload and evict, with a client that is there to be evicted."""
    daemon = Daemon(folder)
    path = daemon.path
    same(mlactl(path, "reload"), "reloaded\n", "reload")
    same(as_json(path, "reload"), {"reloaded": True}, "reload")
    mlactl(path, "evict", "0123456789abcdef", code=4)
    victim = subprocess.Popen([WORKER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              text=True)
    same(victim.stdout.readline(), "holding\n", "the worker to be evicted")
    ids = [c["client"] for c in as_json(path, "clients") if c["pid"] == victim.pid]
    same(len(ids), 1, "clients of that process")
    if os.getuid() == 0:
        refused = run([MLACTL, "--socket", path, "evict", ids[0]], user=NOBODY, group=NOBODY, extra_groups=[])
        same(refused.returncode, 4, "evict by somebody else")
    same(mlactl(path, "evict", ids[0]), "evicted\n", "evict")
    victim.stdin.close()
    check(victim.wait(30) != 0, "the evicted worker has noticed nothing")
    mlactl(path, "evict", ids[0], code=4)
    mlactl(path, "drain")
    daemon.ends(0)


def degraded(folder):
    """A daemon that is stopped again and again is late; exit code 5, and drain works as ever."""
    daemon = Daemon(folder)
    for _ in range(3):
        daemon.process.send_signal(signal.SIGSTOP)
        time.sleep(1.4) # longer than from one look at itself to the next
        daemon.process.send_signal(signal.SIGCONT)
        time.sleep(0.02)
    for _ in range(200):
        if run([MLACTL, "--socket", daemon.path, "health"]).returncode != 0:
            break
        time.sleep(0.01)
    health = as_json(daemon.path, "health", code=5)
    same(health["state"], "degraded", "health of a daemon that is late")
    same(health["reason"], "loop_lag: the event loop keeps clients waiting", "its reason")
    check(mlactl(daemon.path, "health", code=5).startswith("degraded: loop_lag: "), "health as text while degraded")
    same(as_json(daemon.path, "status")["health"], "degraded", "status while degraded")
    check('mlad_degraded{reason="loop_lag"} 1\n' in mlactl(daemon.path, "metrics"), "metrics while degraded")
    mlactl(daemon.path, "drain")
    daemon.ends(0)


def drain(daemon, worker):
    if os.getuid() == 0: # another user, who has no right to
        refused = run([MLACTL, "--socket", daemon.path, "drain"], user=NOBODY, group=NOBODY, extra_groups=[])
        same(refused.returncode, 4, "drain by somebody else")
        check("PERMISSION_DENIED" in refused.stderr, f"drain by somebody else: {refused.stderr}")
    same(as_json(daemon.path, "--deadline", "20", "drain"), {"draining": True, "jobs_in_flight": 1}, "drain")
    health = as_json(daemon.path, "health", code=1)
    same(health["state"], "draining", "health while draining")
    check(mlactl(daemon.path, "health", code=1).startswith("draining: "), "health as text while draining")
    check(re.fullmatch(r"draining, 1 jobs? in flight\n", mlactl(daemon.path, "drain")), "drain again, as text")
    worker.stdin.close()
    same(worker.wait(30), 0, "exit code of the worker")
    daemon.ends(0)
    mlactl(daemon.path, "health", code=3)


def sample_configuration():
    """deploy/mlad.conf says what the defaults are, and leaves none out."""
    defaults = run([MLAD, "--config", "/dev/null", "--check-config"])
    sample = run([MLAD, "--config", SAMPLE, "--check-config"])
    same((defaults.returncode, sample.returncode), (0, 0), f"--check-config: {sample.stderr}")
    same(sample.stdout, defaults.stdout, "what the sample configuration sets")
    with open(SAMPLE, encoding="utf-8") as f:
        text = f.read()
    keys = re.compile(r"^(?:\[\w+\]|\w+(?= =))", re.MULTILINE)
    same(keys.findall(text), keys.findall(defaults.stdout), "sections and keys of the sample, in order")
    for key in re.finditer(r"^(.*)\n\w+ =", text, re.MULTILINE):
        check(key.group(1).startswith("#"), f"no comment before {key.group()}")


def main():
    folder = tempfile.mkdtemp(prefix="test_mlactl.")
    os.chmod(folder, 0o755) # another user comes in, too
    worker = None
    try:
        usage()
        plan()
        sample_configuration()
        nobody_answers(folder)
        refusals(folder)
        degraded(folder)
        administer(folder)
        daemon = Daemon(folder)
        worker = subprocess.Popen([WORKER, daemon.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        same(worker.stdout.readline(), "holding\n", "the worker")
        reads(daemon.path, worker.pid)
        metrics(daemon.path)
        top(daemon.path, worker.pid)
        drain(daemon, worker)
        print("mlactl: all right")
    finally:
        for process in [worker] + [d.process for d in Daemon.started]:
            if process is not None and process.poll() is None:
                process.kill()
        shutil.rmtree(folder)


main()
