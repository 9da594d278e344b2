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
  const pictures = { iterations: Iterations };
  for (const holder of holders) {
    const Picture = pictures[holder.dataset.figure];
    if (Picture) new Picture(holder, data);
  }
  redrawAll();
  root.dataset.drawn = "yes";
}
start();
