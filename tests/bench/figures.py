"""Figures of mla-bench shapes, as SVG and PNG. Needs matplotlib; exit 77 without it.
Usage: figures.py REPORT.json PREFIX [--post RATIOS.csv]

PREFIX-rates: TFLOP/s of every shape, variants beside the published peers, the raw-WGMMA rate as a line.
PREFIX-ratios: the native variant's rate over each other one's and over the FP8 peer's. RATIOS.csv adds ratios that
  somebody else published: columns b,q_len,kv_len,over,ratio,hardware; they are drawn apart and labelled with their
  hardware.
PREFIX-second: share of the roofline, when the report has the second list.
PREFIX-errors: relative L2 errors, when the report has them.
"""
import argparse
import csv
import json
import math
import sys

try:
    import matplotlib
except ImportError:
    print("matplotlib is not installed")
    sys.exit(77)
matplotlib.use("Agg")
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "mla-bench", "font.size": 9,
                            "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True})
from matplotlib import pyplot  # noqa: E402  (after the choice of the backend)
from matplotlib.container import BarContainer  # noqa: E402

# Of Okabe and Ito: told apart by the colour-blind and in grey. The native variant comes first.
COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#f0e442"]
PUBLISHED = {"bf16_peer_us": ("FlashMLA BF16, published, H200", "#bbbbbb"),
             "fp8_peer_us": ("vLLM FP8, published, H200", "#777777")}


def tokens(n):
    return f"{n // 1024}K" if n % 1024 == 0 else str(n)


def geomean(values):
    return math.exp(sum(math.log(v) for v in values) / len(values))


def key(row):
    return int(row["b"]), int(row["q_len"]), int(row["kv_len"]), int(row["heads"])


def label(shape, with_heads):
    b, q, kv, heads = shape
    return f"B{b}\nQ{q}\n{tokens(kv)}" + (f"\nH{heads}" if with_heads else "")


class Report:
    def __init__(self, path):
        with open(path, encoding="utf-8") as f:
            content = json.load(f)
        self.notes = content["notes"]
        self.tables = {}
        for row in content["rows"]:
            self.tables.setdefault(row.get("table"), []).append(row)

    def table(self, name):
        """Rows by variant, then by shape, in the report's order."""
        found = {}
        for row in self.tables.get(name, []):
            found.setdefault(row["variant"], {})[key(row)] = row
        return found

    def caption(self):
        return ", ".join(self.notes[k] for k in ("gpu", "date", "commit") if k in self.notes)


def save(figure, prefix, name, caption):
    figure.text(0.01, 0.005, caption, fontsize=6, color="#555555")
    for extension in ("svg", "png"):
        path = f"{prefix}-{name}.{extension}"
        metadata = {"Date": None} if extension == "svg" else {"Software": None}
        figure.savefig(path, dpi=150, metadata=metadata)
        if extension == "svg":  # matplotlib leaves blanks at the ends of lines
            with open(path, encoding="utf-8") as f:
                lines = [line.rstrip() for line in f]
            with open(path, "w", encoding="utf-8") as f:
                f.write("\n".join(lines) + "\n")
        print(path)
    pyplot.close(figure)


def grouped_bars(series, groups, ylabel):
    """series: [(legend, colour, {group: value})]"""
    per_group = 0.3 + 0.1 * len(series)
    figure, axes = pyplot.subplots(figsize=(max(6.5, per_group * len(groups) + 1), 4), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0.03, 1, 0.97))
    width = 0.85 / max(1, len(series))
    for i, (legend, colour, values) in enumerate(series):
        at = [g + (i - (len(series) - 1) / 2) * width for g, group in enumerate(groups) if group in values]
        axes.bar(at, [values[group] for group in groups if group in values], width, label=legend, color=colour)
    with_heads = len({group[3] for group in groups}) > 1
    axes.set_xticks(range(len(groups)), [label(group, with_heads) for group in groups], fontsize=7)
    axes.set_ylabel(ylabel)
    axes.margins(x=0.01)
    axes.grid(axis="y", linewidth=0.4, color="#dddddd")
    return figure, axes


def finish(axes):
    handles, legends = axes.get_legend_handles_labels()
    bars_first = sorted(zip(handles, legends), key=lambda entry: not isinstance(entry[0], BarContainer))
    axes.legend(*zip(*bars_first), fontsize=7, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)


def published(rows, column):
    """TFLOP/s of a peer by shape."""
    return {shape: row["tflops"] * row["us"] / row[column] for shape, row in rows.items() if row.get(column)}


def rates(report, prefix):
    variants = report.table("reference")
    native = next(iter(variants.values()))
    series = [(name, COLOURS[i % len(COLOURS)], {shape: row["tflops"] for shape, row in rows.items()})
              for i, (name, rows) in enumerate(variants.items())]
    for column, (legend, colour) in PUBLISHED.items():
        values = published(native, column)
        if values:
            series.append((legend, colour, values))
    figure, axes = grouped_bars(series, list(native), "TFLOP/s")
    raw = [row["tflops"] for row in report.tables.get("raw_wgmma", []) if row["tflops"]]
    if raw:
        axes.axhline(raw[0], color="black", linewidth=0.8, linestyle="--", label="raw WGMMA loop, same run")
    finish(axes)
    save(figure, prefix, "rates", report.caption())


def read_post(path):
    if not path:
        return {}
    found = {}
    with open(path, encoding="utf-8", newline="") as f:
        for row in csv.DictReader(f):
            name = f"{row['over']}, published, {row['hardware']}"
            shape = (int(row["b"]), int(row["q_len"]), int(row["kv_len"]))
            found.setdefault(name, {})[shape] = float(row["ratio"])
    return found


def ratios(report, prefix, post):
    variants = report.table("reference")
    names = list(variants)
    native = variants[names[0]]
    series = []
    for i, name in enumerate(names[1:], 1):
        values = {shape: row["tflops"] / variants[name][shape]["tflops"] for shape, row in native.items()
                  if shape in variants[name]}
        series.append((f"over {name}, geometric mean {geomean(list(values.values())):.2f}", COLOURS[i % len(COLOURS)],
                       values))
    for column, (legend, colour) in PUBLISHED.items():
        values = {shape: row["tflops"] / published(native, column)[shape] for shape, row in native.items()
                  if row.get(column)}
        if values:
            series.append((f"over {legend}, geometric mean {geomean(list(values.values())):.2f}", colour, values))
    if not series:
        return
    groups = list(native)
    figure, axes = grouped_bars(series, groups, f"rate of {names[0]} over the other's")
    for i, (name, values) in enumerate(read_post(post).items()):
        at = [g for g, group in enumerate(groups) if group[:3] in values]
        axes.plot(at, [values[groups[g][:3]] for g in at], linestyle="none", marker="D^vs"[i % 4], markersize=5,
                  markerfacecolor="white", markeredgecolor="black", label=f"over {name}")
    axes.axhline(1, color="black", linewidth=0.8)
    finish(axes)
    save(figure, prefix, "ratios", report.caption())


def second(report, prefix):
    for name, rows in report.table("second").items():
        groups = list(rows)
        values = {shape: 100 * row["roofline_share"] for shape, row in rows.items() if row["roofline_share"]}
        figure, axes = grouped_bars([(name, COLOURS[0], values)], groups, "% of the lower roofline")
        axes.axhline(70, color="black", linewidth=0.8, linestyle="--", label="the bar for KV of 32K and more")
        finish(axes)
        save(figure, prefix, "second", report.caption())


def errors(report, prefix):
    worst = {}
    for row in report.tables.get("errors", []):
        found = [row[k] for k in ("error", "error_unsplit") if row[k] is not None]
        place = worst.setdefault(row["variant"], {}).setdefault(row["data"], [0])
        place[0] = max(found + place)
    if not worst:
        return
    data = list(next(iter(worst.values())))
    figure, axes = pyplot.subplots(figsize=(6.5, 4), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0.03, 1, 0.97))
    width = 0.85 / len(worst)
    for i, (name, values) in enumerate(worst.items()):
        axes.bar([d + (i - (len(worst) - 1) / 2) * width for d in range(len(data))],
                 [100 * values[name][0] for name in data], width, label=name, color=COLOURS[i % len(COLOURS)])
    axes.axhline(0.5, color="black", linewidth=0.8, linestyle="--", label="the bar")
    axes.set_xticks(range(len(data)), data)
    axes.set_ylabel("relative L2 error of f32 output, %, worst shape")
    axes.grid(axis="y", linewidth=0.4, color="#dddddd")
    finish(axes)
    save(figure, prefix, "errors", report.caption())


def main():
    arguments = argparse.ArgumentParser(usage=__doc__.split("\n\n")[0])
    arguments.add_argument("report")
    arguments.add_argument("prefix")
    arguments.add_argument("--post")
    given = arguments.parse_args()
    report = Report(given.report)
    if "reference" in report.tables:
        rates(report, given.prefix)
        ratios(report, given.prefix, given.post)
    second(report, given.prefix)
    errors(report, given.prefix)


if __name__ == "__main__":
    main()
