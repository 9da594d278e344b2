// Colours of what time was spent on, and the parts that the pictures of a profile share.
const KINDS = facts.kinds;
function tint(key) { return getComputedStyle(document.body).getPropertyValue(`--k-${key}`).trim(); }
let tints = {};
redraws.push(() => { tints = {}; });
function tintOf(key) { return (tints[key] ??= tint(key)); }

function ns(value) { return duration(value / 1e6); }

// A size as the report writes it: powers of 1024.
function bytes(value) {
  for (const [size, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (value >= size) return `${digits(value / size)} ${unit}`;
  }
  return `${digits(value)} B`;
}

// Bytes per second in powers of ten, as networks are sold.
function rate(value) {
  for (const [size, unit] of [[1e12, "TB/s"], [1e9, "GB/s"], [1e6, "MB/s"], [1e3, "kB/s"]]) {
    if (value >= size * 0.9999) return `${digits(value / size)} ${unit}`;
  }
  return `${digits(value)} B/s`;
}

// Text that fits into a box, cut at its end; nothing where a few letters would not fit.
function fitted(c, text, room) {
  if (room < 18) return "";
  if (c.measureText(text).width <= room) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (c.measureText(`${text.slice(0, middle)}…`).width <= room) low = middle; else high = middle - 1;
  }
  return low > 1 ? `${text.slice(0, low)}…` : "";
}
