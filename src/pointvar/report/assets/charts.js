// Curves: drawn in a square of 1000 units that is stretched over the plot, with labels as HTML beside it, so that text
// has one size everywhere. Names only ever become text; what is written as markup here is numbers and colours.
"use strict";

// From values to places between 0 and 1, and round numbers on the way. Logarithmic axes work on exponents of ten.
const axis = (values, { log = false, limits = null, margin = 0.05, whole = false }) => {
  const scale = (v) => log ? Math.log10(Math.min(Math.max(v, 1e-20), 1e20)) : v;
  const known = (limits ?? values.filter((v) => typeof v === "number")).map(scale);
  let low = known.reduce((a, b) => Math.min(a, b), Infinity), high = known.reduce((a, b) => Math.max(a, b), -Infinity);
  if (!known.length) [low, high] = [0, 1];
  if (!limits) {
    const least = log ? 1 : low === high ? Math.abs(low) * 0.1 || 1 : 0; // an axis needs some length
    const missing = Math.max(0, least - (high - low)) / 2;
    const padding = missing + margin * (high - low + 2 * missing);
    [low, high] = [low - padding, high + padding];
  }
  const at = (v) => (Math.min(Math.max(scale(v), low), high) - low) / (high - low);
  const steps = (step) => Array.from({ length: Math.max(0, Math.floor(high / step + 1e-9) - Math.ceil(low / step - 1e-9) + 1) },
    (_, i) => (i + Math.ceil(low / step - 1e-9)) * step);
  if (log) {
    const powers = steps(Math.max(1, Math.ceil((high - low) / 6))).map((p) => 10 ** p);
    const between = () => steps(1).concat(Math.floor(low)).flatMap((p) => [1, 2, 5].map((m) => m * 10 ** p));
    return { at, ticks: powers.length > 2 ? powers : [...new Set(between())].filter((v) => scale(v) >= low && scale(v) <= high) };
  }
  const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  if (!whole) return { at, ticks: steps(step) };
  step = Math.max(1, Math.ceil(step)); // counts begin where they begin, mostly at 1
  return { at, ticks: [low, ...steps(step).filter((v) => v > low + step / 3)] };
};

for (const figure of document.querySelectorAll(".chart")) {
  const { x, curves, log, reference, limits, xlabel } = data(figure);
  const plot = figure.querySelector(".plot");
  const across = axis(x, { margin: 0, whole: x.every(Number.isInteger) });
  const up = axis([reference, ...curves.flatMap((c) => [...c.values, ...c.low ?? [], ...c.high ?? []])], { log, limits });
  const place = (i, v) => `${(1000 * across.at(x[i])).toFixed(1)} ${(1000 * (1 - up.at(v))).toFixed(1)}`;
  // JSON has no infinity: on a logarithmic axis it stays at the edge, else it breaks the line, as NaN does.
  const number = (v) => typeof v === "number" ? v : log ? { "∞": 1e20, "−∞": 1e-20 }[v] : undefined;

  const line = (values) => {
    let path = "", begun = false;
    values.forEach((value, i) => {
      if (value === null) return;
      const known = number(value);
      // A line of no length with round ends is a dot, which single values between gaps would not have.
      if (known !== undefined) path += begun ? `L${place(i, known)}` : `M${place(i, known)}h0`;
      begun = known !== undefined;
    });
    return path;
  };
  const band = ({ low, high }) => {
    const both = (low ?? []).map((_, i) => i).filter((i) => number(low[i]) !== undefined && number(high[i]) !== undefined);
    const edge = [...both.map((i) => place(i, number(high[i]))), ...both.reverse().map((i) => place(i, number(low[i])))];
    return edge.length ? `<path class="band" d="M${edge.join("L")}Z"/>` : "";
  };
  const rule = (v, name) => `<path class="${name}" d="M${[0, 1000].map((u) => `${u} ${1000 * (1 - up.at(v))}`).join("L")}"/>`;
  plot.innerHTML = `<svg viewBox="0 0 1000 1000" preserveAspectRatio="none">${up.ticks.map((v) => rule(v, "rule")).join("")}${
    reference === null ? "" : rule(reference, "reference")}${
    curves.map((c, n) => `<g data-curve="${n}" style="--base: ${c.color}"${c.dashed ? ' class="dashed"' : ""}>${band(c)}<path d="${line(c.values)}"/></g>`).join("")}</svg>`;
  for (const v of up.ticks) element(plot, "span", tell(v), "y").style.bottom = `${100 * up.at(v)}%`;
  for (const v of across.ticks) element(plot, "span", tell(v), "x").style.left = `${100 * across.at(v)}%`;

  const cursor = element(plot, "div", "", "cursor"), tip = element(plot, "div", "", "tip");
  const hide = () => { cursor.hidden = tip.hidden = true; };
  const point = (event) => {
    const box = plot.getBoundingClientRect(), pointed = (event.clientX - box.left) / box.width;
    const gap = (i) => Math.abs(across.at(x[i]) - pointed);
    const nearest = x.reduce((best, _, i) => gap(i) < gap(best) ? i : best, 0);
    const shown = curves.filter((c, n) => c.values[nearest] != null && !plot.querySelector(`[data-curve="${n}"]`).style.display);
    if (!shown.length) return hide();
    cursor.hidden = false;
    cursor.style.left = `${100 * across.at(x[nearest])}%`;
    showTip(tip, [across.at(x[nearest]) * box.width, event.clientY - box.top], `${xlabel} ${tell(x[nearest])}`,
      shown.map((c) => [c.name, tell(c.values[nearest]), c.color]));
  };
  hide();
  plot.addEventListener("pointermove", point);
  plot.addEventListener("pointerdown", point);
  plot.addEventListener("pointerleave", hide);
}

// A legend hides and shows curves: of its chart, or of all its panels.
for (const button of document.querySelectorAll(".legend button[data-curve]")) button.addEventListener("click", () => {
  const on = toggle(button), lines = `svg [data-curve="${button.dataset.curve}"]`;
  for (const line of button.closest(".panels, .chart").querySelectorAll(lines)) line.style.display = on ? "" : "none";
});
