// The theme, contents that show where one is, tables that sort; and what charts and clouds share.
"use strict";

const element = (parent, tag, text, name = "") => {
  const made = parent.appendChild(document.createElement(tag));
  made.className = name;
  made.textContent = text;
  return made;
};
const data = (figure) => JSON.parse(figure.querySelector("script").textContent);

// A number in four digits, as people write it; what is no number is a word already.
const tell = (value) => {
  if (typeof value !== "number") return value ?? "–";
  const size = Math.abs(value);
  if (size === 0 || (size >= 1e-3 && size < 1e6)) {
    const rounded = Number.isInteger(value) ? value : Number(value.toPrecision(4));
    return rounded.toLocaleString("en", { maximumFractionDigits: 6 }).replace("-", "−");
  }
  const [digits, power] = value.toExponential(2).split("e");
  const raised = power.replace("+", "").replace(/./g, (c) => c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]);
  return `${Number(digits) === 1 ? "" : `${Number(digits)}×`}10${raised}`.replace("-", "−");
};

// What is under the pointer: a heading, and rows of a name, a value and a colour.
const showTip = (tip, [x, y], heading, rows) => {
  tip.replaceChildren();
  element(tip, "b", heading);
  for (const [name, value, color] of rows) {
    const row = element(tip, "div", name);
    if (color) row.style.setProperty("--base", color);
    element(row, "i", value);
  }
  tip.hidden = false;
  const { clientWidth: width, clientHeight: height } = tip.parentElement;
  const left = x + 14 + tip.offsetWidth < width ? x + 14 : x - 14 - tip.offsetWidth;
  tip.style.left = `${Math.max(left, 4 - tip.parentElement.getBoundingClientRect().left)}px`;
  tip.style.top = `${Math.max(0, Math.min(y + 10, height - tip.offsetHeight - 4))}px`;
};

const toggle = (button) => {
  const on = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", on);
  return on;
};

{
  const root = document.documentElement;
  const remembered = (value) => {
    try { // a browser may forbid files to remember anything
      if (value) localStorage.setItem("pointvar-theme", value);
      return localStorage.getItem("pointvar-theme");
    } catch { return null; }
  };
  root.style.colorScheme = remembered() ?? "";
  document.getElementById("theme").addEventListener("click", () => {
    const now = root.style.colorScheme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    root.style.colorScheme = now === "dark" ? "light" : "dark";
    remembered(root.style.colorScheme);
  });
}

{
  const links = [...document.querySelectorAll("nav a")];
  const follow = () => {
    const passed = links.filter((a) => document.getElementById(a.hash.slice(1)).getBoundingClientRect().top < innerHeight / 3);
    const link = passed.at(-1) ?? links[0];
    if (link.className === "here") return;
    links.forEach((a) => { a.className = a === link ? "here" : ""; });
    link.parentElement.scrollTo(link.offsetLeft - 40, link.offsetTop - link.parentElement.clientHeight / 2);
  };
  if (links.length) {
    addEventListener("scroll", follow, { passive: true });
    follow();
  }
}

for (const table of document.querySelectorAll("table:not(.matrix)")) {
  const heads = [...table.querySelectorAll("th")];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    const numeric = head.className === "n" || head.style.textAlign === "right";
    const key = ({ cells: { [column]: cell } }) => {
      if (!numeric) return cell.textContent;
      return Number.parseFloat(cell.dataset.key ?? cell.textContent.replaceAll(",", "").replace("−", "-"));
    };
    button.addEventListener("click", () => {
      // Numbers begin with the largest, text with A; what is empty stays at the end.
      const down = head.ariaSort ? head.ariaSort === "ascending" : numeric;
      heads.forEach((h) => { h.ariaSort = null; });
      head.ariaSort = down ? "descending" : "ascending";
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        if (numeric && (isNaN(x) || isNaN(y))) return isNaN(x) - isNaN(y);
        return (down ? -1 : 1) * (numeric ? x - y : x.localeCompare(y, "en", { numeric: true }));
      }));
    });
  });
}
