"use strict";
// What Python sends is in base64 and float32; "maps" are (L, A, S, S).

const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);

function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed.data), (c) => c.charCodeAt(0));
  return { shape: packed.shape, values: new Float32Array(bytes.buffer) };
}

function color(name) {
  const probe = document.createElement("i");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const [r, g, b] = getComputedStyle(probe)
    .color.match(/[\d.]+/g)
    .map(Number);
  probe.remove();
  return [r, g, b];
}

const rgba = ([r, g, b], a) => `rgba(${r}, ${g}, ${b}, ${a})`;

function element(tag, attributes = {}, ...children) {
  const made = Object.assign(document.createElement(tag), attributes);
  made.append(...children);
  return made;
}

const digits = (x) =>
  x === 0 ? "0" : Math.abs(x) >= 1e-3 && Math.abs(x) < 1e4 ? x.toPrecision(4) : x.toExponential(2);
const percent = (p) => (p >= 0.0995 ? `${(100 * p).toFixed(0)} %` : `${(100 * p).toFixed(1)} %`);

// A canvas that is sharp on any screen; draws in CSS pixels.
function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

// What the page does not hold yet, it asks for; an offline page holds everything (live.js is not part of it).
const live = typeof startLive === "function" ? startLive() : null;

async function tensorOf(shown, name) {
  shown.tensors[name] ??= await live.ask("tensor", { name });
  return shown.tensors[name];
}

// -- The whole: a river of tokens from left to right, the gradient back from right to left ------------------

const river = {
  stages: [], // the columns: x⁽⁰⁾, then a and x′ of each layer

  prepare(look) {
    this.look = look;
    const depth = look.maps.shape[0];
    const value = (end) => look.values.find((v) => v.name.endsWith(end));
    this.stages = [{ label: "embeddings", ...value("embeddings") }];
    for (let l = 0; l < depth; l++) {
      this.stages.push({ label: `attention ${l}`, layer: l, ...value(`layer.${l}.attention`) });
      this.stages.push({ label: `layer ${l}`, layer: l, ...value(`layer.${l}`) });
    }
  },

  layout() {
    const width = $("river").clientWidth,
      tokens = this.look.tokens.length;
    this.row = Math.max(17, Math.min(30, 520 / tokens));
    this.left = Math.min(120, width * 0.16);
    this.right = width - Math.min(130, width * 0.18);
    this.top = 34;
    this.width = width;
    this.height = this.top + this.row * tokens + 10;
  },

  x(stage) {
    return this.left + ((this.right - this.left) * stage) / (this.stages.length - 1);
  },
  y(token) {
    return this.top + this.row * (token + 0.5);
  },

  // Streams and links of one direction, on a canvas of their own that is drawn once.
  paint(direction) {
    const canvas = document.createElement("canvas");
    const context = sized(canvas, this.width, this.height);
    const tint = color(direction),
      forwards = direction === "forward";
    const lengths = this.stages.map((s) => (forwards ? s.norms : s.dnorms));
    const most = Math.max(...lengths.flat()) || 1;
    const thick = (stage, token) => {
      const share = lengths[stage][token] / most;
      return (forwards ? share : Math.sqrt(share)) * this.row * 0.62;
    };
    const maps = unpack(this.look.maps),
      dmaps = unpack(this.look.dmaps);
    const [depth, heads, rows, keys] = maps.shape;
    for (let stage = 0; stage + 1 < this.stages.length; stage++) {
      const [from, to] = [this.x(stage), this.x(stage + 1)],
        bend = (to - from) * 0.45;
      for (let token = 0; token < keys; token++) {
        const [a, b, y] = [thick(stage, token) / 2, thick(stage + 1, token) / 2, this.y(token)];
        context.beginPath();
        context.moveTo(from, y - a);
        context.bezierCurveTo(from + bend, y - a, to - bend, y - b, to, y - b);
        context.lineTo(to, y + b);
        context.bezierCurveTo(to - bend, y + b, from + bend, y + a, from, y + a);
        context.fillStyle = rgba(tint, forwards ? 0.5 : 0.75);
        context.fill();
      }
      if (stage % 2) continue; // only attention moves anything from token to token
      const layer = stage / 2,
        links = [];
      let largest = 0;
      for (let query = 0; query < Math.min(rows, keys); query++) {
        for (let key = 0; key < keys; key++) {
          if (key === query) continue;
          let weight = 0;
          for (let head = 0; head < heads; head++) {
            const at = ((layer * heads + head) * rows + query) * keys + key;
            weight += forwards ? maps.values[at] / heads : Math.abs(maps.values[at] * dmaps.values[at]);
          }
          largest = Math.max(largest, weight);
          links.push([query, key, weight]);
        }
      }
      for (const [query, key, weight] of links) {
        const share = weight / (forwards ? 1 : largest || 1);
        if (share < 0.02) continue;
        context.beginPath();
        context.moveTo(from, this.y(key));
        context.bezierCurveTo(from + bend, this.y(key), to - bend, this.y(query), to, this.y(query));
        context.strokeStyle = rgba(tint, Math.min(0.9, 0.12 + share));
        context.lineWidth = 0.4 + 3.5 * share;
        context.stroke();
      }
    }
    return canvas;
  },

  build() {
    this.layout();
    this.images = { forward: this.paint("forward"), gradient: this.paint("gradient") };
    this.draw();
  },

  // time 0 … 1: the forward pass; 1 … 2: the backward pass.
  draw() {
    const time = (2 * $("time").value) / 1000,
      look = this.look;
    const context = sized($("river"), this.width, this.height);
    const ink = color("ink"),
      quiet = color("quiet");
    const reached = this.left + (this.right - this.left) * Math.min(1, time) + 1;
    const back = this.right - (this.right - this.left) * Math.max(0, time - 1);
    const show = (image, from, to, alpha) => {
      context.save();
      context.beginPath();
      context.rect(from, 0, to - from, this.height);
      context.clip();
      context.globalAlpha = alpha;
      context.drawImage(image, 0, 0, this.width, this.height);
      context.restore();
    };
    show(this.images.forward, 0, reached, time > 1 ? 0.55 : 1);
    if (time > 1) show(this.images.gradient, back, this.width, 1);
    context.font = "13px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "right";
    look.tokens.forEach((token, i) => {
      context.fillStyle = i === look.place ? rgba(color("forward"), 1) : rgba(ink, 1);
      context.fillText(token, this.left - 10, this.y(i), this.left - 14);
    });
    context.textAlign = "center";
    context.fillStyle = rgba(quiet, 1);
    const apart = (this.right - this.left) / (this.stages.length - 1);
    this.stages.forEach((stage, i) => {
      if (apart > 80) context.fillText(stage.label, this.x(i), 14);
      else if (i % 2 === 0) context.fillText(`x(${i / 2})`, this.x(i), 14, 2 * apart);
    });
    if (time >= 1) {
      context.textAlign = "left";
      look.guesses.slice(0, 3).forEach((guess, i) => {
        context.fillStyle =
          look.measure === `−ln p(${guess.token})` ? rgba(color("gradient"), 1) : rgba(ink, 1);
        context.fillText(
          `${guess.token} ${percent(guess.p)}`,
          this.right + 10,
          this.y(look.place ?? 0) + 16 * (i - 1) + (look.place ? 0 : 16),
          this.width - this.right - 12,
        );
      });
    }
    const stage =
      time <= 1
        ? Math.floor(time * (this.stages.length - 1))
        : Math.ceil((2 - time) * (this.stages.length - 1));
    $("phase").textContent = `${time <= 1 ? "forwards" : "backwards"}: ${this.stages[stage].label}`;
  },

  click(event) {
    const box = $("river").getBoundingClientRect(),
      x = event.clientX - box.left;
    const token = Math.floor((event.clientY - box.top - this.top) / this.row);
    if (live && x < this.left && this.look.tokens[token] !== undefined) return live.token(token);
    const stage = Math.round(((x - this.left) / (this.right - this.left)) * (this.stages.length - 1));
    const chosen = this.stages[Math.max(0, Math.min(this.stages.length - 1, stage))];
    $("names").value = chosen.name;
    $("names").dispatchEvent(new Event("change"));
    if (chosen.layer !== undefined) {
      $("layer").value = chosen.layer;
      $("layer").dispatchEvent(new Event("change"));
    }
  },
};

// A picture with a name for who cannot see it.
function picture(width, height, label) {
  const canvas = element("canvas"),
    context = sized(canvas, width, height);
  canvas.style.width = `${width}px`;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  return [canvas, context];
}

const peak = (values) => values.reduce((most, v) => Math.max(most, Math.abs(v)), 0);

// -- Matrices -----------------------------------------------------------------------------------------------

// A matrix as squares. Two colours where there are signs, one where there are none. Tells what is under the mouse.
function heatmap(
  values,
  rows,
  columns,
  {
    rowNames = null,
    columnNames = null,
    most = null,
    onHover = null,
    onClick = null,
    label = "",
    width = null,
    margin = rowNames ? 74 : 0,
  } = {},
) {
  const head = columnNames ? 62 : 0;
  const space = (width || 300) - margin - 4;
  const cell = columnNames ? Math.min(26, space / columns) : space / columns;
  const tall = columnNames ? cell : Math.max(4, Math.min(18, 420 / rows));
  const [canvas, context] = picture(margin + cell * columns + 2, head + tall * rows + 2, label);
  const limit = most || peak(values);
  const plus = color("forward"),
    minus = color("gradient");
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < columns; j++) {
      const v = values[i * columns + j];
      context.fillStyle = rgba(v < 0 ? minus : plus, Math.min(1, Math.abs(v) / (limit || 1)));
      context.fillRect(margin + j * cell, head + i * tall, cell + 0.5, tall + 0.5);
    }
  }
  context.strokeStyle = rgba(color("line"), 1);
  context.strokeRect(margin, head, cell * columns, tall * rows);
  context.fillStyle = rgba(color("quiet"), 1);
  context.font = `${Math.max(8, Math.min(12, (columnNames ? cell : tall) * 0.8))}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  if (rowNames && tall > 6) {
    context.textAlign = "right";
    rowNames.forEach((name, i) => context.fillText(name, margin - 5, head + tall * (i + 0.5), margin - 6));
  }
  if (columnNames && cell > 6) {
    context.textAlign = "left";
    columnNames.forEach((name, j) => {
      context.save();
      context.translate(margin + cell * (j + 0.5), head - 5);
      context.rotate(-Math.PI / 2);
      context.fillText(name, 0, 0, head - 8);
      context.restore();
    });
  }
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    const i = Math.floor((event.clientY - box.top - head) / tall),
      j = Math.floor((event.clientX - box.left - margin) / cell);
    return i >= 0 && j >= 0 && i < rows && j < columns ? [i, j] : null;
  };
  if (onHover)
    canvas.addEventListener("mousemove", (event) => {
      const at = place(event);
      if (at) onHover(...at);
    });
  if (onClick)
    canvas.addEventListener("click", (event) => {
      const at = place(event);
      if (at) onClick(...at);
    });
  return canvas;
}

// The same as lines, from the tokens that ask on the left to those that are looked at on the right.
function arcs(values, rows, columns, { rowNames, columnNames, most = null, label = "", width }) {
  const space = Math.max(12, Math.min(22, 420 / rows)),
    margin = 78;
  const [canvas, context] = picture(width, space * Math.max(rows, columns) + 8, label);
  const limit = most || peak(values);
  const plus = color("forward"),
    minus = color("gradient"),
    y = (i) => 4 + space * (i + 0.5);
  const draw = (chosen) => {
    context.clearRect(0, 0, width, canvas.height);
    for (let i = 0; i < rows; i++) {
      for (let j = 0; j < columns; j++) {
        const v = values[i * columns + j],
          share = Math.abs(v) / (limit || 1);
        if (share < 0.03 || (chosen !== null && i !== chosen)) continue;
        context.beginPath();
        context.moveTo(margin, y(i));
        context.bezierCurveTo(width / 2, y(i), width / 2, y(j), width - margin, y(j));
        context.strokeStyle = rgba(v < 0 ? minus : plus, Math.min(1, share));
        context.lineWidth = 0.5 + 3 * share;
        context.stroke();
      }
    }
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    const write = (names, align, x) => {
      context.textAlign = align;
      names.forEach((name, i) => {
        context.fillStyle = rgba(color(align === "right" && i === chosen ? "forward" : "quiet"), 1);
        context.fillText(name, x, y(i), margin - 8);
      });
    };
    write(rowNames, "right", margin - 5);
    write(columnNames, "left", width - margin + 5);
  };
  canvas.addEventListener("mousemove", (event) => {
    const i = Math.floor((event.clientY - canvas.getBoundingClientRect().top - 4) / space);
    draw(i >= 0 && i < rows ? i : null);
  });
  canvas.addEventListener("mouseleave", () => draw(null));
  draw(null);
  return canvas;
}

// -- A layer: every head ------------------------------------------------------------------------------------

const layers = {
  show(shown) {
    this.shown = shown;
    const { look } = shown,
      layer = Number($("layer").value),
      kind = $("kind").value;
    const maps = unpack(look.maps),
      dmaps = look.dmaps && unpack(look.dmaps),
      form = $("form").value;
    const [, heads, rows, keys] = maps.shape;
    const names = look.tokens,
      queries = rows > keys ? [...names, ...Array(rows - keys).fill("query")] : names;
    const options = { rowNames: queries, columnNames: names, width: 300 };
    $("heads").replaceChildren();
    const hint =
      form === "arcs"
        ? "Left are the tokens that ask, right those that are looked at. Point at one on the left."
        : "A row is the token that asks, a column the one that is looked at." +
          (shown.tensors ? " Choose a square." : "");
    $("pair").replaceChildren(element("p", { className: "hint", textContent: hint }));
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
    if (kind === "rollout") {
      const mixed = unpack(look.rollout),
        size = rows * keys;
      add(
        mixed.values.subarray(layer * size, (layer + 1) * size),
        `tokens in tokens, up to layer ${layer}`,
        {},
      );
      return;
    }
    const size = rows * keys;
    for (let head = 0; head < heads; head++) {
      const from = (layer * heads + head) * size;
      const p = maps.values.subarray(from, from + size);
      const values = kind === "maps" ? p : p.map((v, i) => -v * dmaps.values[from + i]);
      const figure = add(values, `head ${head}`, {
        most: kind === "maps" ? 1 : null,
        onClick: shown.tensors ? (i, j) => this.pair(layer, head, i, j, queries, names) : null,
      });
      if (look.written) {
        const lengths = look.written[layer][head],
          most = lengths.indexOf(Math.max(...lengths));
        figure.lastChild.append(
          `: adds ${digits(lengths.reduce((a, b) => a + b) / lengths.length)} on average, ${digits(lengths[most])} to ${queries[most]}`,
        );
      }
      if (live) live.offerOff(figure.lastChild, layer, head);
    }
  },

  // q·k for one pair of tokens, as the sum that it is.
  async pair(layer, head, i, j, queries, names) {
    const { shown } = this,
      start = shown.look.values
        .find((v) => v.name.endsWith(`layer.${layer}.attention.self.q`))
        .name.slice(0, -1);
    const parts = await Promise.all(
      ["q", "k", "scores", "probabilities"].map((part) => tensorOf(shown, start + part)),
    );
    if (shown !== this.shown) return; // another sentence has come meanwhile
    const [q, k, s, p] = parts.map((part) => unpack(part.value));
    const size = q.shape[2],
      of = (x, token) =>
        x.values.subarray((head * x.shape[1] + token) * size, (head * x.shape[1] + token + 1) * size);
    const products = of(q, i).map((v, d) => (v * of(k, j)[d]) / Math.sqrt(size));
    const order = [...products.keys()].sort((a, b) => Math.abs(products[b]) - Math.abs(products[a]));
    const sum = products.reduce((a, b) => a + b, 0);
    const at = (x) => x.values[(head * x.shape[1] + i) * x.shape[2] + j];
    const largest = order
      .slice(0, 6)
      .map((d) => `${digits(products[d])} (feature ${d})`)
      .join(", ");
    $("pair").replaceChildren(
      element(
        "p",
        {},
        `Layer ${layer}, head ${head}: `,
        element("b", { textContent: queries[i] }),
        " asks, ",
        element("b", { textContent: names[j] }),
        " answers. ",
      ),
      element("p", {
        className: "number",
        textContent: `q·k/√D is a sum of ${size} products: ${largest}, … = ${digits(sum)}. The score is ${digits(at(s))}, its share of the row's softmax ${percent(at(p))}.`,
      }),
      heatmap(products, 1, size, {
        label: "the products",
        width: Math.min(900, $("pair").clientWidth || 900),
      }),
    );
    if (live) live.offerPin($("pair"), layer, head, i, j, at(p));
  },
};

// -- A layer: what both of its halves add, and what LayerNorm makes of the sum ---------------------------------

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
    if (shown !== this.shown) {
      const tokens = look.tokens.map((t, i) => element("option", { value: i, textContent: `${i} ${t}` }));
      $("halves-token").replaceChildren(...tokens);
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

// -- Any value ----------------------------------------------------------------------------------------------

// What is shown of it: a value with a row for each token, or a parameter with rows of its own.
const values = {
  async show(shown) {
    this.shown = shown;
    const name = $("names").value,
      isValue = shown.look.values.some((v) => v.name === name),
      tensor = isValue ? await tensorOf(shown, name) : await live.parameter(shown, name);
    if (shown !== this.shown || name !== $("names").value) return; // something else has been chosen meanwhile
    const value = unpack(tensor.value),
      derivative = unpack(tensor.derivative);
    const parts = value.shape.length === 3 ? value.shape[0] : 1;
    this.offerParts(name, parts);
    const [rows, columns] = value.shape.slice(-2),
      from = Number($("part").value) * rows * columns;
    const cut = (x) => x.values.subarray(from, from + rows * columns),
      tokens = shown.look.tokens;
    const rowNames = isValue ? [...tokens, ...Array(rows - tokens.length).fill("query")] : tensor.names;
    const columnNames = isValue && columns === tokens.length ? tokens : null;
    const hint = live ? "Point at a number. Click it for its numeric derivative." : "Point at a number.";
    const note = element("p", { className: "hint number", textContent: hint });
    const onHover = (i, j) => {
      const at = from + i * columns + j;
      note.textContent = `[${rowNames[i]}, ${columnNames?.[j] ?? j}]: value ${digits(value.values[at])}, ∂loss/∂value ${digits(derivative.values[at])}`;
    };
    const row = (i) => (isValue ? i : tensor.rows[i]);
    const index = (i, j) => (value.shape.length === 3 ? [Number($("part").value), i, j] : [row(i), j]);
    const onClick = live ? (i, j) => live.derivative(note, name, index(i, j)) : null;
    const width = Math.max(260, Math.min(640, ($("tensor").clientWidth - 30) / 2));
    const options = { rowNames, columnNames, onHover, onClick, width };
    const maps = [
      [isValue ? "value" : "parameter", value],
      [isValue ? "its derivative" : "its gradient", derivative],
    ].map(([label, x]) =>
      element(
        "figure",
        {},
        heatmap(cut(x), rows, columns, { ...options, label: `${name}: ${label}` }),
        element("figcaption", { textContent: label }),
      ),
    );
    const more = isValue
      ? this.about(shown, name, tensor, value, derivative)
      : { above: parameterNote(tensor, rows), below: [] };
    $("tensor").replaceChildren(
      more.above,
      note,
      element("div", { className: "two" }, ...maps),
      ...more.below,
    );
  },

  offerParts(name, parts) {
    if ($("part").options.length === parts && $("part").dataset.name === name) return;
    $("part").replaceChildren(
      ...Array.from({ length: parts }, (_, i) =>
        element("option", { value: i, textContent: parts > 1 ? `head ${i}` : "all" }),
      ),
    );
    $("part").dataset.name = name;
    $("part").parentElement.hidden = parts === 1;
  },

  // The equation above the pictures; below them the largest numbers, the parameters and the code.
  about(shown, name, tensor, value, derivative) {
    const { tokens, place } = shown.look,
      flat = value.shape.length === 2;
    const above = element(
      "p",
      {},
      element("span", { className: "equation", textContent: tensor.equation }),
      element("span", {
        className: "hint",
        textContent: `   ${tensor.letters} = ${value.shape.join(" × ")}`,
      }),
    );
    const below = [
      ...(flat ? [this.largest(value, derivative, tokens, place ?? 0)] : []),
      ...(live && flat ? [live.patchForm(name, tokens)] : []),
      ...(tensor.parameters.length ? [parameterList(tensor.parameters)] : []),
      element("p", { className: "hint", textContent: "The code that computed both:" }),
      element(
        "div",
        { className: "two" },
        element("pre", { tabIndex: 0, textContent: tensor.forward }),
        element("pre", { tabIndex: 0, textContent: tensor.backward }),
      ),
    ];
    return { above, below };
  },
};

// Those that took part in a value: with a model behind the page, each opens by a click.
function parameterList(names) {
  const open = (name) => {
    $("names").value = name;
    $("names").dispatchEvent(new Event("change"));
  };
  const told = names.map((name) =>
    live
      ? element("button", { textContent: name, onclick: () => open(name) })
      : element("code", { textContent: name }),
  );
  return element("p", { className: "hint parameters" }, "Parameters that took part: ", ...told);
}

function parameterNote(tensor, rows) {
  const all = tensor.shape.length < 2 || rows === tensor.shape[0];
  return element("p", {
    className: "hint",
    textContent:
      `a parameter, ${tensor.shape.join(" × ")}` +
      (all ? "" : `: the ${rows} rows with the longest gradients`),
  });
}

// The largest numbers of one token: in the feed-forward layer, its most active units.
values.largest = (value, derivative, tokens, place) => {
  const columns = value.shape[1],
    told = element("span");
  const which = element(
    "select",
    {},
    ...tokens.map((token, i) => element("option", { value: i, textContent: `${i} ${token}` })),
  );
  const list = () => {
    const from = which.value * columns,
      row = value.values.subarray(from, from + columns);
    const order = [...row.keys()].sort((a, b) => Math.abs(row[b]) - Math.abs(row[a])).slice(0, 8);
    told.textContent = order
      .map((i) => `${i}: ${digits(row[i])} (∂ ${digits(derivative.values[from + i])})`)
      .join("   ");
  };
  which.value = place;
  which.onchange = list;
  list();
  return element(
    "p",
    { className: "hint number" },
    element("label", {}, "the largest at token ", which, " "),
    told,
  );
};

// -- Guesses ------------------------------------------------------------------------------------------------

function showGuesses(look) {
  $("guesses").closest("section").hidden = look.guesses.length === 0;
  const most = look.guesses[0]?.p;
  const rows = look.guesses.map((guess) => {
    const bar = element("div");
    bar.style.width = `${(100 * guess.p) / most}%`;
    return element(
      "tr",
      { className: look.measure === `−ln p(${guess.token})` ? "answer" : "" },
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
  const lens = look.lens.map((guesses, i) =>
    element(
      "tr",
      {},
      element("th", { textContent: `x(${i})` }),
      ...guesses.map((guess) => element("td", { textContent: `${guess.token} ${percent(guess.p)}` })),
    ),
  );
  $("lens").replaceChildren(
    ...(lens.length
      ? [
          element("caption", {
            textContent: "what the head would guess from each layer's state (logit lens)",
          }),
        ]
      : []),
    ...lens,
  );
}

// -- Which words made it so ---------------------------------------------------------------------------------

// With a model behind the page, the first column comes a few words at a time: it takes a pass for each.
async function showWords(shown) {
  $("words").ariaBusy = "true";
  const waiting = !shown.words;
  shown.words ??= await live.ask("words", { hidden: [] });
  const { tokens } = shown.look,
    some = Math.max(1, Math.floor(500 / tokens.length));
  for (let from = 0; waiting && from < tokens.length; from += some) {
    if (shown !== layers.shown) return; // another sentence has come meanwhile
    drawWords(shown);
    const places = [...tokens.keys()].slice(from, from + some);
    const lost = await live.ask("without", { places });
    for (const place of places) shown.words[0].values[place] = lost[place];
  }
  if (shown !== layers.shown) return;
  drawWords(shown);
  $("words").ariaBusy = "false";
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
        bar.style.width = `${(100 * Math.abs(v ?? 0)) / most[k]}%`;
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
      textContent: `by how much each word has lowered the loss; each column asks in another way`,
    }),
    head,
    ...rows,
  );
}

// -- The page -----------------------------------------------------------------------------------------------

function show(shown) {
  const { look } = shown,
    [layer, name] = [$("layer").value, $("names").value];
  const where =
    look.place === null
      ? ["The loss is "]
      : [
          "At ",
          live ? live.placeChoice(look) : element("b", { textContent: look.tokens[look.place] }),
          " the loss is ",
        ];
  $("asked").replaceChildren(
    ...where,
    element("em", { textContent: look.measure }),
    ` = ${digits(look.loss)}`,
  );
  $("river").setAttribute(
    "aria-label",
    `${look.tokens.join(" ")}: through ${look.maps.shape[0]} layers, and the gradient back`,
  );
  $("layer").replaceChildren(
    ...Array.from({ length: look.maps.shape[0] }, (_, i) => element("option", { value: i, textContent: i })),
  );
  $("names").replaceChildren(
    ...look.values.map((v) => element("option", { value: v.name, textContent: v.name })),
    ...(live ? [live.parameterNames()] : []),
  );
  if (layer) $("layer").value = layer; // what was chosen stays chosen
  if ([...$("names").options].some((option) => option.value === name)) $("names").value = name;
  $("kind").onchange = $("form").onchange = () => layers.show(shown);
  $("layer").onchange = () => {
    layers.show(shown);
    halves.show(shown);
  };
  $("names").onchange = $("part").onchange = () => values.show(shown);
  river.prepare(look);
  showGuesses(look);
  const all = () => {
    river.build();
    layers.show(shown);
    halves.show(shown);
    values.show(shown);
  };
  window.onresize = all;
  matchMedia("(prefers-color-scheme: dark)").onchange = all;
  all();
  showWords(shown);
}

// Attention alone: one section, and no question.
function showAttention(look) {
  for (const section of document.querySelectorAll("main > section"))
    section.hidden = !section.querySelector("#heads");
  document.querySelector('#kind [value="gradient"]').remove();
  $("layer").replaceChildren(
    ...Array.from({ length: look.maps.shape[0] }, (_, i) => element("option", { value: i, textContent: i })),
  );
  window.onresize =
    $("layer").onchange =
    $("kind").onchange =
    $("form").onchange =
      () => layers.show({ look });
  $("form").value = "arcs";
  layers.show({ look });
}

let playing = null;
function play() {
  if (playing) {
    cancelAnimationFrame(playing);
    playing = null;
    $("play").textContent = "▶";
    return;
  }
  const slider = $("time"),
    start = performance.now(),
    from = Number(slider.value) >= 1000 ? 0 : Number(slider.value);
  $("play").textContent = "❚❚";
  const step = (now) => {
    slider.value = Math.min(1000, from + (now - start) / 8);
    river.draw();
    if (Number(slider.value) < 1000) playing = requestAnimationFrame(step);
    else {
      playing = null;
      $("play").textContent = "▶";
    }
  };
  playing = requestAnimationFrame(step);
}

$("about").textContent = data.about;
$("time").oninput = () => river.draw();
$("play").onclick = play;
$("river").onclick = (event) => river.click(event);
$("river").onkeydown = (event) => {
  const by = { ArrowRight: 20, ArrowLeft: -20, Home: -1000, End: 1000 }[event.key];
  if (by === undefined) return;
  event.preventDefault();
  $("time").value = Number($("time").value) + by;
  river.draw();
};
if (live) live.begin();
else if (data.attention) showAttention(data.attention);
else {
  $("offline").hidden = false;
  $("choose").hidden = data.sentences.length === 1;
  $("sentences").append(
    ...data.sentences.map((s, i) => element("option", { value: i, textContent: s.text })),
  );
  $("sentences").onchange = () => show(data.sentences[$("sentences").value]);
  show(data.sentences[0]);
}
