"""Draws what mlad-soak sampled. Usage: plot.py PREFIX: PREFIX.csv and PREFIX.json give PREFIX.svg, and PREFIX.png where
rsvg-convert is installed. The standard library does: a test makes this plot on machines that draw nothing else.

Each panel has one unit and begins at 0; a sample is a point of the line, the shaded part is the warming up that does not
count, and dashes are the medians of the two fifths that are compared."""
import csv
import json
import math
import shutil
import subprocess
import sys
from xml.sax.saxutils import escape

WIDTH, PANEL, GAP, LEFT, RIGHT, TOP, BOTTOM = 960, 118, 30, 64, 190, 44, 34
# Of Okabe and Ito: told apart by the colour-blind and in grey.
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"]
# title, factor, columns: name in the file, name in the legend
PANELS = [
    ("daemon's resident memory, MiB", 1 / 1024, [("rss_kib", "RSS")]),
    ("open descriptors; connections", 1, [("descriptors", "descriptors"), ("clients", "connections")]),
    ("decodes per second", 1, [("decodes_per_s", "decodes")]),
    ("decode as clients see it, ms", 1e-3, [("decode_p50_us", "p50"), ("decode_p99_us", "p99")]),
    ("health as clients see it, ms", 1e-3, [("ping_p50_us", "p50"), ("ping_p99_us", "p99")]),
    ("loop lag: mean of a second, us", 1, [("loop_lag_mean_us", "mean")]),
    ("daemon's CPU time per decode, us", 1, [("cpu_us_per_decode", "CPU")]),
]


def nice_step(most, steps):
    raw = most / steps
    ten = 10 ** math.floor(math.log10(raw))
    return next(k * ten for k in (1, 2, 5, 10) if k * ten >= raw)


def ceiling(series):
    """The top of an axis: of all but the worst of 200 samples, so that one outlier does not flatten the rest."""
    values = sorted(v for s in series for v in s)
    return max(values[min(len(values) - 1, int(len(values) * 0.995))] * 1.15, 1e-9)


def text(x, y, content, size=11, anchor="start", colour="#222222", extra=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"{extra}>'
            f'{escape(content)}</text>')


def line(x1, y1, x2, y2, colour, width=0.6, dash=""):
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
            f'stroke-width="{width}"{dashes}/>')


def panel(out, at, times, warm, rows, spec, verdicts):
    title, factor, columns = spec
    series = [[float(row[name]) * factor for row in rows] for name, _ in columns]
    most, end = ceiling(series), times[-1]
    step = nice_step(most, 4)
    right, bottom = WIDTH - RIGHT, at + PANEL

    def x(t):
        return LEFT + t / end * (right - LEFT)

    def y(v):
        return bottom - min(v, most) / most * PANEL

    out.append(f'<rect x="{LEFT}" y="{at}" width="{x(warm) - LEFT:.1f}" height="{PANEL}" fill="#eeeeee"/>')
    out.append(text(LEFT, at - 6, title, extra=' font-weight="bold"'))
    tick = 0.0
    while tick <= most:
        out.append(line(LEFT, y(tick), right, y(tick), "#dddddd"))
        out.append(text(LEFT - 6, y(tick) + 4, f"{tick:g}", 10, "end"))
        tick = round(tick + step, 9)
    fifth = (end - warm) / 5
    for i, ((name, label), values) in enumerate(zip(columns, series)):
        colour = COLOURS[i]
        points = " ".join(f"{x(t):.1f},{y(v):.1f}" for t, v in zip(times, values))
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1"/>')
        out.append(text(right + 10, at + 14 + 30 * i, label, 11, colour=colour, extra=' font-weight="bold"'))
        verdict = verdicts.get(name)
        if not verdict:
            continue
        for begin, value in ((warm, verdict["first_fifth"]), (end - fifth, verdict["last_fifth"])):
            out.append(line(x(begin), y(value * factor), x(begin + fifth), y(value * factor), "#000000", 1.5, "4 2"))
        said = f'{verdict["first_fifth"] * factor:.4g} then {verdict["last_fifth"] * factor:.4g}'
        out.append(text(right + 10, at + 27 + 30 * i, said + ("" if verdict["flat"] else ": NOT FLAT"), 10))
    return bottom


def draw(prefix):
    with open(prefix + ".csv", encoding="utf-8", newline="") as f:
        rows = list(csv.DictReader(f))
    with open(prefix + ".json", encoding="utf-8") as f:
        report = json.load(f)
    times = [float(row["t_s"]) for row in rows]
    warm = report["warm_seconds"]
    verdicts = {v["what"]: v for v in report["flat"]}
    height = TOP + len(PANELS) * (PANEL + GAP) + BOTTOM
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
           'font-family="sans-serif">', f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
           text(LEFT, 20, f'mlad-soak: {report["connections"]} connections, {report["decoding"]} decoding at full rate, '
                f'{report["seconds"]} s, {report["backend"]} backend', 13, extra=' font-weight="bold"')]
    at = TOP
    for spec in PANELS:
        at = panel(out, at + 8, times, warm, rows, spec, verdicts) + GAP - 8
    step = nice_step(times[-1] / 60, 8) * 60 if times[-1] >= 120 else nice_step(times[-1], 8)
    tick, bottom = 0.0, at - GAP + 8
    while tick <= times[-1] * 1.0001:
        where = LEFT + tick / times[-1] * (WIDTH - RIGHT - LEFT)
        out.append(text(where, bottom + 14, f"{tick / 60:g} min" if times[-1] >= 120 else f"{tick:g} s", 10, "middle"))
        tick += step
    machine = report["machine"]
    out.append(text(LEFT, height - 8, f'{report["ended"]}, commit {report["commit"]}, {machine["cpus"]} CPUs of an '
                    f'{machine["cpu"]}, {machine["kernel"]}; grey: warming up; dashes: medians that are compared', 9,
                    colour="#555555"))
    out.append("</svg>")
    with open(prefix + ".svg", "w", encoding="utf-8") as f:
        f.write("\n".join(out) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    draw(sys.argv[1])
    if shutil.which("rsvg-convert"):
        subprocess.run(["rsvg-convert", "-o", sys.argv[1] + ".png", sys.argv[1] + ".svg"], check=True)
