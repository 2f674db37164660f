// Shows what the server sends and sends back what is pressed. The token comes in the address, is kept for this tab
// (a reload keeps it), and leaves the address so that it is not shown or copied.
const KEPT = "walproof-token", RETRY_MS = 2000, STALE_MS = 3000;
function takeToken() {
  const given = location.hash.slice(1);
  try {
    if (given) sessionStorage.setItem(KEPT, given);
    if (given) history.replaceState(null, "", location.pathname);
    return given || sessionStorage.getItem(KEPT) || "";
  } catch { return given; } // storage forbidden: the token stays in the address
}
const token = takeToken();
addEventListener("hashchange", () => { if (location.hash) location.reload(); });
const headers = token ? { "X-Walproof-Token": token } : {};
const charts = ["tps", "ms", "waited"].map((id) => new Chart($(id), id));
let shownFailure = 0, renewed = null; // when the cluster was last looked at, by performance.now()

function drawMap(picture) {
  const svg = $("map"), wide = Math.max(280, svg.getBoundingClientRect().width), high = Math.min(310, 0.45 * wide + 90), count = picture.members.length;
  set(svg, { viewBox: `0 0 ${wide} ${high}`, height: high });
  if (!svg.children.length) svg.append(shape("g"), shape("g"));
  const angles = picture.members.map((_, i) => -Math.PI / 2 + (2 * Math.PI * i) / count), lowest = Math.max(...angles.map(Math.sin));
  const place = new Map(picture.members.map((m, i) => [m.name, [
    wide / 2 + (wide / 2 - 70) * Math.cos(angles[i]), 34 + ((1 + Math.sin(angles[i])) / (1 + lowest || 1)) * (high - 86)]]));
  const pairs = pairsOf(picture);
  keyed(svg.children[0], pairs, (p) => `${p.a} ${p.b}`, () => shape("g", {}, shape("line"), shape("text", { "text-anchor": "middle" })), (group, p) => {
    const [[x1, y1], [x2, y2]] = [place.get(p.a), place.get(p.b)], [line, text] = group.children;
    set(line, { x1, y1, x2, y2, class: p.cut ? "link cut" : "link" });
    set(text, { x: (x1 + x2) / 2, y: (y1 + y2) / 2 - 5 });
    write(text, p.text);
  });
  keyed(svg.children[1], picture.members, (m) => m.name, () => shape("g", {}, shape("circle", { r: 28 }), shape("text", { "text-anchor": "middle", class: "name" }), shape("text", { "text-anchor": "middle" })), (group, m) => {
    const [x, y] = place.get(m.name), [circle, name, role] = group.children;
    set(group, { class: `member ${m.role}${["sync", "quorum"].includes(m.sync_state) ? " sync" : ""}` });
    set(circle, { cx: x, cy: y });
    set(name, { x, y: y + 4 });
    set(role, { x, y: y + 43 });
    write(name, m.name);
    write(role, roleOf(m) + (m.sync_state ? `, ${m.sync_state}` : ""));
  });
  const links = pairs.filter((p) => p.text).map((p) => `${p.a}–${p.b} ${p.text}`);
  set(svg, { "aria-label": [...picture.members.map((m) => `${m.name} ${roleOf(m)} ${m.sync_state}`.trim()), ...links].join("; ") });
}

function pairsOf(picture) {
  const names = picture.members.map((m) => m.name);
  return names.flatMap((a, i) => names.slice(i + 1).map((b) => {
    const links = picture.links.filter((l) => (l.source === a && l.destination === b) || (l.source === b && l.destination === a));
    const cut = links.filter((l) => l.cut).length, rtt = links.find((l) => l.rtt_ms)?.rtt_ms;
    return { a, b, cut, text: cut === 1 ? "partitioned one way" : cut ? "partitioned" : rtt ? `${rtt.toFixed(1)} ms` : "" };
  }));
}

function roleOf(member) { return member.role === "unknown" ? "unreachable" : member.role; }

function drawMembers(picture) {
  const cells = () => { const row = element("tr"); row.append(element("th", { scope: "row" }), ...Array.from({ length: 5 }, () => element("td"))); return row; };
  keyed($("members").tBodies[0], picture.members, (m) => m.name, cells, (row, m) => {
    [m.name, roleOf(m), m.state === roleOf(m) ? "–" : m.state, m.sync_state || "–", String(m.timeline ?? "–"), bytes(m.lag_bytes)].forEach((text, i) => write(row.children[i], text));
    ["", m.role, "", "", "n", "n"].forEach((name, i) => set(row.children[i], { class: name }));
  });
}

function drawActions(picture) {
  const actions = picture.actions || [], here = actions.filter((a) => !a.needs_member);
  $("actions").hidden = !actions.length;
  const rows = [...picture.members.map((m) => ({ member: m.name, offered: actions.filter((a) => a.needs_member) })), { member: "", offered: here }];
  const row = (r) => { const made = element("div", { role: "group", "aria-label": r.member || "cluster" }); made.append(element("b", {}, r.member || "cluster"), element("span")); made.lastChild.style.display = "contents"; return made; };
  keyed($("buttons"), rows, (r) => r.member, row, (made, r) => {
    keyed(made.lastChild, r.offered, (a) => a.name, (a) => button(a, r.member), (pressed, a) => { pressed.disabled = Boolean(a.why_not) || !picture.can_act; });
  });
  const reasons = new Map();
  for (const a of actions) if (a.why_not) reasons.set(a.why_not, [...(reasons.get(a.why_not) || []), a.name]);
  const lines = [...reasons].map(([why, names]) => `${names.join(", ")}: ${why}`);
  if (!picture.can_act) lines.unshift("This tab can only watch. To act, open the whole address that walproof watch printed: it ends with # and a token.");
  keyed($("unavailable"), lines, (text) => text, (text) => element("li", {}, text), () => {});
  const last = picture.action;
  if (last && last.number) write($("action"), `${last.text}: ${last.state === "running" ? "running …" : last.state}`);
  if (last && last.state === "failed" && last.number !== shownFailure) {
    shownFailure = last.number;
    showError(`${last.text} failed: ${last.error}`);
  }
}

function button(action, member) {
  const label = action.name === "recover" ? "Recover" : action.name;
  const made = element("button", { type: "button", "aria-label": member ? `${label} ${member}` : label, title: action.effect }, label);
  if (action.name === "recover") made.className = "main";
  made.addEventListener("click", () => (action.name === "recover" ? act(action.name, member) : ask(action, member)));
  return made;
}

function ask(action, member) {
  const dialog = $("confirm"), what = member ? `${action.name} ${member}` : action.name;
  const role = member && document.querySelector(`#members [data-key="${CSS.escape(member)}"] td`).textContent;
  $("confirm-title").textContent = member ? `${what} (${role})?` : `${what}?`;
  $("confirm-effect").textContent = `${action.effect[0].toUpperCase()}${action.effect.slice(1)}.${member ? " Recover clears it." : ""}`;
  $("confirm-act").textContent = what;
  dialog.returnValue = "";
  dialog.onclose = () => { if (dialog.returnValue === "act") act(action.name, member); };
  dialog.showModal();
}

async function act(action, member) {
  const what = `${action} ${member}`.trim();
  try {
    const answer = await fetch("act", { method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify({ action, member }) });
    if (!answer.ok) showError(`${what} was refused: ${await reasonOf(answer)}`);
  } catch (error) { showError(`${what} was not sent: walproof watch cannot be reached (${error.message})`); }
}

async function reasonOf(answer) {
  const text = await answer.text();
  try { return JSON.parse(text).error; } catch { return `${answer.status} ${text || answer.statusText}`; }
}

function showError(text) {
  const line = element("p"), dismiss = element("button", { type: "button", "aria-label": "Dismiss this error" }, "Dismiss");
  dismiss.addEventListener("click", () => line.remove());
  line.append(element("span", {}, text), dismiss);
  $("errors").append(line);
}

function drawEvents(picture) {
  keyed($("events"), picture.events.slice(-40).reverse(), (e) => `${e.at} ${e.text}`, (e) => {
    const line = element("li", { class: e.kind });
    line.append(element("time", {}, clock(e.at)), e.text);
    return line;
  }, () => {});
  $("events").parentNode.setAttribute("aria-live", "polite"); // only what comes after the first picture is spoken
}

function drawSilent(silent) {
  const [known, typed, not] = $("silent").children;
  if (silent) { write(known, silent.text); write(typed.lastChild, silent.command); write(not, silent.not); }
  $("silent").hidden = !silent;
}

// By this clock alone: a server whose collector died sends nothing, or its old picture.
function showAge() {
  const stale = renewed !== null && performance.now() - renewed > STALE_MS;
  if (stale) write($("stale"), `not renewed since ${clock((performance.timeOrigin + renewed) / 1000)}: what is shown may no longer be so`);
  if (stale) set($("summary"), { class: "bad" });
  $("stale").hidden = !stale;
}
setInterval(showAge, 500);

function draw(picture) {
  renewed = picture.stale_s === null ? null : performance.now() - 1000 * picture.stale_s;
  const known = picture.members.length > 0, waits = picture.waiting === 1 ? "1 session waits" : `${picture.waiting} sessions wait`;
  document.title = picture.leader ? `${picture.leader} leads · walproof` : "walproof live";
  write($("target"), picture.target);
  write($("summary"), picture.summary || (known ? "" : "no snapshot of a cluster yet"));
  set($("summary"), { class: picture.severity });
  write($("detail"), !known ? "" : (picture.standby_names ? `synchronous_standby_names = ${picture.standby_names}` : "synchronous_standby_names is empty") + (picture.waiting ? `; ${waits} for a standby, the longest ${picture.longest_wait_s.toFixed(1)} s` : ""));
  write($("waits"), picture.waits);
  drawSilent(picture.silent_leader);
  $("cluster").hidden = !known;
  if (known) { drawMap(picture); drawMembers(picture); drawActions(picture); }
  const names = new Set(charts.flatMap((chart) => chart.draw(picture)));
  for (const [legend, series] of [["legend", SERIES], ["causes", Object.keys(CAUSES)]]) {
    keyed($(legend), series.filter((n) => names.has(n)), (n) => n, (n) => { const item = element("li"), mark = element("i"); mark.style.background = colourOf(n); item.append(mark, nameOf(n)); return item; }, () => {});
  }
  const probes = Object.entries(picture.probes);
  write($("probes"), probes.length ? `canary commits: ${probes.map(([outcome, count]) => `${count.toLocaleString("en")} ${outcome}`).join(", ")}` : "");
  drawEvents(picture);
  document.body.dataset.at = picture.at;
  showAge();
}

// Server-sent events by fetch: unlike EventSource it sends the token as a header and shows why it was refused.
async function follow() {
  const answer = await fetch("events", { headers, cache: "no-store" });
  if (!answer.ok) return showError(`the page cannot watch: ${await reasonOf(answer)}`);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the stream ended");
    const messages = (rest + value).split("\n\n");
    rest = messages.pop();
    try { if (messages.length) draw(JSON.parse(messages.at(-1).slice("data: ".length))); } catch (error) { reportError(error); }
  }
}

function connect() {
  follow().catch((error) => {
    $("summary").textContent = `walproof watch has ended or cannot be reached; trying again (${error.message})`;
    set($("summary"), { class: "bad" });
    setTimeout(connect, RETRY_MS);
  });
}
connect();
