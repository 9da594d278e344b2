// One iteration by stage: forwards and backwards, waits hatched, the critical path as one bold line; of a job that
// stands the unfinished tasks hollow.
const PHASES = ["forward", "backward", "sync", "other"];

class Gantt extends Chart {
  constructor(holder, data) {
    const rows = [], index = new Map();
    data.task_rank.forEach((rank, k) => {
      const key = `${data.task_stage[k]} ${rank}`;
      if (!index.has(key)) { index.set(key, rows.length); rows.push({ rank, stage: data.task_stage[k] }); }
    });
    super(holder, {
      height: (w) => rows.length * Math.min(Math.max(360 / rows.length, 22), w < 600 ? 38 : 52) + 38,
      margin: { left: 86, right: 14, top: 8, bottom: 26 },
    });
    this.lines = rows;
    this.stands = marks.stands;
    // A line stands for the tensor group of a stage, so the culprit may be in it without being its first member.
    const group = (rank) => Math.floor(rank / marks.together);
    for (const line of rows) {
      if (!this.stands) line.rank = marks.ranks.find((rank) => group(rank) === group(line.rank)) ?? line.rank;
    }
    const named = rows.some((line) => marks.ranks.includes(line.rank));
    for (const line of rows) line.guilty = named ? marks.ranks.includes(line.rank) : marks.stage === line.stage;
    this.tasks = Array.from(data.task_rank, (rank, k) => ({
      row: index.get(`${data.task_stage[k]} ${rank}`), rank, stage: data.task_stage[k], phase: data.task_phase[k],
      batch: data.task_micro_batch[k], start: data.task_start[k], end: data.task_end[k],
      wait: data.task_wait ? data.task_wait[k] : NaN, critical: data.task_critical ? data.task_critical[k] === 1 : false,
    })).filter((task) => Number.isFinite(task.start) && (this.stands || Number.isFinite(task.end))).sort((a, b) => a.row - b.row || a.start - b.start);
    this.path = this.tasks.filter((task) => task.critical).sort((a, b) => a.start - b.start);
    const ends = this.tasks.map((task) => (Number.isFinite(task.end) ? task.end : task.start));
    const last = Math.max(...ends, 1), first = Math.min(0, ...this.tasks.map((t) => t.start - (t.wait > 0 ? t.wait : 0)));
    const room = (last - first) * (this.stands ? 0.18 : 0.015);
    this.full = { x0: first, x1: last + room, y0: 0, y1: rows.length };
    // What was called and never finished is open until the next call of the rank, the last until the edge.
    this.tasks.forEach((task, k) => {
      const next = this.tasks[k + 1];
      task.until = Number.isFinite(task.end) ? task.end : next && next.row === task.row ? next.start : this.full.x1 - room / 6;
    });
    this.view = { ...this.full };
    this.leastX = (last - first) / 400;
    this.explain();
    this.ready = true;
  }

  explain() {
    const has = (phase) => this.tasks.some((task) => task.phase === phase);
    for (const phase of [0, 1, 2, 3]) {
      if (has(phase)) this.swatch(words[PHASES[phase]], (c, w, h) => { c.fillStyle = this.colour(phase); c.fillRect(0, 0, w, h); });
    }
    if (this.tasks.some((task) => task.wait > 0)) this.swatch(words.wait, (c, w, h) => hatch(c, 0, 0, w, h, colours.wait));
    if (this.path.length) this.swatch(words.critical, (c, w, h) => { c.fillStyle = colours.path; c.fillRect(0, h / 2 - 1.5, w, 3); });
    if (this.tasks.some((task) => !Number.isFinite(task.end))) this.swatch(words.unfinished, (c, w, h) => this.hollow(c, 1, 1, w - 2, h - 2, colours.forward));
  }

  colour(phase) { return [colours.forward, colours.backward, colours.wait, colours.wait][phase]; }

  hollow(c, x, y, w, h, colour) {
    c.strokeStyle = colour;
    c.lineWidth = 2;
    c.setLineDash([4, 3]);
    c.strokeRect(x, y, w, h);
    c.setLineDash([]);
  }

  draw(c) {
    const i = this.inner, tall = i.h / this.lines.length;
    this.bottomAxis(c, "ms", (value) => digits(value), false);
    this.lines.forEach((line, r) => {
      const guilty = line.guilty;
      const y = this.py(r + 0.5);
      c.fillStyle = colours.grid;
      c.fillRect(i.x, Math.round(this.py(r)), i.w, 1);
      c.textAlign = "right";
      c.fillStyle = guilty ? colours.guilty : colours.ink;
      this.font(c, guilty ? 700 : 400);
      const two = tall >= 30;
      c.fillText(two ? `${words.stage} ${line.stage}` : `${words.stage} ${line.stage} · ${line.rank}`, i.x - 10, two ? y - 7 : y);
      this.font(c, guilty ? 700 : 400, 11);
      c.fillStyle = guilty ? colours.guilty : colours.soft;
      if (two) c.fillText(`${words.rank} ${line.rank}`, i.x - 10, y + 8);
    });
    this.font(c, 600, 11);
    this.clip(c, () => {
      for (const task of this.tasks) this.bar(c, task, tall);
      if (this.stands) this.stopped(c, tall);
      this.criticalPath(c, tall);
    });
    this.font(c);
  }

  bar(c, task, tall) {
    const i = this.inner, done = Number.isFinite(task.end);
    const x = this.px(task.start), w = this.px(task.until) - x;
    if (x > i.x + i.w || x + w < i.x) {
      if (!(task.wait > 0) || this.px(task.start - task.wait) > i.x + i.w || x < i.x) return;
    }
    const y = this.py(task.row) + tall * 0.18, h = tall * 0.64;
    if (task.wait > 0) {
      const from = this.px(task.start - task.wait);
      hatch(c, from, y + h * 0.2, x - from, h * 0.6, colours.wait);
    }
    if (!done) {
      this.hollow(c, x + 1, y + 1, Math.max(w - 2, 3), h - 2, this.lines[task.row].guilty ? colours.guilty : this.colour(task.phase));
    } else {
      c.fillStyle = this.colour(task.phase);
      c.fillRect(x, y, Math.max(w - 0.75, 0.75), h);
    }
    const batch = task.batch < 0 ? "" : String(task.batch);
    const label = done ? batch : `${words[PHASES[task.phase]]} ${batch}`;
    if (w > c.measureText(label).width + (done ? 5 : 12) && h > 11) {
      c.fillStyle = !done ? colours.ink : task.phase === 0 && !isDark() ? "#ffffff" : "#14181d";
      c.textAlign = "left";
      c.fillText(label, Math.max(x, i.x) + (done ? 3 : 8), y + (this.path.length ? h * 0.32 : h * 0.5));
    }
  }

  // A culprit that stopped between two tasks has no hollow one: a cross marks where its calls end.
  stopped(c, tall) {
    this.lines.forEach((line, r) => {
      const own = this.tasks.filter((task) => task.row === r);
      if (!line.guilty || !own.length || own.some((task) => !Number.isFinite(task.end))) return;
      const x = this.px(Math.max(...own.map((task) => task.end))) + 14, y = this.py(r + 0.5), size = Math.min(6, tall / 4);
      c.strokeStyle = c.fillStyle = colours.guilty;
      c.lineWidth = 3;
      c.beginPath();
      for (const side of [-1, 1]) {
        c.moveTo(x - size, y - size * side);
        c.lineTo(x + size, y + size * side);
      }
      c.stroke();
      c.textAlign = "left";
      this.font(c, 700);
      c.fillText(words.stopped, x + 12, y);
      this.font(c, 600, 11);
    });
  }

  criticalPath(c, tall) {
    if (!this.path.length) return;
    const trace = () => {
      c.beginPath();
      this.path.forEach((task, k) => {
        const y = this.py(task.row) + tall * 0.66;
        if (k === 0) c.moveTo(this.px(task.start), y); else c.lineTo(this.px(task.start), y);
        c.lineTo(this.px(task.until), y);
      });
      c.stroke();
    };
    c.lineJoin = "round";
    c.strokeStyle = colours.sheet;
    c.lineWidth = 6;
    trace();
    c.strokeStyle = colours.path;
    c.lineWidth = 3;
    trace();
  }

  find(place) {
    const row = Math.floor(place.y);
    let best = null;
    for (const task of this.tasks) {
      if (task.row !== row) continue;
      const from = task.start - (task.wait > 0 ? task.wait : 0);
      if (place.x >= from && place.x <= task.until && (!best || place.x >= task.start)) best = task;
    }
    return best;
  }

  hover(cursor) {
    const task = this.find(cursor);
    if (!task) return null;
    const lines = [task.batch < 0 ? words[PHASES[task.phase]] : `${words[PHASES[task.phase]]} · ${words.micro_batch} ${task.batch}`, `${words.stage} ${task.stage} · ${placeOf(task.rank)}`];
    lines.push(Number.isFinite(task.end) ? `${duration(task.start)} + ${duration(task.end - task.start)}` : `${duration(task.start)} – ${words.unfinished}`);
    if (task.wait > 0) lines.push(`${words.wait} ${duration(task.wait)}`);
    if (task.critical) lines.push(words.critical);
    return lines.join("\n");
  }

  step(dx, dy) {
    const now = this.cursor && this.find(this.cursor);
    let k = now ? this.tasks.indexOf(now) : -1;
    if (dx) k = Math.min(Math.max(k + dx, 0), this.tasks.length - 1);
    else if (now) {
      const row = Math.min(Math.max(now.row + dy, 0), this.lines.length - 1);
      const there = this.tasks.filter((task) => task.row === row);
      if (!there.length) return;
      k = this.tasks.indexOf(there.reduce((a, b) => (Math.abs(b.start - now.start) < Math.abs(a.start - now.start) ? b : a)));
    } else k = 0;
    const task = this.tasks[k];
    this.goTo((task.start + task.until) / 2, task.row + 0.5);
  }

  overlay(c) {
    const tall = this.inner.h / this.lines.length;
    for (const place of [this.pinned, this.cursor]) {
      const task = place && this.find(place);
      if (!task) continue;
      const x = this.px(task.start);
      this.clip(c, () => {
        c.strokeStyle = colours.ink;
        c.lineWidth = 2;
        c.strokeRect(x, this.py(task.row) + tall * 0.18, Math.max(this.px(task.until) - x, 2), tall * 0.64);
      });
    }
  }
}
