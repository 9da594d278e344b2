// Queue depth, bytes on their way or bandwidth over time: one line a link or device, the culprit's bold. Lines
// differ by dashes as well as by colour.
const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3], [], [7, 3], [2, 3], [9, 3, 2, 3]];
const HUES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#8a7a00", "#7b5ea7", "#777777"];

class SeriesChart extends Chart {
  constructor(holder, data) {
    super(holder, { height: (w) => (w < 600 ? 190 : 220), margin: { left: 70, right: 14, top: 10, bottom: 26 } });
    this.lines = [];
    let at = 0;
    for (const item of facts.series) {
      const end = at + item.size;
      if (item.kind === holder.dataset.figure) {
        this.lines.push({ ...item, time: data.series_time.subarray(at, end), value: data.series_value.subarray(at, end) });
      }
      at = end;
    }
    const all = this.lines.flatMap((line) => Array.from(line.value)).filter(Number.isFinite);
    const ends = this.lines.flatMap((line) => [line.time[0], line.time[line.time.length - 1]]);
    this.top = Math.max(...all.length ? [all.reduce((a, b) => Math.max(a, b), 0)] : [], 1e-9) * 1.08;
    this.full = { x0: Math.min(...ends), x1: Math.max(...ends, Math.min(...ends) + 1e-3), y0: this.top, y1: 0 };
    this.view = { ...this.full };
    this.leastX = (this.full.x1 - this.full.x0) / 500;
    this.lines.forEach((line, k) => this.swatch(line.name, (c, w, h) => {
      this.pen(c, k);
      c.beginPath();
      c.moveTo(0, h / 2);
      c.lineTo(w, h / 2);
      c.stroke();
      c.setLineDash([]);
    }));
    this.ready = true;
  }

  pen(c, k) {
    const guilty = this.lines[k].rank !== null && marks.ranks.includes(this.lines[k].rank);
    c.strokeStyle = guilty ? colours.guilty : HUES[k % HUES.length];
    c.lineWidth = guilty ? 2.5 : 1.5;
    c.setLineDash(guilty ? [] : DASHES[k % DASHES.length]);
  }

  // 1,234,567 as "1.23 M".
  short(value) {
    for (const [size, sign] of [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e3, " k"]]) {
      if (Math.abs(value) >= size) return `${digits(value / size)}${sign}`;
    }
    return digits(value);
  }

  draw(c) {
    const i = this.inner;
    c.textAlign = "right";
    for (const value of ticks(0, this.top, 4)) {
      const y = Math.round(this.py(value));
      c.fillStyle = colours.grid;
      c.fillRect(i.x, y, i.w, 1);
      c.fillStyle = colours.soft;
      c.fillText(this.short(value), i.x - 8, y);
    }
    this.bottomAxis(c, words.seconds, (value) => digits(value), false);
    this.clip(c, () => this.lines.forEach((line, k) => {
      this.pen(c, k);
      c.beginPath();
      for (let n = 0; n < line.time.length; n++) {
        const x = this.px(line.time[n]), y = this.py(line.value[n]);
        if (n === 0 || !Number.isFinite(line.value[n - 1])) c.moveTo(x, y); else c.lineTo(x, y);
      }
      c.stroke();
      c.setLineDash([]);
    }));
  }

  near(cursor) {
    let best = null;
    this.lines.forEach((line, k) => {
      let n = line.time.findIndex((time) => time >= cursor.x);
      if (n < 0) n = line.time.length - 1;
      const off = Math.abs(line.value[n] - cursor.y);
      if (Number.isFinite(off) && (!best || off < best.off)) best = { k, n, off };
    });
    return best;
  }

  hover(cursor) {
    const at = this.near(cursor);
    if (!at) return null;
    const line = this.lines[at.k];
    return `${line.name}\n${this.short(line.value[at.n])}\nt = ${digits(line.time[at.n])} s`;
  }

  step(dx, dy) {
    const now = (this.cursor && this.near(this.cursor)) ?? { k: 0, n: -1 };
    const k = Math.min(Math.max(now.k + dy, 0), this.lines.length - 1), line = this.lines[k];
    const n = Math.min(Math.max(now.n + dx, 0), line.time.length - 1);
    this.goTo(line.time[n], line.value[n]);
  }

  overlay(c) {
    for (const place of [this.pinned, this.cursor]) {
      const at = place && this.near(place);
      if (!at) continue;
      const line = this.lines[at.k];
      c.strokeStyle = colours.ink;
      c.beginPath();
      c.arc(this.px(line.time[at.n]), this.py(line.value[at.n]), 5, 0, 7);
      c.stroke();
    }
  }
}
