// Charts over time, drawn by uPlot, in the colours of the theme. A chart that is drawn again with
// newer figures stays where it is and takes them over.

import { h, svg } from "./dom.js";
import { NONE } from "./format.js";

const HEIGHT = 180;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// series: [{label, colour (of the theme), values, dash}], format: how its figures are told.
export function chart({ key, title, at_us, series, format }) {
  const node = h("figure.chart", { key: `chart-${key}`, role: "group", "aria-label": title });
  const place = h("div.plot");
  const caption = h("figcaption", {}, title);
  node.append(caption, place);
  node.figures = { at_us, series, format };
  let plot = null;
  let theme = "";

  node.draw = () => {
    const { clientWidth } = place;
    if (!node.isConnected) end();
    if (!clientWidth || !node.isConnected) return;
    const now = document.documentElement.dataset.theme;
    const data = [
      node.figures.at_us.map((us) => us / 1e6),
      ...node.figures.series.map((each) => each.values),
    ];
    if (plot && theme === now) {
      plot.setData(data);
      if (plot.width !== clientWidth) plot.setSize({ width: clientWidth, height: HEIGHT });
    } else {
      if (plot) plot.destroy();
      theme = now;
      const hooks = { ready: [() => showLast()] };
      plot = new uPlot({ ...options(node.figures, clientWidth), hooks }, data, place);
      plot.over.addEventListener("mouseleave", () => setTimeout(showLast));
    }
    describe(place, title, node.figures);
    if (plot.cursor.idx === null || plot.cursor.idx === undefined) showLast();
  };

  // Plots know each other, to point at the same moment: one that is gone would be kept for ever.
  function end() {
    resizing.disconnect();
    if (plot) plot.destroy();
    plot = null;
  }

  // What the legend tells while nobody points at a moment.
  function showLast() {
    const known = plot.data
      .slice(1)
      .map((values) => values.findLastIndex((value) => value !== null));
    plot.setLegend({ idx: Math.max(...known) });
  }

  node.keep = (fresh) => {
    node.figures = fresh.figures;
    node.draw();
  };
  // Tells of the first size, of every other, and of none: when the chart leaves the page.
  const resizing = new ResizeObserver(node.draw);
  resizing.observe(place);
  return node;
}

// One for all of them: what watches the document is kept for as long as that is there.
new MutationObserver(() => {
  for (const node of document.querySelectorAll(".chart")) node.draw();
}).observe(document.documentElement, { attributeFilter: ["data-theme"] });

function describe(place, title, { series, format }) {
  const last = series.map((each) => {
    const known = each.values.filter((value) => value !== null && value !== undefined);
    return `${each.label} ${known.length ? format(known[known.length - 1]) : NONE}`;
  });
  const canvas = place.querySelector("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${title}, last: ${last.join(", ")}`);
}

function options({ series, format }, width) {
  const axis = {
    stroke: colour("dim"),
    grid: { stroke: colour("line"), width: 1 },
    ticks: { stroke: colour("line"), width: 1 },
    font: "12px system-ui, sans-serif",
  };
  return {
    width,
    height: HEIGHT,
    cursor: { drag: { x: false, y: false }, sync: { key: "segue" } },
    legend: { live: true },
    scales: { y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    axes: [
      {
        ...axis,
        values: [
          [86400, "{MMM} {D}", null, null, null, null, null, null, 1],
          [3600, "{HH}:{mm}", null, null, "\n{MMM} {D}", null, null, null, 1],
          [60, "{HH}:{mm}", null, null, "\n{MMM} {D}", null, null, null, 1],
          [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1],
        ],
      },
      { ...axis, size: 78, values: (_plot, ticks) => ticks.map((tick) => format(tick)) },
    ],
    series: [
      { label: "Time", value: "{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}" },
      ...series.map((each) => ({
        label: each.label,
        stroke: colour(each.colour),
        fill: each.isFilled ? `${colour(each.colour)}22` : undefined,
        width: 1.5,
        dash: each.dash,
        points: { show: false },
        spanGaps: false,
        value: (_plot, value) => (value === null || value === undefined ? NONE : format(value)),
      })),
    ],
  };
}

// A small line without axes: how something went in the last minute.
export function spark(values, label) {
  const known = values.filter((value) => value !== null && value !== undefined);
  const high = Math.max(1e-9, ...known);
  const step = 80 / Math.max(1, values.length - 1);
  const points = values
    .map((value, index) =>
      value === null || value === undefined
        ? null
        : `${(index * step).toFixed(1)},${(20 - (value / high) * 18).toFixed(1)}`,
    )
    .filter(Boolean)
    .join(" ");
  return svg(
    "svg",
    { class: "spark", viewBox: "0 0 80 22", role: "img", "aria-label": label },
    svg("polyline", { points, fill: "none" }),
  );
}
