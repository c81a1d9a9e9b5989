// The whole: a river of tokens from left to right, the gradient back from right to left.

const river = {
  stages: [], // the columns: x⁽⁰⁾, then a and x′ of each layer

  prepare(look) {
    this.look = look;
    [this.maps, this.dmaps] = [unpack(look.maps), unpack(look.dmaps)];
    this.rows = this.maps.shape[2]; // of an XLNet one more than there are tokens
    const depth = look.maps.shape[0];
    const value = (end) => look.values.find((v) => v.name.endsWith(end));
    this.stages = [{ label: "embeddings", ...value("embeddings") }];
    for (let l = 0; l < depth; l++) {
      this.stages.push({ label: `attention ${l}`, layer: l, ...value(`layer.${l}.attention`) });
      this.stages.push({ label: `layer ${l}`, layer: l, ...value(`layer.${l}`) });
    }
  },

  layout() {
    const width = $("river").clientWidth;
    this.row = Math.max(17, Math.min(30, 520 / this.rows));
    this.wide = width > 760; // then there is room for words and ids beside the tokens, and for shapes
    this.left = this.wide ? (this.look.cut.length ? 246 : 176) : Math.min(120, width * 0.16);
    this.right = width - Math.min(130, width * 0.18);
    this.top = this.wide ? 50 : 34;
    this.width = width;
    const below = Math.max(10, 23 - this.row / 2); // for three guesses at the last token
    this.height = this.top + this.row * this.rows + below;
  },

  x(stage) {
    return this.left + ((this.right - this.left) * stage) / (this.stages.length - 1);
  },
  y(token) {
    return this.top + this.row * (token + 0.5);
  },

  // Streams and links of one direction, on a canvas of their own that is drawn once.
  paint(direction) {
    const canvas = document.createElement("canvas"),
      context = sized(canvas, this.width, this.height),
      tint = color(direction),
      lengths = this.stages.map((stage) => (direction === "forward" ? stage.norms : stage.dnorms)),
      most = Math.max(...lengths.flat()) || 1;
    for (let stage = 0; stage + 1 < this.stages.length; stage++) {
      this.paintStreams(context, direction, tint, stage, lengths, most);
      if (stage % 2 === 0) this.paintLinks(context, direction, tint, stage); // only attention moves anything
    }
    return canvas;
  },

  // The tokens from a stage to the next one: as thick and as bright as their vectors are long.
  paintStreams(context, direction, tint, stage, lengths, most) {
    const forwards = direction === "forward",
      [from, to] = [this.x(stage), this.x(stage + 1)],
      bend = (to - from) * 0.45;
    numbers(this.rows).forEach((token) => {
      const shares = [stage, stage + 1].map((at) => (lengths[at][token] / most) ** (forwards ? 1 : 0.5)),
        [a, b] = shares.map((share) => share * this.row * 0.31),
        y = this.y(token),
        shade = context.createLinearGradient(from, 0, to, 0);
      shares.forEach((share, end) =>
        shade.addColorStop(end, rgba(tint, (forwards ? 0.55 : 0.85) * (0.4 + 0.6 * share))),
      );
      context.beginPath();
      context.moveTo(from, y - a);
      context.bezierCurveTo(from + bend, y - a, to - bend, y - b, to, y - b);
      context.lineTo(to, y + b);
      context.bezierCurveTo(to - bend, y + b, from + bend, y + a, from, y + a);
      context.fillStyle = shade;
      context.fill();
    });
  },

  // The attention of the layer that begins at a stage: weights, or |weight × derivative|, over all heads.
  paintLinks(context, direction, tint, stage) {
    const forwards = direction === "forward",
      { maps, dmaps } = this,
      [, heads, rows, keys] = maps.shape,
      [from, to] = [this.x(stage), this.x(stage + 1)],
      bend = (to - from) * 0.45,
      links = [];
    for (let query = 0; query < rows; query++) {
      for (let key = 0; key < keys; key++) {
        if (key === query) continue;
        let weight = 0;
        for (let head = 0; head < heads; head++) {
          const at = (((stage / 2) * heads + head) * rows + query) * keys + key;
          weight += forwards ? maps.values[at] / heads : Math.abs(maps.values[at] * dmaps.values[at]);
        }
        links.push([query, key, weight]);
      }
    }
    const most = forwards ? 1 : links.reduce((largest, [, , weight]) => Math.max(largest, weight), 0) || 1;
    for (const [query, key, weight] of links) {
      const share = weight / most;
      if (share < 0.02) continue;
      context.beginPath();
      context.moveTo(from, this.y(key));
      context.bezierCurveTo(from + bend, this.y(key), to - bend, this.y(query), to, this.y(query));
      context.strokeStyle = rgba(tint, Math.min(0.9, 0.12 + share));
      context.lineWidth = 0.4 + 3.5 * share;
      context.stroke();
    }
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
    this.drawInput(context, ink, quiet);
    this.drawStages(context, quiet);
    if (time >= 1) this.drawGuesses(context, ink);
    const stage =
      time <= 1
        ? Math.floor(time * (this.stages.length - 1))
        : Math.ceil((2 - time) * (this.stages.length - 1));
    $("phase").textContent = `${time <= 1 ? "forward" : "backward"} pass: ${this.stages[stage].label}`;
    $("time").setAttribute("aria-valuetext", $("phase").textContent);
  },

  // What each column is, and its shape where there is room.
  drawStages(context, quiet) {
    context.textAlign = "center";
    context.fillStyle = rgba(quiet, 1);
    const apart = (this.right - this.left) / (this.stages.length - 1);
    this.stages.forEach((stage, i) => {
      if (apart > 80) context.fillText(stage.label, this.x(i), 14);
      else if (i % 2 === 0) context.fillText(`x(${i / 2})`, this.x(i), 14, 2 * apart);
      if (this.wide && (apart > 60 || i % 2 === 0)) context.fillText(stage.shape.join(" × "), this.x(i), 31);
    });
    if (!this.wide || !this.look.answers || !this.look.guesses.length) return;
    context.textAlign = "right";
    context.fillText("guesses", this.width - 4, 14);
    context.fillText(`of ${this.look.answers.toLocaleString("en")}`, this.width - 4, 31);
  },

  drawGuesses(context, ink) {
    const { guesses, tokens, place } = this.look,
      end = this.rows > tokens.length ? tokens.length : (place ?? 0), // an XLNet is asked by its query
      first = this.y(end) - (end ? 16 : 0);
    context.textAlign = "left";
    guesses.slice(0, 3).forEach((guess, i) => {
      context.fillStyle = rgba(isAnswer(this.look, guess) ? color("gradient") : ink, 1);
      const room = this.width - this.right - 12,
        share = ` ${percent(guess.p)}`,
        token = legible(context, guess.token, room - context.measureText(share).width);
      context.fillText(apart(token) + share, this.right + 10, first + 16 * i, room);
    });
  },

  // From the text to what the model reads: words, their tokens, and the ids of these.
  drawInput(context, ink, quiet) {
    const { ids, cut, place } = this.look,
      edge = this.wide ? this.left - 98 : this.left - 10,
      idEdge = this.left - 50,
      room = this.wide ? 74 : this.left - 14;
    context.textAlign = "right";
    rowsOf(this.look, this.rows).forEach((token, i) => {
      context.fillStyle = rgba(i === place ? color("forward") : ink, 1);
      context.fillText(legible(context, token, room), edge, this.y(i), room);
    });
    if (!this.wide) return;
    context.fillStyle = context.strokeStyle = rgba(quiet, 1);
    if (cut.length) context.fillText("word", edge - 86, 14);
    context.fillText("token", edge, 14);
    context.fillText("id", idEdge, 14);
    ids.forEach((id, i) => context.fillText(id, idEdge, this.y(i)));
    for (const [start, stop, word] of cut) {
      const [from, to] = [this.y(start) - this.row * 0.3, this.y(stop - 1) + this.row * 0.3];
      context.fillText(legible(context, word, edge - 90), edge - 86, (from + to) / 2, edge - 90);
      context.beginPath();
      context.moveTo(edge - 76, from);
      context.lineTo(edge - 80, from);
      context.lineTo(edge - 80, to);
      context.lineTo(edge - 76, to);
      context.stroke();
    }
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
