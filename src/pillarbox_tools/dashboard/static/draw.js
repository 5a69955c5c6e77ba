// SPDX-License-Identifier: Apache-2.0
// Drawings and tables. Text of a program never becomes markup.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

function el(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svg(name, attributes, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

// Shared, because creating a format for each number would dominate the time of a large page.
const NUMBERS = new Intl.NumberFormat("en");
const number = (value) => (value === null || value === undefined ? "–" : NUMBERS.format(Math.round(value)));
const percent = (share) => `${(share * 100).toFixed(share < 0.1 ? 1 : 0)}%`;

function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  const sign = ms < 0 ? "−" : "";
  const size = Math.abs(ms);
  if (size < 1000) return `${sign}${Math.round(size)} ms`;
  if (size < 60000) return `${sign}${(size / 1000).toFixed(1)} s`;
  if (size < 3600000) return `${sign}${(size / 60000).toFixed(1)} min`;
  if (size < 172800000) return `${sign}${(size / 3600000).toFixed(1)} h`;
  return `${sign}${(size / 86400000).toFixed(1)} days`;
}

function bytes(size) {
  if (size === null || size === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let value = Math.abs(size);
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${size < 0 ? "−" : ""}${value.toFixed(unit && value < 10 ? 1 : 0)} ${units[unit]}`;
}

function time(ms) {
  if (ms === null || ms === undefined) return "–";
  return Math.abs(ms) > 8.64e15 ? "the end of time" : new Date(ms).toISOString().replace("T", " ").replace(".000Z", "Z");
}

function cut(text, size) {
  return text.length > size ? `${text.slice(0, size - 1)}…` : text;
}

// A table. Columns are [heading, function of a row, optional "number"]. On a narrow screen, the cells of a row are below each
// other, each with its heading; the roles keep the table readable for screen readers.
function table(rows, columns, caption) {
  if (!rows.length) return null;
  const cells = (row) => columns.map(([name, cell, kind]) => el("td", { class: kind, role: "cell", "data-heading": name }, cell(row)));
  return el("div", { class: "scroll" }, el("table", { role: "table" },
    caption ? el("caption", {}, caption) : null,
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, columns.map(([name, , kind]) => el("th", { scope: "col", role: "columnheader", class: kind }, name)))),
    el("tbody", { role: "rowgroup" }, rows.map((row) => el("tr", { role: "row" }, cells(row))))));
}

// The programs of a plan, by the names of their metrics.
function programsOf(plan) {
  return [...new Set(plan.vertices.map((each) => each.program))].sort();
}

// The plan: a column per level, a box per vertex, a curve per edge. Programs are below each other.
function drawPlan(plan) {
  const WIDTH = 236, GAP = 74, LINE = 17;
  const programs = programsOf(plan);
  const most = plan.vertices.reduce((best, each) => (best === null || each.level_share > best.level_share ? each : best), null);
  const isMost = (vertex) => vertex.level_share > 0 && vertex.program === most.program && vertex.level === most.level;
  const levels = [...new Set(plan.vertices.map((each) => each.level))].sort((a, b) => a - b);
  const x = (level) => levels.indexOf(level) * (WIDTH + GAP);
  const places = new Map(), words = [], outputs = [];
  let top = 0;
  for (const program of programs) {
    if (programs.length > 1) { words.push(svg("text", { x: 0, y: top + 14, class: "name" }, `Program ${program}`)); top += 22; }
    let height = top;
    for (const level of levels) {
      const column = plan.vertices.filter((each) => each.program === program && each.level === level);
      if (!column.length) continue;
      const share = column[0].level_share;
      words.push(svg("text", { x: x(level), y: top + 14, class: "muted" },
        `level ${level}${level === 0 ? " (sources)" : ""}${share ? ` · ${percent(share)} of the epoch` : ""}`));
      let y = top + 26;
      for (const vertex of column) {
        const size = LINE * vertex.operators.length + (vertex.run ? 52 : 36);
        places.set(`${program}/${vertex.number}`, { x: x(level), y, size });
        y += size + 18;
      }
      height = Math.max(height, y);
    }
    const names = [...new Set(plan.edges.filter((each) => each.program === program && each.output).map((each) => each.output))];
    names.forEach((name, index) => {
      const place = { x: levels.length * (WIDTH + GAP), y: top + 26 + index * 44, size: 30, name };
      places.set(`${program}/output/${name}`, place);
      outputs.push(place);
      height = Math.max(height, place.y + 48);
    });
    top = height;
  }
  const width = levels.length * (WIDTH + GAP) + 130;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${top}`, width, height: top, class: "plan", role: "group", "aria-label": "Plan of the query" }, words);
  for (const edge of plan.edges) {
    const from = places.get(`${edge.program}/${edge.sender}`);
    const to = places.get(edge.output ? `${edge.program}/output/${edge.output}` : `${edge.program}/${edge.receiver}`);
    if (!from || !to) continue;
    const x1 = from.x + WIDTH, y1 = from.y + from.size / 2, x2 = to.x, y2 = to.y + to.size / 2;
    picture.append(svg("path", { d: `M${x1},${y1} C${x1 + GAP / 2},${y1} ${x2 - GAP / 2},${y2} ${x2},${y2}`, class: "edge" }));
    picture.append(svg("text", { x: (x1 + Math.min(x2, x1 + GAP)) / 2, y: (y1 + y2) / 2 - 5, class: "muted mid" }, cut(edge.partitioner, 12)));
  }
  for (const vertex of plan.vertices) picture.append(drawVertex(vertex, places.get(`${vertex.program}/${vertex.number}`), WIDTH, LINE, isMost(vertex)));
  for (const place of outputs) {
    picture.append(svg("g", { class: "output" },
      svg("rect", { x: place.x, y: place.y, width: 124, height: place.size, rx: 15 }),
      svg("text", { x: place.x + 62, y: place.y + 20, class: "mid" }, cut(place.name, 16))));
  }
  return el("div", { class: "scroll" }, picture);
}

// The uid of a vertex's first operator; empty for a source.
const uidOf = (vertex) => vertex.operators[0].uid;

// Shares of the tasks' time by state. They add up to 1.
function sharesOf(run) {
  const total = run.busy_ms + run.idle_ms + run.back_pressured_ms + run.state_ms || 1;
  return { busy: run.busy_ms / total, back_pressured: run.back_pressured_ms / total, idle: run.idle_ms / total, state: run.state_ms / total };
}

function drawVertex(vertex, place, width, line, isMost) {
  const { run } = vertex, shares = run && sharesOf(run);
  const label = vertex.operators.map((each) => each.name).join(" → ");
  const title = run
    ? `${label}: busy ${percent(shares.busy)}, back-pressured ${percent(shares.back_pressured)}, idle ${percent(shares.idle)}, state ${percent(shares.state)} of the time of ${run.tasks} tasks`
    : `${label}: no task ran`;
  const box = svg("g", {
    class: `vertex${isMost && run ? " most" : ""}`, tabindex: 0, role: "img", "aria-label": title,
    "data-uid": uidOf(vertex), "data-level": vertex.level, "data-back-pressured": run ? shares.back_pressured.toFixed(3) : null,
  });
  box.append(svg("title", {}, title));
  box.append(svg("rect", { x: place.x, y: place.y, width, height: place.size, rx: 6, class: "box" }));
  box.append(svg("rect", { x: place.x, y: place.y, width, height: place.size, rx: 6, class: "heat", "fill-opacity": Math.min(0.75, vertex.level_share).toFixed(3) }));
  vertex.operators.forEach((each, index) => {
    const y = place.y + 18 + line * index;
    box.append(svg("text", { x: place.x + 10, y, class: "name" }, cut(each.name, 20)));
    const counts = run?.operators?.[index];
    if (counts) box.append(svg("text", { x: place.x + width - 10, y, class: "end" }, counts.map(number).join(" → ")));
  });
  const below = place.y + 22 + line * vertex.operators.length;
  const facts = [vertex.parallelism ? `${vertex.parallelism} subtasks` : "source"];
  if (run && run.keys) facts.push(`${number(run.keys)} keys`);
  if (run && run.state_bytes) facts.push(bytes(run.state_bytes));
  box.append(svg("text", { x: place.x + 10, y: below, class: "muted" }, facts.join(" · ")));
  if (run) {
    let x = place.x + 10;
    for (const [name, share] of [["busy", shares.busy], ["back", shares.back_pressured], ["state", shares.state], ["idle", shares.idle]]) {
      const size = share * (width - 20);
      box.append(svg("rect", { x, y: below + 10, width: Math.max(0, size), height: 8, class: `share ${name}` }));
      x += size;
    }
    const bad = [[run.repeated, "repeated"], [run.home_restarts, "homes restarted"], [Object.values(run.fallbacks ?? {}).reduce((sum, each) => sum + each, 0), "without home"]]
      .filter(([count]) => count).map(([count, what]) => `${count} ${what}`);
    if (bad.length) box.append(svg("text", { x: place.x + width - 10, y: below, class: "end bad" }, bad.join(" · ")));
  }
  return box;
}

// The last epochs, one bar per epoch.
function drawStrip(epochs) {
  const WIDTH = 900, HEIGHT = 56, longest = Math.max(1, ...epochs.map((each) => each.duration)), step = WIDTH / 60;
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "strip wide", role: "img", "aria-label": `The last ${epochs.length} epochs, the longest took ${duration(longest)}` });
  epochs.forEach((each, index) => {
    const size = Math.max(1, (each.duration / longest) * HEIGHT);
    picture.append(svg("rect", { x: index * step + 1, y: HEIGHT - size, width: step - 2, height: size, class: each.rows ? "busy" : "idle" },
      svg("title", {}, `epoch ${each.number}: ${duration(each.duration)}, ${number(each.rows)} rows`)));
  });
  return el("figure", {}, el("figcaption", {}, `The last ${epochs.length} epochs; the longest took ${duration(longest)}`), picture);
}

// An epoch as a Gantt chart: Spark's phases, then the tasks of each vertex.
function drawGantt(epoch, plan) {
  const LABEL = 190, WIDTH = 900, ROW = 18;
  const names = new Map((plan ? plan.vertices : []).map((each) => [`${each.program}/${each.number}`, each.operators.map((one) => one.name).join(" → ")]));
  // Starts and ends are milliseconds since the epoch's start.
  const spark = [], groups = new Map();
  let end = 0;
  for (const [name, took] of Object.entries(epoch.parts)) { spark.push({ name, start: end, end: end + took }); end += took; }
  end = Math.max(1, epoch.duration, end);
  for (const task of epoch.tasks ?? []) {
    const key = `${task.program}/${task.number}`, start = task.started - epoch.began;
    const bar = { ...task, start, end: start + task.busy_ms + task.idle_ms + task.back_pressured_ms + task.state_ms };
    end = Math.max(end, bar.end);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(bar);
  }
  const lanes = spark.map((each) => ({ name: each.name, kind: "spark", bars: [each] }));
  for (const [key, tasks] of [...groups].sort()) {
    tasks.sort((a, b) => a.start - b.start);
    const free = [];
    for (const task of tasks) {
      let lane = free.findIndex((each) => each.end <= task.start);
      if (lane < 0) { lane = free.length; free.push({ end: 0, bars: [] }); }
      free[lane].end = task.end; free[lane].bars.push(task);
    }
    free.slice(0, 12).forEach((each, index) => lanes.push({ name: index ? "" : names.get(key) || `vertex ${key}`, kind: "task", bars: each.bars }));
    if (free.length > 12) lanes.push({ name: `… ${free.length - 12} more lanes`, kind: "task", bars: [] });
  }
  const height = lanes.length * ROW + 22;
  const scale = (ms) => LABEL + Math.max(0, (ms / end) * (WIDTH - LABEL - 4));
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, class: "gantt wide", role: "img", "aria-label": `Epoch ${epoch.number}, ${duration(epoch.duration)}` });
  for (let part = 0; part <= 4; part += 1) {
    const x = scale((end * part) / 4);
    picture.append(svg("line", { x1: x, x2: x, y1: 16, y2: height, class: "grid" }));
    picture.append(svg("text", { x, y: 11, class: part === 4 ? "muted end" : "muted" }, duration((end * part) / 4)));
  }
  lanes.forEach((lane, index) => {
    const y = 20 + index * ROW;
    picture.append(svg("text", { x: 0, y: y + 12, class: lane.kind === "spark" ? "" : "name" }, cut(lane.name, 27)));
    for (const bar of lane.bars) {
      const label = lane.kind === "spark" ? `${bar.name}: ${duration(bar.end - bar.start)}`
        : `subtask ${bar.subtask}: ${duration(bar.end - bar.start)}, busy ${duration(bar.busy_ms)}, back-pressured ${duration(bar.back_pressured_ms)}, ${number(bar.records_in)} records${bar.attempt ? `, attempt ${bar.attempt + 1}` : ""}`
          + `${bar.home_restarts ? ", home restarted" : ""}${bar.home_cold_starts ? ", home without state" : ""}${bar.home_adoptions ? ", home taken over" : ""}${bar.fallback ? `, in a Python worker: ${bar.fallback}` : ""}`;
      const x = scale(bar.start), size = Math.max(1.5, scale(bar.end) - x);
      picture.append(svg("rect", { x, y, width: size, height: ROW - 5, class: lane.kind === "spark" ? "spark" : bar.attempt ? "bad-bar" : "busy" }, svg("title", {}, label)));
      if (lane.kind === "task" && bar.back_pressured_ms) {
        const part = Math.max(1, size * (bar.back_pressured_ms / Math.max(1, bar.end - bar.start)));
        picture.append(svg("rect", { x: x + size - part, y, width: part, height: ROW - 5, class: "back" }, svg("title", {}, label)));
      }
    }
  });
  return el("div", { class: "scroll" }, picture);
}

// A line through points [time, value], with the first and last time below it.
function drawLine(points, label, format) {
  const WIDTH = 430, HEIGHT = 90;
  const known = points.filter(([, value]) => value !== null && value !== undefined);
  if (known.length < 2) return null;
  const times = known.map(([at]) => at), values = known.map(([, value]) => value);
  const first = Math.min(...times), last = Math.max(...times), low = Math.min(0, ...values), high = Math.max(1, ...values);
  const x = (at) => ((at - first) / Math.max(1, last - first)) * (WIDTH - 4) + 2;
  const y = (value) => HEIGHT - 4 - ((value - low) / Math.max(1e-9, high - low)) * (HEIGHT - 24);
  return el("figure", {},
    el("figcaption", {}, `${label}: ${format(values[values.length - 1])} now, at most ${format(high)}`),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "line wide", role: "img", "aria-label": label },
      svg("path", { d: known.map(([at, value], index) => `${index ? "L" : "M"}${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" "), class: "line" })),
    // Outside of the drawing, because text in it would shrink.
    el("div", { class: "axis" }, [first, last].map((at) => el("time", { datetime: new Date(at).toISOString() }, `${time(at).slice(0, 16)}Z`))));
}
