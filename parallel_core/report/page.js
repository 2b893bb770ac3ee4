"use strict";
/* Draws the data of a page (parts.py). Text comes into the document as text nodes alone. */
const report = (() => {
  const COLOURS = 8, DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"], EVERY = 3000, MANY_ROWS = 20;
  const KINDS = { forward: ["run-0", ""], backward: ["run-2", "/"], "weight gradients": ["run-4", "x"],
    "forward and backward": ["run-2", "x"],
    optimizer: ["run-3", "\\"], data: ["run-5", "."], checkpoint: ["run-6", "+"], waiting: ["line", "-"],
    moving: ["run-1", "|"], other: ["run-7", ""] };
  const isWatched = document.documentElement.dataset.watched === "true";
  const state = { axis: "step", smoothing: 0, log: false, from: "", to: "", hidden: new Set(), paused: false };
  const plots = new Map();
  let data = JSON.parse(document.getElementById("data").textContent);
  let shape = "";

  const element = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes))
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value !== false && value !== undefined) made.setAttribute(name, value === true ? "" : value);
    made.append(...children.filter((child) => child !== undefined && child !== ""));
    return made;
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const ofRun = (run) => `run-${run % COLOURS}`;
  const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");

  /* Tables */
  const tableOf = (table) => {
    const marked = new Set(table.marked);
    const rows = table.rows.map((cells, number) => element("tr", { class: marked.has(number) ? "differs" : undefined },
      ...cells.map((cell, column) => column ? element("td", {}, cell) : element("th", { scope: "row" }, cell,
        marked.has(number) ? element("span", { class: "badge" }, "differs") : ""))));
    const head = element("tr", {}, ...table.columns.map((name) => element("th", { scope: "col" }, name)));
    const body = element("tbody", {}, ...rows);
    const box = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${table.caption} (table)` },
      element("table", {}, element("caption", {}, table.caption), element("thead", {}, head), body));
    return { box, rows, marked };
  };
  const folded = (table) => {
    const { box, rows, marked } = tableOf(table);
    if (rows.length <= MANY_ROWS) return box;
    const words = element("input", { type: "search" }), only = element("input", { type: "checkbox" });
    const select = () => rows.forEach((row, number) => {
      row.hidden = (only.checked && !marked.has(number)) || !row.textContent.toLowerCase().includes(words.value.toLowerCase());
    });
    words.addEventListener("input", select);
    only.addEventListener("change", select);
    const choice = element("p", {}, element("label", {}, "Rows with ", words));
    if (marked.size) choice.append(element("label", {}, only, " only what differs"));
    return element("details", { "data-key": table.caption }, element("summary", {}, `${table.caption}: ${rows.length} rows`),
      choice, box);
  };

  /* Plots */
  const smooth = (values) => {
    let mean = 0, weight = 0;
    return state.smoothing ? values.map((value) => {
      if (value === null) return null;
      mean = state.smoothing * mean + (1 - state.smoothing) * value;
      weight = state.smoothing * weight + 1 - state.smoothing;
      return mean / weight;
    }) : values;
  };
  const axisOf = (title, more = {}) => ({ title: { text: plain(title), standoff: 8 }, gridcolor: `${colour("line")}55`,
    zerolinecolor: colour("line"), linecolor: colour("line"), automargin: true, ...more });
  const layout = (height, more) => ({ height, margin: { l: 8, r: 8, t: 8, b: 8 }, paper_bgcolor: colour("panel"),
    plot_bgcolor: colour("panel"), font: { color: colour("text"), size: 12 }, legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom" },
    hoverlabel: { bgcolor: colour("back"), font: { color: colour("text") }, namelength: 60 },
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", ...more });
  const shownOf = (plot) => plot.series.filter((series) => !state.hidden.has(series.run) && series.x[state.axis]);
  const DRAWINGS = {
    lines(plot) {
      const traces = shownOf(plot).map((series) => ({ x: series.x[state.axis], name: plain(series.name), type: "scatter",
        y: series.is_constant ? series.y : smooth(series.y), hovertemplate: `%{y:.6g}${plot.unit}`,
        mode: series.y.length < 50 && !series.is_constant ? "lines+markers" : "lines",
        line: { color: colour(ofRun(series.run)), width: series.is_constant ? 1.5 : 2,
          dash: series.is_constant ? "dot" : DASHES[series.run % DASHES.length] } }));
      const range = [state.from, state.to].map((value) => value === "" || state.axis !== "step" ? null : Number(value));
      return [traces, layout(280, { hovermode: "x unified", showlegend: traces.length > 1,
        xaxis: axisOf(state.axis, { range }),
        yaxis: axisOf(plot.unit.trim(), { type: state.log ? "log" : "linear", exponentformat: "power" }) })];
    },
    heat(plot) {
      const trace = { type: "heatmap", x: plot.x, y: plot.y.map(plain), z: plot.z, colorscale: "Cividis", zmin: plot.x_title === "step" ? 1 : 0,
        hoverongaps: false, colorbar: { thickness: 12, outlinewidth: 0 },
        hovertemplate: `${plot.x_title} %{x}, ${plot.y_title} %{y}: %{z}<extra></extra>` };
      return [[trace], layout(Math.max(240, 60 + 14 * plot.y.length), { xaxis: axisOf(plot.x_title),
        yaxis: axisOf(plot.y_title, { type: "category", autorange: "reversed" }) })];
    },
    bars(plot) {
      const traces = Object.entries(plot.kinds).map(([kind, spans]) => {
        const [name, shape] = KINDS[kind] || KINDS.other;
        return { type: "bar", orientation: "h", name: plain(kind), y: spans.map((span) => plain(span[0])), base: spans.map((span) => span[1]),
          x: spans.map((span) => span[2]), customdata: spans.map((span) => plain(span[3])), width: 0.8,
          marker: { color: colour(name), pattern: { shape, size: 7, solidity: 0.2, fillmode: "overlay", fgcolor: colour("panel"), fgopacity: 1 }, line: { width: 0.5, color: colour("panel") } },
          hovertemplate: "%{customdata}: %{x:.4g} ms from %{base:.4g} ms<extra>%{y}</extra>" };
      });
      return [traces, layout(110 + 34 * plot.rows.length, { barmode: "overlay", showlegend: true, xaxis: axisOf("ms"),
        yaxis: axisOf("", { type: "category", categoryorder: "array", categoryarray: plot.rows.map(plain), range: [plot.rows.length - 0.5, -0.5], automargin: false }), margin: { l: 110, r: 8, t: 8, b: 90 } })];
    },
  };
  /* Curves at once, bare: the library that draws them with axes takes a second or two to start. */
  const bounds = (lists) => lists.flat().reduce(([low, high], value) =>
    value === null ? [low, high] : [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
  const preview = (plot) => {
    const shown = shownOf(plot), WIDTH = 1000, HEIGHT = 250;
    const [left, right] = bounds(shown.map((series) => series.x[state.axis]));
    const [low, high] = bounds(shown.map((series) => series.y));
    const drawing = document.getElementById("preview").content.firstElementChild.cloneNode(true);
    const line = drawing.firstElementChild;
    drawing.replaceChildren(...shown.map((series) => {
      let pen = "M";
      const points = series.y.map((y, at) => {
        if (y === null) { pen = "M"; return ""; }
        const x = (series.x[state.axis][at] - left) / (right - left || 1) * WIDTH;
        const point = `${pen}${x.toFixed(1)} ${((high - y) / (high - low || 1) * HEIGHT).toFixed(1)}`;
        pen = "L";
        return point;
      });
      const path = line.cloneNode();
      path.setAttribute("d", points.join(""));
      path.style.stroke = `var(--${ofRun(series.run)})`;
      return path;
    }));
    return drawing;
  };
  const drawOne = (entry) => {
    if (!window.Plotly || !entry.isSeen || plots.get(entry.plot.id) !== entry) return;
    const [traces, form] = DRAWINGS[entry.plot.kind](entry.plot);
    entry.box.querySelector(".preview")?.remove();
    Plotly.react(entry.box, traces, form, { displayModeBar: false, responsive: true }).then(() => {
      entry.box.dataset.drawn = traces.reduce((sum, trace) => sum + (trace.y || []).length, 0);
    });
  };
  /* One after the other, so that the page answers in between. */
  const waiting = new Set();
  const next = () => {
    const [entry] = waiting;
    waiting.delete(entry);
    drawOne(entry);
    if (waiting.size) setTimeout(next);
  };
  const later = (entry) => {
    if (!waiting.size) setTimeout(next);
    waiting.add(entry);
  };
  const draw = () => plots.forEach(later);
  const observer = new IntersectionObserver((seen) => seen.forEach(({ target, isIntersecting }) => {
    const entry = plots.get(target.dataset.plot);
    if (entry && isIntersecting && !entry.isSeen) { entry.isSeen = true; later(entry); }
  }), { rootMargin: "200px" });

  /* The document */
  const figureOf = (plot) => {
    const box = element("div", { class: "plot", "data-plot": plot.id, role: "img", "aria-label": plot.text },
      plot.kind === "lines" ? preview(plot) : "");
    const summary = element("summary", {}, "Figures as a table");
    summary.append(element("span", { class: "badge" }, plot.title));
    const figures = element("details", { "data-key": plot.id }, summary, tableOf(plot.table).box);
    plots.set(plot.id, { plot, box, isSeen: false });
    observer.observe(box);
    return element("figure", { class: plot.kind === "bars" ? "wide" : undefined },
      element("figcaption", {}, element("h3", {}, plot.title)), box, figures);
  };
  const contents = (section) => [element("h2", { id: section.id, tabindex: "-1" }, section.title),
    section.note ? element("p", { class: "note" }, section.note) : "",
    element("div", { class: "plots" }, ...section.plots.map(figureOf)), ...section.tables.map(folded)];
  const build = () => {
    const main = document.getElementById("main");
    const open = new Set([...main.querySelectorAll("details[open]")].map((one) => one.dataset.key));
    const seen = new Set([...plots].filter(([, entry]) => entry.isSeen).map(([id]) => id));
    plots.clear();
    main.replaceChildren(...data.sections.map((section) => element("section", { "aria-labelledby": section.id },
      ...contents(section).filter(Boolean))));
    main.querySelectorAll("details").forEach((one) => { one.open = open.has(one.dataset.key); });
    seen.forEach((id) => { if (plots.has(id)) plots.get(id).isSeen = true; });
    document.getElementById("sections").replaceChildren(...data.sections.map((section) => element("li", {},
      element("a", { href: `#${section.id}` }, section.title))));
    document.getElementById("runs-named").textContent = data.runs.join(" · ");
  };
  const update = () => {
    const now = JSON.stringify([data.runs, data.sections.map((one) => [one.id, one.plots.map((plot) => plot.id)])]);
    if (now !== shape) { build(); controls(); } else refresh();
    shape = now;
    draw();
  };
  const refresh = () => data.sections.forEach((section) => {
    const place = document.getElementById(section.id).parentElement;
    section.plots.forEach((plot) => {
      const entry = plots.get(plot.id), figure = entry.box.parentElement;
      entry.plot = plot;
      entry.box.setAttribute("aria-label", plot.text);
      figure.querySelector("h3").textContent = plot.title;
      replaced(figure.querySelector(".scroll"), tableOf(plot.table).box);
    });
    const boxes = place.querySelectorAll(":scope > .scroll");
    section.tables.filter((table) => table.rows.length <= MANY_ROWS).forEach((table, number) => {
      if (boxes[number]) replaced(boxes[number], tableOf(table).box);
    });
  });
  const replaced = (old, fresh) => {
    if (old.textContent !== fresh.textContent) old.replaceChildren(...fresh.childNodes);
  };

  /* Controls */
  const set = (name, of = (input) => input.value) => (event) => { state[name] = of(event.target); draw(); };
  const controls = () => {
    const axes = [["step", "step"], ["samples", "samples"], ["hours", "hours"]];
    const runs = data.runs.map((name, run) => element("label", {}, element("input", { type: "checkbox",
      checked: !state.hidden.has(run), onchange: (event) => { state.hidden[event.target.checked ? "delete" : "add"](run); draw(); } }),
      element("span", { class: "swatch", style: `border-color: var(--${ofRun(run)})` }), name));
    document.getElementById("controls").replaceChildren(
      element("fieldset", {}, element("legend", {}, "Runs"), ...runs),
      element("label", {}, "Over", element("select", { onchange: set("axis") },
        ...axes.map(([value, text]) => element("option", { value, selected: state.axis === value }, text)))),
      element("label", {}, "Step from", element("input", { type: "number", value: state.from, onchange: set("from") })),
      element("label", {}, "to", element("input", { type: "number", value: state.to, onchange: set("to") })),
      element("label", {}, "Smoothing", element("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: state.smoothing,
        onchange: set("smoothing", (input) => Number(input.value)) })),
      element("label", {}, element("input", { type: "checkbox", checked: state.log, onchange: set("log", (input) => input.checked) }),
        "Logarithmic"),
      isWatched ? element("button", { type: "button", "aria-pressed": String(state.paused), onclick: (event) => {
        state.paused = !state.paused;
        event.target.setAttribute("aria-pressed", String(state.paused));
      } }, "Pause") : "");
  };

  /* Watching */
  const said = (text) => { document.getElementById("watching").textContent = text; };
  let version = "";
  const ask = async () => {
    try {
      const answer = state.paused ? null : await fetch("data.json", { headers: version ? { "If-None-Match": version } : {} });
      if (answer && answer.ok) {
        version = answer.headers.get("ETag");
        data = await answer.json();
        update();
      }
      said(state.paused ? "Paused." : `Watching; asked at ${new Date().toLocaleTimeString()}.`);
    } catch (error) { said(`No answer (${error.message}); the figures are those of before.`); }
    setTimeout(ask, EVERY);
  };

  document.getElementById("controls").addEventListener("submit", (event) => event.preventDefault());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  update();
  if (isWatched) setTimeout(ask, EVERY);
  return { draw };
})();
