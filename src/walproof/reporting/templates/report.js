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
  const hide = () => {
    tip.hidden = true;
    document.querySelectorAll(".hit.now").forEach((g) => g.classList.remove("now"));
  };
  document.addEventListener("pointermove", (event) => {
    const group = event.target.closest && event.target.closest("svg .hit");
    if (group) show(group, event.clientX, event.clientY); else hide();
  });
  document.addEventListener("scroll", hide, { passive: true });
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
      const box = groups[at].getBoundingClientRect();
      show(groups[at], box.left + box.width / 2, box.top + box.height / 2);
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
