"use strict";
// Tooltips by pointer and arrow keys, opening of linked evidence, a sticky navigation, everything expanded in print.
// The page is complete without it.
(() => {
  const tip = document.getElementById("tip");
  const tooltips = new Map();
  for (const title of document.querySelectorAll("svg .hit > title")) {
    tooltips.set(title.parentNode, title.textContent);
    title.remove();
  }
  // The browser would show an image's <title> on top of the tooltips: its name moves into an attribute.
  for (const title of document.querySelectorAll("svg > title")) {
    title.parentNode.setAttribute("aria-label", title.textContent);
    title.remove();
  }
  const show = (group, x, y) => {
    tip.hidden = false;
    const text = tooltips.get(group) || "";
    if (tip.textContent !== text) tip.textContent = text;
    const box = tip.getBoundingClientRect(), gap = 14;
    const left = Math.min(Math.max(8, x + gap), document.documentElement.clientWidth - box.width - 8);
    const above = y - box.height - gap;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 8 ? above : y + gap}px`;
    document.querySelectorAll(".hit.now").forEach((g) => g.classList.remove("now"));
    group.classList.add("now");
  };
  let stepped = null;  // the value that the arrow keys reached: it stays shown while the page scrolls under the pointer
  const showAt = (group) => {
    const box = group.getBoundingClientRect();
    show(group, box.left + box.width / 2, box.top + box.height / 2);
  };
  const hide = () => {
    stepped = null;
    tip.hidden = true;
    document.querySelectorAll(".hit.now").forEach((g) => g.classList.remove("now"));
  };
  let pointer = [-1, -1];
  const showUnderPointer = () => {
    const [x, y] = pointer, found = document.elementFromPoint(x, y);
    const group = found && found.closest("svg .hit");
    if (group) show(group, x, y); else hide();
  };
  const follow = (event) => {
    if (stepped && event.type === "pointermove" && !event.movementX && !event.movementY) return;
    stepped = null;
    pointer = [event.clientX, event.clientY];
    showUnderPointer();
  };
  document.addEventListener("pointermove", follow);
  document.addEventListener("pointerdown", follow);
  document.addEventListener("scroll", () => (stepped ? showAt(stepped) : showUnderPointer()), { passive: true });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  for (const svg of document.querySelectorAll("svg[tabindex]")) {
    let at = -1;
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const groups = [...svg.querySelectorAll(".hit")];
      if (!step || !groups.length) return;
      event.preventDefault();
      at = at < 0 && step < 0 ? groups.length - 1 : (at + step + groups.length) % groups.length;
      stepped = groups[at];
      showAt(stepped);
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

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    opened.forEach((one) => { one.open = true; });
  });
  addEventListener("afterprint", () => {
    opened.forEach((one) => { one.open = false; });
    opened = [];
  });

  // The navigation shows every section, on as many lines as that takes; it stays in view only where it is low.
  const nav = document.querySelector("nav");
  const stick = () => {
    nav.classList.toggle("sticky", nav.offsetHeight < innerHeight / 8);
    const covered = nav.classList.contains("sticky") ? nav.offsetHeight : 0;
    document.documentElement.style.setProperty("--covered", `${covered}px`);
  };
  addEventListener("resize", stick);
  stick();
  open();
})();
