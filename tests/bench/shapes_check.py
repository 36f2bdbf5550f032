"""mla-bench shapes on the fake CUDA driver: exit codes, what stands in the files, and that the numbers agree.
Usage: shapes_check.py MLA-BENCH FAKE-DRIVER FOLDER
"""
import csv
import json
import math
import os
import subprocess
import sys

BENCH, DRIVER, FOLDER = sys.argv[1:4]
TINY = ["--batches", "1,2", "--q-len", "1,2", "--kv-len", "128,300", "--heads", "4", "--iterations", "3", "--repeats", "5",
        "--warmup", "0"]
failures = []


def check(right, what):
    if not right:
        failures.append(what)


def close(a, b):
    return a is not None and b is not None and math.isclose(a, b, rel_tol=1e-6)


def run(arguments, driver=DRIVER):
    environment = dict(os.environ, MLA_CUDA_DRIVER=driver)
    done = subprocess.run([BENCH, "shapes"] + arguments, env=environment, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE)
    return done.returncode, done.stdout, done.stderr


def run_files(name, arguments):
    path = os.path.join(FOLDER, f"shapes-{name}")
    code, out, err = run(arguments + ["--json", path + ".json", "--csv", path + ".csv"])
    check(code == 0, f"{name}: exit {code}: {err}")
    if code != 0:
        return [], {"bars": None, "notes": {}}, out
    with open(path + ".json", encoding="utf-8") as f:
        report = json.load(f)
    with open(path + ".csv", encoding="utf-8", newline="") as f:
        tables = [list(csv.reader(block.splitlines())) for block in f.read().split("\n\n")]
    rows = report["rows"]
    check(report["bench"] == "shapes" and len(rows) > 0, f"{name}: no report of shapes")
    check(sum(len(table) - 1 for table in tables) == len(rows), f"{name}: the CSV has other rows than the JSON")
    lines = [dict(zip(table[0], line)) for table in tables for line in table[1:]]
    for row, line in zip(rows, lines):
        check(list(row) == list(line), f"{name}: {row['name']}: columns of the CSV: {list(line)}")
        for key, value in row.items():
            text = line.get(key, "")
            same = text == value if isinstance(value, str) else text == "" if value is None else close(float(text), value)
            check(same, f"{name}: {row['name']}: {key} is {value} in the JSON, {text} in the CSV")
    return rows, report, out


def check_times(name, row):
    """What every timed row promises; the sequences are alike."""
    what = f"{name}: {row['name']}"
    flop = 2 * row["b"] * row["q_len"] * row["heads"] * row["kv_len"] * (576 + 512)
    pages = -(-row["kv_len"] // 64)
    read = row["b"] * (row["q_len"] * row["heads"] * 576 + row["kv_len"] * 576 + 4 * pages)
    check(row["us_min"] <= row["us_q1"] <= row["us"] <= row["us_q3"] <= row["us_max"], f"{what}: order of the quartiles")
    check(row["us_min"] > 0, f"{what}: no time")
    check(close(row["tflops"], flop / row["us"] * 1e-6), f"{what}: {row['tflops']} TFLOP/s")
    check(row["bytes_read"] == read, f"{what}: reads {row['bytes_read']} bytes, not {read}")
    check(close(row["gb_per_s"], read / row["us"] * 1e-3), f"{what}: {row['gb_per_s']} GB/s")
    check(row["useful_rows"] == row["b"] * row["q_len"] * row["heads"] <= row["row_slots"], f"{what}: rows")
    check(row["items"] >= row["tiles"] and row["units"] >= row["items"], f"{what}: items and units")
    check(row["sm_mhz"] is None or row["sm_mhz"] > 0, f"{what}: clock")


def reference():
    rows, report, out = run_files("reference", TINY + ["--variants", "sm90,generic-sm_90a,absent"])
    if not rows:
        return
    check(report["notes"].get("variant absent") == "missing", "a missing variant is not noted")
    timed = [row for row in rows if row.get("table") == "reference"]
    check(len(timed) == 16, f"{len(timed)} rows for 8 shapes and 2 variants")
    for row in timed:
        check_times("reference", row)
        other = [r for r in timed if r["variant"] != row["variant"]
                 and all(r[k] == row[k] for k in ("b", "q_len", "kv_len"))]
        check(len(other) == 1 and close(row["over_" + other[0]["variant"]], other[0]["us"] / row["us"]),
              f"{row['name']}: ratio")
        check(row["over_" + row["variant"]] == 1, f"{row['name']}: ratio to itself")
        check(row["launches"] == 3 and row["repeats"] == 5, f"{row['name']}: launches and repeats")
        want = "sm90-32" if row["variant"] == "sm90" else row["variant"]
        check(row["section"] == want, f"{row['name']}: few rows by {row['section']}")
        check(row["fp8_peer_us"] is None, f"{row['name']}: nobody published this shape")
        parts = [row[k] for k in ("prepare_us", "decode_us", "reduce_us", "adapters_us") if row[k] is not None]
        check(close(sum(parts), row["us"]), f"{row['name']}: parts do not sum up")
        check(f"{row['us']:.1f} us" in out, f"{row['name']}: not printed")
    for mean in (row for row in rows if row.get("table") == "geometric means"):
        rates = [math.log(r["tflops"]) for r in timed if r["variant"] == mean["variant"]]
        check(close(mean["tflops"], math.exp(sum(rates) / len(rates))), f"{mean['name']}: {mean['tflops']}")
    check(report["bars"] == [], "bars are for the reference shapes alone")


def padded():
    """h128 counts the rows that matter, in slots of 128 heads; its adapters show."""
    rows, _, _ = run_files("padded", ["--batches", "1", "--q-len", "5", "--kv-len", "200", "--heads", "96", "--iterations",
                                      "2", "--repeats", "3", "--warmup", "0", "--variants", "sm90,h128"])
    timed = {row["variant"]: row for row in rows if row.get("table") == "reference"}
    if len(timed) != 2:
        check(False, f"padded: {len(timed)} variants")
        return
    for row in timed.values():
        check_times("padded", row)
    check(timed["sm90"]["section"] == "sm90", f"many rows by {timed['sm90']['section']}")
    check(timed["h128"]["row_slots"] == 5 * 128 and timed["sm90"]["row_slots"] == 512, "slots of padded rows")
    check(timed["h128"]["adapters_us"] > 0 and timed["sm90"]["adapters_us"] is None, "the adapter's kernels")


def errors():
    rows, _, out = run_files("errors", TINY + ["--variants", "sm90,generic-sm_90a", "--errors"])
    found = [row for row in rows if row.get("table") == "errors"]
    check(len(found) == 5 * 8 * 2, f"{len(found)} errors for 5 data sets, 8 shapes and 2 variants")
    check(len({row["data"] for row in found}) == 5, "data sets")
    for row in found:
        for key in ("error", "error_unsplit"):
            # float32 arithmetic of the CPU backend: neither exact nor far off
            check(0 < row[key] < 1e-5, f"{row['name']}: {key} {row[key]}")
            check(row[key] <= row[key + "_worst_row"] < 1e-4, f"{row['name']}: worst row of {key}")
    check("mean per channel" in out, "errors are not printed")
    rows, _, _ = run_files("quick", ["--batches", "4,5", "--q-len", "1", "--kv-len", "64", "--heads", "2", "--variants",
                                     "sm90", "--errors", "--quick"])
    check({row["b"] for row in rows} == {4}, "--quick keeps small batches")


def splits():
    rows, _, _ = run_files("splits", TINY + ["--variants", "sm90", "--splits", "--splits-max", "4"])
    for b, q, kv in ((b, q, kv) for b in (1, 2) for q in (1, 2) for kv in (128, 300)):
        of = {row["way"]: row for row in rows if (row["b"], row["q_len"], row["kv_len"]) == (b, q, kv)}
        pages = -(-kv // 64)
        want = {"auto", "balanced", "seed"} | {f"uniform {n}" for n in range(1, min(4, pages) + 1)}
        check(set(of) == want, f"splits of B{b} Q{q} KV{kv}: {sorted(of)}")
        again = [row for row in of.values() if row["again"]]
        if not again:
            continue
        best = min(again, key=lambda row: row["us"])
        for row in of.values():
            check_times("splits", row)
            check(row["section"] == "sm90", f"{row['name']}: constants of sm90 from {row['section']}")
            check(close(row["over_best"], row["us"] / best["us"]), f"{row['name']}: over_best")
            if row["way"].startswith("uniform"):
                check(row["splits"] == int(row["way"].split()[1]), f"{row['name']}: {row['splits']} splits")
        check(all(of[way]["again"] for way in ("auto", "balanced", "seed")), "policies run again")


def costs():
    """The fit takes what --splits has written."""
    for name, want in (("shapes-splits.csv", 0), ("absent.csv", 2)):
        done = subprocess.run([BENCH, "costs", "--from", os.path.join(FOLDER, name)], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE)
        check(done.returncode == want, f"costs of {name}: exit {done.returncode}: {done.stderr}")
        check(want != 0 or ("page_ns = " in done.stdout and done.stdout.count(" H4 KV") == 8), "costs of 8 shapes")


def others():
    rows, report, _ = run_files("others", TINY + ["--variants", "sm90", "--ablate", "--second", "--batch", "2", "--rate",
                                                  "2", "--rows", "--kv", "--ragged"])
    tables = {}
    for row in rows:
        tables.setdefault(row["table"], []).append(row)
    check(set(tables) == {"ablation", "second", "rows", "kv", "ragged"}, f"tables: {sorted(tables)}")
    check([len(tables.get(t, [])) for t in ("second", "rows", "kv", "ragged")] == [4, 8, 8, 4], "rows of the tables")
    for row in tables.get("second", []):
        check_times("second", row)
        flop = 2 * row["b"] * row["q_len"] * row["heads"] * row["kv_len"] * 1088
        roof = max(flop / 2e6, row["bytes_read"] / 4.6e6)
        check(row["b"] == 2 and close(row["roofline_us"], roof), f"{row['name']}: roofline of {row['roofline_us']} us")
        check(close(row["roofline_share"], roof / row["us"]), f"{row['name']}: share")
    ways = {}
    for row in tables.get("ablation", []):
        check_times("ablation", row)
        check(row["kv_len"] == 128, f"{row['name']}: not the shortest context")
        ways.setdefault((row["b"], row["q_len"]), {})[row["way"]] = row
    for (b, q), of in ways.items():
        check("as it is" in of and "splits: none" in of and "packing: tiles of 64 rows" in of, f"ways: {sorted(of)}")
        token = of["packing: a tile per query token"]
        check(token["tiles"] == b * q and token["useful_rows"] == b * q * 4, f"{token['name']}: {token['tiles']} tiles")
        for row in of.values():
            check(close(row["over_as_it_is"], row["us"] / of["as it is"]["us"]), f"{row['name']}: ratio")
    check(report["bars"] == [], "bars are for the whole lists")


def own_kernels():
    for more, want in ([], "sm90-32"), (["--own-kernels"], "sm90"):
        rows, _, out = run_files("own", TINY + ["--variants", "sm90", "--second", "--batch", "2", "--rate", "2"] + more)
        found = {row["section"] for row in rows if row.get("table") == "second"}
        check(found == {want} and f", {want}, splits" in out, f"second list {more} by {found}")


def exits():
    code, out, _ = run(["--help"])
    check(code == 0 and out.startswith("usage: mla-bench shapes"), f"--help: exit {code}")
    code, _, err = run(TINY, driver="/nonexistent/libcuda.so.1")
    check(code == 77 and "skipped" in err, f"without a driver: exit {code}, {err}")
    code, _, err = run(TINY + ["--variants", "absent"])
    check(code == 2 and "no variant" in err, f"without a variant: exit {code}, {err}")
    code, _, err = run(["--kv-len", "64,,128"])
    check(code == 2 and "--kv-len" in err, f"a bad list: exit {code}, {err}")
    code, _, err = run(TINY + ["--nonsense"])
    check(code == 2 and "--nonsense" in err, f"an unknown option: exit {code}, {err}")
    code, _, err = run(TINY + ["--variants", "sm90", "--check"])
    check(code == 2 and "has a bar" in err, f"--check without bars: exit {code}, {err}")


for part in (exits, reference, padded, errors, splits, costs, others, own_kernels):
    part()
for failure in failures:
    print(failure)
print(f"{len(failures)} failures")
sys.exit(1 if failures else 0)
