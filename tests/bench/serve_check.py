"""The benchmarks of the daemon, on the null backend and on the fake CUDA driver: exit codes, what stands in the files, and
that the numbers agree; how fast anything is means nothing here.
Usage: serve_check.py MLA-BENCH MLAD FOLDER [FAKE-DRIVER]
"""
import csv
import json
import math
import os
import subprocess
import sys

BENCH, MLAD, FOLDER = sys.argv[1:4]
DRIVER = sys.argv[4] if len(sys.argv) > 4 else None
failures = []


def check(right, what):
    if not right:
        failures.append(what)


def close(a, b, tolerance=1e-6):
    return a is not None and b is not None and math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-9)


def run(arguments, driver=None):
    environment = dict(os.environ)
    environment.pop("MLA_CUDA_DRIVER", None)
    if driver:
        environment["MLA_CUDA_DRIVER"] = driver
    done = subprocess.run([BENCH] + arguments, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return done.returncode, done.stdout, done.stderr


def run_files(arguments, driver=None):
    """Rows of the JSON, which the CSV must repeat; the report."""
    name = arguments[0]
    path = os.path.join(FOLDER, f"serve-{name}")
    code, _, err = run(arguments + ["--json", path + ".json", "--csv", path + ".csv"], driver)
    check(code == 0, f"{name}: exit {code}: {err}")
    if code != 0:
        return [], {"bars": None, "notes": {}}
    with open(path + ".json", encoding="utf-8") as f:
        report = json.load(f)
    with open(path + ".csv", encoding="utf-8", newline="") as f:
        tables = [list(csv.reader(block.splitlines())) for block in f.read().split("\n\n")]
    lines = [dict(zip(table[0], line)) for table in tables for line in table[1:]]
    rows = report["rows"]
    check(report["bench"] == name and len(rows) > 0, f"{name}: no report")
    check([r["name"] for r in rows] == [line["name"] for line in lines], f"{name}: the CSV has other rows")
    for row, line in zip(rows, lines):
        for key, value in row.items():
            text = line.get(key, "")
            same = text == value if isinstance(value, str) else text == "" if value is None else close(float(text), value)
            check(same, f"{name}: {row['name']}: {key} is {value} in the JSON, {text} in the CSV")
    return rows, report


def rising(row, keys):
    values = [row[k] for k in keys]
    check(all(v is not None and v > 0 for v in values) and values == sorted(values), f"{row['name']}: {keys}: {values}")


def bar(report, name, value):
    found = [b for b in report["bars"] if b["name"] == name]
    check(len(found) == 1 and close(found[0]["value"], value), f"bar \"{name}\": {found}, want {value}")


def plan():
    rows, report = run_files(["plan", "--samples", "20"])
    check(len(rows) == 6, f"plan: {len(rows)} rows")
    for row in rows:
        rising(row, ["min_us", "p50_us", "p99_us"])
        check(row["items"] >= row["tiles"] > 0, f"{row['name']}: {row['tiles']} tiles, {row['items']} items")
        bar(report, row["name"], row["p50_us"])


def rtt():
    rows, report = run_files(["rtt", "--rounds", "3", "--samples", "20", "--load", "60", "--mlad", MLAD])
    trips = [row for row in rows if "exchange" in row]
    two = "not measured" not in report["notes"].get("client_cpu_two_cpus", "")
    check(len(trips) == (12 if two else 5), f"rtt: {len(trips)} rows")
    raw = {}
    for row in trips:
        rising(row, ["min_us", "p50_us", "p99_us", "p99.9_us"])
        check(row["client_user_us"] >= 0 and row["client_system_us"] >= 0 and row["server_cpu_us"] >= 0,
              f"{row['name']}: CPU time")
        key = (row["exchange"], row["mode"], row["cpus"])
        if row["way"] == "raw":
            raw[key] = row["p50_us"]
        check(close(row["over_raw_us"], row["p50_us"] - raw[key]), f"{row['name']}: over raw")
        check(close(row["to_raw"], row["p50_us"] / raw[key]), f"{row['name']}: to raw")
        if row["way"] == "library" and row["exchange"] == "decode" and row["mode"] == "blocking" and row["cpus"] == "one CPU":
            bar(report, "decode over raw, blocking, one CPU, p50, us", row["over_raw_us"])
        if row["way"] == "library" and row["mode"] == "spinning":
            bar(report, "decode over raw, spinning, two CPUs, p50, us", row["over_raw_us"])
    load = [row for row in rows if row.get("table") == "load"]
    check([(row["clients"], row["way"]) for row in load] == [(n, w) for n in (1, 8, 64) for w in ("raw", "library")],
          "rtt: rows of load")
    for row in load:
        check(row["requests"] >= row["clients"] and row["requests_per_s"] > 0 and row["server_cpu_us"] > 0,
              f"{row['name']}: nothing done")
        if row["server_user_us"] is not None:
            check(close(row["server_user_us"] + row["server_system_us"], row["server_cpu_us"], 1e-3),
                  f"{row['name']}: user and system time of the server")


def overhead():
    rows, report = run_files(["overhead", "--heads", "4", "--kv-len", "128", "--batch", "2", "--ms", "40", "--rounds", "2",
                              "--mlad", MLAD], DRIVER)
    check([(row["b"], row["mode"]) for row in rows] == [(b, m) for b in (1, 1, 2) for m in ("blocking", "spinning")],
          "overhead: rows")
    for row in rows:
        rising(row, ["p50_us", "p99_us", "p99.9_us"])
        check(row["kernel_us"] > 0 and row["decodes"] > 0, f"{row['name']}: nothing measured")
        check(close(row["added_p50_us"], row["p50_us"] - row["kernel_us"]), f"{row['name']}: added p50")
        check(close(row["added_p99_us"], row["p99_us"] - row["kernel_us"]), f"{row['name']}: added p99")
        stages = [row[f"until_{stage}_us"] for stage in
                  ("checked", "staged", "planned", "taken", "submitted", "ended", "heard", "answered")]
        check(all(us >= 0 for us in stages) and row["until_ended_us"] > 0, f"{row['name']}: stages {stages}")
        check(close(sum(stages), row["in_daemon_us"], 1e-3), f"{row['name']}: the sum of the stages")
    check(report["bars"] == [], "overhead: bars are for its own shapes")


def launch():
    """Of two rounds a median is the mean, so parts add up."""
    rows, report = run_files(["launch", "--heads", "4", "--kv-len", "128", "--batch", "2", "--copies", "3", "--pause-us", "0",
                              "--rounds", "2"], DRIVER)
    ways = [row["way"] for row in rows[:14]]
    check(len(set(ways)) == 14 and [(row["b"], row["way"]) for row in rows] == [(b, w) for b in (1, 1, 2) for w in ways],
          "launch: rows")
    for row in rows:
        rising(row, ["p50_us", "p99_us"])
        check(all(row[k] > 0 for k in ("kernel_us", "in_a_row_us", "timed_us", "held_us", "end_call_us", "wait_us")),
              f"{row['name']}: nothing measured")
        check(close(row["kernel_us"] + row["excess_us"], row["p50_us"]), f"{row['name']}: excess")
        check(close(row["kernel_us"] + row["excess_p99_us"], row["p99_us"]), f"{row['name']}: excess p99")
        parts = sum(row[k] for k in ("copy_call_us", "launch_calls_us", "end_call_us", "wait_us"))
        check(parts <= row["p50_us"] * (1 + 1e-6), f"{row['name']}: its parts take {parts} us")
        calls = [row[f"{kernel}_call_us"] for kernel in ("prepare", "decode", "reduce")]
        check(sum(calls) <= row["launch_calls_us"] + 1e-6, f"{row['name']}: calls {calls}")
        graph, records = row["way"].startswith("graph"), row["records"]
        want = {"records copied": "copied", "records in place": "in place", "records there": "there", "word alone": "none",
                "graph, records copied": "copied", "graph, records there": "there", "all on device": "there",
                "records fetched": "fetched", "graph, records fetched": "fetched"}
        check(records == want.get(row["way"], "inline"), f"{row['name']}: records {records}")
        check((min(calls[:2]) > 0) == (not graph and records != "none"), f"{row['name']}: calls {calls}")
        if records != "none":
            check(row["gpu_us"] > 0 and row["held_gpu_us"] > 0 and row["launch_calls_us"] > 0, f"{row['name']}: no launch")
        if not graph and records == "copied":
            check(row["copy_call_us"] > 0, f"{row['name']}: no copy")
    check(report["bars"] == [], "launch: a bar")


def workers():
    rows, report = run_files(["workers", "--heads", "4", "--kv-len", "128", "--workers", "2", "--ms", "40", "--rounds", "2",
                              "--mlad", MLAD], DRIVER)
    ways = ["one process, batch N", "mlad", "time slicing"]
    check([(row["workers"], row["way"]) for row in rows] == [(n, w) for n in (1, 2) for w in ways], "workers: rows")
    check("not the machine's" in report["notes"].get("mps", ""), "workers: MPS on the fake driver")
    ideal = {row["workers"]: row["tokens_per_s"] for row in rows if row["way"] == ways[0]}
    for row in rows:
        rising(row, ["p50_us", "p99_us"])
        check(row["tokens_per_s"] > 0 and close(row["of_ideal"], row["tokens_per_s"] / ideal[row["workers"]]),
              f"{row['name']}: of ideal")
        # Waiting for each decode: a worker's rate is at most that of its median or so.
        check(row["tokens_per_s"] <= 4 * row["workers"] * 4e6 / row["p50_us"], f"{row['name']}: tokens per second")
        if row["way"] == "mlad":
            check(0 < row["gpu_busy"] < 1.5 and 1 <= row["jobs_per_batch"] <= row["workers"], f"{row['name']}: the daemon's")
    check(report["bars"] == [], "workers: bars are for its own shapes")


def mix():
    rows, report = run_files(["mix", "--heads", "4", "--small-kv", "64", "--large-kv", "256", "--large-batch", "2", "--ms",
                              "60", "--rounds", "2", "--mlad", MLAD], DRIVER)
    check(len(rows) == 4, "mix: rows")
    for row in rows:
        rising(row, ["p50_us", "p99_us", "p99.9_us", "max_us"])
        check(row["decodes"] > 0 and row["small_per_s"] > 0, f"{row['name']}: nothing measured")
        check((row["large_p50_us"] is None) == (row["way"] == "alone"), f"{row['name']}: the large one")
    check(report["bars"] == [], "mix: bars are for its own shapes")


def step():
    rows, report = run_files(["step", "--heads", "4", "--kv-len", "128", "--layers", "3", "--weight-rows", "8", "--ms", "60",
                              "--rounds", "2", "--mlad", MLAD], DRIVER)
    timed = [row for row in rows if row.get("table") == "step"]
    ways = ["in process", "mlad, isolated"]
    check([(row["workers"], row["way"]) for row in timed] == [(n, w) for n in (1, 4) for w in ways], "step: rows")
    check("not the machine's" in report["notes"].get("mps", ""), "step: MPS on the fake driver")
    own = {row["workers"]: row for row in timed if row["way"] == ways[0]}
    for row in timed:
        rising(row, ["step_us", "step_p99_us"])
        base = own[row["workers"]]
        check(close(row["layer_us"], row["step_us"] / 3), f"{row['name']}: a layer's share")
        check(close(row["added_per_layer_us"], row["layer_us"] - base["layer_us"]), f"{row['name']}: added")
        check(close(row["over_in_process"], row["steps_per_s"] / base["steps_per_s"]), f"{row['name']}: over in process")
    deaths = [row for row in rows if row.get("table") == "death"]
    check([row["way"] for row in deaths] == ["mlad, isolated"], "step: the daemon's death")
    for row in deaths:
        check(0 < row["released_after_ms"] < 5000, f"{row['name']}: released after {row['released_after_ms']} ms")
    check(report["bars"] == [], "step: bars are for its own shapes")


def calibrate():
    """What it writes is what mlad reads; of another device mlad says so."""
    path = os.path.join(FOLDER, "costs.ini")
    rows, _ = run_files(["calibrate", "--batches", "1,2", "--kv-len", "128,300", "--heads", "4", "--iterations", "2",
                         "--repeats", "3", "--warmup", "0", "--splits-max", "3", "--out", path], DRIVER)
    check(len([row for row in rows if "model_us" in row]) == 4, "calibrate: a model of each shape")
    with open(path, encoding="utf-8") as f:
        text = f.read()
    keys = [line.split(" = ")[0] for line in text.splitlines() if " = " in line]
    check(keys == ["device", "rows_per_unit", "launch_ns", "fill_ns", "page_ns", "drain_ns", "partial_ns",
                   "reduce_launch_ns", "reduce_bytes_per_us", "reduce_fixed_ns"], f"costs.ini: {keys}")
    done = subprocess.run([MLAD, "--config", "/dev/null", "--backend", "null", "--socket", os.path.join(FOLDER, "s"), "--set",
                           f"device.costs={path}"], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=20)
    check(done.returncode == 1 and "was measured on NVIDIA H200 (fake)" in done.stderr, f"mlad: {done.stderr}")


def exits():
    for name in ("overhead", "launch", "workers", "mix", "step"):
        code, _, err = run([name] + (["--mlad", MLAD] if name != "launch" else []), "/nonexistent/libcuda.so.1")
        check(code == 77 and "skipped" in err, f"{name} without a driver: exit {code}, {err}")
        code, _, err = run([name, "--nonsense"], DRIVER)
        check(code == 2 and "--nonsense" in err, f"{name}: an unknown option: exit {code}, {err}")


def helps():
    """Of every subcommand, on any machine; what it parses is what --help tells, or the program would abort."""
    code, out, _ = run(["--help"])
    names = [line.split()[0] for line in out.splitlines() if line.startswith("  ") and line[2] != " "]
    want = {"rtt", "overhead", "launch", "workers", "mix", "step", "plan", "costs", "calibrate", "shapes"}
    check(code == 0 and set(names) >= want, f"--help: exit {code}, {names}")
    for name in names:
        code, out, err = run([name, "--help"])
        options = [line.split()[0] for line in out.splitlines() if line.startswith("  --")]
        check(code == 0 and err == "" and out.startswith(f"usage: mla-bench {name} "), f"{name} --help: exit {code}, {err}")
        check(options[-4:] == ["--json", "--csv", "--check", "--help"] and len(options) == len(set(options)),
              f"{name} --help: {options}")
        check(len(options) > 4 or "no CUDA kernels" in run([name])[2], f"{name} --help: no options")
        check(all(len(line) <= 120 and line == line.rstrip() for line in out.splitlines()), f"{name} --help: lines")
        code, _, err = run([name, "--nonsense"])
        check((code == 2 and '"--nonsense"' in err) or (code == 77 and "no CUDA kernels" in err), f"{name}: exit {code}, {err}")


parts = [helps, plan, rtt] + ([exits, overhead, launch, workers, mix, step, calibrate] if DRIVER else [])
for part in parts:
    part()
for failure in failures:
    print(failure)
print(f"{len(failures)} failures")
sys.exit(1 if failures else 0)
