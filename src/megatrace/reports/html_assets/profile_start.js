// Starts the page of a profile: the theme first, then the pictures that there is data for.
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
  const pictures = { flame: Flame, path: CriticalPath, scatter: Scatter };
  for (const holder of holders) new pictures[holder.dataset.figure](holder, data);
  redrawAll();
  root.dataset.drawn = "yes";
}
start();
