// Both pictures that have iterations below show the same ones.
function link(one, other) {
  if (!one || !other) return;
  for (const [from, to] of [[one, other], [other, one]]) {
    from.onView = ({ x0, x1 }) => {
      if (to.view.x0 === x0 && to.view.x1 === x1) return;
      to.setView({ ...to.view, x0, x1 });
    };
  }
}

// Starts the page: the theme first, then the pictures that there is data for.
async function start() {
  startTheme();
  startCopying();
  readColours();
  const holders = document.querySelectorAll(".picture");
  if (!holders.length) return;
  if (typeof DecompressionStream === "undefined") {
    for (const holder of holders) holder.append(make("p", { class: "say" }, words.old));
    return;
  }
  const data = await unpack();
  const pictures = { iterations: Iterations, heat: Heat, gantt: Gantt, late: Lateness,
    queue_depth: SeriesChart, outstanding_bytes: SeriesChart, bandwidth: SeriesChart };
  const drawn = {};
  for (const holder of holders) {
    const Picture = pictures[holder.dataset.figure];
    if (Picture) drawn[holder.dataset.figure] = new Picture(holder, data);
  }
  link(drawn.iterations, drawn.heat);
  redrawAll();
  root.dataset.drawn = "yes";
}
start();
