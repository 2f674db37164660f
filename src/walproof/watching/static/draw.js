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
