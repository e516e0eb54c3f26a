// Pairs that are ticked as to keep or to drop, saved as a file of decisions: no server is needed.
(() => {
  const pairs = JSON.parse(document.getElementById("data").textContent).pairs;
  const $ = (id) => document.getElementById(id);
  const cards = [...document.querySelectorAll(".card")];
  if (!cards.length) return;
  const viewer = $("viewer");
  const ticked = new Map(); // by the number of the pair: the decision, and when it was made
  const before = new Map(pairs.flatMap((pair, i) => (pair.decision ? [[i, pair.decision]] : [])));
  let saved = true;

  const decisionOf = (i) => (ticked.has(i) ? ticked.get(i)[0] : before.get(i) || "");

  function press(box, decision) {
    box.querySelectorAll("[data-tick]").forEach((button) => {
      button.setAttribute("aria-pressed", String(button.dataset.tick === decision));
    });
  }

  function show(i) {
    const card = cards[i], decision = decisionOf(i);
    card.dataset.decision = decision;
    press(card, decision);
    if (viewer.open && +viewer.dataset.index === i) press($("viewer-ticks"), decision);
    const kinds = [...ticked.values()].map(([kind]) => kind);
    const parts = ["keep", "drop"].map((kind) => [kind, kinds.filter((one) => one === kind).length]);
    $("ticked").textContent = parts.filter(([, n]) => n).map(([kind, n]) => `${n} to ${kind}`).join(", ") || "Nothing ticked";
    $("save").disabled = !ticked.size;
  }

  // The same once more takes it back; what a review decided is not taken back, but decided anew.
  function tick(i, decision) {
    if (!pairs[i].uid) return;
    if (!decision || (ticked.has(i) && ticked.get(i)[0] === decision)) ticked.delete(i);
    else ticked.set(i, [decision, new Date().toISOString().replace("Z", "+00:00")]);
    saved = false;
    show(i);
  }

  function lines() {
    const reviewer = $("reviewer").value.trim() || "unknown";
    return [...ticked].map(([i, [decision, time]]) => JSON.stringify({
      uid: pairs[i].uid, caption_number: pairs[i].number, decision, caption: null, reviewer, time,
    }) + "\n").join("");
  }

  function save() {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([lines()], { type: "application/x-ndjson" }));
    link.download = "decisions.jsonl";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    saved = true;
  }

  async function copy(text, button) {
    const label = button.textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      button.after(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = label; }, 1500);
  }

  const keys = { k: "keep", d: "drop", u: "" };
  const shown = () => cards.map((card, i) => i).filter((i) => cards[i].offsetParent);
  cards.forEach((card, i) => {
    card.querySelectorAll("[data-tick]").forEach((button) => button.addEventListener("click", () => tick(i, button.dataset.tick)));
    card.addEventListener("keydown", (event) => {
      if (event.key in keys && !event.ctrlKey && !event.metaKey && !event.altKey) tick(i, keys[event.key]);
    });
    show(i);
  });
  $("viewer-ticks").querySelectorAll("[data-tick]").forEach((button) => {
    button.addEventListener("click", () => tick(+viewer.dataset.index, button.dataset.tick));
  });
  viewer.addEventListener("opened", () => press($("viewer-ticks"), decisionOf(+viewer.dataset.index)));
  viewer.addEventListener("keydown", (event) => {
    if (event.key in keys && !event.ctrlKey && !event.metaKey && !event.altKey) tick(+viewer.dataset.index, keys[event.key]);
  });
  $("drop-shown").addEventListener("click", () => shown().forEach((i) => { if (decisionOf(i) !== "drop") tick(i, "drop"); }));
  $("copy-shown").addEventListener("click", (event) => copy(shown().map((i) => pairs[i].original).join("\n"), event.target));
  $("save").addEventListener("click", save);
  $("decide").addEventListener("submit", (event) => event.preventDefault());
  addEventListener("beforeunload", (event) => { if (!saved && ticked.size) event.preventDefault(); });
})();
