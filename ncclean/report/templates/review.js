"use strict";
// Blocks of pairs are added as one scrolls; of those far away only their height stays.
const BLOCK = 60, NEAR = 3, MOST = 5000;
const SHORT = {noise_probability: "noise", similarity: "cosine", near_miss_probability: "near miss", part_noise_probability: "part", better_captions: "better captions", better_images: "better images", is_noisy: "noisy", noise_kind: "kind"};
const $ = id => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const grid = $("grid");
try { data.page = sessionStorage.page ||= data.page; } catch { /* then a reload counts as another window */ }
let request = {}, view = new AbortController(), total = 0, first = 0, last = 0, blocks = new Map(), cards = new Map();
let at = -1, anchor = -1, chosen = new Set(), editing = null, settle = null, epoch = 0, histogram = null, like = null, canUndo = false, canRedo = false, proposing = false, allPairs = 0, searched = false, pending = "";

function trouble(text) { $("trouble").textContent = text || ""; $("trouble").hidden = !text; }

async function ask(name, fields, body, signal) {
  const query = new URLSearchParams(Object.entries({page: data.page, ...fields}).filter(([, v]) => v !== null && v !== undefined && v !== ""));
  const options = body === undefined ? {signal} : {
    method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body),
  };
  let answer;
  try { answer = await fetch(`${name}?${query}`, options); }
  catch {
    if (signal?.aborted) return new Promise(() => {});  // another view is waited for
    throw new Error("The server does not answer: start the review again. What was decided is saved.");
  }
  const value = await answer.json().catch(() => ({error: `the server says ${answer.status}`}));
  if (!answer.ok) throw new Error(value.error);
  if (value.others) trouble("This review is open in another window too, where somebody has decided: reload to see it. Undo takes back the last decision of either window.");
  return value;
}

function guarded(work) { return (...args) => Promise.resolve(work(...args)).catch(error => trouble(error.message)); }
function number(value) { return value.toLocaleString("en"); }
function element(kind, name, text) {
  const made = document.createElement(kind);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}

// ---- views -------------------------------------------------------------------------------------

const open = guarded(async (start = 0, anew = 1) => {
  const mine = ++epoch, edited = editing;
  trouble();
  const searches = request.meaning || request.like !== "";
  pending = searches ? searched ? "searching…" : "searching… (slow at first)" : request.sort === "date" ? "reading when the pictures were taken…" : "";
  where();
  let answer;
  try { answer = await ask("rows", {...request, start, count: BLOCK, anew}, undefined, view.signal); }
  finally { if (mine === epoch) { pending = ""; where(); } }
  searched ||= searches;
  if (mine !== epoch || editing !== edited) return;  // who began to write goes on writing
  total = answer.pairs;
  reset(answer.start - answer.start % BLOCK, !anew);
  at = total ? Math.min(answer.start, total - 1) : -1;
  show(answer);
  await fill();
  move(at, false);
});

// Who goes to another place of a view keeps what is selected in it.
function reset(start, stays) {
  editing = settle = null; blocks.clear(); grid.replaceChildren(); grid.scrollTop = 0;
  if (!stays) { chosen.clear(); anchor = -1; }
  for (const n of [...cards.keys()]) if (!chosen.has(n)) cards.delete(n);
  first = last = start; at = -1;
}

const drawn = guarded(async () => {
  const mine = epoch;
  const answer = await ask("histogram", {...request, low: null, high: null}, undefined, view.signal);
  if (mine !== epoch) return;
  histogram = answer; paint();
});

function paint() {
  const svg = $("histogram"), counts = histogram ? histogram.counts : [], most = Math.max(1, ...counts);
  svg.replaceChildren(...counts.map((count, n) => {
    const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const height = count ? Math.max(1.5, 44 * Math.log1p(count) / Math.log1p(most)) : 0;
    const width = 640 / counts.length, middle = value(n + .5);
    for (const [name, v] of Object.entries({x: n * width, y: 44 - height, width: width - 1, height})) bar.setAttribute(name, v);
    if ((request.low == null || middle >= request.low) && (request.high == null || middle <= request.high)) bar.setAttribute("class", "in");
    return bar;
  }));
  const whole = request.low == null && request.high == null;
  $("clear").hidden = whole; svg.parentElement.hidden = !counts.length;
  const digits = v => Number(v).toPrecision(3);
  $("range").textContent = histogram && histogram.score
    ? `${data.scores[histogram.score] || histogram.score} ${digits(request.low ?? histogram.low)} to ${digits(request.high ?? histogram.high)}` : "";
}

function value(bin) { return histogram.low + bin * (histogram.high - histogram.low) / histogram.counts.length; }

// ---- blocks ------------------------------------------------------------------------------------

const wanted = new Map();
async function load(start) {
  if (wanted.has(start)) return wanted.get(start);
  const mine = epoch;
  const job = ask("rows", {...request, start, count: BLOCK}).then(answer => { if (mine === epoch) { show(answer); } })
    .finally(() => wanted.delete(start));
  wanted.set(start, job);
  return job;
}

function show(answer) {
  const start = answer.start - answer.start % BLOCK;
  if (answer.start !== start) return load(start);
  const block = blocks.get(start) || element("section", "block");
  if (!blocks.has(start)) {
    blocks.set(start, block); block.dataset.start = start;
    const after = [...blocks.keys()].filter(n => n > start).sort((a, b) => a - b)[0];
    const height = grid.scrollHeight;
    grid.insertBefore(block, after === undefined ? null : blocks.get(after));
    fillBlock(block, answer);
    if (after !== undefined) grid.scrollTop += grid.scrollHeight - height;  // what one sees stays where it is
  } else fillBlock(block, answer);
  first = Math.min(...blocks.keys()); last = Math.max(...blocks.keys());
  state(answer);
}

function fillBlock(block, answer) {
  block.style.minHeight = "";
  block.replaceChildren(...answer.cards.map((card, n) => draw(card, answer.start + n)));
  block.dataset.full = "1";
}

const fill = guarded(async () => {
  if (!blocks.size) return;
  const box = grid.getBoundingClientRect(), reach = NEAR * box.height;
  for (const [start, block] of blocks) {
    const place = block.getBoundingClientRect();
    const far = place.bottom < box.top - 2 * reach || place.top > box.bottom + 2 * reach;
    if (far && block.dataset.full && !(at >= start && at < start + BLOCK) && !(editing >= start && editing < start + BLOCK && editing !== null)) {
      block.style.minHeight = `${place.height}px`;
      for (let n = start; n < start + BLOCK; n++) if (!chosen.has(n)) cards.delete(n);
      block.replaceChildren(); delete block.dataset.full;
    } else if (!far && !block.dataset.full) await load(start);
  }
  const end = grid.scrollHeight - grid.scrollTop - box.height;
  if (end < reach && last + BLOCK < total && !wanted.has(last + BLOCK)) { await load(last + BLOCK); return fill(); }
  if (grid.scrollTop < reach && first > 0 && !wanted.has(first - BLOCK)) { await load(first - BLOCK); }
});

function draw(card, n) {
  const box = element("article", "card");
  box.dataset.n = n; box.setAttribute("role", "option"); box.id = `card-${n}`;
  const picture = element("div", "picture"), image = element("img");
  image.loading = "lazy"; image.decoding = "async"; image.alt = "";
  image.addEventListener("error", guarded(async () => {
    const answer = await fetch(image.src).catch(() => null);
    const why = answer && !answer.ok ? await answer.json().catch(() => ({})) : {};
    image.replaceWith(element("span", "", card.error || why.error || "no picture"));
  }), {once: true});
  image.src = `picture?${new URLSearchParams({shard: card.shard, key: card.key})}`;
  picture.append(image, element("span", "pick"));
  picture.addEventListener("dblclick", () => enlarge(n));
  const file = element("p", "file", card.file[0] ? `${card.file[0]}/` : "");
  const [, stem, ending] = card.file[1].match(/^(.*?)(\.\w+)?$/s), name = element("b", "", stem);
  if (ending) name.append(element("wbr"), ending);
  file.append(name, card.date ? ` · ${card.date}` : "");
  const caption = element("p", "caption");
  caption.dir = "auto";
  if (card.pieces.length) for (const [text, kind] of card.pieces) caption.append(element("span", kind, text), kind === "part" ? " " : "");
  else caption.append(element("span", "meta", "no caption"));
  if (card.leftOut) caption.append(element("span", "meta", ` … ${number(card.leftOut)} more characters`));
  box.append(picture, file, caption);
  if (card.words) {
    const better = element("p", "better", "better: ");
    better.append(element("b", "", card.words[1])); box.append(better);
  }
  const scores = Object.entries(card.scores).filter(([name, v]) => v || !name.startsWith("better_")).map(([name, v]) => `${SHORT[name] || name} ${typeof v === "number" && !Number.isInteger(v) ? v.toFixed(2) : v}`);
  if (card.status !== "ok") scores.unshift(card.status + (card.error ? `: ${card.error}` : ""));
  if (card.group) scores.unshift(`group ${card.group.slice(0, 6)}`);
  const meta = element("p", "meta", scores.join(" · "));
  meta.title = `${card.shard} / ${card.key} / ${card.uid}`;
  box.append(meta, element("p", "verdict"), element("p", "note"));
  cards.set(n, {...card, box}); verdict(n);
  return box;
}

// ---- proposals ---------------------------------------------------------------------------------

const propose = guarded(async () => {
  const n = at, card = cards.get(n);
  if (!proposing || !card || card.proposals) return;
  card.proposals = element("div", "proposals", "Closest captions…");
  card.box.querySelector(".meta").before(card.proposals);
  card.box.scrollIntoView({block: "nearest"});
  let answer;
  try { answer = await ask("proposals", {}, {place: card.place}); }
  catch (error) { card.proposals.remove(); delete card.proposals; throw error; }
  card.captions = answer.captions || [];
  card.proposals.replaceChildren(...card.captions.map(([text, similarity], i) => {
    const button = element("button"), words = element("span", "", visible(text));
    button.type = "button"; words.dir = "auto"; button.title = visible(text);
    button.append(element("kbd", "", i + 1), words, element("span", "meta", similarity.toFixed(2)));
    button.addEventListener("click", event => { event.stopPropagation(); take(n, i); });
    return button;
  }));
  if (!card.captions.length) card.proposals.textContent = "no other captions";
  if (at === n) card.box.scrollIntoView({block: "nearest"});
});

function take(n, i) {
  const card = cards.get(n), text = card && card.captions && card.captions[i] && card.captions[i][0];
  if (!text) return;
  clear(); at = n; decide("correct", () => text); grid.focus({preventScroll: true});
}

function canSearch() {
  if (!data.searches) trouble("This needs embeddings: `ncclean clean` writes them, and so does `ncclean score --embeddings DIR`. Then start the review again, where necessary with --embeddings DIR.");
  return data.searches;
}

function closest() {
  if (!canSearch()) return;
  proposing = !proposing;
  document.querySelector("[data-do=closest]").setAttribute("aria-pressed", proposing);
  if (!proposing) for (const card of cards.values()) if (card.proposals) { card.proposals.remove(); delete card.proposals; delete card.captions; }
  propose();
}

function verdict(n) {
  const card = cards.get(n); if (!card || !card.box) return;
  const [kind, caption, who, note] = card.decision || [];
  card.box.className = `card ${kind || ""}${n === at ? " at" : ""}${chosen.has(n) ? " chosen" : ""}`;
  card.box.setAttribute("aria-selected", chosen.has(n) || n === at);
  card.box.querySelector(".note").textContent = note ? `Note: ${visible(note)}` : "";
  card.box.querySelector(".verdict").textContent = !kind || kind === "note" ? "" : kind === "correct" ? `corrected: ${visible(caption)}` : {keep: "kept", drop: "dropped"}[kind] + (who ? ` by ${who}` : "");
}

const captionOf = card => card.decision && card.decision[0] === "correct" ? card.decision[1] : card.text;

function visible(text) { return text.replace(/[\u202a-\u202e\u2066-\u2069\u200e\u200f\u0000-\u0008]/g, c => `⟨U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`); }

function state(answer) {
  if (answer.canUndo !== undefined) canUndo = answer.canUndo;
  if (answer.canRedo !== undefined) canRedo = answer.canRedo;
  document.querySelector("[data-do=undo]").disabled = !canUndo;
  document.querySelector("[data-do=redo]").disabled = !canRedo;
  const counts = answer.decided || {}, parts = ["keep", "drop", "correct"].filter(k => counts[k]).map(k => `${number(counts[k])} ${k}`);
  const done = Object.values(counts).reduce((sum, count) => sum + count, 0);
  $("progress").max = Math.max(allPairs, done, 1); $("progress").value = done;
  $("progress").title = `${number(done)} of ${number(allPairs)} pairs are decided`;
  $("decided").textContent = parts.length ? `decided: ${parts.join(", ")}` : "nothing decided yet";
  where();
}

function where() {
  $("selected").hidden = !chosen.size;
  $("state").textContent = pending || (total ? `${number(at + 1)} of ${number(total)}${chosen.size ? `, ${number(chosen.size)} selected` : ""}` : `no pairs in this view${$("view").value !== "all" && (request.search || request.where) ? ": All pairs may have some" : ""}`);
}

// ---- moving and selecting ----------------------------------------------------------------------

async function move(n, extend) {
  if (!total) return where();
  n = Math.max(0, Math.min(total - 1, n));
  const before = [at, ...chosen];
  if (!extend) anchor = -1;
  else if (anchor < 0) anchor = at;
  at = n;
  if (extend) { chosen.clear(); await choose(anchor, n); }
  if (!cards.has(n)) await load(n - n % BLOCK);
  [...before, ...chosen, at].forEach(verdict);
  const card = cards.get(n);
  if (card) { card.box.scrollIntoView({block: "nearest"}); grid.setAttribute("aria-activedescendant", card.box.id); }
  where();
  await propose();
}

function go(n) { return blocks.get(n - n % BLOCK)?.dataset.full ? move(n, false) : open(n, 0); }

// Select from one pair to another, also those that are not on the page.
async function choose(from, to) {
  const mine = epoch, [low, high] = [Math.min(from, to), Math.max(from, to)];
  if (high - low >= MOST) { trouble(`At most ${number(MOST)} pairs can be selected; All… decides about all of a view.`); return; }
  for (let n = low; n <= high; n++) {
    chosen.add(n);
    if (!cards.has(n)) await load(n - n % BLOCK);
    if (mine !== epoch) return;
  }
}

function columns() {
  const block = grid.querySelector(".block");
  return block ? getComputedStyle(block).gridTemplateColumns.split(" ").length : 1;
}

function clear() { const before = [...chosen]; chosen.clear(); anchor = -1; before.forEach(verdict); where(); }

// ---- deciding ----------------------------------------------------------------------------------

// The page goes on at once; the server is told in the order of the keys.
let told = Promise.resolve();
function tell(work) { told = told.then(guarded(work)); return told; }

function decide(kind, captionFor) {
  const places = (chosen.size ? [...chosen].sort((a, b) => a - b) : at >= 0 ? [at] : []).filter(n => cards.has(n));
  const meant = places.map(n => [n, cards.get(n)]).map(([n, card]) => [n, card, captionFor ? captionFor(card) : null]).filter(([, , text]) => !captionFor || text);
  if (!meant.length) { if (places.length) trouble("No better word and no wrong sentence is known here: Edit changes the caption."); return; }
  const body = {decision: kind, pairs: meant.map(([, card]) => [card.uid, card.number])};
  if (captionFor) body.captions = meant.map(([, , text]) => text);
  const before = meant.map(([, card]) => card.decision);
  trouble();
  for (const [n, card, text] of meant) { card.decision = [kind, text, "", card.decision && card.decision[3]]; verdict(n); }
  clear(); move(Math.max(...places) + 1, false);
  tell(async () => {
    try { state(await ask("decide", {}, body)); }
    catch (error) { meant.forEach(([n, card], i) => { card.decision = before[i]; verdict(n); }); throw error; }
  });
}

const undo = () => tell(async () => {
  trouble();
  const answer = await ask("undo", {}, {});
  if (!answer.changed) trouble("There is nothing to undo: Undo takes back what was decided since this review was started.");
  const now = new Map(answer.undone.map(([uid, n, decision]) => [`${n} ${uid}`, decision]));
  let back = -1;
  for (const [n, card] of cards) if (now.has(`${card.number} ${card.uid}`)) {
    card.decision = now.get(`${card.number} ${card.uid}`); verdict(n); if (back < 0 || n < back) back = n;
  }
  state(answer);
  if (answer.changed > answer.undone.length) return open(at);
  if (back >= 0) await move(back, false);
});

const redo = () => tell(async () => {
  trouble();
  const answer = await ask("redo", {}, {});
  state(answer);
  if (answer.changed) await open(Math.max(at, 0));
});

// ---- captions of one card on another -----------------------------------------------------------

// Each is one decision for all cards, which u takes back at once.
function captions(exchange, advice) {
  const places = [...chosen].filter(n => cards.has(n)).sort((a, b) => a - b);
  const given = exchange(places);
  if (!given.length) { trouble(advice); return; }
  const from = given.map(([, n]) => cards.get(n));
  if (from.some(card => !captionOf(card) || captionOf(card) === card.text && !card.isWhole)) { trouble("One of these captions is missing, or too long to be moved here."); return; }
  const before = new Map(places.map(n => [n, captionOf(cards.get(n))]));
  const texts = new Map(given.map(([to, from]) => [cards.get(to), before.get(from)]));
  chosen = new Set(given.map(([to]) => to));
  decide("correct", card => texts.get(card));
}

const swap = () => captions(
  places => places.length === 2 ? [places, [...places].reverse()] : [],
  "Select two pairs to swap their captions.");
const shift = by => captions(
  places => places.filter(n => places.includes(n + by)).map(n => [n, n + by]),
  "Select pairs that follow one another to shift their captions by one: the first, then the last and Select to here.");

// ---- notes -------------------------------------------------------------------------------------

function note() {
  const card = cards.get(at); if (!card) return;
  $("note").value = card.decision && card.decision[3] || "";
  $("noting").returnValue = ""; $("noting").showModal(); $("note").select();
}
$("noting").addEventListener("close", () => {
  grid.focus({preventScroll: true});
  if ($("noting").returnValue !== "note") return;
  const text = $("note").value.trim(), noted = (chosen.size ? [...chosen] : [at]).filter(n => cards.has(n)).map(n => [n, cards.get(n)]);
  for (const [n, card] of noted) { card.decision = [...(card.decision || ["note", null, ""]).slice(0, 3), text]; verdict(n); }
  clear();
  tell(async () => state(await ask("note", {}, {pairs: noted.map(([, card]) => [card.uid, card.number]), note: text})));
});

// ---- one picture -------------------------------------------------------------------------------

const enlarge = guarded(n => {
  const card = cards.get(n); if (!card) return;
  const image = element("img");
  image.alt = ""; image.src = `picture?${new URLSearchParams({shard: card.shard, key: card.key, large: "1"})}`;
  image.addEventListener("click", () => image.classList.toggle("own-size"));
  $("large-picture").replaceChildren(image);
  $("large-caption").textContent = visible(captionOf(card));
  $("large").showModal();
});

const copy = guarded(async () => {
  const card = cards.get(at); if (!card) return;
  const path = card.file.filter(Boolean).join("/");
  await navigator.clipboard.writeText(path);
  $("state").textContent = `copied: ${path}`;
});

function edit() {
  const card = cards.get(at); if (!card || editing !== null) return;
  if (!card.isWhole) { trouble("This caption is too long to edit here."); return; }
  editing = at;
  const place = at, caption = card.box.querySelector(".caption"), area = element("textarea"), now = captionOf(card);
  const box = element("div", "editor"), [saves, leaves] = ["Save", "Cancel"].map(word => Object.assign(element("button", "", word), {type: "button"}));
  area.value = now; area.setAttribute("aria-label", "Corrected caption");
  area.dir = "auto";
  box.append(area, saves, leaves);
  caption.hidden = true; caption.after(box); area.focus();
  box.scrollIntoView({block: "nearest"});
  const close = () => { if (editing === null) return; editing = settle = null; box.remove(); caption.hidden = false; grid.focus({preventScroll: true}); };
  const save = () => {
    const text = area.value.trim();
    close();
    if (!text) trouble("A caption must not be empty: it stays as it was.");
    else if (text !== now) { clear(); at = place; decide("correct", () => text); }
  };
  settle = save;  // who turns to something else has written this
  saves.addEventListener("click", event => { event.stopPropagation(); save(); });
  leaves.addEventListener("click", event => { event.stopPropagation(); close(); });
  area.addEventListener("keydown", event => {
    event.stopPropagation();
    if (event.key === "Escape") close();
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      save();
    }
  });
}

const all = guarded(async () => {
  if (!total) return;
  await told;
  // Without the page: the view in which one goes on keeps its order.
  const {pairs} = await ask("rows", {...request, page: "", undecided: "1", start: 0, count: 0, anew: 1}, undefined, view.signal);
  if (!pairs) { $("state").textContent = "all pairs of this view are decided"; return; }
  $("all-what").textContent = `All ${number(pairs)} undecided pairs of this view:`;
  $("all").returnValue = ""; $("all").showModal();
});
$("all").addEventListener("close", guarded(async () => {
  const kind = $("all").returnValue; grid.focus();
  if (!kind) return;
  $("state").textContent = "deciding…";
  await told;
  const answer = await ask("decide-all", {}, {decision: kind, request});
  await open(at);
  state(answer); $("state").textContent = `${number(answer.changed)} decided at once; Undo takes it back`;
}));

const finish = guarded(async () => {
  settle?.();
  await told;
  const {pairs: left} = await ask("rows", {view: data.views[0][0], undecided: "1", start: 0, count: 0, anew: 1});
  await ask("done", {}, {});
  const page = element("div", "finished");
  page.append(element("p", "", "The decisions are written: the terminal says which command uses them. This page can be closed."));
  if (left) page.append(element("p", "", `${number(left)} of the view ${data.views[0][1]} are undecided: the policy of select decides about them.`));
  document.body.replaceChildren(page);
});

// ---- selecting without a keyboard --------------------------------------------------------------

function select() { chosen.has(at) ? chosen.delete(at) : chosen.add(at); anchor = at; verdict(at); where(); }
const range = guarded(async () => {
  if (!chosen.size) return select();
  // By touch, the pair at which the range ends has been selected by the tap that chose it.
  const others = [...chosen].filter(n => n !== at);
  const near = others.reduce((best, n) => Math.abs(n - at) < Math.abs(best - at) ? n : best, others.length ? others[0] : at);
  await choose(near, at);
  [...chosen].forEach(verdict); where();
});

function alike() {
  const card = cards.get(at); if (!card || !canSearch()) return;
  like = card;
  if ($("find").value !== "search") $("search").value = "";
  changed(); grid.focus();
}

const unlike = () => { like = null; changed(); grid.focus(); };
const deeds = {
  select, range, deselect: () => like && !chosen.size ? unlike() : clear(), note, like: alike,
  keep: () => decide("keep"), drop: () => decide("drop"), mend: () => decide("correct", card => card.mended),
  redo, swap, next: () => shift(1), previous: () => shift(-1), large: () => enlarge(at), copy, jump: () => { $("jump").returnValue = ""; $("jump").showModal(); $("pair").max = total; $("pair").select(); },
  edit, closest, skip: () => { clear(); move(at + 1, false); }, undo, all, help: () => { $("help").returnValue = ""; $("help").showModal(); },
};
const keys = {x: "select", X: "range", Escape: "deselect", n: "note", m: "like", y: "redo", w: "swap", "]": "next", "[": "previous", z: "large", f: "copy", g: "jump", k: "keep", d: "drop", r: "mend", e: "edit", c: "closest", s: "skip", u: "undo", a: "all", "?": "help"};

document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.matches("input, select, textarea")) { if (event.key === "Escape" || (event.key === "Enter" && event.target.matches("select"))) (event.key === "Enter" && event.target.id === "find" ? $("search") : grid).focus(); return; }
  const step = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns(), ArrowUp: -columns(), PageDown: 3 * columns(), PageUp: -3 * columns()}[event.key];
  if (step) move(at + step, event.shiftKey);
  else if (event.key === "Home") event.shiftKey ? move(0, true) : go(0);
  else if (event.key === "End") event.shiftKey ? move(total - 1, true) : go(Math.max(0, total - 1));
  else if (event.key === "v") $("view").focus();
  else if (event.key === "/") $("search").focus();
  else if (event.key >= "1" && event.key <= "9" && event.key.length === 1) take(at, event.key - 1);
  else if (keys[event.key]) deeds[keys[event.key]]();
  else return;
  event.preventDefault();
});
document.querySelector("footer").addEventListener("click", event => {
  const button = event.target.closest("button"); if (button) { settle?.(); grid.focus({preventScroll: true}); deeds[button.dataset.do](); }
});
$("help").addEventListener("close", () => { grid.focus({preventScroll: true}); deeds[$("help").returnValue]?.(); });
grid.addEventListener("click", event => {
  const card = event.target.closest(".card"); if (!card || event.target.closest(".editor")) return;
  const n = +card.dataset.n;
  settle?.();
  if (event.shiftKey) move(n, true);
  else if (event.target.closest(".pick") || event.ctrlKey || event.metaKey || (event.pointerType === "touch" && chosen.size)) { at = n; chosen.has(n) ? chosen.delete(n) : chosen.add(n); [...cards.keys()].forEach(verdict); where(); }
  else { clear(); move(n, false); }
});
grid.addEventListener("dblclick", event => { if (event.target.closest(".caption")) edit(); });
let due = 0;
grid.addEventListener("scroll", () => { if (!due) due = requestAnimationFrame(() => { due = 0; fill(); }); }, {passive: true});
$("done").addEventListener("click", finish);

// ---- what is asked for -------------------------------------------------------------------------

function sorted() {
  const by = $("score").value, isScore = by in data.scores;
  return {score: isScore ? by : null, sort: isScore ? "" : by};
}

function changed() {
  settle?.();
  request = {...request, view: $("view").value, ...sorted(), where: $("where").value.trim(), search: "", meaning: "", side: "", like: like ? like.place : "", undecided: $("undecided").checked ? "1" : ""};
  const words = $("search").value.trim(), find = $("find").value;
  if (find === "search") request.search = words;
  else if (words && !like && canSearch()) { request.meaning = words; request.side = find; }
  $("like").hidden = !like;
  if (like) $("like").firstElementChild.textContent = `like ${like.file[1]}, in this view`;
  $("score").disabled = !!(request.meaning || like);  // the nearest come first
  view.abort(); view = new AbortController();  // the server gives up a condition that nobody waits for
  open(0); drawn();
}
$("unlike").addEventListener("click", unlike);
$("find").addEventListener("change", () => { if ($("find").value !== "search") canSearch(); if ($("search").value.trim()) changed(); if (!byKeys) $("search").focus(); });
$("further").addEventListener("click", () => { $("further").setAttribute("aria-expanded", document.querySelector("header").classList.toggle("all")); paint(); });
let byKeys = false;  // a choice by keys may go on: Enter or Escape leads back to the pairs
for (const name of ["view", "score", "find"]) {
  $(name).addEventListener("keydown", () => { byKeys = true; });
  $(name).addEventListener("pointerdown", () => { byKeys = false; });
}
for (const name of ["view", "score"]) {
  $(name).addEventListener("change", () => { request.low = request.high = null; changed(); if (!byKeys) grid.focus(); });
}
for (const name of ["where", "search"]) {
  $(name).addEventListener("keydown", event => { if (event.key === "Enter") grid.focus(); });
  $(name).addEventListener("change", () => { if (name === "search") like = null; changed(); });
}
$("undecided").addEventListener("change", changed);
$("jump").addEventListener("close", () => {
  grid.focus();
  const n = parseInt($("pair").value, 10);
  if ($("jump").returnValue === "go" && n) go(Math.min(total, Math.max(1, n)) - 1);
});
$("clear").addEventListener("click", () => { request.low = request.high = null; paint(); changed(); });

let from = null;
const bin = event => {
  const box = $("histogram").getBoundingClientRect();
  return Math.max(0, Math.min(1, (event.clientX - box.left) / box.width)) * histogram.counts.length;
};
$("histogram").addEventListener("pointerdown", event => { if (histogram && histogram.counts.length) { from = bin(event); $("histogram").setPointerCapture(event.pointerId); } });
$("histogram").addEventListener("pointermove", event => { if (from !== null) brush(bin(event)); });
$("histogram").addEventListener("pointerup", event => { if (from !== null) { brush(bin(event)); from = null; changed(); } });
function brush(to) {
  const [low, high] = [Math.floor(Math.min(from, to)), Math.ceil(Math.max(from, to))];
  request.low = low > 0 ? value(low) : null; request.high = high < histogram.counts.length ? value(high) : null;
  paint();
}

for (const [name, title] of data.views) { const option = element("option", "", title); option.value = name; $("view").append(option); }
$("score").append(new Option("as the view has it", ""), ...Object.entries(data.scores).map(([name, label]) => new Option(label, name)), new Option("file name", "name"), new Option("date taken", "date"));
ask("views").then(counts => { allPairs = counts.all; $("progress").max = Math.max(allPairs, $("progress").value, 1); for (const option of $("view").options) option.textContent += ` (${number(counts[option.value])})`; }).catch(() => {});
grid.focus();
changed();
