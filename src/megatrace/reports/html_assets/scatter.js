// Bandwidth of every collective against its size, both logarithmic: one mark a group and size, its shape the
// operation, its area the time that went into it.
class Scatter extends Chart {
  constructor(holder, data) {
    super(holder, { height: (w) => (w < 600 ? 260 : 320), margin: { left: 78, right: 18, top: 12, bottom: 28 }, axes: "xy" });
    this.size = data.scatter_bytes;
    this.speed = data.scatter_speed;
    this.time = data.scatter_time;
    this.items = facts.scatter;
    this.most = this.time.reduce((a, b) => Math.max(a, b), 1);
    const xs = Array.from(this.size, Math.log2), ys = Array.from(this.speed, Math.log10);
    const low = Math.floor(Math.min(...ys) - 0.2), high = Math.ceil(Math.max(...ys) + 0.2);
    this.full = { x0: Math.floor(Math.min(...xs) - 1), x1: Math.ceil(Math.max(...xs) + 1), y0: high, y1: low };
    // The vertical axis runs upwards, so the view keeps its greater end first; panning along it is not offered.
    this.axes = "x";
    this.view = { ...this.full };
    this.leastX = 1;
    this.ops = [...new Set(this.items.map((item) => item.op))];
    this.ops.forEach((op, k) => this.swatch(op, (c, w, h) => this.mark(c, k, w / 2, h / 2, 5)));
    this.ready = true;
  }

  mark(c, op, x, y, r) {
    c.fillStyle = tintOf(["compute", "communication", "memory", "launch", "host", "synchronisation"][op % 6]);
    c.strokeStyle = colours.sheet;
    c.lineWidth = 1;
    c.beginPath();
    const shape = op % 4;
    if (shape === 0) c.arc(x, y, r, 0, 7);
    else if (shape === 1) c.rect(x - r * 0.9, y - r * 0.9, r * 1.8, r * 1.8);
    else if (shape === 2) { c.moveTo(x, y - r * 1.2); c.lineTo(x + r * 1.1, y + r * 0.8); c.lineTo(x - r * 1.1, y + r * 0.8); c.closePath(); }
    else { c.moveTo(x, y - r * 1.25); c.lineTo(x + r * 1.25, y); c.lineTo(x, y + r * 1.25); c.lineTo(x - r * 1.25, y); c.closePath(); }
    c.fill();
    c.stroke();
  }

  radius(n) { return 4 + 9 * Math.sqrt(this.time[n] / this.most); }
  place(n) { return { x: this.px(Math.log2(this.size[n])), y: this.py(Math.log10(this.speed[n])) }; }

  draw(c) {
    const i = this.inner;
    c.textAlign = "right";
    for (let power = this.full.y1; power <= this.full.y0; power++) {
      const y = Math.round(this.py(power)) + 0.5;
      c.fillStyle = colours.grid;
      c.fillRect(i.x, y, i.w, 1);
      c.fillStyle = colours.soft;
      c.fillText(rate(10 ** power), i.x - 8, y);
    }
    c.textAlign = "center";
    for (const power of ticks(this.view.x0, this.view.x1, Math.max(2, Math.floor(i.w / 64)))) {
      const x = Math.round(this.px(power)) + 0.5;
      c.fillStyle = colours.grid;
      c.fillRect(x, i.y, 1, i.h);
    }
    this.bottomAxis(c, words.bytes_axis, (value) => bytes(2 ** value));
    this.clip(c, () => {
      const order = Array.from(this.items.keys()).sort((a, b) => this.time[b] - this.time[a]);
      for (const n of order) {
        const { x, y } = this.place(n);
        this.mark(c, this.ops.indexOf(this.items[n].op), x, y, this.radius(n));
      }
    });
  }

  near(cursor) {
    let best = -1, off = 400;
    for (let n = 0; n < this.items.length; n++) {
      const { x, y } = this.place(n);
      const d = (x - cursor.px) ** 2 + (y - cursor.py) ** 2;
      if (d < Math.max(off, 0) && d < (this.radius(n) + 6) ** 2) { best = n; off = d; }
    }
    return best;
  }

  hover(cursor) {
    const n = this.near(cursor);
    if (n < 0) return null;
    const item = this.items[n];
    return [`${item.op} · ${item.group}`, bytes(this.size[n]), `${item.measure} ${rate(this.speed[n])}`,
      `${item.count.toLocaleString("en")} × ${ns(item.p50)}`, `${words.exposed} ${ns(item.exposed)}`].join("\n");
  }

  step(dx) {
    const order = Array.from(this.items.keys()).sort((a, b) => this.size[a] - this.size[b]);
    const now = this.cursor ? order.indexOf(this.near(this.cursor)) : -1;
    const n = order[Math.min(Math.max(now + (dx || 1), 0), order.length - 1)];
    this.goTo(Math.log2(this.size[n]), Math.log10(this.speed[n]));
  }

  overlay(c) {
    for (const place of [this.pinned, this.cursor]) {
      const n = place ? this.near({ px: this.px(place.x), py: this.py(place.y) }) : -1;
      if (n < 0) continue;
      const { x, y } = this.place(n);
      c.strokeStyle = colours.ink;
      c.lineWidth = 2;
      c.beginPath();
      c.arc(x, y, this.radius(n) + 3, 0, 7);
      c.stroke();
    }
  }
}
