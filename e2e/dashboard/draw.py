"""Draws the dashboard's panels from data that a real Prometheus gave, since no Grafana server can be had for tests.

    E2E_PANELS=panels.json cargo test --test alerts fire
    e2e/dashboard/draw.sh panels.json dashboard.png

The picture shows layout, titles and data; it does not show how Grafana looks.
"""

import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.dates as dates
import matplotlib.pyplot as plot
from datetime import datetime, timezone

dashboard = json.load(open(sys.argv[1]))
data = json.load(open(sys.argv[2]))
GRID, UNIT = 24, 0.42


def number(value, unit):
    value = float(value)
    if unit in ("bytes", "Bps"):
        for name in ("B", "KiB", "MiB", "GiB"):
            if abs(value) < 1024:
                break
            value /= 1024
        return f"{value:.3g} {name}{'/s' if unit == 'Bps' else ''}"
    if unit == "percentunit":
        return f"{value * 100:.0f} %"
    if unit.startswith("dateTime"):
        return datetime.fromtimestamp(value / 1000, timezone.utc).strftime("%H:%M:%S")
    return f"{value:.4g}{' ' + unit if unit in ('s', 'd') else ''}"


def name_of(series, target):
    legend = target.get("legendFormat", "")
    for key, value in series["metric"].items():
        legend = legend.replace("{{" + key + "}}", value)
    return legend.strip() or "value"


def mapped(panel, column, value):
    for override in panel["fieldConfig"].get("overrides", []):
        if override["matcher"]["options"] == column:
            for entry in override["properties"]:
                if entry["id"] == "mappings":
                    for mapping in entry["value"]:
                        value = mapping.get("options", {}).get(value, {}).get("text", value)
    return value


def short(text, most=70):
    return text if len(text) <= most else text[: most - 1] + "…"


def draw(axes, panel, results):
    kind, unit = panel["type"], panel["fieldConfig"]["defaults"].get("unit", "short")
    flat = [(series, target) for target, found in zip(panel["targets"], results) for series in found]
    if kind == "stat":
        axes.axis("off")
        text = number(flat[0][0]["value"][1], unit) if flat else "no data"
        axes.text(0.5, 0.45, text, ha="center", va="center", fontsize=20, color="#1f60c4")
    elif kind == "bargauge":
        names = [name_of(*one) for one in flat]
        values = [float(series["value"][1]) for series, _ in flat]
        axes.barh(names, values, color="#3d71d9")
        for place, value in enumerate(values):
            axes.text(value, place, " " + number(value, unit), va="center", fontsize=7)
        axes.set_xlim(0, panel["fieldConfig"]["defaults"].get("max") or (max(values, default=0) or 1) * 1.3)
        axes.tick_params(labelsize=7)
    elif kind == "table":
        axes.axis("off")
        options = panel["transformations"][0]["options"]
        override = panel["fieldConfig"]["overrides"][0]
        unit = override["properties"][0]["value"]
        rows, columns = [], []
        for series, _ in flat:
            cells = dict(series["metric"], Value=series["value"][1])
            cells = {k: v for k, v in cells.items() if k not in options["excludeByName"]}
            columns = columns or list(cells)
            shown = []
            for key in columns:
                title = options["renameByName"].get(key, key)
                text = number(cells[key], unit) if key == "Value" else mapped(panel, title, cells.get(key, ""))
                shown.append(short(text))
            rows.append(shown)
        if rows:
            table = axes.table(rows, colLabels=[options["renameByName"].get(c, c) for c in columns], loc="upper center", cellLoc="left")
            table.auto_set_font_size(False)
            table.set_fontsize(6.5)
            table.auto_set_column_width(range(len(columns)))
        else:
            axes.text(0.5, 0.5, "no data", ha="center")
    elif kind == "state-timeline":
        names = []
        for place, (series, target) in enumerate(flat):
            names.append(name_of(series, target))
            for at, value in series["values"]:
                color = "#56a64b" if float(value) == 1 else "#ff9830"
                axes.barh(place, 1 / 86400, left=at / 86400, color=color, height=0.8)
        axes.set_yticks(range(len(names)), names)
        axes.xaxis_date()
        axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M:%S"))
        axes.tick_params(labelsize=7)
    else:
        for series, target in flat:
            times = [datetime.fromtimestamp(at, timezone.utc) for at, _ in series["values"]]
            values = [float(value) for _, value in series["values"]]
            axes.plot(times, values, label=short(f"{name_of(series, target)}: {number(values[-1], unit)}", 40), linewidth=1)
            axes.fill_between(times, values, alpha=0.15)
        axes.yaxis.set_major_formatter(lambda value, _: number(value, unit))
        axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M"))
        axes.tick_params(labelsize=6)
        axes.set_ylim(bottom=0)
        if flat:
            axes.legend(fontsize=5.5, loc="upper left", ncols=1 + len(flat) // 9)
        else:
            axes.text(0.5, 0.5, "no data", ha="center", transform=axes.transAxes)


height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
figure = plot.figure(figsize=(22, height * UNIT), facecolor="#f4f5f5")
for panel in dashboard["panels"]:
    place = panel["gridPos"]
    left, bottom = place["x"] / GRID, 1 - (place["y"] + place["h"]) / height
    width, tall = place["w"] / GRID, place["h"] / height
    if panel["type"] == "row":
        figure.text(left + 0.004, bottom + tall * 0.25, "▾ " + panel["title"], fontsize=12, weight="bold")
        continue
    pad_left = {"bargauge": 0.07, "state-timeline": 0.06, "timeseries": 0.03}.get(panel["type"], 0.006)
    axes = figure.add_axes([left + pad_left, bottom + 0.55 / height, width - pad_left - 0.008, tall - 1.35 / height])
    axes.set_title(panel["title"], fontsize=9, loc="left")
    draw(axes, panel, data.get(str(panel["id"]), []))
figure.savefig(sys.argv[3], dpi=70)
