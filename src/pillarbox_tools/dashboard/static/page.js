// SPDX-License-Identifier: Apache-2.0
// The pages: the list of queries, and the page of a query, whose parts are redrawn when their data changes.
"use strict";

const main = document.getElementById("main");
const condition = document.getElementById("condition");
// Elements that take keyboard focus.
const STOPS = "[tabindex], summary, a, input, select, button";

const PARTS = [
  ["overview", "Overview", overview, ["status", "run", "strip", "missing", "stages", "plan", "is_live", "settings", "at", "quiet"]],
  ["failures", "Failures", failures, ["failures"]],
  ["doctor", "Doctor", doctor, ["findings"]],
  ["plan", "Plan", plan, ["plan"]],
  ["epochs", "Epochs", epochs, ["strip", "shown"]],
  ["watermarks", "Event time", watermarks, ["watermarks", "plan"]],
  ["skew", "Skew", skew, ["skew", "plan"]],
  ["calls", "Calls and counters", calls, ["calls", "keyed_calls", "budgets", "counters"]],
  ["state", "State and memory", state, ["growth", "memory", "executors", "run", "checkpoint", "state_sizes"]],
  ["key", "A key’s life", keyForm, ["id", "keyed"]],
  ["history", "Runs", history, ["run", "earlier"]],
  ["settings", "Settings and versions", settings, ["settings", "versions"]],
];

// Polling interval of the list of queries (milliseconds).
const LIST_EVERY = 2000;

async function start() {
  const match = /\/query\/([^/]+)$/.exec(location.pathname);
  const queries = await ask("api/queries");
  const shown = match ? decodeURIComponent(match[1]) : queries.length === 1 ? queries[0].id : null;
  links(queries, shown);
  if (shown === null) {
    follow(() => "api/queries", (every) => {
      list(every);
      connected("connected", "good");
      return { pause: LIST_EVERY, written: null };
    }, (quiet) => { document.title = quiet === null ? "pillarbox" : `${quiet} · pillarbox`; });
    return;
  }
  if (!queries.some((each) => each.id === shown)) {
    main.replaceChildren(el("p", { class: "bad" }, "The driver does not show this query. "), el("a", { href: ROOT }, "All queries"));
    noteDrawn();
    return;
  }
  frame();
  show(shown);
}

// The number of times the page was drawn, for tests.
function noteDrawn() {
  document.body.dataset.drawn = String(Number(document.body.dataset.drawn || 0) + 1);
}

function links(queries, shown) {
  document.getElementById("queries").replaceChildren(...queries.map((each) => el("a", {
    href: `${ROOT}query/${escaped(each.id)}`, "aria-current": each.id === shown ? "page" : null,
  }, each.name || each.id.slice(0, 8))));
}

function list(queries) {
  links(queries, null);
  main.replaceChildren(el("h1", {}, "Queries"), table(queries, [
    ["Query", (each) => el("a", { href: `${ROOT}query/${escaped(each.id)}` }, each.name || each.id)],
    ["Status", (each) => [status(each.status), ...each.conditions.map((one) => el("span", { class: "bad" }, ` ${one.line}`))]],
    ["Epoch", (each) => number(each.epoch), "number"],
    ["Duration", (each) => duration(each.duration), "number"],
    ["Rows", (each) => number(each.rows), "number"],
    ["Rows per second", (each) => number(each.rows_per_second), "number"],
    ["Event-time lag", (each) => duration(each.lag), "number"],
    ["Failure", (each) => (each.failure ? cut(each.failure.split("\n")[0], 120) : "")],
  ]) || el("p", { class: "wait" }, "No query has been started yet."));
  noteDrawn();
}

function connected(text, kind) {
  link.textContent = text;
  link.className = kind;
}

function show(query) {
  // `quiet` is set by the page: the other fields are outdated.
  const view = { change: "", quiet: null }, texts = {};
  follow(() => `api/queries/${escaped(query)}?since=${escaped(view.change)}`, (fields) => {
    // The first answer, and the first one after a restart of the driver, has all fields; others have only changed fields.
    const changed = new Set();
    for (const [name, value] of Object.entries(fields)) {
      const text = JSON.stringify(value);
      if (texts[name] !== text) { texts[name] = text; view[name] = value; changed.add(name); }
    }
    if (changed.size) draw(view, changed);
    const ended = Boolean(view.run.ended);
    if (view.is_bundle) connected("a bundle", "");
    else connected(ended ? "ended" : "connected", ended ? "" : "good");
    const isFinal = ended || view.is_bundle;
    return { pause: isFinal ? ENDED_EVERY : ASK_EVERY, written: view.is_live || isFinal ? null : view.at };
  }, (quiet) => {
    view.quiet = quiet;
    if (view.id) draw(view, new Set(["quiet"]));
  });
}

function frame() {
  main.replaceChildren(
    el("nav", { class: "parts", "aria-label": "Parts of the page" }, PARTS.map(([id, name]) => el("a", { href: `#${id}` }, name))),
    ...PARTS.map(([id, name]) => el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, name), el("div", { class: "part" }))));
}

function draw(view, changed) {
  const name = view.name || view.id.slice(0, 8);
  // The banner already shows that the driver is gone.
  const present = view.conditions.filter((each) => each.name !== "driver gone");
  const line = present.map((each) => `${each.line}.`).join(" ");
  if (condition.textContent !== line) condition.textContent = line;
  condition.hidden = !line;
  const state = view.quiet ?? present[0]?.name;
  document.title = state === undefined ? `${name} · ${view.status} · pillarbox` : `${state} · ${name} · pillarbox`;
  for (const [id, , make, fields] of PARTS) {
    if (!fields.some((each) => changed.has(each))) continue;
    const section = document.getElementById(id);
    const content = [make(view)].flat().filter((each) => each !== null && each !== undefined);
    section.hidden = !content.length;
    document.querySelector(`nav.parts a[href="#${id}"]`).hidden = !content.length;
    const keepsPlace = placeIn(section);
    section.querySelector(".part").replaceChildren(...content);
    keepsPlace();
  }
  noteDrawn();
}

// Saves scroll positions, open details and focus in a part of the page. Returns a function that restores them.
function placeIn(section) {
  const found = (selector) => [...section.querySelectorAll(selector)];
  const scrolled = found(".scroll").map((each) => each.scrollLeft);
  const unfolded = found("details").map((each) => each.open);
  const focused = found(STOPS).indexOf(document.activeElement);
  return () => {
    found(".scroll").forEach((each, index) => { if (scrolled[index]) each.scrollLeft = scrolled[index]; });
    found("details").forEach((each, index) => { each.open = Boolean(unfolded[index]); });
    if (focused >= 0) found(STOPS)[focused]?.focus({ preventScroll: true });
  };
}

function status(value) {
  return el("span", { class: { running: "good", failed: "bad", lost: "bad" }[value] || "" }, value);
}

function fact(name, value) {
  return el("div", { class: "fact" }, el("dt", {}, name), el("dd", {}, value));
}

function overview(view) {
  const newest = view.strip[view.strip.length - 1];
  const restarts = sumOf(view.run, "home_restarts"), fallbacks = sumOf(view.run, "fallbacks");
  const notes = [...view.missing];
  if (!view.is_live) notes.unshift(`Data of ${time(view.at)}, not live: read from the checkpoint or a bundle.`);
  return [
    el("h1", {}, view.name || `Query ${view.id.slice(0, 8)}`),
    el("p", { class: "muted path" }, view.checkpoint || "temporary checkpoint"),
    ...notes.map((each) => el("p", { class: "note" }, each)),
    el("dl", { class: "facts" },
      fact("Status", view.quiet === null ? status(view.status) : el("span", { class: "bad" }, `${view.quiet}; was ${view.status}`)),
      fact("Since", time(view.run.began)),
      fact("Epoch", newest ? number(newest.number) : "none yet"),
      fact("Duration", newest ? duration(newest.duration) : "–"),
      fact("Rows per second", number(view.rows_per_second)),
      fact("Event-time lag", duration(view.lag)),
      view.settings.parallelism ? fact("State partitions", number(Number(view.settings.parallelism))) : null,
      fact("Epochs of this run", number(sumOf(view.run, "epochs"))),
      fact("Repeated tasks", number(sumOf(view.run, "repeated"))),
      restarts ? fact("Restarted homes", number(restarts)) : null,
      fallbacks ? fact("Tasks without a home", number(fallbacks)) : null),
    view.stages && view.stages.length ? table(view.stages, [
      ["Running stage", (each) => `${each.number}`], ["Operators", (each) => operatorsOf(view, each.level)], ["Hosts", (each) => (each.hosts ?? []).join(", ")],
      ["Tasks", (each) => number(each.tasks), "number"],
      ["Running", (each) => number(each.active), "number"], ["Done", (each) => number(each.completed), "number"],
      ["Failed", (each) => number(each.failed), "number"],
    ]) : null,
  ];
}

// A sum over the moments of a run.
function sumOf(run, name) {
  return (run.moments ?? []).reduce((sum, each) => sum + (each[name] ?? 0), 0);
}

// The operators of a level; a level runs as one stage.
function operatorsOf(view, level) {
  if (level === undefined || !view.plan) return "";
  return view.plan.vertices.filter((each) => each.level === level).map((each) => nameOf(view, each.program, each.number)).join(", ");
}

function failures(view) {
  return view.failures.map((each) => el("article", { class: "failure" },
    el("h3", {}, each.operator ? `${each.operator}${each.uid && each.uid !== each.operator ? ` (uid ${each.uid})` : ""}` : each.error),
    el("dl", { class: "facts" },
      each.cause ? fact("Raised", each.cause) : null,
      each.epoch != null ? fact("Epoch", number(each.epoch)) : null,
      each.subtask != null ? fact("Subtask", number(each.subtask)) : null,
      each.key != null ? fact("Key", el("code", {}, each.key)) : null,
      each.number != null ? fact("Record of the epoch", number(each.number)) : null,
      each.attempt != null ? fact("Attempt", number(each.attempt + 1)) : null,
      each.host ? fact("Host", each.host) : null),
    each.record != null ? el("p", {}, "Record: ", el("code", {}, each.record)) : null,
    el("pre", {}, each.message),
    each.uid != null && each.epoch != null && view.checkpoint ? el("p", {}, "To run the task again on your machine: ",
      el("code", {}, `pillarbox record ${view.checkpoint} failed --program main.py`), ", then ",
      el("code", {}, "pillarbox replay failed --pdb"), ".") : null));
}

function doctor(view) {
  return view.findings.map((each) => el("p", { class: "note", "data-rule": each.rule }, each.message.charAt(0).toUpperCase() + each.message.slice(1) + "."));
}

function plan(view) {
  if (!view.plan) return el("p", { class: "note" }, "The plan is unknown: the query was not started by pillarbox.start().");
  return [
    drawPlan(view.plan),
    el("p", { class: "legend" }, key("heat", "red: share of the epoch in which the level ran"), key("busy", "busy"), key("back", "back-pressured"), key("state", "state"), key("idle", "idle")),
    el("details", {}, el("summary", {}, "The meaning of back-pressured"),
      el("p", {}, "The task waits until Spark’s JVM accepts its output: the sink or the shuffle is slow. In Flink, a task is back-pressured "
        + "while the next task has no free buffer. Here the levels of an epoch run one after the other, so a slow operator never shows as "
        + "back pressure of its predecessor, but as a long level.")),
  ];
}

function key(kind, text) {
  return el("span", { class: "key" }, el("i", { class: kind, "aria-hidden": "true" }), text);
}

function epochs(view) {
  if (!view.strip.length) return el("p", { class: "wait" }, "No epoch has ended yet.");
  const shown = view.shown;
  return [
    drawStrip(view.strip),
    shown ? el("h3", {}, `Epoch ${number(shown.number)}: ${duration(shown.duration)}, ${number(shown.rows)} rows`) : null,
    shown ? drawGantt(shown, view.plan) : null,
    shown ? el("p", { class: "legend" }, key("spark", "Spark’s phases"), key("busy", "tasks"), key("back", "back-pressured"), key("bad-bar", "repeated by Spark")) : null,
    shown && shown.sources ? table(shown.sources, [
      ["Source", (each) => cut(each.description, 60)], ["Rows", (each) => number(each.rows), "number"],
      ["End offset", (each) => offsets(each.end)], ["Newest offset", (each) => offsets(each.latest)],
    ]) : null,
  ];
}

function offsets(value) {
  return value === null || value === undefined ? "–" : cut(JSON.stringify(value), 60);
}

function nameOf(view, program, vertex) {
  const found = view.plan && view.plan.vertices.find((each) => each.program === program && each.number === vertex);
  const name = found ? uidOf(found) || found.operators.map((each) => each.name).join(" → ") : `vertex ${vertex}`;
  return view.plan && programsOf(view.plan).length > 1 ? `${name} (${program})` : name;
}

function watermarks(view) {
  return table(view.watermarks, [
    ["Operator", (each) => nameOf(view, each.program, each.vertex)],
    ["Watermark", (each) => (each.watermark === null ? "none yet" : time(each.watermark))],
    ["Lowest in subtask", (each) => number(each.subtask), "number"],
    ["Newest record of the holding input", (each) => time(each.latest)],
    ["Reason", (each) => each.message],
  ]);
}

function skew(view) {
  const rows = view.skew.filter((each) => each.tasks > 1 || each.heavy);
  return table(rows, [
    ["Operator", (each) => nameOf(view, each.program, each.vertex)],
    ["Tasks", (each) => number(each.tasks), "number"],
    ["Busiest subtask", (each) => number(each.busiest), "number"],
    ["Busy time / mean", (each) => `${each.factor.toFixed(1)}×`, "number"],
    ["Heavy keys (estimated)", (each) => (each.heavy
      ? each.heavy.map((one) => `${one.key}: ${percent(one.share)} ± ${percent(one.error)} in subtask ${one.subtask}`).join("; ") : "none")],
  ]);
}

// A column's cell: the JSON has no zeros.
function count(name) {
  return (each) => number(each[name] ?? 0);
}

function calls(view) {
  const counters = Object.entries(view.counters);
  return [
    table(view.calls, [
      ["Operator", (each) => each.uid], ["Requests", (each) => number(each.requests), "number"], ["Retried", (each) => number(each.retried), "number"],
      ["Completed", (each) => number(each.completed), "number"], ["Failed", (each) => number(each.failed), "number"],
      ["Timed out", (each) => number(each.timed_out), "number"], ["From cache", (each) => number(each.cache_hits), "number"],
      ["p50", (each) => duration((each.latency_p50_us || 0) / 1000), "number"], ["p99", (each) => duration((each.latency_p99_us || 0) / 1000), "number"],
      ["Waited for a rate limit", (each) => duration(each.rate_limited_ms || 0), "number"],
    ], "Newest epoch with calls"),
    table(view.keyed_calls, [
      ["Async keyed function", (each) => each.uid], ["Unfinished now", count("in_flight"), "number"], ["Most at a time", count("in_flight_max"), "number"],
      ["Calls", count("calls"), "number"], ["From a record", count("calls_reused"), "number"], ["Timed out", count("timed_out"), "number"],
      ["Longest queue of a key", (each) => el("span", {}, number(each.longest_key ?? 0), each.hot_key ? [": ", el("code", {}, each.hot_key)] : null)],
      ["Waited for a budget", (each) => duration(each.rate_limited_ms ?? 0), "number"],
      ["Longest blocking step", (each) => (each.blocked_ms ? el("span", { class: "bad" }, duration(each.blocked_ms)) : "under 1 s"), "number"],
    ], "In the last epochs"),
    table(view.budgets, [
      ["Budget", (each) => each.name], ["Requests", count("granted"), "number"], ["Units spent", count("spent"), "number"],
      ["Refused", count("refused"), "number"], ["Stopped (429)", count("stops"), "number"], ["Probes", count("probes"), "number"], ["Lost", count("lost"), "number"],
    ], "In the last epochs"),
    table(counters, [["Counter", ([name]) => name], ["In the last epochs", ([, count]) => number(count), "number"]]),
  ];
}

function state(view) {
  const moments = view.run.moments ?? [];
  const perDay = (each) => (each.per_day === null ? "unknown" : `${each.per_day < 0 ? "" : "+"}${bytes(each.per_day)} a day`);
  const memory = view.memory;
  const sizes = Object.entries(view.state_sizes).flatMap(([uid, states]) => Object.entries(states).map(([name, size]) => ({ uid, name, size })));
  const total = (each) => Object.values(each.state_bytes ?? {}).reduce((sum, size) => sum + size, 0);
  return [
    table(view.growth, [
      ["Operator", (each) => each.uid], ["State", (each) => bytes(each.bytes), "number"], ["Keys", (each) => number(each.keys), "number"], ["Growth", perDay, "number"],
    ]),
    table(sizes, [["Operator", (each) => each.uid], ["State", (each) => each.name], ["About", (each) => bytes(each.size), "number"]]),
    view.growth.length && view.checkpoint && !sizes.length ? el("p", { class: "muted" }, "Tasks report the size of all their states together. For the size of each state, run ",
      el("code", {}, `pillarbox inspect ${view.checkpoint}`), ".") : null,
    el("p", {}, `The largest worker process uses ${bytes(memory.bytes)}${memory.limit ? ` of ${bytes(memory.limit)}` : ""}; `,
      memory.full_at ? `memory runs out on ${time(memory.full_at).slice(0, 16)} at the current rate of growth.` : `${memory.message}.`),
    table(view.executors, [
      ["Executor", (each) => (each.executor === null ? each.host : `${each.host}, process ${each.executor}`)],
      ["Heap", (each) => bytes(each.heap), "number"],
      ["Needs beyond the heap", (each) => bytes(each.needed), "number"], ["Formula", (each) => bytes(each.computed), "number"],
      ["Homes, measured", (each) => bytes(each.home_bytes), "number"], ["Container", (each) => bytes(each.limit), "number"],
    ], "Memory of executors"),
    el("div", { class: "lines" },
      drawLine(moments.map((each) => [each.at, total(each)]), "State", bytes),
      drawLine(moments.map((each) => [each.at, each.process_bytes]), "Memory of the largest process", bytes),
      drawLine(moments.map((each) => [each.at, each.lag]), "Event-time lag", duration),
      drawLine(moments.map((each) => [each.at, each.longest]), "Longest epoch", duration)),
  ];
}

function keyForm(view) {
  const keyed = view.keyed;
  if (!view.checkpoint || !keyed.length) return null;
  const answer = el("div", { class: "answer", role: "status" });
  const operator = el("select", { name: "uid", id: "key-uid" }, keyed.map((uid) => el("option", { value: uid }, uid)));
  const input = el("input", { name: "key", id: "key-text", required: true, autocomplete: "off", placeholder: "ann, 42, or [\"ann\", 42]" });
  const form = el("form", {},
    el("label", { for: "key-uid" }, "Operator"), operator, el("label", { for: "key-text" }, "Key"), input, el("button", { type: "submit" }, "Show"),
    el("p", { class: "muted" }, "Text, a number, or JSON for several columns. A Spark job reads the state of the key’s subtask in the last committed epochs. These jobs run one at a time."));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    answer.replaceChildren(el("p", { class: "wait" }, "Reading the state of the subtask …"));
    const asked = new URLSearchParams({ uid: operator.value, key: input.value });
    try {
      // No time limit, because Spark's job may take long.
      const response = await fetch(`${ROOT}api/queries/${escaped(view.id)}/key?${asked}`);
      const found = await response.json();
      answer.replaceChildren(...(response.ok ? life(found).flat().filter((each) => each) : [el("p", { class: "bad" }, found.error)]));
    } catch {
      answer.replaceChildren(el("p", { class: "bad" }, "The driver does not answer."));
    }
  });
  return [form, answer];
}

function life(found) {
  return [
    el("h3", {}, "Key ", el("code", {}, found.key), ` in subtask ${found.subtask}, at epoch ${number(found.epoch)}`),
    ...found.messages.map((each) => el("p", {}, each)),
    table(found.state, [["State", (each) => each.name], ["Value", (each) => el("code", {}, each.value)], ["Changed in epoch", (each) => (each.changed === null ? "earlier" : number(each.changed)), "number"]]),
    table(found.timers, [["Timer", (each) => each.domain], ["At", (each) => time(each.at)], ["Waits for", (each) => each.waits]]),
    table(found.calls, [
      ["Pending call of", (each) => each.uid], ["Record", (each) => el("code", {}, each.record)],
      ["Since", (each) => (each.arrived !== null ? `epoch ${number(each.arrived)}` : each.asked === null ? "not yet" : time(each.asked))],
      ["Waits for", (each) => each.waits], ["Recorded calls", (each) => each.recorded.join(", ")],
    ]),
    el("p", { class: "muted" }, `Read epochs ${found.epochs.map(number).join(", ")} in ${duration(found.took_ms)}.`),
  ];
}

function history(view) {
  const runs = [view.run, ...view.earlier];
  return table(runs, [
    ["Began", (each) => time(each.began)], ["Ended", (each) => (each.ended ? time(each.ended) : "")], ["Status", (each) => status(each.status ?? "running")],
    ["Epochs", (each) => number(sumOf(each, "epochs")), "number"], ["Rows", (each) => number(sumOf(each, "rows")), "number"],
    ["Repeated tasks", (each) => number(sumOf(each, "repeated")), "number"],
    ["Spark, pillarbox", (each) => `${each.versions?.spark ?? "?"}, ${each.versions?.pillarbox ?? "?"}`],
    ["Failure", (each) => each.failures?.[0].message ?? ""],
  ]);
}

function settings(view) {
  const rows = [...Object.entries(view.versions), ...Object.entries(view.settings)];
  return el("details", {}, el("summary", {}, `${rows.length} entries`), table(rows, [["Name", ([name]) => name], ["Value", ([, value]) => value]]));
}

// Retry: a restarting driver answers after a while.
function begin() {
  start().catch((error) => {
    main.replaceChildren(el("p", { class: "bad" }, error.message));
    setTimeout(begin, LIST_EVERY);
  });
}

begin();
