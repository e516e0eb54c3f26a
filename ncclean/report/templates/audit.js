"use strict";
(() => {
  const { pairs, design, name, answers: words } = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const storageKey = `ncclean-audit-${name}`;
  let answers = {}; // by the number of the pair: 0 to 3
  let position = 0;
  let isKept = true; // whether the browser keeps the answers
  let isSaved = true;

  function load() {
    try {
      const kept = JSON.parse(localStorage.getItem(storageKey) || "{}");
      for (const [number, key] of Object.entries(kept.answers || {})) {
        if (number in pairs && key in words) answers[number] = key;
      }
      if (Number.isInteger(kept.position)) position = Math.min(Math.max(kept.position, 0), pairs.length);
    } catch { /* another version's, or no storage: what was kept is not there */ }
  }

  function keep() {
    isSaved = false;
    try {
      localStorage.setItem(storageKey, JSON.stringify({ answers, position }));
    } catch {
      isKept = false;
      tell("This browser keeps no answers: save them before you close the page.");
    }
  }

  function tell(text) {
    $("trouble").textContent = text;
    $("trouble").hidden = false;
  }

  function show() {
    const done = Object.keys(answers).length;
    const isEnd = position >= pairs.length;
    $("progress").value = done;
    $("pair").hidden = isEnd;
    $("end").hidden = !isEnd;
    $("answers").hidden = isEnd;
    $("back").disabled = position === 0;
    all("#others [data-key]").forEach((button) => { button.disabled = isEnd; });
    $("place").textContent = isEnd ? `${done} of ${pairs.length} judged` : `${position + 1} of ${pairs.length}`;
    if (isEnd) {
      document.querySelector("#end h1").textContent =
        done === pairs.length ? "All pairs are judged" : `${pairs.length - done} pairs are not judged`;
      $("agreement").hidden = !pairs.some((pair) => pair.judge);
      $("agreement").textContent = agreement();
      return;
    }
    const pair = pairs[position];
    $("picture").replaceChildren(pictureOf(pair));
    $("caption").replaceChildren(...captionOf(pair));
    $("caption").scrollTop = 0;
    // Only beside an answer that is given: before, it would be one.
    $("words").hidden = !((pair.words || pair.judge) && position in answers);
    $("words").replaceChildren();
    if (pair.words) {
      const [suspect, better] = pair.words.map((word) => element("bdi", word));
      $("words").append("The estimator would say ", better, " in place of ", suspect, ". ");
    }
    if (pair.judge) $("words").append(`The judge: ${pair.judge}.`);
    all("[data-key]").forEach((button) => {
      button.setAttribute("aria-pressed", String(answers[position] === Number(button.dataset.key)));
    });
  }

  // "Partly" counts as a match, as `ncclean audit` counts it unless it is told otherwise.
  function agreement() {
    const both = Object.keys(answers).filter((number) => answers[number] > 0 && ["match", "mismatch"].includes(pairs[number].judge));
    const same = both.filter((number) => (words[answers[number]] === "mismatch") === (pairs[number].judge === "mismatch"));
    return `You and the judge agree on ${same.length} of ${both.length} pairs.`;
  }

  function element(name, text, fields = {}) {
    const made = document.createElement(name);
    made.textContent = text;
    return Object.assign(made, fields);
  }

  function pictureOf(pair) {
    if (pair.picture) {
      return element("img", "", { src: pair.picture, alt: `Picture of pair ${position + 1}`, decoding: "sync" });
    }
    const placeholder = element("p", pair.reason);
    if (pair.link) {
      const link = element("a", "open it at its address", { href: pair.link, target: "_blank", rel: "noopener noreferrer" });
      placeholder.append(" \u2013 ", link);
    }
    return placeholder;
  }

  // Captions are untrusted: they only ever become text.
  function captionOf(pair) {
    if (!pair.caption) return [element("span", "no caption", { className: "cut" })];
    const parts = [element("bdi", pair.caption, { dir: "auto" })];
    if (pair.leftOut) parts.push(element("span", ` \u2026 ${pair.leftOut.toLocaleString("en-US")} more characters`, { className: "cut" }));
    return parts;
  }

  function answer(key) {
    if (position >= pairs.length) return;
    answers[position] = key;
    move(1);
  }

  function move(by) {
    position = Math.min(Math.max(position + by, 0), pairs.length);
    keep();
    show();
  }

  function save() {
    const judged = Object.keys(answers).map(Number).sort((a, b) => a - b);
    const content = {
      design,
      answers: judged.map((number) => {
        const { uid, caption_number, stratum } = pairs[number];
        return { uid, caption_number, stratum, answer: words[answers[number]] };
      }),
    };
    const file = new Blob([JSON.stringify(content, null, 1)], { type: "application/json" });
    const link = element("a", "", { href: URL.createObjectURL(file), download: "answers.json" });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    isSaved = true;
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const isAnswer = ["0", "1", "2", "3"].includes(event.key);
    const step = { ArrowLeft: -1, Backspace: -1, ArrowRight: 1 }[event.key];
    if (!isAnswer && step === undefined) return;
    event.preventDefault();
    // A key that is held down judges one pair, not all of them.
    if (isAnswer && !event.repeat) answer(Number(event.key));
    if (step !== undefined) move(step);
  });
  all("[data-key]").forEach((button) => button.addEventListener("click", () => answer(Number(button.dataset.key))));
  $("back").addEventListener("click", () => move(-1));
  $("save").addEventListener("click", save);
  addEventListener("beforeunload", (event) => {
    if (!isKept && !isSaved) event.preventDefault();
  });

  load();
  document.querySelector("footer").hidden = false;
  show();
})();
