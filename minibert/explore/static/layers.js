// A layer: every head.

const layers = {
  turn: 0, // counts what was shown, so that an answer that comes late is not shown elsewhere

  show(shown) {
    this.shown = shown;
    this.turn++;
    const rollout = $("kind").querySelector('[value="rollout"]');
    rollout.disabled = !shown.look.rollout; // an XLNet has none
    if (rollout.disabled && rollout.selected) $("kind").value = "maps";
    const { look } = shown,
      layer = Number($("layer").value),
      kind = $("kind").value;
    const maps = unpack(look.maps),
      dmaps = look.dmaps && unpack(look.dmaps),
      form = $("form").value;
    const [, heads, rows, keys] = maps.shape;
    const names = look.tokens,
      queries = rowsOf(look, rows);
    const options = { rowNames: queries, columnNames: names, width: 250 };
    $("heads").replaceChildren();
    const [hint, before] =
      form === "arcs"
        ? ["Queries are on the left, keys on the right. Point at a query.", " Open a pair: "]
        : ["A row is a query, a column a key.", " Click a square, or open a pair: "];
    const choice = shown.tensors ? [before, ...this.choice(layer, heads, queries, names)] : [];
    $("pair").replaceChildren(element("p", { className: "hint" }, hint, ...choice));
    const add = (values, caption, more) => {
      const label = `${caption} of layer ${layer}`;
      const figure = element(
        "figure",
        {},
        (form === "arcs" ? arcs : heatmap)(values, rows, keys, { ...options, label, ...more }),
        element("figcaption", { textContent: caption }),
      );
      $("heads").append(figure);
      return figure;
    };
    const size = rows * keys;
    if (kind === "rollout") {
      const mixed = unpack(look.rollout);
      add(
        mixed.values.subarray(layer * size, (layer + 1) * size),
        `tokens in tokens, up to layer ${layer}`,
        {},
      );
      return;
    }
    const most = { maps: 1, taken: look.offered && Math.max(...look.offered[layer].flat()) }[kind] ?? null;
    for (let head = 0; head < heads; head++) {
      const from = (layer * heads + head) * size;
      const p = maps.values.subarray(from, from + size);
      const values = {
        maps: () => p,
        taken: () => p.map((v, i) => v * look.offered[layer][head][i % keys]),
        gradient: () => p.map((v, i) => -v * dmaps.values[from + i]),
      }[kind]();
      const figure = add(values, `head ${head}`, {
        most,
        onClick: shown.tensors ? (i, j) => this.pair(layer, head, i, j, queries, names) : null,
      });
      if (look.written) {
        const lengths = look.written[layer][head],
          longest = lengths.indexOf(Math.max(...lengths));
        figure.lastChild.append(
          `: adds a vector of length ${digits(lengths.reduce((a, b) => a + b) / lengths.length)} on average, at most ${digits(lengths[longest])} (${queries[longest]})`,
        );
      }
      if (live) live.offerOff(figure.lastChild, layer, head);
    }
  },

  // The same as a click on a square, for who uses the keyboard.
  choice(layer, heads, queries, names) {
    const list = (label, options) => element("select", { ariaLabel: label }, ...options);
    const head = list("head", choices(numbers(heads).map((i) => `head ${i}`))),
      query = list("query", tokenChoices(queries)),
      key = list("key", tokenChoices(names));
    const open = () =>
      this.pair(layer, Number(head.value), Number(query.value), Number(key.value), queries, names);
    return [head, " ", query, " → ", key, " ", element("button", { textContent: "open", onclick: open })];
  },

  // One weight of attention: where it comes from, and what it brings.
  async pair(layer, head, i, j, queries, names) {
    const { shown } = this,
      turn = ++this.turn,
      start = shown.look.values
        .find((v) => v.name.endsWith(`layer.${layer}.attention.self.q`))
        .name.slice(0, -1);
    const tensors = await Promise.all(
      ["q", "k", "scores", "probabilities", "v"].map((part) => tensorOf(shown, start + part)),
    );
    if (turn !== this.turn) return; // something else has been chosen meanwhile
    const [q, k, s, p, v] = tensors.map((tensor) => unpack(tensor.value));
    const row = (x, token) => {
      const [, tokens, size] = x.shape,
        from = (head * tokens + token) * size;
      return x.values.subarray(from, from + size);
    };
    const options = { width: Math.min(900, $("pair").clientWidth || 900) };
    const { written, offered } = shown.look,
      lengths = [written[layer][head][i], offered[layer][head]];
    $("pair").replaceChildren(
      element(
        "p",
        {},
        `Layer ${layer}, head ${head}: `,
        element("b", { textContent: queries[i] }),
        " (the query) attends to ",
        element("b", { textContent: names[j] }),
        " (the key).",
      ),
      ...this.score(row(q, i), row(k, j), row(s, i), j, row(p, i)[j], options),
      ...this.taken(row(p, i), (token) => row(v, token), [queries[i], names[j]], j, lengths, options),
    );
    if (live) live.offerPin($("pair"), layer, head, i, j, row(p, i)[j]);
  },

  // q·k as the sum that it is.
  score(q, k, scores, j, p, options) {
    const most = scores.reduce((a, b) => Math.max(a, b)),
      share = Math.exp(scores[j] - most) / scores.reduce((sum, s) => sum + Math.exp(s - most), 0),
      pinned = Math.abs(share - p) > 1e-4 ? `; it has been changed to ${percent(p)}` : "";
    const products = q.map((v, d) => (v * k[d]) / Math.sqrt(q.length));
    const largest = [...products.keys()]
      .sort((a, b) => Math.abs(products[b]) - Math.abs(products[a]))
      .slice(0, 6)
      .map((d) => `${digits(products[d])} (feature ${d})`)
      .join(", ");
    const sum = digits(products.reduce((a, b) => a + b, 0));
    return [
      element("p", {
        className: "number",
        textContent: `q·k/√D is a sum of ${q.length} products: ${largest}, … = ${sum}. The score is ${digits(scores[j])}, its share of the row's softmax ${percent(share)}${pinned}.`,
      }),
      heatmap(products, 1, q.length, { ...options, label: "the products" }),
    ];
  },

  // p v of one token, beside that of all; p is the row of weights, and the lengths are those after W.
  taken(p, v, [query, key], j, [written, offered], options) {
    const size = v(j).length,
      one = v(j).map((x) => p[j] * x),
      all = numbers(size).map((d) => p.reduce((sum, share, token) => sum + share * v(token)[d], 0));
    return [
      element("p", {
        className: "number",
        textContent: `${query} takes this share of v of ${key}. Times W it is a vector of length ${digits(p[j] * offered[j])}; what the head writes, of all tokens together, has length ${digits(written)}.`,
      }),
      heatmap([...v(j), ...one, ...all], 3, size, {
        ...options,
        rowNames: ["v", "p v", "Σ p v"],
        label: `v of ${key}, what ${query} takes of it, and what it takes of all tokens`,
      }),
    ];
  },
};

// A layer: what both of its halves add, and what LayerNorm makes of the sum.

const halves = {
  show(shown) {
    const { look } = shown,
      layer = Number($("layer").value),
      both = look.residuals?.[layer];
    $("halves").hidden = !both;
    if (!both) return;
    const lengths = (name) => look.values.find((v) => v.name === name).norms;
    const columns = both.flatMap((half, i) => {
      const [told, end] = i ? ["feed-forward", "x′"] : ["attention", "a"];
      const { shape, values } = unpack(half.added);
      const added = Array.from({ length: shape[0] }, (_, t) =>
        Math.hypot(...values.subarray(t * shape[1], (t + 1) * shape[1])),
      );
      return [
        ...(i ? [] : [["‖x‖", lengths(half.before)]]),
        [`‖${told}‖`, added],
        ["cosine", half.cosine],
        ["σ of the sum", half.deviation],
        [`‖${end}‖`, lengths(half.after)],
      ];
    });
    const cells = (values) => values.map((v) => element("td", { textContent: v.toFixed(2) }));
    $("halves-table").replaceChildren(
      element("tr", {}, element("th"), ...columns.map(([name]) => element("th", { textContent: name }))),
      ...look.tokens.map((token, t) =>
        element(
          "tr",
          { className: t === look.place ? "answer" : "" },
          element("th", { textContent: token }),
          ...cells(columns.map(([, values]) => values[t])),
        ),
      ),
    );
    if (look.tokens.join() !== this.shown?.look.tokens.join()) {
      $("halves-token").replaceChildren(...tokenChoices(look.tokens)); // else what was chosen stays chosen
      $("halves-token").value = look.place ?? 0;
    }
    this.shown = shown;
    $("halves-token").onchange = () => this.draw(shown, both);
    this.draw(shown, both);
  },

  // One token's features before, what is added, the sum, and after LayerNorm.
  async draw(shown, both) {
    if (!shown.tensors) return;
    const names = [...new Set(both.flatMap((half) => [half.before, half.after]))];
    const tensors = Object.fromEntries(
      await Promise.all(names.map(async (name) => [name, unpack((await tensorOf(shown, name)).value)])),
    );
    if (shown !== this.shown || both !== shown.look.residuals[Number($("layer").value)]) return;
    const token = Number($("halves-token").value);
    const figures = both.map((half, i) => {
      const [told, start, end] = i ? ["feed-forward", "a", "x′"] : ["attention", "x", "a"];
      const size = tensors[half.before].shape[1];
      const row = (x) => x.values.subarray(token * size, (token + 1) * size);
      const [before, added, after] = [tensors[half.before], unpack(half.added), tensors[half.after]].map(row);
      const sum = before.map((v, d) => v + added[d]);
      const strips = Float32Array.from([...before, ...added, ...sum, ...after]);
      const label = `${told}: ${start}, what is added, the sum, ${end}`;
      return element(
        "figure",
        {},
        heatmap(strips, 4, size, {
          rowNames: [start, `+ ${told}`, "=", `→ ${end}`],
          label,
          margin: 96,
          width: Math.max(260, Math.min(640, ($("halves").clientWidth - 20) / 2)),
          onHover: (k, d) => {
            caption.textContent = `feature ${d}: ${digits(before[d])} + ${digits(added[d])} = ${digits(sum[d])} → ${digits(after[d])}`;
          },
        }),
      );
    });
    const caption = element("p", { className: "hint number", textContent: "Point at a feature." });
    $("halves-strips").replaceChildren(element("div", { className: "two" }, ...figures), caption);
  },
};
