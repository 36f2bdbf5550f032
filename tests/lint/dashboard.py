"""Grafana dashboards name what there is. Usage: dashboard.py GOLDEN FILE ...

GOLDEN lists the daemon's series (tests/integration/metrics.golden). Every expression of a dashboard, those of its
variables too, uses series of it, with labels that they have; panels have titles, ids of their own, and no panel lies on
another. Families that no expression names are named, so that a metric is not forgotten: all must be there.
"""
import json
import re
import sys

import tree

# Labels that metrics.golden leaves out since they differ from machine to machine, and those that a scrape adds.
OPEN = {"mlad_build_info": {"version", "backend", "gpu_uuid"}, "mlad_client_mapped_bytes": {"client", "name"}}
SCRAPE = {"instance", "job"}
WORDS = {"sum", "by", "rate", "histogram_quantile", "topk", "max", "on", "group_left", "label_values"}


def read_golden(path):
    """Labels of each series, and the series of each family."""
    labels, families, family = {"up": set()}, {}, None
    for line in open(path, encoding="utf-8"):
        if line.startswith("# "):
            family = line.split()[1]
            families[family] = {family} if family in OPEN else set()
            labels.update({family: OPEN[family]} if family in OPEN else {})
        else:
            name, inside = re.match(r"(\w+)\{(.*)\}$", line.rstrip("\n")).groups()
            labels.setdefault(name, set()).update(re.findall(r"(\w+)=", inside))
            families[family].add(name)
    return labels, families


def expressions(node):
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("expr", "definition") and isinstance(value, str):
                yield value
            else:
                yield from expressions(value)
    elif isinstance(node, list):
        for value in node:
            yield from expressions(value)


def check_expression(text, labels):
    """Problems, and the series that are named."""
    bare = re.sub(r'"[^"]*"', '""', text)
    bare = re.sub(r"\[[^]]*\]", "", bare)
    named, problems = set(), []
    for clause in re.findall(r"\b(?:by|on|group_left) \(([^)]*)\)", bare):
        used = {label for label in re.findall(r"\w+", clause)}
        known = SCRAPE | {"le"} | set().union(*labels.values())
        problems += [f"no label {label} in: {text}" for label in sorted(used - known)]
    bare = re.sub(r"\b(?:by|on|group_left) \([^)]*\)", "", bare)
    if "label_values" in bare:
        bare = re.sub(r",\s*\w+\s*\)", ")", bare)
    for name, inside in re.findall(r"([a-z_]\w*)(\{[^}]*\})?", bare):
        if name in WORDS or re.match(r"^\d", name):
            continue
        if name not in labels:
            if not re.search(rf"\{{[^}}]*\b{name}\b[^}}]*\}}", bare):
                problems.append(f"no metric {name} in: {text}")
            continue
        named.add(name)
        for label in re.findall(r"(\w+)\s*(?:=|!)", inside):
            if label not in labels[name] | SCRAPE:
                problems.append(f"{name} has no label {label}: {text}")
    return problems, named


def check_panels(panels):
    problems, ids, taken = [], set(), set()
    for panel in panels:
        title = panel.get("title", "")
        if not title:
            problems.append("a panel without a title")
        if panel["id"] in ids:
            problems.append(f"{title}: its id is another's")
        ids.add(panel["id"])
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        if cells & taken or at["x"] + at["w"] > 24:
            problems.append(f"{title}: lies on another panel or beside the grid")
        taken |= cells
        if panel["type"] != "row" and not panel.get("targets"):
            problems.append(f"{title}: shows nothing")
    return problems


def check_one(path, labels, families):
    try:
        dashboard = json.load(open(path, encoding="utf-8"))
    except ValueError as error:
        return [f"{path}: {error}"]
    problems, named = check_panels(dashboard["panels"]), set()
    for text in expressions(dashboard):
        more, series = check_expression(text, labels)
        problems += more
        named |= series
    problems += [f"no panel shows {family}" for family, series in families.items() if not series & named]
    return [f"{path}: {problem}" for problem in problems]


if __name__ == "__main__":
    series_labels, series_families = read_golden(sys.argv[1])
    sys.exit(tree.report([p for path in sys.argv[2:] for p in check_one(path, series_labels, series_families)],
                         f"{len(sys.argv) - 2} dashboards"))
