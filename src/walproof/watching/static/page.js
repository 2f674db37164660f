"use strict";
// Draws the picture the server sends; knows nothing of PostgreSQL. Text only ever through textContent.
const COLOURS = { off: "#c2571a", local: "#7a7f87", remote_write: "#3b82c4", on: "#1b7f5c", remote_apply: "#8d5bb8", all: "#5f6b7a" };
const token = location.hash.slice(1);
history.replaceState(null, "", location.pathname);
const $ = (id) => document.getElementById(id);
const NS = "http://www.w3.org/2000/svg";
function shape(name, attributes, text) {
  const element = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}
function cell(text, cls) { const td = document.createElement("td"); td.textContent = text; if (cls) td.className = cls; return td; }
function bytes(n) { if (n === null) return "–"; if (n < 1024) return n + " B"; if (n < 1048576) return (n / 1024).toFixed(0) + " kB"; return (n / 1048576).toFixed(1) + " MB"; }
function clock(at) { return new Date(at * 1000).toLocaleTimeString([], { hour12: false }); }

function drawMap(p) {
  const svg = $("map"); svg.replaceChildren();
  const n = p.members.length, place = {};
  p.members.forEach((m, i) => {
    const angle = -Math.PI / 2 + (2 * Math.PI * i) / Math.max(n, 1);
    place[m.name] = [320 + 225 * Math.cos(angle), 172 + (n > 1 ? 105 : 0) * Math.sin(angle)];
  });
  const pairs = {};
  for (const l of p.links) {
    const key = [l.source, l.destination].sort().join(" ");
    const pair = (pairs[key] = pairs[key] || { rtt: null, measured: null, cut: 0 });
    pair.rtt = l.rtt_ms ?? pair.rtt; pair.measured = l.measured_ms ?? pair.measured; pair.cut += l.cut ? 1 : 0;
  }
  for (let i = 0; i < n; i++) for (let j = i + 1; j < n; j++) {
    const a = p.members[i].name, b = p.members[j].name, pair = pairs[[a, b].sort().join(" ")] || {};
    const [x1, y1] = place[a], [x2, y2] = place[b];
    svg.append(shape("line", { x1, y1, x2, y2, stroke: pair.cut ? "var(--bad)" : "var(--line)", "stroke-width": 2, "stroke-dasharray": pair.cut ? "3 7" : "none" }));
    const label = pair.cut === 1 ? "cut one way" : pair.cut ? "cut" : pair.rtt ? pair.rtt.toFixed(1) + " ms" : "";
    if (label) svg.append(shape("text", { x: (x1 + x2) / 2, y: (y1 + y2) / 2 - 5, "text-anchor": "middle", class: "q" }, label));
  }
  for (const m of p.members) {
    const [x, y] = place[m.name], colour = m.role === "leader" ? "var(--good)" : m.role === "standby" ? "#3b82c4" : "var(--bad)";
    svg.append(shape("circle", { cx: x, cy: y, r: 30, fill: "var(--card)", stroke: colour, "stroke-width": m.sync_state === "quorum" || m.sync_state === "sync" || m.role === "leader" ? 4 : 2 }));
    svg.append(shape("text", { x, y: y + 4, "text-anchor": "middle", "font-weight": 650 }, m.name));
    svg.append(shape("text", { x, y: y + 47, "text-anchor": "middle", class: "q" }, m.role === "unknown" ? "silent" : m.role + (m.sync_state ? ", " + m.sync_state : "")));
  }
}

function drawMembers(p) {
  const body = $("members").tBodies[0]; const wanted = JSON.stringify([p.members, p.buttons]);
  if (body.dataset.shown === wanted) return;
  const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.key : null;
  body.dataset.shown = wanted; body.replaceChildren();
  for (const m of p.members) {
    const row = document.createElement("tr");
    row.append(cell(m.name), cell(m.role === "unknown" ? "silent" : m.role, m.role), cell(m.state), cell(m.sync_state || "–"), cell(m.timeline ?? "–", "n"), cell(bytes(m.lag_bytes), "n"));
    const actions = cell("");
    for (const b of p.buttons || []) if (b.member) actions.append(button(b, m.name));
    row.append(actions); body.append(row);
  }
  const whole = $("actions"); whole.replaceChildren();
  for (const b of p.buttons || []) if (!b.member) whole.append(button(b, ""), " ");
  if (focused) { const again = document.querySelector(`[data-key="${CSS.escape(focused)}"]`); if (again) again.focus(); }
}

function button(b, member) {
  const element = document.createElement("button");
  element.textContent = b.word; element.dataset.key = b.word + ":" + member;
  element.setAttribute("aria-label", member ? `${b.word} ${member}` : b.word);
  element.disabled = Boolean(b.why) || !token; element.title = b.why || (token ? "" : "open the page with its token to act");
  element.addEventListener("click", () => act(b.word, member));
  return element;
}

async function act(word, member) {
  const answer = await fetch("act", { method: "POST", headers: { "Content-Type": "application/json", "X-Walproof-Token": token }, body: JSON.stringify({ word, member }) });
  if (!answer.ok) $("action").textContent = (await answer.json()).error;
}

function drawSeries(id, p, value) {
  const svg = $(id); svg.replaceChildren();
  const left = 58, right = 634, top = 8, bottom = 178, span = 180, end = p.at;
  const points = p.points.filter((q) => q[value] !== null && q.at > end - span);
  $(id + "-part").hidden = points.length === 0;
  const peak = Math.max(1e-9, ...points.map((q) => q[value])) * 1.1;
  const x = (at) => right - ((end - at) / span) * (right - left), y = (v) => bottom - (v / peak) * (bottom - top);
  for (const part of [0, 0.5, 1]) {
    const v = (peak / 1.1) * part;
    svg.append(shape("line", { x1: left, x2: right, y1: y(v), y2: y(v), stroke: "var(--line)" }));
    svg.append(shape("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end", class: "q" }, v >= 100 ? Math.round(v).toLocaleString("en") : v.toPrecision(2)));
  }
  for (const seconds of [0, 60, 120]) svg.append(shape("text", { x: x(end - seconds), y: 195, "text-anchor": "end", class: "q" }, seconds ? `-${seconds} s` : "now"));
  for (const h of p.happenings) if (h.kind !== "sample" && h.at > end - span) {
    const line = shape("line", { x1: x(h.at), x2: x(h.at), y1: top, y2: bottom, stroke: h.kind === "fault-changed" ? "var(--bad)" : "var(--line)", "stroke-dasharray": "4 4" });
    line.append(shape("title", {}, `${clock(h.at)} ${h.text}`)); svg.append(line);
  }
  const series = {};
  for (const q of points) (series[q.series] = series[q.series] || []).push(q);
  for (const [name, list] of Object.entries(series)) {
    const colour = COLOURS[name] || "var(--ink)";
    if (name === "all" || id === "ms") svg.append(shape("polyline", { points: list.map((q) => `${x(q.at)},${y(q[value])}`).join(" "), fill: "none", stroke: colour, "stroke-width": name === "all" ? 1.5 : 1, opacity: 0.8 }));
    for (const q of list) {
      const dot = shape("circle", { cx: x(q.at), cy: y(q[value]), r: name === "all" ? 1.5 : 3, fill: colour });
      dot.append(shape("title", {}, `${name}: ${q[value].toFixed(value === "ms" ? 2 : 0)} ${value} at ${clock(q.at)}`)); svg.append(dot);
    }
  }
  return Object.keys(series);
}

function draw(p) {
  $("target").textContent = p.target;
  const said = $("promise"); if (said.textContent !== p.promise) said.textContent = p.promise || "no look yet";
  said.className = !p.leader || (p.declared && !p.in_effect) || p.left < 0 ? "bad" : p.in_effect < p.declared ? "warn" : "";
  $("names").textContent = (p.names ? `synchronous_standby_names = ${p.names}` : "synchronous_standby_names is empty") + (p.waiting ? `; ${p.waiting} sessions wait, the longest ${p.longest_wait_s.toFixed(1)} s` : "");
  $("action").textContent = p.action || $("action").textContent;
  drawMap(p); drawMembers(p);
  const names = new Set([...drawSeries("tps", p, "tps"), ...drawSeries("ms", p, "ms")]);
  const legend = $("legend"); legend.replaceChildren();
  for (const name of names) { const item = document.createElement("span"), mark = document.createElement("i"); mark.style.background = COLOURS[name] || "var(--ink)"; item.append(mark, name === "all" ? "all sessions" : name); legend.append(item); }
  const list = $("happenings"), latest = p.happenings.slice(-40).reverse();
  const wanted = latest.length + ":" + (latest[0] ? latest[0].at + latest[0].text : "");
  if (list.dataset.shown !== wanted) {
    list.dataset.shown = wanted; list.replaceChildren();
    for (const h of latest) { const li = document.createElement("li"), t = document.createElement("time"); t.textContent = clock(h.at); li.append(t, h.text); list.append(li); }
  }
  document.body.dataset.at = p.at;
}
const source = new EventSource("events" + (token ? "?token=" + encodeURIComponent(token) : ""));
source.onmessage = (message) => draw(JSON.parse(message.data));
source.onerror = () => { $("promise").textContent = "the watch has ended or cannot be reached"; $("promise").className = "bad"; };
