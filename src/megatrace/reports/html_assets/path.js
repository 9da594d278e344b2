// The critical path over time: a row for each host thread and stream that it runs through, coloured by what the
// time was spent on; where it changes the row, something waited for something.
class CriticalPath extends Chart {
  constructor(holder, data) {
    super(holder, { height: (w) => 30 + (w < 600 ? 26 : 24) * Math.max(...facts.path.map((p) => p.lanes.length)),
      margin: (w) => ({ left: w < 600 ? 96 : 210, right: 14, top: 4, bottom: 26 }) });
    this.data = data;
    this.leastX = 1e-4;
    if (facts.path.length > 1) {
      const select = make("select", { "aria-label": words.which_path });
      facts.path.forEach((path, k) => select.append(make("option", { value: String(k) }, path.title)));
      select.addEventListener("change", () => this.choose(Number(select.value)));
      this.tools.prepend(select);
    }
    this.choose(0);
  }

  choose(k) {
    const path = facts.path[k], d = this.data;
    this.path = path;
    const part = (name) => d[name].subarray(path.at, path.at + path.size);
    this.from = part("path_start");
    this.until = part("path_end");
    this.kind = part("path_kind");
    this.lane = part("path_lane");
    this.name = part("path_name");
    this.pinned = null;
    this.full = { x0: 0, x1: path.length, y0: 0, y1: path.lanes.length };
    this.view = { ...this.full };
    this.leastX = path.length / 1e5;
    this.ready = true;
    this.say(null);
    this.later();
  }

  box(c, kind, x, y, w, h) {
    c.fillStyle = tintOf(KINDS[kind].key);
    c.fillRect(x, y, w, h);
    if (KINDS[kind].key === "idle" && w > 3) hatch(c, x, y, w, h, colours.wait);
  }

  draw(c) {
    const i = this.inner, right = i.x + i.w;
    c.textAlign = "right";
    this.path.lanes.forEach((lane, row) => {
      const y = this.py(row), h = this.py(row + 1) - y;
      if (y + h < i.y || y > i.y + i.h) return;
      c.fillStyle = colours.soft;
      c.fillText(fitted(c, lane, i.x - 12), i.x - 8, y + h / 2);
      c.fillStyle = colours.grid;
      c.fillRect(i.x, Math.round(y + h) - 1, i.w, 1);
    });
    this.clip(c, () => {
      c.strokeStyle = colours.soft;
      c.lineWidth = 1;
      let before = -1;
      for (let n = 0; n < this.from.length; n++) {
        const x = this.px(this.from[n]), end = this.px(this.until[n]);
        if (end < i.x || x > right) { before = n; continue; }
        const y = this.py(this.lane[n]), h = this.py(this.lane[n] + 1) - y;
        this.box(c, this.kind[n], x, y + 3, Math.max(end - x, 0.7), h - 7);
        if (before >= 0 && this.lane[before] !== this.lane[n] && end - x > 0.3) {
          c.globalAlpha = 0.5;
          c.beginPath();
          c.moveTo(x, this.py(this.lane[before] + 0.5));
          c.lineTo(x, this.py(this.lane[n] + 0.5));
          c.stroke();
          c.globalAlpha = 1;
        }
        const room = Math.min(end, right) - Math.max(x, i.x) - 8;
        if (room > 30 && this.name[n] >= 0) {
          c.fillStyle = "#14181d";
          c.textAlign = "left";
          c.fillText(fitted(c, facts.names[this.name[n]], room), Math.max(x, i.x) + 4, y + h / 2);
        }
        before = n;
      }
    });
    this.bottomAxis(c, words.path_axis, (value) => duration(value), false);
  }

  near(cursor) {
    let low = 0, high = this.from.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.from[middle] <= cursor.x) low = middle; else high = middle - 1;
    }
    return low;
  }

  hover(cursor) {
    const n = this.near(cursor);
    const lines = [KINDS[this.kind[n]].name + (this.name[n] >= 0 ? ` · ${facts.names[this.name[n]]}` : "")];
    lines.push(duration(this.until[n] - this.from[n]), this.path.lanes[this.lane[n]]);
    return lines.join("\n");
  }

  step(dx) {
    const now = this.cursor ? this.near(this.cursor) : -1;
    const n = Math.min(Math.max(now + (dx || 1), 0), this.from.length - 1);
    this.goTo((this.from[n] + this.until[n]) / 2, this.lane[n] + 0.5);
  }

  overlay(c) {
    for (const place of [this.pinned, this.cursor]) {
      if (!place) continue;
      const n = this.near(place);
      const x = this.px(this.from[n]), y = this.py(this.lane[n]);
      c.strokeStyle = colours.ink;
      c.lineWidth = 1.5;
      c.strokeRect(x, y + 2, Math.max(this.px(this.until[n]) - x, 2), this.py(this.lane[n] + 1) - y - 5);
    }
  }
}
