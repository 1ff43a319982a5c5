// Theme, tables that sort, curves that tell their values.
"use strict";
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const remembered = (value) => {
    try { // a browser may forbid files to remember anything
      if (value) localStorage.setItem("pointvar-theme", value);
      return localStorage.getItem("pointvar-theme");
    } catch { return null; }
  };
  const show = (theme) => { root.style.colorScheme = theme ?? ""; };
  show(remembered());
  document.getElementById("theme").addEventListener("click", () => {
    const now = root.style.colorScheme || (dark.matches ? "dark" : "light");
    const next = now === "dark" ? "light" : "dark";
    remembered(next);
    show(next);
  });

  // The contents show where one is.
  const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.hash.slice(1), a]));
  if (links.size) {
    const headings = [...links.keys()].map((id) => document.getElementById(id));
    let here = null;
    const follow = () => {
      const passed = headings.filter((h) => h.getBoundingClientRect().top < innerHeight / 3);
      const link = links.get((passed.at(-1) ?? headings[0]).id);
      if (link === here) return;
      here?.classList.remove("here");
      link.classList.add("here");
      const list = link.parentElement;
      const [left, top] = [link.offsetLeft - 40, link.offsetTop - list.clientHeight / 2];
      list.scrollTo({ left, top, behavior: here ? "smooth" : "instant" });
      here = link;
    };
    addEventListener("scroll", follow, { passive: true });
    follow();
  }

  for (const table of document.querySelectorAll("table")) {
    const heads = [...table.querySelectorAll("th")];
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const numeric = head.classList.contains("n");
      const before = head.getAttribute("aria-sort");
      // Numbers begin with the largest, text with A; what is empty stays at the end.
      const down = before ? before === "ascending" : numeric;
      heads.forEach((h) => h.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => {
        const cell = row.cells[column];
        const number = Number(cell.dataset.key || NaN);
        return numeric ? number : cell.textContent;
      };
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        if (numeric && (isNaN(x) || isNaN(y))) return isNaN(x) - isNaN(y);
        const order = numeric ? x - y : x.localeCompare(y, "en", { numeric: true });
        return down ? -order : order;
      });
      table.tBodies[0].append(...rows);
    }));
  }

  const number = (value) => {
    if (typeof value !== "number") return value ?? "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
    return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));
  };

  for (const figure of document.querySelectorAll(".chart")) {
    const { x, at, xlabel, curves } = JSON.parse(figure.querySelector("script").textContent);
    const plot = figure.querySelector(".plot");
    const cursor = plot.appendChild(document.createElement("div"));
    const tip = plot.appendChild(document.createElement("div"));
    cursor.className = "cursor";
    tip.className = "tip";
    const hide = () => { cursor.hidden = tip.hidden = true; };
    hide();
    const point = (event) => {
      const box = plot.getBoundingClientRect();
      const place = (event.clientX - box.left) / box.width;
      let nearest = -1;
      at.forEach((p, i) => {
        if (nearest < 0 || Math.abs(p - place) < Math.abs(at[nearest] - place)) nearest = i;
      });
      const drawn = (curve) => !plot.querySelector(`[data-curve="${curves.indexOf(curve)}"]`).hasAttribute("display");
      const rows = curves.filter((c) => c.values[nearest] != null && drawn(c));
      if (nearest < 0 || !rows.length) return hide();
      const head = document.createElement("b");
      head.textContent = `${xlabel} ${number(x[nearest])}`;
      tip.replaceChildren(head, ...rows.map((curve) => {
        const row = document.createElement("div");
        const value = document.createElement("i");
        row.className = curve.style;
        value.textContent = number(curve.values[nearest]);
        row.append(curve.name, value);
        return row;
      }));
      cursor.hidden = tip.hidden = false;
      cursor.style.left = `${100 * at[nearest]}%`;
      const left = at[nearest] * box.width;
      const room = left + 14 + tip.offsetWidth < box.width;
      tip.style.left = `${Math.max(room ? left + 14 : left - 14 - tip.offsetWidth, -box.left + 4)}px`;
      tip.style.top = `${Math.min(Math.max(event.clientY - box.top - tip.offsetHeight / 2, 0), Math.max(box.height - tip.offsetHeight, 0))}px`;
    };
    plot.addEventListener("pointermove", point);
    plot.addEventListener("pointerdown", point);
    plot.addEventListener("pointerleave", hide);
  }

  // A legend hides and shows curves: of its chart, or of all its panels.
  for (const button of document.querySelectorAll(".legend button[data-curve]")) {
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", on);
      for (const line of button.closest(".panels, .chart").querySelectorAll(`svg [data-curve="${button.dataset.curve}"]`)) {
        if (on) line.removeAttribute("display"); else line.setAttribute("display", "none");
      }
    });
  }
})();
