// The page.

const dark = matchMedia("(prefers-color-scheme: dark)"); // the pictures are drawn anew when this changes

function show(shown) {
  const { look } = shown,
    [layer, name] = [$("layer").value, $("names").value];
  showQuestion(look);
  $("river").setAttribute(
    "aria-label",
    `${look.tokens.join(" ")}: through ${look.maps.shape[0]} layers, and the gradient back`,
  );
  $("layer").replaceChildren(...numberChoices(look.maps.shape[0]));
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
  let width = window.innerWidth;
  window.onresize = () => {
    if (width === window.innerWidth) return; // only a keyboard or a bar has come
    width = window.innerWidth;
    all();
  };
  dark.onchange = all;
  all();
  showWords(shown);
}

// What the loss is. The list of tokens keeps the focus, so that the keyboard can go on through them.
function showQuestion(look) {
  const focused = $("asked").contains(document.activeElement) ? document.activeElement.tagName : null;
  const place = live
    ? [live.placeChoice(look), " ", live.hideChoice(look)]
    : [element("b", { textContent: look.tokens[look.place] })];
  $("asked").replaceChildren(
    ...(look.place === null ? ["The loss is "] : ["At ", ...place, " the loss is "]),
    element("em", { textContent: look.measure }),
    ` = ${digits(look.loss)}`,
  );
  if (focused) $("asked").querySelector(focused)?.focus();
}

// Attention alone: one section, and no question.
function showAttention(look) {
  for (const section of document.querySelectorAll("main > section"))
    section.hidden = !section.querySelector("#heads");
  for (const kind of ["taken", "gradient"]) document.querySelector(`#kind [value="${kind}"]`).remove();
  $("layer").replaceChildren(...numberChoices(look.maps.shape[0]));
  dark.onchange =
    window.onresize =
    $("layer").onchange =
    $("kind").onchange =
    $("form").onchange =
      () => layers.show({ look });
  $("form").value = "arcs";
  layers.show({ look });
}

let playing = null;

function stop() {
  cancelAnimationFrame(playing);
  playing = null;
  $("play").textContent = "▶";
  $("play").ariaLabel = "play the pass";
}

function play() {
  if (playing) return stop();
  const slider = $("time"),
    start = performance.now(),
    from = Number(slider.value) >= 1000 ? 0 : Number(slider.value);
  $("play").textContent = "❚❚";
  $("play").ariaLabel = "pause";
  const step = (now) => {
    slider.value = Math.min(1000, from + (now - start) / 8);
    river.draw();
    if (Number(slider.value) < 1000) playing = requestAnimationFrame(step);
    else stop();
  };
  playing = requestAnimationFrame(step);
}

// To a place of the pass; it plays no further by itself.
function moveTo(time) {
  if (playing) stop();
  $("time").value = time;
  river.draw();
}

$("about").textContent = data.about;
$("time").oninput = () => moveTo($("time").value);
$("play").onclick = play;
$("river").onclick = (event) => river.click(event);
$("river").onkeydown = (event) => {
  const by = { ArrowRight: 20, ArrowLeft: -20, Home: -1000, End: 1000 }[event.key];
  if (by === undefined) return;
  event.preventDefault();
  moveTo(Number($("time").value) + by);
};
if (live) live.begin();
else if (data.attention) showAttention(data.attention);
else {
  $("offline").hidden = false;
  $("choose").hidden = data.sentences.length === 1;
  $("sentences").append(...choices(data.sentences.map((sentence) => sentence.text)));
  $("sentences").onchange = () => show(data.sentences[$("sentences").value]);
  show(data.sentences[0]);
}
