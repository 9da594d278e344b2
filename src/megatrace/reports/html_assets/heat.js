// Work of every rank in every iteration, a pixel a cell or less: of the cells that share a pixel the longest one
// is seen, so that one slow rank of ten thousand does not disappear.
const NOT_SEEN = -1000;
const RAMPS = {
  // Longer than usual is warm, shorter is cool, usual is nearly the ground: what stands out is what is wrong.
  light: ["#12466f", "#3f7fb5", "#a9c9e2", "#eef0f2", "#f4b183", "#cf4a0a", "#6e1b00"],
  dark: ["#b9ddfb", "#6aa3d4", "#33587a", "#232931", "#8c4420", "#f07a3c", "#ffd8bf"],
  absolute: ["#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838"],
};

function ramp(stops, size) {
  const rgb = stops.map((text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16)));
  const table = new Uint32Array(size);
  for (let k = 0; k < size; k++) {
    const place = (k / (size - 1)) * (rgb.length - 1), from = Math.min(Math.floor(place), rgb.length - 2);
    const mix = [0, 1, 2].map((i) => rgb[from][i] + (rgb[from + 1][i] - rgb[from][i]) * (place - from));
    table[k] = (255 << 24) | (mix[2] << 16) | (mix[1] << 8) | mix[0];
  }
  return table;
}
const css = (word) => `rgb(${word & 255} ${(word >> 8) & 255} ${(word >> 16) & 255})`;

class Heat extends Chart {
  constructor(holder, data) {
    const { rows, columns } = facts.work;
    super(holder, {
      height: (w) => Math.min(Math.max(rows * 22, 120), w < 600 ? 340 : 500) + 42,
      margin: (w) => ({ left: 74, right: w < 600 ? 76 : 104, top: 16, bottom: 26 }), axes: "xy",
    });
    Object.assign(this, { rows, columns, levels: data.work, rank: data.work_rank, stage: data.work_stage,
      middle: data.work_middle, number: data.iteration, joined: facts.work.joined });
    this.first = this.number[0];
    this.full = { x0: this.first - 0.5, x1: this.first + columns - 0.5, y0: 0, y1: rows };
    this.view = { ...this.full };
    this.leastX = 4;
    this.step1 = Math.log(facts.work.high / facts.work.low) / (facts.work.levels - 1);
    this.relative = !marks.absolute;
    this.rowOf = new Map();
    this.rank.forEach((rank, k) => this.rowOf.set(rank, Math.floor(k / this.joined)));
    this.reach = this.usualReach();
    this.controls();
    this.ready = true;
  }

  // How far from its stage's median the colours go: to the 995th of a thousand cells or to what the culprits need
  // to stand out from the noise, at least 1.15× and at most 3×.
  usualReach() {
    const counts = new Uint32Array(256);
    let all = 0;
    for (let r = 0, k = 0; r < this.rows; r++) {
      const middle = this.middle[this.stage[r]];
      for (let c = 0; c < this.columns; c++, k++) {
        if (this.levels[k] === 255) continue;
        counts[Math.abs(this.levels[k] - middle)]++;
        all++;
      }
    }
    let seen = 0, far = 0;
    while (far < 255 && seen + counts[far] < all * 0.995) seen += counts[far++];
    far = Math.max(far, 0.7 * this.culpritsReach());
    const steps = Math.min(Math.max(far * this.step1, Math.log(1.15)), Math.log(3)) / this.step1;
    return Math.max(Math.round(steps), 1);
  }

  // The middle deviation of the culprits' rows inside the window.
  culpritsReach() {
    if (!marks.window) return 0;
    const found = [];
    const to = Math.min((marks.window[1] ?? Infinity) - this.first, this.columns - 1);
    for (const rank of marks.ranks) {
      const row = this.rowOf.get(rank);
      if (row === undefined) continue;
      for (let k = Math.max(marks.window[0] - this.first, 0); k <= to; k++) {
        const level = this.levels[row * this.columns + k];
        if (level !== 255) found.push(Math.abs(level - this.middle[this.stage[row]]));
      }
    }
    found.sort((a, b) => a - b);
    return found.length ? found[Math.floor(found.length / 2)] : 0;
  }

  controls() {
    this.scale = make("span");
    this.legend.append(this.scale);
    this.paintScale = this.swatch("", (c, w, h) => {
      const table = this.table();
      for (let x = 0; x < w; x++) {
        c.fillStyle = css(table[Math.round((x / (w - 1)) * (table.length - 1))]);
        c.fillRect(x, 0, 1, h);
      }
    }, true);
    this.scaleEnd = make("span");
    this.legend.append(this.scaleEnd);
    this.swatch(words.lost, (c, w, h) => { c.fillStyle = colours.unknown; c.fillRect(0, 0, w, h); });
    const modes = [["relative", true], ["absolute", false]].map(([name, relative]) => {
      const button = make("button", { type: "button" }, words[name]);
      button.addEventListener("click", () => { this.relative = relative; show(); redrawAll(); });
      this.tools.prepend(button);
      return [button, relative];
    });
    const show = () => {
      for (const [button, relative] of modes) button.setAttribute("aria-pressed", String(relative === this.relative));
      const w = facts.work, edge = Math.exp(this.reach * this.step1);
      this.scale.textContent = this.relative ? `${digits(1 / edge)}×` : duration(w.low);
      this.scaleEnd.textContent = this.relative ? `${digits(edge)}× ${words.usual}` : duration(w.high);
    };
    show();
    const field = make("input", { type: "search", placeholder: words.find, "aria-label": words.find });
    field.addEventListener("keydown", (event) => { if (event.key === "Enter") this.find(field.value.trim()); });
    field.addEventListener("input", () => { if (field.value === "") { this.found = null; this.say(null); this.drawOver(); } });
    this.tools.prepend(field);
  }

  find(text) {
    let rank = /^(rank\s*)?\d+$/i.test(text) ? Number(text.replace(/\D/g, "")) : -1;
    if (rank < 0 && text) {
      const node = marks.places.nodes.findIndex((name) => name.toLowerCase() === text.toLowerCase());
      rank = node < 0 ? -1 : marks.places.node.indexOf(node);
    }
    const row = this.rowOf.get(rank);
    if (row === undefined) {
      this.readout.textContent = `${text}: ${words.not_found}`;
      announce(this.readout.textContent);
      return;
    }
    this.found = row;
    const half = Math.min(this.rows, 64) / 2;
    if (this.inner.h / (this.view.y1 - this.view.y0) < 8) this.setView({ ...this.view, y0: row - half, y1: row + half });
    const x = marks.window ? marks.window[0] : Math.round(this.view.x0 + 0.5);
    this.goTo(Math.min(Math.max(x, this.first), this.first + this.columns - 1), row + 0.5);
    this.pin();
  }

  table() {
    if (this.relative) return ramp(isDark() ? RAMPS.dark : RAMPS.light, 2 * this.reach + 1);
    return ramp(RAMPS.absolute, facts.work.levels);
  }

  // ---- drawing

  draw(c) {
    const i = this.inner, v = this.view, scale = this.base.width / this.width;
    const w = Math.max(1, Math.round(i.w * scale)), h = Math.max(1, Math.round(i.h * scale));
    const c0 = Math.min(Math.max(Math.floor(v.x0 + 0.5) - this.first, 0), this.columns - 1);
    const c1 = Math.min(Math.max(Math.ceil(v.x1 + 0.5) - this.first, c0 + 1), this.columns);
    // A pixel a column, widened while it is copied; where there are more columns than pixels, a pixel a few.
    const across = Math.ceil((c1 - c0) / w), wide = Math.ceil((c1 - c0) / across);
    const image = new ImageData(wide, h);
    this.raster(new Uint32Array(image.data.buffer), wide, h, c0, c1, across);
    this.sheet ??= document.createElement("canvas");
    this.sheet.width = wide;
    this.sheet.height = h;
    this.sheet.getContext("2d").putImageData(image, 0, 0);
    this.clip(c, () => {
      c.imageSmoothingEnabled = false;
      const x0 = this.px(this.first + c0 - 0.5), x1 = this.px(this.first + c0 + wide * across - 0.5);
      c.drawImage(this.sheet, x0, i.y, x1 - x0, i.h);
    });
    this.bottomAxis(c, words.iteration_axis);
    this.windowBar(c);
    this.rowLabels(c);
    this.culprits(c);
  }

  // The longest of 1, 2, 4, 8 … neighbouring rows, made once: zooming out then reads a screen's worth of cells.
  pyramid() {
    const name = this.relative ? "relativeRows" : "absoluteRows";
    if (this[name]) return this[name];
    const bottom = new Int16Array(this.levels.length);
    for (let r = 0, k = 0; r < this.rows; r++) {
      const middle = this.relative ? this.middle[this.stage[r]] : 0;
      for (let c = 0; c < this.columns; c++, k++) bottom[k] = this.levels[k] === 255 ? NOT_SEEN : this.levels[k] - middle;
    }
    const floors = [bottom];
    for (let rows = this.rows; rows > 256; rows = Math.ceil(rows / 2)) {
      const below = floors[floors.length - 1], n = this.columns;
      const next = new Int16Array(Math.ceil(rows / 2) * n);
      for (let k = 0; k < next.length; k++) {
        const r = Math.floor(k / n) * 2, at = r * n + (k % n);
        next[k] = r + 1 < rows && below[at + n] > below[at] ? below[at + n] : below[at];
      }
      floors.push(next);
    }
    this[name] = floors;
    return floors;
  }

  raster(pixels, wide, h, c0, c1, across) {
    const v = this.view, table = this.table(), unknown = parseInt(colours.unknown.slice(1), 16);
    const empty = (255 << 24) | ((unknown & 255) << 16) | (unknown & 0xff00) | (unknown >> 16);
    const floors = this.pyramid(), each = (v.y1 - v.y0) / h;
    const floor = Math.min(Math.max(Math.floor(Math.log2(each)), 0), floors.length - 1), size = 2 ** floor;
    const cells = floors[floor], rows = cells.length / this.columns;
    const line = new Int16Array(wide);
    const low = this.relative ? -this.reach : 0, high = this.relative ? this.reach : table.length - 1;
    let before = -1;
    for (let y = 0; y < h; y++) {
      const r0 = Math.min(Math.max(Math.floor((v.y0 + y * each) / size), 0), rows - 1);
      const r1 = Math.min(Math.max(Math.ceil((v.y0 + (y + 1) * each) / size), r0 + 1), rows);
      const single = each < 1;
      if (single && r0 === before) { pixels.copyWithin(y * wide, (y - 1) * wide, y * wide); continue; }
      before = r0;
      line.fill(NOT_SEEN);
      for (let r = r0; r < (single ? r0 + 1 : r1); r++) {
        const from = r * this.columns;
        for (let k = c0, x = 0, left = across; k < c1; k++) {
          if (cells[from + k] > line[x]) line[x] = cells[from + k];
          if (--left === 0) { x++; left = across; }
        }
      }
      for (let x = 0; x < wide; x++) {
        const most = line[x];
        pixels[y * wide + x] = most === NOT_SEEN ? empty : table[(most < low ? low : most > high ? high : most) - low];
      }
    }
  }

  windowBar(c) {
    if (!marks.window) return;
    const i = this.inner;
    const x0 = Math.max(this.px(marks.window[0] - 0.5), i.x);
    const x1 = Math.min(this.px((marks.window[1] ?? this.full.x1 - 0.5) + 0.5), i.x + i.w);
    if (x1 <= x0) return;
    c.fillStyle = colours.guilty;
    c.fillRect(x0, i.y - 6, x1 - x0, 4);
  }

  rowLabels(c) {
    const i = this.inner, v = this.view, tall = i.h / (v.y1 - v.y0);
    c.textAlign = "right";
    c.fillStyle = colours.soft;
    if (tall >= 13) {
      for (let r = Math.max(0, Math.floor(v.y0)); r < Math.min(v.y1, this.rows); r++) {
        const y = this.py(r + 0.5);
        if (y > i.y && y < i.y + i.h) c.fillText(`${words.rank} ${this.rank[r * this.joined]}`, i.x - 8, y);
      }
    }
    let start = 0;
    for (let r = 1; r <= this.rows; r++) {
      if (r < this.rows && this.stage[r] === this.stage[start]) continue;
      const y0 = Math.max(this.py(start), i.y), y1 = Math.min(this.py(r), i.y + i.h);
      if (tall < 13 && y1 - y0 > 13) c.fillText(`${words.stage} ${this.stage[start]}`, i.x - 8, (y0 + y1) / 2);
      if (r < this.rows && y1 > i.y && y1 < i.y + i.h) {
        c.fillStyle = colours.sheet;
        c.fillRect(i.x, Math.round(y1) - 1, i.w, 2);
        c.fillStyle = colours.soft;
        c.fillRect(i.x - 6, Math.round(y1), 6, 1);
      }
      start = r;
    }
  }

  culprits(c) {
    const i = this.inner, tall = i.h / (this.view.y1 - this.view.y0);
    let last = -Infinity;
    for (const rank of marks.ranks) {
      const row = this.rowOf.get(rank);
      if (row === undefined || row + 1 < this.view.y0 || row > this.view.y1) continue;
      const y = this.py(row + 0.5);
      c.strokeStyle = c.fillStyle = colours.guilty;
      c.lineWidth = 2;
      if (tall >= 6) c.strokeRect(i.x - 1, this.py(row), i.w + 2, tall);
      c.beginPath();
      c.moveTo(i.x + i.w + 3, y);
      c.lineTo(i.x + i.w + 11, y - 5);
      c.lineTo(i.x + i.w + 11, y + 5);
      c.fill();
      if (y - last < 14) continue;
      last = y;
      this.font(c, 700, 12);
      c.textAlign = "left";
      c.fillText(`${words.rank} ${rank}`, i.x + i.w + 15, y);
      this.font(c);
    }
  }

  // ---- the pointer

  cell(place) {
    const k = Math.round(place.x) - this.first, r = Math.floor(place.y);
    return k < 0 || r < 0 || k >= this.columns || r >= this.rows ? null : { k, r };
  }

  hover(cursor) {
    const at = this.cell(cursor);
    if (!at) return null;
    const level = this.levels[at.r * this.columns + at.k], from = at.r * this.joined;
    const last = this.rank[Math.min(from + this.joined, this.rank.length) - 1];
    const lines = [placeOf(this.rank[from])];
    if (this.joined > 1) lines[0] = `${words.ranks} ${this.rank[from]} … ${last}`;
    lines.push(`${words.stage} ${this.stage[at.r]} · ${words.iteration} ${this.first + at.k}`);
    if (level === 255) lines.push(words.lost);
    else {
      const ms = facts.work.low * Math.exp(level * this.step1);
      const ratio = Math.exp((level - this.middle[this.stage[at.r]]) * this.step1);
      lines.push(`${words.work} ${duration(Number(ms.toPrecision(3)))} (${Number(ratio.toPrecision(2))}× ${words.usual})`);
    }
    return lines.join("\n");
  }

  step(dx, dy) {
    const start = { x: marks.window ? marks.window[0] : Math.ceil(this.view.x0), y: (this.rowOf.get(marks.ranks[0]) ?? Math.floor(this.view.y0)) + 0.5 };
    const at = this.cursor ? { x: Math.round(this.cursor.x) + dx, y: Math.floor(this.cursor.y) + 0.5 + dy } : start;
    this.goTo(Math.min(Math.max(at.x, this.first), this.first + this.columns - 1), Math.min(Math.max(at.y, 0.5), this.rows - 0.5));
  }

  overlay(c) {
    const i = this.inner;
    const box = (place, dash) => {
      const at = place && this.cell(place);
      if (!at) return;
      const w = Math.max(i.w / (this.view.x1 - this.view.x0), 4), h = Math.max(i.h / (this.view.y1 - this.view.y0), 4);
      c.setLineDash(dash);
      c.strokeStyle = colours.ink;
      c.lineWidth = 2;
      c.strokeRect(this.px(this.first + at.k) - w / 2, this.py(at.r + 0.5) - h / 2, w, h);
      c.setLineDash([]);
    };
    if (this.found !== undefined && this.found !== null) {
      const y = this.py(this.found + 0.5);
      c.fillStyle = colours.accent;
      c.fillRect(i.x - 6, y - 3, 5, 6);
      c.fillRect(i.x + i.w + 1, y - 3, 5, 6);
    }
    box(this.pinned, []);
    box(this.cursor, [3, 2]);
  }
}
