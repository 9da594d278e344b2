// Operators by where they were called: callers above what they call, as wide as the time between start and end.
class Flame extends Chart {
  constructor(holder, data) {
    const depth = facts.flame.depth;
    super(holder, { height: (w) => 28 + depth * (w < 600 ? 22 : 20), margin: { left: 18, right: 18, top: 4, bottom: 22 } });
    this.depth = data.flame_depth;
    this.from = data.flame_at;
    this.total = data.flame_total;
    this.own = data.flame_own;
    this.device = data.flame_device;
    this.count = data.flame_count;
    this.name = data.flame_name;
    this.kind = data.flame_kind;
    this.full = { x0: 0, x1: this.total[0], y0: 0, y1: depth };
    this.view = { ...this.full };
    this.leastX = this.total[0] / 5000;
    facts.flame.kinds.forEach((label, k) => this.swatch(label, (c, w, h) => { c.fillStyle = this.shade(k); c.fillRect(0, 0, w, h); }));
    this.ready = true;
  }

  shade(kind) { return tintOf(["host", "compute", "communication", "launch", "idle"][kind]); }
  label(n) { return facts.flame.names[this.name[n]]; }

  draw(c) {
    const i = this.inner, right = i.x + i.w;
    this.clip(c, () => {
      for (let n = 0; n < this.from.length; n++) {
        const x = this.px(this.from[n]), w = this.px(this.from[n] + this.total[n]) - x;
        if (w < 0.4 || x > right || x + w < i.x) continue;
        const y = this.py(this.depth[n]), h = this.py(this.depth[n] + 1) - y;
        c.fillStyle = this.shade(this.kind[n]);
        c.fillRect(x, y, Math.max(w - 1, 0.6), h - 1);
        const begin = Math.max(x, i.x) + 4, room = Math.min(x + w, right) - begin - 4;
        if (room < 18) continue;
        c.fillStyle = "#14181d";
        if (this.kind[n] === 4 && isDark()) c.fillStyle = colours.ink;
        c.textAlign = "left";
        c.fillText(fitted(c, this.label(n), room), begin, y + h / 2);
      }
    });
    this.bottomAxis(c, words.flame_axis, (value) => ns(value), false);
  }

  near(cursor) {
    const row = Math.floor(cursor.y);
    for (let n = 0; n < this.from.length; n++) {
      if (this.depth[n] === row && cursor.x >= this.from[n] && cursor.x < this.from[n] + this.total[n]) return n;
    }
    return -1;
  }

  hover(cursor) {
    const n = this.near(cursor);
    if (n < 0) return null;
    const lines = [this.label(n), `${ns(this.total[n])} ${words.of_total} ${digits(this.total[n] / this.total[0] * 100)} %`,
      `${words.own} ${ns(this.own[n])}`, `${words.calls_made} ${this.count[n].toLocaleString("en")}`];
    if (this.device[n] > 0) lines.push(`${words.device} ${ns(this.device[n])}`);
    return lines.join("\n");
  }

  // A click on an operator shows it in the whole width; on the first row, all again.
  onPin() {
    super.onPin();
    const n = this.pinned ? this.near(this.pinned) : -1;
    if (n >= 0) this.setView({ x0: this.from[n], x1: this.from[n] + this.total[n], y0: 0, y1: this.full.y1 });
  }

  step(dx, dy) {
    const now = this.cursor ? this.near(this.cursor) : -1;
    if (now < 0) { this.goTo(this.total[0] / 2, 0.5); return; }
    const row = this.depth[now] + dy;
    let best = -1;
    for (let n = 0; n < this.from.length; n++) {
      if (this.depth[n] !== row) continue;
      const middle = this.from[n] + this.total[n] / 2, old = this.from[now] + this.total[now] / 2;
      if (dx > 0 && this.from[n] < this.from[now] + this.total[now] - 1e-9) continue;
      if (dx < 0 && this.from[n] >= this.from[now]) continue;
      if (best < 0 || Math.abs(middle - old) < Math.abs(this.from[best] + this.total[best] / 2 - old)) best = n;
    }
    if (best >= 0) this.goTo(this.from[best] + this.total[best] / 2, row + 0.5);
  }

  overlay(c) {
    for (const place of [this.pinned, this.cursor]) {
      const n = place ? this.near(place) : -1;
      if (n < 0) continue;
      const x = this.px(this.from[n]), y = this.py(this.depth[n]);
      c.strokeStyle = colours.ink;
      c.lineWidth = 1.5;
      c.strokeRect(x, y, Math.max(this.px(this.from[n] + this.total[n]) - x - 1, 1), this.py(this.depth[n] + 1) - y - 1);
    }
  }
}
