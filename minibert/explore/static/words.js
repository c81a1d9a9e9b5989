// Guesses, and which words made them so.

function showGuesses(look) {
  $("guesses").closest("section").hidden = look.guesses.length === 0;
  const most = look.guesses[0]?.p;
  const rows = look.guesses.map((guess) => {
    const bar = element("div");
    bar.style.width = `${(100 * guess.p) / most}%`;
    return element(
      "tr",
      { className: isAnswer(look, guess) ? "answer" : "" },
      element("td", { textContent: guess.token }),
      element("td", { className: "p", textContent: percent(guess.p) }),
      element("td", { className: "bar" }, bar),
    );
  });
  $("guesses").replaceChildren(
    element("caption", {
      textContent:
        look.place === null ? "for the whole" : `for token ${look.place}, ${look.tokens[look.place]}`,
    }),
    ...rows,
  );
  showLens(look);
}

// A column for each layer, so that an answer can be followed from left to right.
function showLens(look) {
  const { lens } = look;
  $("lens").replaceChildren();
  if (lens.length === 0) return;
  const names = numbers(lens.length).map((i) => element("th", { textContent: `x(${i})` })),
    row = (k) =>
      lens.map((best) => {
        const className = isAnswer(look, best[k]) ? "answer" : "";
        return element("td", { className, textContent: `${apart(best[k].token)} ${percent(best[k].p)}` });
      });
  $("lens").append(
    element("caption", { textContent: "what the head would guess from each layer's state (logit lens)" }),
    element("tr", {}, ...names),
    ...lens[0].map((_, k) => element("tr", {}, ...row(k))),
  );
}

async function showWords(shown) {
  $("words").ariaBusy = "true";
  $("words").replaceChildren();
  try {
    if (shown.words) drawWords(shown);
    else await askForWords(shown);
  } finally {
    if (shown === layers.shown) $("words").ariaBusy = "false";
  }
}

// A few passes of the model at a time: for the nodes of the integral, then for each word that is hidden.
async function askForWords(shown) {
  const { tokens } = shown.look,
    some = Math.max(1, Math.floor(500 / tokens.length)),
    parts = [
      ...slices(numbers(data.live.nodes), some).map((nodes) => ({ nodes, places: [] })),
      ...slices(numbers(tokens.length), some).map((places) => ({ nodes: [], places })),
    ];
  for (const part of parts)
    await live.inTurn(async () => {
      if (shown === layers.shown) addWords(shown, await live.ask("words", part)); // or another pass has come
    });
}

function addWords(shown, rows) {
  shown.words ??= rows.map((row) => ({ ...row, values: row.values.map(() => null) }));
  rows.forEach(({ values }, k) => {
    const all = shown.words[k].values;
    values.forEach((v, i) => {
      if (v !== null) all[i] = k === 1 ? v : all[i] + v; // input × gradient comes with every part
    });
  });
  drawWords(shown);
}

function drawWords({ look, words }) {
  const most = words.map((row) => Math.max(...row.values.map((v) => Math.abs(v ?? 0))) || 1);
  const head = element(
    "tr",
    {},
    element("th"),
    ...words.map((row) => element("th", { textContent: row.name })),
  );
  const rows = look.tokens.map((token, i) =>
    element(
      "tr",
      { className: i === look.place ? "answer" : "" },
      element("th", { textContent: token }),
      ...words.map((row, k) => {
        const v = row.values[i],
          bar = element("div", { className: v < 0 ? "minus" : "" });
        const share = Math.abs(v ?? 0) / most[k];
        bar.style.width = `calc(${share} * (100% - 2rem))`; // the number needs some room
        return element(
          "td",
          { className: "share", title: v === null ? "" : digits(v) },
          bar,
          element("span", { textContent: v === null ? "" : digits(v) }),
        );
      }),
    ),
  );
  $("words").replaceChildren(
    element("caption", {
      textContent:
        "by how much each word has lowered the loss, measured in three ways" +
        (live?.isChanged() ? ", without the changes" : ""),
    }),
    head,
    ...rows,
  );
}
