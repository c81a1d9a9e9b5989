// Matrices, as squares and as arcs.

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
  const grid = { rows, columns, margin, head, cell, tall };
  fillSquares(context, grid, values, most || peak(values) || 1);
  writeNames(context, grid, rowNames, columnNames);
  listen(canvas, grid, onHover, onClick);
  return canvas;
}

function fillSquares(context, { rows, columns, margin, head, cell, tall }, values, most) {
  const plus = color("forward"),
    minus = color("gradient");
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < columns; j++) {
      const v = values[i * columns + j];
      context.fillStyle = rgba(v < 0 ? minus : plus, Math.min(1, Math.abs(v) / most));
      context.fillRect(margin + j * cell, head + i * tall, cell + 0.5, tall + 0.5);
    }
  }
  context.strokeStyle = rgba(color("line"), 1);
  context.strokeRect(margin, head, cell * columns, tall * rows);
}

// Names of the rows on the left, and of the columns above, turned. Where squares are too small for them, none.
function writeNames(context, { margin, head, cell, tall }, rowNames, columnNames) {
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
}

// Which square the mouse is on, and which one was clicked.
function listen(canvas, { rows, columns, margin, head, cell, tall }, onHover, onClick) {
  const place = (event) => {
    const box = canvas.getBoundingClientRect(),
      squeezed = parseFloat(canvas.style.width) / box.width; // where the page is too narrow for it
    const i = Math.floor((event.clientY - box.top - head) / tall),
      j = Math.floor(((event.clientX - box.left) * squeezed - margin) / cell);
    return i >= 0 && j >= 0 && i < rows && j < columns ? [i, j] : null;
  };
  let last = null; // so that what a click has told stays until the mouse is on another square
  if (onHover)
    canvas.addEventListener("mousemove", (event) => {
      const at = place(event);
      if (at && String(at) !== last) onHover(...at);
      last = String(at);
    });
  if (onClick)
    canvas.addEventListener("click", (event) => {
      const at = place(event);
      if (at) onClick(...at);
    });
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
