// How long every iteration took, the window of the finding shaded.
class Iterations extends Chart {
  constructor(holder, data) {
    super(holder, { height: (w) => (w < 600 ? 200 : 240), margin: { left: 58, right: 14, top: 18, bottom: 26 } });
    this.number = data.iteration;
    this.ms = data.iteration_ms;
    this.start = data.iteration_start;
    const known = Array.from(this.ms).filter(Number.isFinite);
    this.top = Math.max(...known.length ? known : [1]) * 1.06;
    // The iteration in which a job came to stand has no time, and its place in the picture says so.
    const last = Math.max(this.number[this.number.length - 1], marks.window ? marks.window[0] : 0);
    this.full = { x0: this.number[0] - 0.5, x1: last + 0.5, y0: this.top, y1: 0 };
    this.view = { ...this.full };
    // A finding that holds from the first iteration to the last has no window to shade.
    this.throughout = marks.window && marks.window[0] <= this.number[0] && (marks.window[1] ?? last) >= last;
    this.median = marks.median;
    this.leastX = 4;
    this.swatch(words.median, (c, w, h) => this.medianLine(c, 0, w, h / 2));
    if (marks.window && !this.throughout) this.swatch(words.window, (c, w, h) => { c.fillStyle = colours.shade; c.fillRect(0, 0, w, h); });
    if (Array.from(this.ms).some((value) => !Number.isFinite(value))) {
      this.swatch(words.lost, (c, w, h) => hatch(c, 0, 0, w, h, colours.wait));
    }
    this.ready = true;
  }

  medianLine(c, x0, x1, y) {
    c.strokeStyle = colours.soft;
    c.setLineDash([5, 4]);
    c.lineWidth = 1;
    c.beginPath();
    c.moveTo(x0, y);
    c.lineTo(x1, y);
    c.stroke();
    c.setLineDash([]);
  }

  draw(c) {
    const i = this.inner;
    c.textAlign = "right";
    for (const value of ticks(0, this.top, 4)) {
      const y = Math.round(this.py(value)) + 0.5;
      c.strokeStyle = colours.grid;
      c.beginPath();
      c.moveTo(i.x, y);
      c.lineTo(i.x + i.w, y);
      c.stroke();
      c.fillStyle = colours.soft;
      c.fillText(duration(value), i.x - 8, y);
    }
    this.bottomAxis(c, words.iteration_axis);
    this.clip(c, () => {
      this.shade(c);
      if (Number.isFinite(this.median)) this.medianLine(c, i.x, i.x + i.w, Math.round(this.py(this.median)) + 0.5);
      this.line(c);
    });
    this.label(c);
  }

  shade(c) {
    const i = this.inner;
    if (marks.window && !this.throughout) {
      const x0 = this.px(marks.window[0] - 0.5), x1 = this.px((marks.window[1] ?? this.full.x1 - 0.5) + 0.5);
      c.fillStyle = colours.shade;
      c.fillRect(x0, i.y, x1 - x0, i.h);
      if (marks.stands) this.stood(c, (x0 + x1) / 2);
    }
    for (let k = 0; k < this.ms.length; k++) {
      if (Number.isFinite(this.ms[k])) continue;
      let end = k;
      while (end + 1 < this.ms.length && !Number.isFinite(this.ms[end + 1])) end++;
      const x0 = this.px(this.number[k] - 0.5);
      hatch(c, x0, i.y, this.px(this.number[end] + 0.5) - x0, i.h, colours.line, 7);
      k = end;
    }
  }

  stood(c, x) {
    const y = this.inner.y + this.inner.h / 2;
    c.strokeStyle = colours.guilty;
    c.lineWidth = 3;
    c.beginPath();
    for (const side of [-1, 1]) {
      c.moveTo(x - 7, y - 7 * side);
      c.lineTo(x + 7, y + 7 * side);
    }
    c.stroke();
  }

  line(c) {
    const guilty = (k) => marks.window && !this.throughout && this.number[k] >= marks.window[0] && this.number[k] <= (marks.window[1] ?? Infinity);
    const room = this.inner.w / Math.max(this.view.x1 - this.view.x0, 1);
    c.lineWidth = 1.5;
    c.strokeStyle = colours.points;
    c.beginPath();
    let open = false;
    for (let k = 0; k < this.ms.length; k++) {
      if (!Number.isFinite(this.ms[k])) { open = false; continue; }
      const x = this.px(this.number[k]), y = this.py(this.ms[k]);
      if (open) c.lineTo(x, y); else c.moveTo(x, y);
      open = true;
    }
    c.stroke();
    const size = Math.min(4, Math.max(1.4, room / 3));
    for (let k = 0; k < this.ms.length; k++) {
      if (!Number.isFinite(this.ms[k])) continue;
      c.fillStyle = guilty(k) ? colours.guilty : colours.points;
      c.beginPath();
      c.arc(this.px(this.number[k]), this.py(this.ms[k]), size, 0, 7);
      c.fill();
    }
  }

  // The window says in the picture what it is.
  label(c) {
    if (!marks.window) return;
    const i = this.inner;
    const last = marks.window[1] ?? this.full.x1 - 0.5;
    const x = Math.max(this.px(marks.window[0] - 0.5), i.x);
    if (x > i.x + i.w || this.px(last + 0.5) < i.x) return;
    this.font(c, 650);
    c.fillStyle = colours.guilty;
    const text = marks.stands ? words.stood : marks.windowSays;
    const width = c.measureText(text).width;
    c.textAlign = "left";
    c.fillText(text, Math.min(x + 4, i.x + i.w - width), i.y - 9);
    this.font(c);
  }

  nearest(x) { return Math.min(Math.max(Math.round(x) - this.number[0], 0), this.number.length - 1); }

  hover(cursor) {
    const k = this.nearest(cursor.x);
    const ms = this.ms[k];
    const lines = [`${words.iteration} ${this.number[k]}`, Number.isFinite(ms) ? duration(ms) : words.lost];
    if (Number.isFinite(ms) && this.median > 0) lines[1] += ` (${digits(ms / this.median)}× ${words.median})`;
    if (this.start && Number.isFinite(this.start[k])) lines.push(`t = ${digits(this.start[k])} s`);
    return lines.join("\n");
  }

  step(dx) {
    const from = this.cursor ? this.nearest(this.cursor.x) : this.nearest(marks.window ? marks.window[0] - dx : this.view.x0 - dx);
    const k = Math.min(Math.max(from + dx, 0), this.number.length - 1);
    this.goTo(this.number[k], Number.isFinite(this.ms[k]) ? this.ms[k] : this.top / 2);
  }

  overlay(c) {
    const i = this.inner;
    for (const [place, dash] of [[this.pinned, []], [this.cursor, [3, 3]]]) {
      if (!place) continue;
      const k = this.nearest(place.x);
      const x = this.px(this.number[k]);
      if (x < i.x || x > i.x + i.w) continue;
      c.strokeStyle = colours.ink;
      c.setLineDash(dash);
      c.beginPath();
      c.moveTo(x, i.y);
      c.lineTo(x, i.y + i.h);
      c.stroke();
      c.setLineDash([]);
      if (Number.isFinite(this.ms[k])) {
        c.beginPath();
        c.arc(x, this.py(this.ms[k]), 6, 0, 7);
        c.stroke();
      }
    }
  }
}
