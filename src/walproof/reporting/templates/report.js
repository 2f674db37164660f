"use strict";
// Hovering, walking by arrow keys, and opening evidence. The page is whole without it.
(() => {
  const tip = document.getElementById("tip");
  const said = new Map();
  for (const title of document.querySelectorAll("svg .hit > title")) {
    said.set(title.parentNode, title.textContent);
    title.remove();
  }
  const show = (group, x, y) => {
    tip.textContent = said.get(group) || "";
    tip.hidden = false;
    const box = tip.getBoundingClientRect(), gap = 14;
    const left = Math.min(Math.max(8, x + gap), document.documentElement.clientWidth - box.width - 8);
    const above = y - box.height - gap;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 8 ? above : y + gap}px`;
    document.querySelectorAll(".hit.now").forEach((g) => g.classList.remove("now"));
    group.classList.add("now");
  };
  let walked = null;  // the group that the keys showed: it stays while the page scrolls beneath a pointer at rest
  const beside = (group) => {
    const box = group.getBoundingClientRect();
    show(group, box.left + box.width / 2, box.top + box.height / 2);
  };
  const hide = () => {
    walked = null;
    tip.hidden = true;
    document.querySelectorAll(".hit.now").forEach((g) => g.classList.remove("now"));
  };
  let pointer = [-1, -1];
  const under = () => {
    const [x, y] = pointer, found = document.elementFromPoint(x, y);
    const group = found && found.closest("svg .hit");
    if (group) show(group, x, y); else hide();
  };
  document.addEventListener("pointermove", (event) => {
    if (walked && !event.movementX && !event.movementY) return;
    walked = null;
    pointer = [event.clientX, event.clientY];
    under();
  });
  document.addEventListener("scroll", () => (walked ? beside(walked) : under()), { passive: true });
  for (const svg of document.querySelectorAll("svg[tabindex]")) {
    let at = -1;
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") hide();
      if (!step) return;
      event.preventDefault();
      const groups = [...svg.querySelectorAll(".hit")];
      if (!groups.length) return;
      at = (at + step + groups.length) % groups.length;
      walked = groups[at];
      beside(walked);
    });
    svg.addEventListener("blur", () => { at = -1; hide(); });
  }
  const open = () => {
    const id = decodeURIComponent(location.hash.slice(1));
    const target = id && document.getElementById(id);
    if (target && target.tagName === "DETAILS") {
      target.open = true;
      target.querySelector("summary").focus({ preventScroll: true });
      target.scrollIntoView();
    }
  };
  addEventListener("hashchange", open);
  document.addEventListener("click", (event) => {
    const link = event.target.closest && event.target.closest("a[href^='#cell-']");
    if (link && link.hash === location.hash) open();
  });
  open();
})();
