"use strict";
// Elements made once and changed in place, so that focus, pointer and open tooltips stay. Text only ever as text.
const $ = (id) => document.getElementById(id);

function element(name, attributes = {}, text = undefined) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function shape(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  set(made, attributes);
  made.append(...children);
  return made;
}

function set(changed, attributes) {
  for (const [key, value] of Object.entries(attributes)) {
    if (changed.getAttribute(key) !== String(value)) changed.setAttribute(key, value);
  }
}

function write(changed, text) {
  if (changed.textContent !== text) changed.textContent = text;
}

// One child of `parent` per item, found again by its key; `update` is called for old and new ones.
function keyed(parent, items, key, make, update) {
  const wanted = new Map(items.map((item) => [String(key(item)), item]));
  const found = new Map();
  for (const child of [...parent.children]) {
    if (wanted.has(child.dataset.key)) found.set(child.dataset.key, child);
    else child.remove();
  }
  let place = 0;
  for (const [name, item] of wanted) {
    const child = found.get(name) || make(item);
    child.dataset.key = name;
    if (parent.children[place] !== child) parent.insertBefore(child, parent.children[place] || null);
    update(child, item);
    place += 1;
  }
}

function clock(at) {
  return new Date(at * 1000).toLocaleTimeString([], { hour12: false });
}

function bytes(count) {
  if (count === null) return "–";
  if (count < 1024) return `${count} B`;
  return count < 1048576 ? `${(count / 1024).toFixed(0)} kB` : `${(count / 1048576).toFixed(1)} MB`;
}

function figure(value) {
  return value >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
}

// A chart of the last three minutes. Its tooltip stays while data move: under the pointer, or at the point chosen by arrow keys.
const SPAN_S = 180, NEAR_S = 3, GAP_S = 5, LABEL_ROWS = 3, LEFT = 50, TOP = 44, HEIGHT = 230;
const SERIES = ["all", "off", "local", "remote_write", "on", "remote_apply"], NICE = [1, 1.5, 2, 3, 4, 5, 6, 8, 10];
// What commits wait for, in order: each has the colour of the level that first waits for it.
const CAUSES = Object.fromEntries([/*CAUSES*/].map((cause, number) => [cause, SERIES[number + 2] || "other"]));

class Chart {
  constructor(parent, value) {
    this.parent = parent;
    this.value = value;
    this.title = parent.querySelector("figcaption").textContent;
    this.pointerX = null;
    this.chosenAt = null;
    this.layers = Object.fromEntries(["grid", "series", "events"].map((name) => [name, shape("g")]));
    this.cross = shape("line", { class: "cross", y1: TOP, y2: HEIGHT - 20, visibility: "hidden" });
    this.svg = shape("svg", { role: "img", tabindex: 0 }, ...Object.values(this.layers), this.cross);
    parent.append(this.svg);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerdown", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") this.hide(); });
    this.svg.addEventListener("keydown", (event) => this.walk(event));
    this.svg.addEventListener("blur", () => this.hide());
  }

  draw(picture) {
    this.end = picture.at;
    this.points = picture.points.filter((point) => point[this.value] !== null && point.at > this.end - SPAN_S);
    this.events = picture.events.filter((event) => event.kind !== "sample-done" && event.at > this.end - SPAN_S);
    this.parent.hidden = this.points.length === 0;
    if (this.parent.hidden) return [];
    this.width = Math.max(280, this.svg.getBoundingClientRect().width);
    set(this.svg, { viewBox: `0 0 ${this.width} ${HEIGHT}`, height: HEIGHT });
    this.peak = nice(Math.max(1e-9, ...this.points.map((point) => point[this.value])));
    this.drawGrid();
    this.drawEvents();
    const series = grouped(this.points);
    const names = [...series.keys()];
    keyed(this.layers.series, names, (n) => n, () => shape("g", {}, shape("path"), shape("path")), (group, name) => this.drawSeries(group, name, series.get(name)));
    this.describe(series);
    this.show();
    return names;
  }

  x(at) { return this.width - 4 - ((this.end - at) / SPAN_S) * (this.width - 4 - LEFT); }
  y(value) { return HEIGHT - 20 - (value / this.peak) * (HEIGHT - 20 - TOP); }

  drawGrid() {
    const values = [0, this.peak / 2, this.peak].map((value) => ({ value, y: this.y(value) }));
    const times = [120, 60, 0].map((ago) => ({ ago, x: this.x(this.end - ago) }));
    keyed(this.layers.grid, [...values, ...times], (l) => l.ago ?? `v${l.y}`, () => shape("g", {}, shape("line", { class: "grid" }), shape("text")), (group, l) => {
      const [line, text] = group.children;
      if (l.ago === undefined) {
        set(line, { x1: LEFT, x2: this.width - 4, y1: l.y, y2: l.y });
        set(text, { x: LEFT - 6, y: l.y + 4, "text-anchor": "end" });
        write(text, figure(l.value));
      } else {
        set(text, { x: l.x, y: HEIGHT - 4, "text-anchor": l.ago ? "middle" : "end" });
        write(text, l.ago ? `−${l.ago} s` : "now");
      }
    });
  }

  drawSeries(group, name, points) {
    const colour = colourOf(name), place = (point) => `${this.x(point.at).toFixed(1)} ${this.y(point[this.value]).toFixed(1)}`;
    const joined = points.map((p, i) => (i && p.at - points[i - 1].at < GAP_S ? "L" : "M") + place(p)).join("");
    set(group.children[0], { class: "series", stroke: colour, d: joined });
    const apart = this.width / points.length;
    set(group.children[1], { class: "dots", stroke: colour, "stroke-width": Math.max(1.6, Math.min(5, 0.8 * apart)), d: name === "all" ? "" : points.map((p) => `M${place(p)}h0`).join("") });
  }

  // Labels in three rows above the plot, faults and the newest first; one that does not fit is only in the tooltip.
  drawEvents() {
    const rows = Array.from({ length: LABEL_ROWS }, () => []), labelled = new Map(), newest = [...this.events].reverse();
    for (const event of [...newest.filter((e) => e.kind === "fault"), ...newest.filter((e) => e.kind !== "fault")]) {
      const text = event.text.length > 26 ? event.text.slice(0, 25) + "…" : event.text;
      const wide = (event.kind === "fault" ? 7.4 : 6.6) * text.length + 8, left = Math.max(0, Math.min(this.x(event.at) - 2, this.width - wide));
      const row = rows.findIndex((taken) => taken.every(([from, to]) => left + wide <= from || left >= to));
      if (row < 0) continue;
      rows[row].push([left, left + wide]);
      labelled.set(event, { text, left, row });
    }
    keyed(this.layers.events, this.events, (e) => `${e.at} ${e.text}`, () => shape("g", {}, shape("line"), shape("text")), (group, event) => {
      const x = this.x(event.at), label = labelled.get(event), [line, text] = group.children;
      const y = label ? 12 + 13 * label.row : TOP;
      set(group, { class: `event ${event.kind}` });
      set(line, { x1: x, x2: x, y1: label ? y + 2 : TOP, y2: HEIGHT - 20 });
      set(text, { x: label ? label.left : x, y });
      write(text, label ? label.text : "");
    });
  }

  describe(series) {
    const parts = [...series].map(([name, points]) => {
      const values = points.map((point) => point[this.value]);
      return `${nameOf(name)} now ${figure(values.at(-1))}, lowest ${figure(Math.min(...values))}, highest ${figure(Math.max(...values))}`;
    });
    const events = this.events.length ? `; ${this.events.length} event${this.events.length > 1 ? "s" : ""}, the last: ${this.events.at(-1).text}` : "";
    set(this.svg, { "aria-label": `${this.title}, last three minutes: ${parts.join("; ")}${events}` });
  }

  point(event) {
    this.chosenAt = null;
    this.pointerX = event.clientX;
    this.show();
  }

  walk(event) {
    if (event.key === "Escape") this.hide();
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !this.points.length) return;
    event.preventDefault();
    const times = [...new Set([...this.points, ...this.events].map((p) => p.at))].sort((a, b) => a - b);
    const from = this.chosenAt ?? Infinity, later = times.filter((at) => at > from), earlier = times.filter((at) => at < from);
    this.chosenAt = (step > 0 ? later[0] : earlier.at(-1)) ?? this.chosenAt ?? times.at(-1);
    this.show();
    $("spoken").textContent = $("tip").textContent;
  }

  show() {
    const box = this.svg.getBoundingClientRect(), scale = this.width / box.width;
    if (this.chosenAt !== null && this.chosenAt <= this.end - SPAN_S) return this.hide();
    if (this.chosenAt === null && this.pointerX === null) return;
    const x = this.chosenAt === null ? (this.pointerX - box.left) * scale : this.x(this.chosenAt);
    const at = this.chosenAt ?? this.end - ((this.width - 4 - x) / (this.width - 4 - LEFT)) * SPAN_S;
    set(this.cross, { x1: x, x2: x, visibility: "visible" });
    placeTip(this.text(at), box.left + x / scale, box.top + TOP);
  }

  text(at) {
    const nearest = new Map();
    for (const point of this.points) {
      const off = Math.abs(point.at - at), best = nearest.get(point.series);
      if (off <= NEAR_S && (!best || off < Math.abs(best.at - at))) nearest.set(point.series, point);
    }
    const lines = [...nearest.values()].map((point) => `${nameOf(point.series)}: ${figure(point[this.value])} ${this.value === "tps" ? "tps" : "ms"}`);
    const events = this.events.filter((event) => Math.abs(event.at - at) <= NEAR_S).map((event) => event.text);
    return [clock(at), ...(lines.length ? lines : ["no commit measured"]), ...events].join("\n");
  }

  hide() {
    this.pointerX = this.chosenAt = null;
    set(this.cross, { visibility: "hidden" });
    $("tip").hidden = true;
  }
}

function placeTip(text, x, y) {
  const tip = $("tip"), gap = 14;
  write(tip, text);
  tip.hidden = false;
  const box = tip.getBoundingClientRect(), wide = document.documentElement.clientWidth;
  tip.style.left = `${x + gap + box.width < wide - 8 ? x + gap : Math.max(8, x - gap - box.width)}px`;
  tip.style.top = `${Math.max(8, y)}px`;
}

function grouped(points) {
  const series = new Map();
  for (const point of points) {
    if (!series.has(point.series)) series.set(point.series, []);
    series.get(point.series).push(point);
  }
  return series;
}

function nice(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return NICE.find((step) => step * unit >= value) * unit;
}

function colourOf(series) { return series === "all" ? "var(--other)" : `var(--${CAUSES[series] || series})`; }
function nameOf(series) { return series === "all" ? "all sessions" : series; }
