"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const NONE = "\u2013";

  // Numbers as ncclean/report/formats.py writes them.
  const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
  const oneDecimal = new Intl.NumberFormat("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
  const count = (value) => grouped.format(value);
  const expected = (value) => (value < 1000 ? oneDecimal : grouped).format(Math.max(value, 0));
  const minus = (text) => text.replace("-", "\u2212");
  function share(value) {
    if (!Number.isFinite(value)) return NONE;
    const percent = 100 * Math.max(value, 0);
    if (percent < 1e-9) return "0.0%";
    if (percent >= 1) return percent.toFixed(1) + "%";
    if (percent < 0.0005) return "<0.001%";
    return percent.toFixed(1 - Math.floor(Math.log10(percent))) + "%";
  }

  all(".scripted").forEach((element) => { element.hidden = false; });

  // --- light and dark ---
  const theme = $("theme");
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme || (prefersDark.matches ? "dark" : "light")) === "dark";
  function labelTheme() {
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.setAttribute("aria-pressed", String(isDark()));
    theme.setAttribute("aria-label", isDark() ? "Switch to light colours" : "Switch to dark colours");
  }
  theme.hidden = false;
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    labelTheme();
  });
  prefersDark.addEventListener("change", labelTheme);
  labelTheme();

  // --- the threshold ---
  class Curve {
    constructor(fields) {
      Object.assign(this, fields);
      this.steps = this.pairs.length;
      this.keptPairs = this.sums(this.pairs);
      this.keptWrong = this.wrong && this.sums(this.wrong);
      this.keptNoisy = this.noisy && this.sums(this.noisy);
    }
    // What each threshold keeps of an array with one value per step.
    sums(values) {
      const below = [0];
      for (const value of values) below.push(below[below.length - 1] + value);
      const total = below[below.length - 1];
      return this.below ? below : below.map((sum) => total - sum);
    }
    threshold(index) { return ((this.first + index) * this.multiple) / 10 ** this.digits; }
    text(index) { return this.threshold(index).toFixed(this.digits); }
    index(threshold) {
      const index = Math.round((threshold * 10 ** this.digits) / this.multiple) - this.first;
      return Math.min(Math.max(index, 0), this.steps);
    }
    condition(index) { return `${this.column} ${this.below ? "<" : ">="} ${this.text(index)}`; }
    // Score columns are 32-bit floats, and DuckDB rounds the threshold to one.
    keeps(value, index) {
      const threshold = Math.fround(this.threshold(index));
      return this.below ? value < threshold : value >= threshold;
    }
    // The lowest cosine that is kept, where the score follows the cosine.
    cutoff(index) {
      if (!this.lowest) return null;
      const kept = (this.below ? this.lowest.slice(0, index) : this.lowest.slice(index)).filter((c) => c !== null);
      return kept.length ? Math.min(...kept) : null;
    }
  }
  const curves = new Map(data.curves.map((fields) => [fields.column, new Curve(fields)]));
  let curve = data.curves.length ? curves.get(data.curves[0].column) : null;
  let position = curve ? curve.start : 0;

  function placeCut(svg, value) {
    const cut = svg.querySelector(".cut");
    const { low, high, start, end } = cut.dataset;
    const inside = value !== null && value >= +low && value <= +high;
    cut.setAttribute("visibility", inside ? "visible" : "hidden");
    if (inside) {
      const x = +start + ((value - low) / (high - low)) * (end - start);
      cut.setAttribute("transform", `translate(${x.toFixed(2)} 0)`);
    }
  }

  function showRow(name, pairs, wrong, noisy) {
    const cell = (kind, text) => {
      const found = $(name).querySelector(`[data-cell="${kind}"]`);
      if (found) found.textContent = text;
    };
    cell("pairs", count(pairs));
    cell("share", share(pairs / curve.keptPairs[curve.below ? curve.steps : 0]));
    cell("wrong", wrong === null ? NONE : expected(wrong));
    cell("rate", wrong === null || !pairs ? NONE : share(wrong / pairs));
    cell("noisy", noisy === null ? NONE : count(noisy));
  }

  function showThreshold() {
    const everything = curve.below ? curve.steps : 0;
    const pick = (sums, index) => (sums ? sums[index] : null);
    const rest = (sums) => (sums ? sums[everything] - sums[position] : null);
    showRow("kept", curve.keptPairs[position], pick(curve.keptWrong, position), pick(curve.keptNoisy, position));
    showRow("dropped", rest(curve.keptPairs), rest(curve.keptWrong), rest(curve.keptNoisy));
    const text = curve.text(position);
    $("where").textContent = curve.condition(position);
    $("condition").textContent = `${curve.column} ${curve.below ? "<" : "\u2265"} ${minus(text)}`;
    $("slider").setAttribute("aria-valuetext", `${text}, ${count(curve.keptPairs[position])} pairs kept`);
    if (document.activeElement !== $("value")) $("value").value = text;
    $("live-sql").textContent = data.liveQuery.replace("CONDITION", curve.condition(position));
    all("#distribution svg.plot").forEach((svg) => placeCut(svg, curve.cutoff(position)));
    all("#threshold svg.plot").forEach((svg) => {
      if (!svg.hasAttribute("hidden")) placeCut(svg, curve.threshold(position));
    });
    markCards();
  }

  function chooseScore(column) {
    curve = curves.get(column);
    position = curve.start;
    all("#threshold svg.plot").forEach((svg) => svg.toggleAttribute("hidden", svg.dataset.column !== column));
    $("slider").max = curve.steps;
    $("slider").value = position;
    showThreshold();
  }

  // --- the pairs ---
  const cards = all(".card");
  const captionOf = (card) => card.querySelector(".caption");
  const haystack = cards.map((card, i) => {
    const pair = data.pairs[i];
    return [captionOf(card).textContent, pair.shard, pair.key, pair.url || "", pair.error || ""].join("\n").toLowerCase();
  });
  let group = "";

  function markCards() {
    cards.forEach((card) => {
      const value = data.pairs[card.dataset.index].scores[curve.column];
      card.classList.toggle("dropped", value !== undefined && !curve.keeps(value, position));
      card.classList.toggle("kept", value !== undefined && curve.keeps(value, position));
    });
    if (["kept", "dropped"].includes($("filter-rule")?.value)) filterCards();
  }

  function filterCards() {
    const words = $("filter-text").value.toLowerCase().split(/\s+/).filter(Boolean);
    const rule = $("filter-rule").value, shard = $("filter-shard").value, status = $("filter-status").value;
    let shown = 0;
    cards.forEach((card, i) => {
      const pair = data.pairs[i];
      const fits =
        (!group || pair.group === group) &&
        (!shard || pair.shard === shard) &&
        (!status || pair.status === status) &&
        (!rule ||
          (rule === "none" ? pair.status === "ok" && !pair.flags.length
            : rule[0] === "+" ? pair.flags.includes(rule.slice(1))
              : card.classList.contains(rule))) &&
        words.every((word) => haystack[i].includes(word)) && columnFits(pair);
      card.hidden = !fits;
      shown += fits;
    });
    all(".group").forEach((part) => { part.hidden = !part.querySelector(".card:not([hidden])"); });
    $("shown").textContent = shown ? `${shown} of ${cards.length} pairs shown` : "No pair fits these filters";
  }

  // Scores, signals and own columns by which cards are filtered and sorted.
  const valueOf = (pair, name) => pair.scores[name] ?? pair.further[name] ?? (name === "width" || name === "height" ? pair[name] : null);
  const columns = new Map();
  for (const pair of data.pairs) for (const name of ["width", "height", ...Object.keys(pair.scores), ...Object.keys(pair.further)]) {
    const value = valueOf(pair, name);
    if (value !== null && value !== undefined) columns.set(name, columns.get(name) !== false && typeof value === "number");
  }

  function columnFits(pair) {
    const name = $("filter-column").value, low = $("filter-low").value.trim(), high = $("filter-high").value.trim();
    if (!name || (!low && !high)) return true;
    const value = valueOf(pair, name);
    if (value === null || value === undefined) return false;
    if (!columns.get(name)) return String(value).toLowerCase().includes(low.toLowerCase());
    return (!low || value >= +low) && (!high || value <= +high);
  }

  function sortCards() {
    const [name, down] = [$("sort").value.replace(/^-/, ""), $("sort").value.startsWith("-")];
    const key = (card) => (name ? valueOf(data.pairs[card.dataset.index], name) : +card.dataset.index) ?? null;
    const order = (a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      return (x < y ? -1 : x > y ? 1 : a.dataset.index - b.dataset.index) * (down && x !== y ? -1 : 1);
    };
    all("ul.cards").forEach((list) => list.append(...[...list.children].sort(order)));
  }

  const viewer = $("viewer");
  let opened = 0;

  function scoreRows(pair) {
    const number = (value) =>
      typeof value !== "number" ? String(value)
        : Number.isInteger(value) ? count(value)
          : minus(value !== 0 && Math.abs(value) < 1e-4 ? value.toExponential(2) : value.toFixed(4));
    const rows = [...Object.entries(pair.scores), ...Object.entries(pair.further)].map(([name, value]) => [name, value === null ? NONE : number(value), data.meanings[name]]);
    rows.push(["status", pair.status + (pair.error ? `: ${pair.error}` : ""), data.meanings.status]);
    rows.push(["shard", `${pair.shard}, row ${count(pair.row)}`, data.meanings.shard]);
    if (pair.width && pair.height) rows.push(["size", `${count(pair.width)} \u00d7 ${count(pair.height)} px`, "of the original image"]);
    if (pair.url) rows.push(["url", pair.url, data.meanings.url]);
    return rows.map(([name, value, meaning]) => {
      const row = document.createElement("tr"), head = document.createElement("th"), cell = document.createElement("td");
      head.scope = "row";
      head.textContent = name;
      head.title = meaning || "";
      cell.textContent = value;
      row.append(head, cell);
      return row;
    });
  }

  function openCard(i) {
    opened = i;
    const pair = data.pairs[i];
    $("viewer-title").textContent = pair.key;
    $("viewer-image").replaceChildren(cards[i].querySelector(".thumb").firstElementChild.cloneNode(true));
    $("viewer-caption").replaceChildren(...[...captionOf(cards[i]).childNodes].map((node) => node.cloneNode(true)));
    $("viewer-flags").textContent = pair.status !== "ok" ? "" : pair.flags.length ? `Flagged by ${pair.flags.join(", ")}` : "Flagged by no rule";
    $("viewer-scores").tBodies[0].replaceChildren(...scoreRows(pair));
    if (!viewer.open) viewer.showModal();
    viewer.scrollTop = 0;
    $("viewer-original").textContent = pair.original;
    viewer.dataset.index = i;
    viewer.dispatchEvent(new Event("opened"));
  }

  function step(by) {
    const visible = all(".card").filter((card) => !card.hidden).map((card) => cards.indexOf(card));
    const at = visible.indexOf(opened);
    openCard(visible[(at + by + visible.length) % visible.length]);
  }

  if (cards.length) {
    cards.forEach((card, i) => card.querySelector("button").addEventListener("click", () => openCard(i)));
    $("previous").addEventListener("click", () => step(-1));
    $("next").addEventListener("click", () => step(1));
    $("close").addEventListener("click", () => viewer.close());
    viewer.addEventListener("click", (event) => { if (event.target === viewer) viewer.close(); });
    viewer.addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft") step(-1);
      if (event.key === "ArrowRight") step(1);
    });
    viewer.addEventListener("close", () => cards[opened].querySelector("button").focus());
    const buttons = all("#filters [data-group]");
    group = buttons[0].dataset.group;
    buttons.forEach((button) => button.addEventListener("click", () => {
      group = button.dataset.group;
      buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
      filterCards();
    }));
    for (const name of [...columns.keys()].sort()) {
      $("filter-column").append(new Option(name, name));
      $("sort").append(new Option(`${name} \u2191`, name), new Option(`${name} \u2193`, `-${name}`));
    }
    $("sort").value = $("filter-column").value = ""; // browsers keep form values when a page is loaded again
    $("sort").addEventListener("input", sortCards);
    $("filter-column").addEventListener("input", () => {
      const name = $("filter-column").value, [low, high] = all(".of-column");
      low.hidden = !name;
      high.hidden = !name || !columns.get(name);
      low.firstChild.textContent = columns.get(name) ? "from " : "contains ";
      $("filter-low").value = $("filter-high").value = "";
    });
    ["filter-text", "filter-rule", "filter-shard", "filter-status", "filter-column", "filter-low", "filter-high"].forEach((id) => $(id).addEventListener("input", filterCards));
    $("filters").addEventListener("submit", (event) => event.preventDefault());
    filterCards();
  }

  if (curve) {
    $("score").addEventListener("change", (event) => chooseScore(event.target.value));
    $("slider").addEventListener("input", (event) => { position = +event.target.value; showThreshold(); });
    $("value").addEventListener("change", (event) => {
      if (!Number.isFinite(event.target.valueAsNumber)) return;
      position = curve.index(event.target.valueAsNumber);
      $("slider").value = position;
      showThreshold();
      event.target.value = curve.text(position);
    });
    $("controls").addEventListener("submit", (event) => event.preventDefault());
    $("score").value = curve.column; // browsers keep form values when a page is loaded again
    $("slider").value = position;
    showThreshold();
  }

  // --- the shards ---
  const table = $("shard-table");
  all("th[data-kind]", table).forEach((head, column) => {
    if (head.dataset.kind === "none") return;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const numeric = head.dataset.kind === "n";
      const descending = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : numeric;
      all("th[aria-sort]", table).forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const key = (row) => (numeric ? +row.cells[column].dataset.value : row.cells[column].textContent);
      const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
      const rows = [...table.tBodies[0].rows].sort((a, b) => (descending ? -1 : 1) * order(key(a), key(b)));
      table.tBodies[0].append(...rows);
    });
  });
  $("shard-filter")?.addEventListener("input", (event) => {
    const wanted = event.target.value.toLowerCase();
    [...table.tBodies[0].rows].forEach((row) => { row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted); });
  });

  // --- copying queries ---
  all(".copy").forEach((button) => button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      const range = document.createRange();
      range.selectNodeContents(code);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }));
})();
