// How late each member of the culprit's group came to its calls: one thin line a member, the culprit's bold.
class Lateness extends Chart {
  constructor(holder, data) {
    super(holder, { height: (w) => (w < 600 ? 200 : 240), margin: { left: 58, right: 14, top: 12, bottom: 26 } });
    this.rank = data.late_rank;
    this.members = facts.late.members;
    this.calls = facts.late.calls;
    this.late = data.late;
    this.when = data.late_iteration;
    const sorted = Float32Array.from(this.late.filter((value) => Number.isFinite(value))).sort();
    const guilty = this.rank.findIndex((rank) => marks.ranks.includes(rank));
    const own = guilty < 0 ? sorted : Float32Array.from(this.row(guilty).filter((value) => Number.isFinite(value))).sort();
    const high = (values, share) => (values.length ? values[Math.floor((values.length - 1) * share)] : 0);
    // A single call that was an hour late must not press all others to the floor.
    this.top = Math.max(high(sorted, 0.998), high(own, 0.99), 0.01) * 1.1;
    this.full = { x0: 0, x1: this.calls, y0: this.top, y1: 0 };
    this.view = { ...this.full };
    this.leastX = 8;
    const named = Array.from(this.rank).filter((rank) => marks.ranks.includes(rank));
    const who = `${named.length > 1 ? words.ranks : words.rank} ${named.slice(0, 4).join(", ")}${named.length > 4 ? " …" : ""}`;
    if (guilty >= 0) this.swatch(who, (c, w, h) => { c.fillStyle = colours.guilty; c.fillRect(0, h / 2 - 1.5, w, 3); });
    this.swatch(words.others, (c, w, h) => { c.fillStyle = colours.points; c.fillRect(0, h / 2 - 0.5, w, 1); });
    if (marks.window && this.when) this.swatch(words.window, (c, w, h) => { c.fillStyle = colours.shade; c.fillRect(0, 0, w, h); });
    this.ready = true;
  }

  row(m) { return this.late.subarray(m * this.calls, (m + 1) * this.calls); }
  guilty(m) { return marks.ranks.includes(this.rank[m]); }

  draw(c) {
    const i = this.inner;
    c.textAlign = "right";
    for (const value of ticks(0, this.top, 4)) {
      const y = Math.round(this.py(value)) + 0.5;
      c.fillStyle = colours.grid;
      c.fillRect(i.x, y, i.w, 1);
      c.fillStyle = colours.soft;
      c.fillText(duration(value), i.x - 8, y);
    }
    this.bottomAxis(c, words.calls);
    this.clip(c, () => {
      this.shade(c);
      const order = Array.from({ length: this.members }, (_, m) => m).sort((a, b) => this.guilty(a) - this.guilty(b));
      for (const m of order) this.line(c, m);
    });
  }

  shade(c) {
    if (!marks.window || !this.when) return;
    const i = this.inner, inside = (k) => k >= marks.window[0] && k <= (marks.window[1] ?? Infinity);
    c.fillStyle = colours.shade;
    for (let k = 0; k < this.calls; k++) {
      if (!inside(this.when[k])) continue;
      const from = k;
      while (k + 1 < this.calls && inside(this.when[k + 1])) k++;
      c.fillRect(this.px(from), i.y, this.px(k + 1) - this.px(from), i.h);
    }
  }

  line(c, m) {
    const values = this.row(m), guilty = this.guilty(m);
    c.strokeStyle = guilty ? colours.guilty : colours.points;
    c.globalAlpha = guilty ? 1 : this.members > 16 ? 0.35 : 0.7;
    c.lineWidth = guilty ? 2 : 1;
    c.beginPath();
    let open = false;
    const first = Math.max(0, Math.floor(this.view.x0) - 1), last = Math.min(this.calls, Math.ceil(this.view.x1) + 1);
    for (let k = first; k < last; k++) {
      if (!Number.isFinite(values[k])) { open = false; continue; }
      const x = this.px(k + 0.5), y = this.py(values[k]);
      if (open) c.lineTo(x, y); else c.moveTo(x, y);
      open = true;
    }
    c.stroke();
    c.globalAlpha = 1;
  }

  at2(cursor) {
    const k = Math.min(Math.max(Math.floor(cursor.x), 0), this.calls - 1);
    let best = -1;
    for (let m = 0; m < this.members; m++) {
      const value = this.row(m)[k];
      if (!Number.isFinite(value)) continue;
      if (best < 0 || Math.abs(value - cursor.y) < Math.abs(this.row(best)[k] - cursor.y)) best = m;
    }
    return { k, m: best };
  }

  hover(cursor) {
    const { k, m } = this.at2(cursor);
    if (m < 0) return null;
    const lines = [placeOf(this.rank[m]), `${words.late} ${duration(this.row(m)[k])}`];
    if (this.when) lines.push(`${words.iteration} ${this.when[k]}`);
    return lines.join("\n");
  }

  step(dx, dy) {
    const now = this.cursor ? this.at2(this.cursor) : { k: -1, m: Math.max(this.rank.findIndex((r) => marks.ranks.includes(r)), 0) };
    const k = Math.min(Math.max(now.k + (dx || (this.cursor ? 0 : 1)), 0), this.calls - 1);
    const m = Math.min(Math.max(now.m + dy, 0), this.members - 1);
    const value = this.row(m)[k];
    this.goTo(k + 0.5, Number.isFinite(value) ? Math.min(value, this.top) : 0);
  }

  overlay(c) {
    for (const place of [this.pinned, this.cursor]) {
      if (!place) continue;
      const { k, m } = this.at2(place);
      if (m < 0) continue;
      c.strokeStyle = colours.ink;
      c.lineWidth = 1.5;
      c.beginPath();
      c.arc(this.px(k + 0.5), this.py(Math.min(this.row(m)[k], this.top)), 5, 0, 7);
      c.stroke();
    }
  }
}
