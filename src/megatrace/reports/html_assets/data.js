// The arrays of the pictures: inflated once, then typed arrays upon one buffer.
const kinds = { u1: Uint8Array, u2: Uint16Array, i4: Int32Array, f4: Float32Array };

async function unpack() {
  const text = byId("packed").textContent.trim();
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const arrays = {};
  for (const [name, [kind, at, size]] of Object.entries(facts.arrays)) {
    arrays[name] = new kinds[kind](buffer, at, size);
  }
  byId("packed").textContent = "";  // the page need not hold the text as well
  return arrays;
}

// Three significant digits in the unit that fits, as in the text of the report.
function digits(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  const decimals = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return String(Number(value.toFixed(decimals)));
}
function duration(ms) {
  if (!Number.isFinite(ms)) return "–";
  if (Math.abs(ms) >= 1000) return `${digits(ms / 1000)} s`;
  return Math.abs(ms) >= 1 || ms === 0 ? `${digits(ms)} ms` : `${digits(ms * 1000)} µs`;
}

// Where a rank sits, in words: "rank 1505 · node188 · gpu1".
function placeOf(rank) {
  const places = marks.places;
  const parts = [`${words.rank} ${rank}`];
  const node = places.nodes[places.node[rank] ?? -1];
  const device = places.devices[places.device[rank] ?? -1];
  if (node !== undefined) parts.push(node);
  if (device !== undefined) parts.push(device);
  return parts.join(" · ");
}

// Round steps of an axis: 1, 2 or 5 times a power of ten, about as many as there is room for.
function ticks(from, to, count) {
  const raw = (to - from) / Math.max(count, 1);
  if (!(raw > 0)) return [from];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const result = [];
  for (let value = Math.ceil(from / step - 1e-9) * step; value <= to + step * 1e-6; value += step) result.push(value);
  return result;
}
