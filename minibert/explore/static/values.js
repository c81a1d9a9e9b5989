// Any value.

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
    this.offerParts(name, value.shape.length === 3 ? value.shape[0] : 1);
    const hint = live ? "Point at a number. Click it for its numeric derivative." : "Point at a number.";
    const note = element("p", { className: "hint number", textContent: hint, ariaLive: "polite" });
    const more = isValue
      ? this.about(shown, name, tensor, value, derivative)
      : { above: parameterNote(tensor, value.shape[0]), below: [] };
    const { choice, figures } = this.maps(shown, name, tensor, value, derivative, note);
    $("tensor").replaceChildren(
      more.above,
      note,
      choice,
      element("div", { className: "two" }, ...figures),
      ...more.below,
    );
  },

  // The value and its derivative as squares, of one head if it has heads. What the mouse finds goes into the note.
  maps(shown, name, tensor, value, derivative, note) {
    const isValue = !tensor.rows, // a parameter says which of its rows are shown
      [rows, columns] = value.shape.slice(-2),
      part = Number($("part").value),
      from = part * rows * columns;
    const rowNames = isValue ? rowsOf(shown.look, rows) : tensor.names;
    const columnNames = isValue && /\.(scores|probabilities)$/.test(name) ? shown.look.tokens : null;
    const onHover = (i, j) => {
      const at = from + i * columns + j;
      note.textContent = `[${apart(rowNames[i])}, ${apart(columnNames?.[j] ?? j)}]: value ${digits(value.values[at])}, ∂loss/∂value ${digits(derivative.values[at])}`;
    };
    const index = (i, j) => (value.shape.length === 3 ? [part, i, j] : [isValue ? i : tensor.rows[i], j]);
    const onClick = live ? (i, j) => live.derivative(note, name, index(i, j)) : null;
    const width = Math.max(260, Math.min(640, ($("tensor").clientWidth - 30) / 2));
    const options = { rowNames, columnNames, onHover, onClick, width };
    const figure = (label, x) => {
      const cut = x.values.subarray(from, from + rows * columns);
      const most = name.endsWith(".scores") ? peak(cut.filter((v) => v > -5000)) : null; // −10000 is masked
      const squares = heatmap(cut, rows, columns, { ...options, most, label: `${name}: ${label}` });
      return element("figure", {}, squares, element("figcaption", { textContent: label }));
    };
    const [first, second] = isValue ? ["value", "its derivative"] : ["parameter", "its gradient"];
    return {
      choice: this.choice(
        isValue ? tokenChoices(rowNames) : choices(rowNames),
        columnNames ? tokenChoices(columnNames) : choices(numbers(columns)),
        onHover,
        onClick,
      ),
      figures: [figure(first, value), figure(second, derivative)],
    };
  },

  // The same as pointing and clicking does, for who uses the keyboard.
  choice(rows, columns, onHover, onClick) {
    const row = element("select", { ariaLabel: "row" }, ...rows),
      column = element("select", { ariaLabel: "column" }, ...columns);
    const show = () => {
      onHover(Number(row.value), Number(column.value));
      onClick?.(Number(row.value), Number(column.value));
    };
    const button = element("button", { textContent: "show it", onclick: show });
    return element("p", { className: "hint" }, "Or choose a row and a column: ", row, " ", column, " ", button);
  },

  offerParts(name, parts) {
    if ($("part").options.length === parts && $("part").dataset.name === name) return;
    $("part").replaceChildren(...choices(parts > 1 ? numbers(parts).map((head) => `head ${head}`) : ["all"]));
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
        textContent: `   ${tensor.letters ? `${tensor.letters} = ` : ""}${value.shape.join(" × ")}`,
      }),
    );
    const below = [
      ...(flat ? [this.largest(value, derivative, tokens, place ?? 0)] : []),
      ...(live && flat ? [live.patchForm(name, tokens)] : []),
      ...(tensor.parameters.length ? [parameterList(tensor.parameters)] : []),
      element("p", {
        className: "hint",
        textContent: "The code that computed the value and its derivative:",
      }),
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
  const which = element("select", {}, ...tokenChoices(tokens));
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
