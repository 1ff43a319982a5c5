// Point clouds that can be turned: drawn by hand into the pixels of a canvas, with a depth buffer, so that it looks the
// same with and without a graphics card, and the point under the pointer is known.
"use strict";

const MOVING = 24; // milliseconds that a picture may take while it moves; then fewer points are drawn
const FOCAL = 2.4;
const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const packed = (r, g, b) => (255 << 24 | b << 16 | g << 8 | r) >>> 0;

const groups = new Map(); // views side by side that show one cloud: they turn together, and share their buttons

class View {
  constructor(figure) {
    const given = data(figure), stage = figure.querySelector(".stage");
    const group = figure.closest(".versions") ?? figure;
    this.small = group !== figure;
    this.together = groups.get(group) ?? groups.set(group, []).get(group);
    const first = this.together.push(this) === 1;
    const [canvas, hint, tip] = stage.querySelectorAll("canvas, .hint, .tip");
    Object.assign(this, { canvas, hint, tip, ...given, part: 1 });
    this.points = Float32Array.from(new Int16Array(bytes(given.positions).buffer), (v) => v / 65534);
    this.layers = given.layers.map((layer) => ({ ...layer, data: bytes(layer.data), hidden: new Uint8Array(256) }));
    this.modes = [...group.querySelectorAll(".modes button")];
    this.legends = [...group.querySelectorAll(".legend")];
    this.modes.forEach((button, i) => button.addEventListener("click", () => this.choose(i)));
    this.legends.forEach((legend, i) => legend.querySelectorAll("button").forEach((button, c) => {
      const follow = () => { this.layers[i].hidden[c] = button.getAttribute("aria-pressed") !== "true"; this.draw(); };
      if (first) button.addEventListener("click", () => toggle(button));
      button.addEventListener("click", follow);
      follow();
    }));
    this.listen();
    if (first) this.reset();
    else this.together[0].share((view) => view.draw());
    this.choose(Math.max(this.modes.findIndex((button) => button.getAttribute("aria-pressed") === "true"), 0));
    new ResizeObserver(() => this.draw()).observe(stage);
  }

  reset() {
    const [yaw, pitch] = this.above ? [0, Math.PI / 2] : [-0.6, 0.45];
    Object.assign(this, { yaw, pitch, distance: this.radius * FOCAL * (this.small ? 1.05 : 0.9), shift: [0, 0] });
    this.share((view) => view.draw());
  }

  share(act) { // what this view shows now, the others of its group show too
    const { yaw, pitch, distance, shift } = this;
    for (const view of this.together) act(Object.assign(view, { yaw, pitch, distance, shift }));
  }

  choose(index) {
    this.layer = this.layers[index];
    this.modes.forEach((button, i) => button.setAttribute("aria-pressed", i === index));
    this.legends.forEach((legend, i) => { legend.hidden = i !== index; });
    const { colors, data } = this.layer;
    const table = colors?.map((c) => packed(...[1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16))));
    const own = (i) => packed(data[3 * i], data[3 * i + 1], data[3 * i + 2]);
    this.colors = Uint32Array.from({ length: this.count }, (_, i) => table ? table[data[i]] : own(i));
    this.draw();
  }

  draw() {
    this.due ??= requestAnimationFrame(() => { this.due = null; this.paint(); });
  }

  move(change) {
    change();
    this.share((view) => view.moved());
  }

  moved() { // a quick picture now, a fine one when it rests
    this.moving = this.tip.hidden = true;
    this.draw();
    clearTimeout(this.rest);
    this.rest = setTimeout(() => { this.moving = false; this.draw(); }, 160);
  }

  paint() {
    const begin = performance.now();
    const { canvas, points, layer: { data, hidden } } = this;
    const scale = this.moving ? 1 : Math.min(devicePixelRatio || 1, 2);
    const width = Math.round(canvas.clientWidth * scale), height = Math.round(canvas.clientHeight * scale);
    if (!width || !height) return;
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    if (this.depth?.length !== width * height) {
      this.depth = new Float32Array(width * height);
      this.index = new Int32Array(width * height);
      this.image = new ImageData(width, height);
    }
    const { depth, index } = this;
    depth.fill(Infinity);
    index.fill(-1);
    const [cy, sy, cp, sp] = [Math.cos(this.yaw), Math.sin(this.yaw), Math.cos(this.pitch), Math.sin(this.pitch)];
    const focal = Math.min(width, height) * FOCAL / 2, near = this.radius * 0.02;
    const [dx, dy] = [width / 2 + this.shift[0] * scale, height / 2 + this.shift[1] * scale];
    const drawn = this.moving ? Math.ceil(this.count * this.part) : this.count;
    // On a surface points are about this far apart, so that dots of this size close it; a small picture is clearer with gaps.
    const dot = (this.small ? 1 : 1.6) * this.radius / Math.sqrt(drawn);
    for (let i = 0; i < drawn; i++) {
      if (hidden[data[i]]) continue; // only classes can be hidden
      const x = points[3 * i], y = points[3 * i + 1], z = points[3 * i + 2];
      const along = sy * x + cy * y; // away from the viewer, before the pitch
      const away = this.distance + along * cp - z * sp;
      if (away < near) continue;
      const zoom = focal / away;
      const px = dx + (cy * x - sy * y) * zoom, py = dy - (along * sp + z * cp) * zoom;
      const r = Math.min(Math.max(dot * zoom, 0.7 * scale), 9 * scale);
      const x0 = Math.max(Math.round(px - r), 0), x1 = Math.min(Math.round(px + r), width);
      const y0 = Math.max(Math.round(py - r), 0), y1 = Math.min(Math.round(py + r), height);
      const square = r < 1.6 ? Infinity : r * r;
      for (let v = y0; v < y1; v++) for (let u = x0; u < x1; u++) {
        const at = v * width + u;
        if (away < depth[at] && (u + 0.5 - px) ** 2 + (v + 0.5 - py) ** 2 < square) { depth[at] = away; index[at] = i; }
      }
    }
    this.shade(width, height, Math.max(1, Math.round(scale)));
    canvas.getContext("2d", { willReadFrequently: true }).putImageData(this.image, 0, 0);
    const took = performance.now() - begin;
    if (this.moving) this.part = Math.min(1, Math.max(0.05, this.part * Math.min(MOVING / took, 1.5)));
  }

  // Eye-dome lighting: a pixel is darker the farther it lies behind its neighbours, which shows shape without normals.
  shade(width, height, reach) {
    const { depth, index, colors } = this, strength = 5 / this.radius, down = reach * width;
    const pixels = new Uint32Array(this.image.data.buffer);
    for (let v = 0, at = 0; v < height; v++) for (let u = 0; u < width; u++, at++) {
      if (index[at] < 0) { pixels[at] = 0; continue; }
      const here = depth[at], c = colors[index[at]];
      let behind = 0;
      if (u >= reach) behind += Math.max(0, here - depth[at - reach]);
      if (u < width - reach) behind += Math.max(0, here - depth[at + reach]);
      if (v >= reach) behind += Math.max(0, here - depth[at - down]);
      if (v < height - reach) behind += Math.max(0, here - depth[at + down]);
      const light = 0.35 + 0.65 / (1 + strength * behind);
      pixels[at] = packed((c & 255) * light, (c >> 8 & 255) * light, (c >> 16 & 255) * light);
    }
  }

  tell(event) { // what is known of the point under the pointer
    const box = this.canvas.getBoundingClientRect(), scale = this.canvas.width / box.width;
    const [u, v] = [event.clientX - box.left, event.clientY - box.top];
    const i = this.index?.[Math.floor(v * scale) * this.canvas.width + Math.floor(u * scale)] ?? -1;
    if (i < 0) return void (this.tip.hidden = true);
    const place = this.middle.map((middle, c) => tell(middle + this.points[3 * i + c] * this.size));
    const known = this.layers.filter((layer) => layer.colors); // not the colours of the points themselves
    showTip(this.tip, [u, v], place.join(", "), known.map(({ name, names, data, low, high }) =>
      [name, names ? names[data[i]] : tell(low + (high - low) * data[i] / 255)]));
  }

  zoom(factor) {
    this.distance = Math.min(Math.max(this.distance * factor, this.radius * 0.05), this.radius * 20);
  }

  turn(right, up) {
    this.yaw += right;
    this.pitch = Math.min(Math.max(this.pitch + up, -Math.PI / 2), Math.PI / 2);
  }

  listen() {
    const { canvas } = this, held = new Map();
    const on = (name, act) => canvas.addEventListener(name, act, { passive: false });
    let active = false; // a page must scroll over a view that nobody has touched
    const gap = () => { const [a, b] = [...held.values()]; return Math.hypot(a[0] - b[0], a[1] - b[1]); };
    on("pointerdown", (event) => {
      active = this.hint.hidden = true;
      canvas.setPointerCapture(event.pointerId);
      held.set(event.pointerId, [event.clientX, event.clientY]);
    });
    on("pointermove", (event) => {
      const last = held.get(event.pointerId);
      if (!last) return this.tell(event);
      const [dx, dy] = [event.clientX - last[0], event.clientY - last[1]];
      const before = held.size === 2 ? gap() : 0;
      held.set(event.pointerId, [event.clientX, event.clientY]);
      this.move(() => {
        if (held.size === 2) this.zoom(before / Math.max(gap(), 1));
        if (held.size === 2 || event.buttons & 6 || event.shiftKey) this.shift = [this.shift[0] + dx / held.size, this.shift[1] + dy / held.size];
        else if (held.size === 1) this.turn(dx * 0.008, dy * 0.008);
      });
    });
    for (const end of ["pointerup", "pointercancel"]) on(end, (event) => held.delete(event.pointerId));
    on("pointerleave", () => { this.tip.hidden = true; });
    document.addEventListener("pointerdown", (event) => { if (event.target !== canvas) active = false; });
    on("wheel", (event) => {
      if (!active && !event.ctrlKey) return;
      event.preventDefault();
      this.move(() => this.zoom(Math.exp(Math.min(Math.max(event.deltaY, -60), 60) * (event.ctrlKey ? 0.01 : 0.003))));
    });
    on("contextmenu", (event) => event.preventDefault());
    on("dblclick", () => this.reset());
    const keys = {
      ArrowLeft: () => this.turn(-0.1, 0), ArrowRight: () => this.turn(0.1, 0),
      ArrowUp: () => this.turn(0, -0.1), ArrowDown: () => this.turn(0, 0.1),
      "+": () => this.zoom(0.9), "-": () => this.zoom(1.1), 0: () => this.reset(),
    };
    on("keydown", (event) => {
      if (!keys[event.key]) return;
      event.preventDefault();
      this.move(keys[event.key]);
    });
  }
}

// A view is made when it comes near the window: a page may hold many.
const near = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) if (isIntersecting) {
    near.unobserve(target);
    new View(target);
  }
}, { rootMargin: "400px" });
document.querySelectorAll("figure.cloud").forEach((figure) => near.observe(figure));
