// What every picture has: two canvases (drawing below, pointer above), a view that zooms and pans along one or
// two axes, hover, pin, keyboard, and a line of text that says what is under the pointer.
class Chart {
  // Of a subclass: draw(), hover(point) -> text or null, move(dx, dy), overlay(context).
  constructor(holder, { height, margin, axes = "x" }) {
    this.holder = holder;
    this.marginFor = margin;
    this.axes = axes;
    this.heightFor = height;
    this.full = { x0: 0, x1: 1, y0: 0, y1: 1 };
    this.view = { ...this.full };
    this.cursor = null;
    this.pinned = null;
    this.build();
  }

  build() {
    const title = this.holder.dataset.title;
    this.tools = make("div", { class: "tools" });
    this.legend = make("div", { class: "legend" });
    this.tools.append(this.legend, make("span", { class: "grow" }));
    this.addButton("+", words.zoom_in, () => this.zoom(0.6));
    this.addButton("−", words.zoom_out, () => this.zoom(1 / 0.6));
    this.addButton("⤢", words.reset, () => this.reset());
    this.stack = make("div", { class: "stack", tabindex: "0", role: "application", "aria-label": `${title}. ${words.keys}` });
    this.base = make("canvas", { "aria-hidden": "true" });
    this.over = make("canvas", { "aria-hidden": "true" });
    this.stack.append(this.base, this.over);
    this.tip = make("div", { class: "tip", hidden: "" });
    this.readout = make("p", { class: "readout" });
    this.say(null);
    this.holder.append(this.tools, this.stack, this.tip, this.readout);
    this.listen();
    redraws.push(() => this.redraw());
    new ResizeObserver(() => this.redraw()).observe(this.stack);
  }

  addButton(sign, label, act) {
    const button = make("button", { type: "button", "aria-label": label, title: label }, sign);
    button.addEventListener("click", act);
    this.tools.append(button);
    return button;
  }

  listen() {
    const s = this.stack;
    s.addEventListener("pointermove", (e) => this.onMove(e));
    s.addEventListener("pointerleave", () => { if (!this.drag) this.point(null); });
    s.addEventListener("pointerdown", (e) => {
      if (e.button !== 0) return;
      this.drag = { x: e.offsetX, y: e.offsetY, view: { ...this.view }, moved: false };
      if (e.pointerType === "mouse") s.setPointerCapture(e.pointerId);
    });
    s.addEventListener("pointerup", () => {
      if (this.drag && !this.drag.moved) this.pin();
      this.drag = null;
    });
    s.addEventListener("pointercancel", () => { this.drag = null; });
    s.addEventListener("dblclick", () => this.reset());
    s.addEventListener("wheel", (e) => {
      if (!e.ctrlKey && !e.metaKey) return;
      e.preventDefault();
      this.zoom(e.deltaY < 0 ? 0.8 : 1.25, this.at(e.offsetX, e.offsetY));
    }, { passive: false });
    s.addEventListener("keydown", (e) => this.onKey(e));
    s.addEventListener("blur", () => this.point(null));
  }

  onMove(event) {
    const d = this.drag;
    if (d && Math.hypot(event.offsetX - d.x, event.offsetY - d.y) > 4) d.moved = true;
    if (d && d.moved) {
      const from = this.at(d.x, d.y, d.view), to = this.at(event.offsetX, event.offsetY, d.view);
      this.setView({ x0: d.view.x0 - to.x + from.x, x1: d.view.x1 - to.x + from.x,
        y0: d.view.y0 - to.y + from.y, y1: d.view.y1 - to.y + from.y });
      return;
    }
    this.point({ ...this.at(event.offsetX, event.offsetY), px: event.offsetX, py: event.offsetY });
  }

  onKey(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const step = steps[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (step && event.shiftKey) this.pan(step[0] * 0.2, step[1] * 0.2);
    else if (step) this.step(step[0], step[1]);
    else if (event.key === "+" || event.key === "=") this.zoom(0.6);
    else if (event.key === "-" || event.key === "_") this.zoom(1 / 0.6);
    else if (event.key === "0") this.reset();
    else if (event.key === "Enter" || event.key === " ") this.pin();
    else if (event.key === "Escape") { this.pinned = null; this.point(null); this.onPin(); }
    else return;
    event.preventDefault();
  }

  // ---- the view

  get inner() {
    const { left, right, top, bottom } = typeof this.marginFor === "function" ? this.marginFor(this.width) : this.marginFor;
    return { x: left, y: top, w: Math.max(this.width - left - right, 10), h: Math.max(this.height - top - bottom, 10) };
  }
  px(x) { const i = this.inner, v = this.view; return i.x + ((x - v.x0) / (v.x1 - v.x0)) * i.w; }
  py(y) { const i = this.inner, v = this.view; return i.y + ((y - v.y0) / (v.y1 - v.y0)) * i.h; }
  at(px, py, v = this.view) {
    const i = this.inner;
    return { x: v.x0 + ((px - i.x) / i.w) * (v.x1 - v.x0), y: v.y0 + ((py - i.y) / i.h) * (v.y1 - v.y0) };
  }
  setView(view) {
    const fit = (a, b, low, high) => {
      const size = Math.min(b - a, high - low);
      const start = Math.min(Math.max(a, low), high - size);
      return [start, start + size];
    };
    const f = this.full;
    [view.x0, view.x1] = this.axes.includes("x") ? fit(view.x0, view.x1, f.x0, f.x1) : [f.x0, f.x1];
    [view.y0, view.y1] = this.axes.includes("y") ? fit(view.y0, view.y1, f.y0, f.y1) : [f.y0, f.y1];
    this.view = view;
    if (this.onView) this.onView(view);
    this.later();
  }
  zoom(factor, centre = null) {
    const v = this.view;
    const c = centre ?? this.cursor ?? { x: (v.x0 + v.x1) / 2, y: (v.y0 + v.y1) / 2 };
    const scaled = (a, b, at, least) => {
      const f = Math.max(factor, least / (b - a));
      return [at - (at - a) * f, at + (b - at) * f];
    };
    const [x0, x1] = scaled(v.x0, v.x1, c.x, this.leastX ?? 2);
    const [y0, y1] = scaled(v.y0, v.y1, c.y, this.leastY ?? 4);
    this.setView({ x0, x1, y0, y1 });
  }
  pan(dx, dy) {
    const v = this.view, w = (v.x1 - v.x0) * dx, h = (v.y1 - v.y0) * dy;
    this.setView({ x0: v.x0 + w, x1: v.x1 + w, y0: v.y0 + h, y1: v.y1 + h });
  }
  reset() { this.setView({ ...this.full }); }

  // ---- hover and pin

  point(cursor) {
    this.cursor = cursor;
    const i = this.inner;
    const inside = cursor && cursor.px >= i.x - 2 && cursor.px <= i.x + i.w + 2 && cursor.py >= i.y && cursor.py <= i.y + i.h;
    const text = inside ? this.hover(cursor) : null;
    this.tip.hidden = !text;
    if (text) {
      this.tip.textContent = text;
      const right = cursor.px > this.width * 0.6;
      const x = cursor.px + this.stack.offsetLeft + (right ? -12 - this.tip.offsetWidth : 14);
      this.tip.style.left = `${Math.max(0, x)}px`;
      this.tip.style.top = `${cursor.py + this.stack.offsetTop + 12}px`;
    }
    this.drawOver();
  }
  pin() {
    if (!this.cursor) return;
    this.pinned = { ...this.cursor, text: this.hover(this.cursor) };
    this.onPin();
  }
  onPin() {
    const text = this.pinned?.text;
    this.say(text ?? null);
    if (text) announce(text.replaceAll("\n", ", "));
    this.drawOver();
  }
  // What is pinned, or how to use the picture.
  say(text) {
    if (text) this.readout.replaceChildren(make("b", {}, `${words.pinned}: `), text.replaceAll("\n", " · "));
    else this.readout.replaceChildren(make("span", { class: "hint" }, words.mouse));
  }
  // Puts the cursor on a place of the picture and says what is there (keyboard, search).
  goTo(x, y) {
    const v = this.view;
    if (x < v.x0 || x > v.x1) this.setView({ ...v, x0: x - (v.x1 - v.x0) / 2, x1: x + (v.x1 - v.x0) / 2 });
    if (y < v.y0 || y > v.y1) this.setView({ ...this.view, y0: y - (v.y1 - v.y0) / 2, y1: y + (v.y1 - v.y0) / 2 });
    this.point({ x, y, px: this.px(x), py: this.py(y) });
    if (!this.tip.hidden) announce(this.tip.textContent.replaceAll("\n", ", "));
  }

  // ---- drawing

  later() {
    if (this.planned) return;
    this.planned = true;
    requestAnimationFrame(() => { this.planned = false; this.redraw(); });
  }
  redraw() {
    this.width = this.holder.clientWidth;
    this.height = typeof this.heightFor === "function" ? this.heightFor(this.width) : this.heightFor;
    if (!this.width || !this.ready) return;
    this.stack.style.height = `${this.height}px`;
    const context = this.sized(this.base);
    this.font(context);
    this.draw(context);
    this.drawOver();
  }
  drawOver() {
    if (!this.width || !this.ready) return;
    const context = this.sized(this.over);
    this.font(context);
    this.overlay(context);
  }
  sized(canvas) {
    const scale = Math.min(devicePixelRatio || 1, 2);
    const w = Math.round(this.width * scale), h = Math.round(this.height * scale);
    const context = canvas.getContext("2d");
    if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    return context;
  }
  font(context, weight = 400, size = 12) {
    context.font = `${weight} ${size}px ${colours.font}`;
    context.textBaseline = "middle";
  }
  clip(context, draw) {
    const i = this.inner;
    context.save();
    context.beginPath();
    context.rect(i.x, i.y, i.w, i.h);
    context.clip();
    draw();
    context.restore();
  }
  // The axis below: numbers and its name.
  bottomAxis(context, name, format = (v) => String(v), whole = true) {
    const i = this.inner, v = this.view;
    context.fillStyle = colours.soft;
    context.textAlign = "center";
    let marksAt = ticks(v.x0, v.x1, Math.max(2, Math.floor(i.w / 64)));
    if (whole) marksAt = marksAt.filter((value) => Number.isInteger(Math.round(value * 1e6) / 1e6));
    const nameWidth = context.measureText(name).width;
    for (const value of marksAt) {
      const x = this.px(value);
      if (x < i.x - 1 || x > i.x + i.w - nameWidth - 14) continue;
      context.fillText(format(value), x, i.y + i.h + 14);
    }
    context.textAlign = "right";
    context.fillText(name, i.x + i.w, i.y + i.h + 14);
  }
  swatch(label, paint, wide = false) {
    const canvas = make("canvas", { width: wide ? "240" : "52", height: "24", "aria-hidden": "true", class: wide ? "scale" : null });
    this.legend.append(make("span", {}, canvas, label));
    const draw = () => {
      const context = canvas.getContext("2d");
      context.setTransform(2, 0, 0, 2, 0, 0);
      context.clearRect(0, 0, 120, 12);
      paint(context, wide ? 120 : 26, 12);
    };
    redraws.push(draw);
    return draw;
  }
}

// Slanted lines over a rectangle: waiting, and what was not recorded. A shape, so that no colour is needed.
function hatch(context, x, y, w, h, colour, gap = 5) {
  if (w <= 0 || h <= 0) return;
  context.save();
  context.beginPath();
  context.rect(x, y, w, h);
  context.clip();
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.beginPath();
  // The lines hang together over neighbouring rectangles: they start at multiples of the gap.
  for (let at = Math.floor((x - h) / gap) * gap; at < x + w; at += gap) {
    context.moveTo(at, y + h);
    context.lineTo(at + h, y);
  }
  context.stroke();
  context.restore();
}
