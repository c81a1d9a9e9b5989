"use strict";
// With a model behind the page: other sentences, other answers, and what-ifs. Loaded before all others.

// The server had an answer, and it was no: a person's mistake.
class Refused extends Error {}

function startLive() {
  // What the page shows. A draft of another state takes its place when it has been answered.
  const line = (text) => text && text.replace(/[\r\n]+/g, " "); // as a field holds it
  let state = {
    text: line(data.live.text),
    second: line(data.live.second),
    hidden: [],
    place: null,
    answer: null,
    changes: new Map(), // by what they change, so that a new one replaces the old
  };
  let waiting = Promise.resolve();
  let held = ""; // which pass the page shows, as the server counts them
  let looking = false;

  async function ask(name, body) {
    const about = held,
      request = {
        method: "POST",
        headers: { "X-Token": data.live.token, ...(about && { "X-Pass": about }) },
        body: JSON.stringify(body),
      };
    if (new Blob([request.body]).size > data.live.longest)
      throw new Refused("This is too long for one request. Give a shorter text.");
    const response = await fetch(`/${name}`, request).catch(() => {
      throw new Refused(
        "minibert explore does not answer any more. Start it again, and open its new address.",
      );
    });
    if (!response.ok) throw new Error("minibert explore has failed; its terminal says how.");
    const told = await response.json();
    const late = name !== "look" && (looking || held !== about);
    if (told?.error && late) return new Promise(() => {}); // another pass is shown by now
    if (told?.error) throw new Refused(told.error);
    if (name === "look") held = String(told.pass);
    return told;
  }

  function fail(error) {
    $("trouble").textContent = error.message;
    if (!(error instanceof Refused)) console.error(error);
  }

  // One after the other, so that what is asked is about the pass that the page shows and the server holds.
  function inTurn(work) {
    waiting = waiting.then(work).catch(fail);
    return waiting;
  }

  // Ask about a state that differs from the one that is shown.
  const look = (changed) =>
    inTurn(() => update({ ...state, ...changed(state) }).catch(showAgain)).then(list);

  // After a refusal, lists and boxes say again what the page shows.
  function showAgain(error) {
    if (layers.shown) {
      showQuestion(layers.shown.look);
      layers.show(layers.shown);
    }
    throw error;
  }

  // The same for a click, which is about the text that is shown: if another one comes first, nothing happens.
  const click = (changed) => {
    const { text, second } = state;
    return look((old) => (old.text === text && old.second === second ? changed(old) : {}));
  };

  async function update(draft) {
    const { text, second, hidden, place, changes } = draft;
    const made = [...changes.values()].map(({ change }) => change);
    looking = true;
    const seen = await ask("look", { text, second, hidden, place, answer: draft.answer, changes: made }).finally(
      () => (looking = false),
    );
    state = draft;
    $("trouble").textContent = seen.warnings.join(" ");
    $("answer").parentElement.hidden = !seen.answers; // a number or a span cannot be named
    show({ text, look: seen, tensors: {}, words: null });
  }

  // The changes that hold, each with a button that takes it back.
  function list() {
    const remove = (told, changed) =>
      element("button", { className: "chip", textContent: `${told} ×`, onclick: () => look(changed) });
    $("changes").replaceChildren(
      ...state.hidden.map((token) => remove(`token ${token} hidden`, without(token))),
      ...[...state.changes].map(([key, { told }]) => remove(told, unchanged(key))),
    );
  }

  const without =
    (token) =>
    ({ hidden, place }) => ({
      hidden: hidden.filter((other) => other !== token),
      place: place === token ? null : place,
    });
  const unchanged =
    (key) =>
    ({ changes }) => ({ changes: new Map([...changes].filter(([other]) => other !== key)) });
  const change = (key, told, made) =>
    click(({ changes }) => ({ changes: new Map([...changes, [key, { told, change: made }]]) }));

  function begin() {
    $("live").hidden = false;
    window.addEventListener("unhandledrejection", (event) => {
      event.preventDefault(); // the page tells it
      fail(event.reason);
    });
    $("text").value = state.text;
    $("second").value = state.second ?? "";
    $("ask").onsubmit = (event) => {
      event.preventDefault();
      const [text, second] = [$("text").value, $("second").value || null];
      const answer = $("answer").value || null;
      look((old) =>
        text === old.text && second === old.second
          ? { answer }
          : { text, second, answer, hidden: [], place: null, changes: new Map() },
      );
    };
    const act = (name, body) =>
      inTurn(async () => {
        await ask(name, body());
        await update(state);
      }).then(list);
    $("step").onclick = () => act("step", () => ({ rate: $("rate").valueAsNumber }));
    $("reset").onclick = () => act("reset", () => ({}));
    look(() => ({}));
  }

  // Clicks on the name of a token hide it, then ask about it, then show it again. Some can only be asked about.
  function token(index) {
    click((old) => {
      const { words, place } = river.look;
      if (words.includes(index)) return { hidden: [...old.hidden, index], place };
      if (place !== null && place !== index) return { place: index };
      return without(index)(old);
    });
  }

  // Which token the question is about, hidden or not.
  function placeChoice(seen) {
    const which = element("select", { ariaLabel: "token that is asked about" }, ...tokenChoices(seen.tokens));
    which.value = seen.place;
    which.onchange = () => click(() => ({ place: Number(which.value) }));
    return which;
  }

  // The same as a click on the token, for who uses the keyboard.
  function hideChoice({ words, place }) {
    const isHidden = state.hidden.includes(place);
    if (!isHidden && !words.includes(place)) return "";
    const button = element("button", { textContent: isHidden ? "show it" : "hide it" });
    button.onclick = () =>
      click(isHidden ? without(place) : ({ hidden }) => ({ hidden: [...hidden, place], place }));
    return button;
  }

  function offerOff(caption, layer, head) {
    const key = `head ${layer}.${head}`,
      box = element("input", {
        type: "checkbox",
        checked: state.changes.has(key),
        ariaLabel: `layer ${layer}, head ${head} off`,
      });
    box.onchange = () =>
      box.checked
        ? change(key, `layer ${layer}, head ${head} off`, { kind: "head", layer, head })
        : look(unchanged(key));
    caption.append(" ", element("label", {}, box, " off"));
  }

  function offerPin(parent, layer, head, query, key, weight) {
    const slider = element("input", { type: "range", min: 0, max: 1, step: 0.01, value: weight });
    slider.onchange = async () => {
      const { text } = layers.shown;
      await change(
        `weight ${layer}.${head}.${query}`,
        `layer ${layer}, head ${head}: ${query} → ${key} at ${slider.value}`,
        { kind: "weight", layer, head, query, key, weight: Number(slider.value) },
      );
      if (layers.shown.text !== text) return;
      await layers.pair(layer, head, query, key, rowsOf(river.look, river.rows), river.look.tokens);
      $("pair").querySelector("input")?.focus(); // so that the arrow keys can go on
    };
    parent.append(element("label", { className: "hint" }, "set this weight to ", slider));
  }

  function patchForm(name, tokens) {
    const from = element("input", {
      type: "text",
      size: 40,
      placeholder: "another text",
      ariaLabel: "another text",
    });
    const which = element("select", { ariaLabel: "token" }, ...tokenChoices(tokens));
    const form = element(
      "form",
      { className: "hint" },
      "give token ",
      which,
      " the state that the same place has in ",
      from,
      " ",
      element("button", { textContent: "patch" }),
    );
    form.onsubmit = (event) => {
      event.preventDefault();
      change(`patch ${name} ${which.value}`, `${name}, token ${which.value}: as in “${from.value}”`, {
        kind: "patch",
        name,
        token: Number(which.value),
        text: from.value,
      });
    };
    return form;
  }

  // All parameters, below the values in the list.
  function parameterNames() {
    const options = data.live.parameters.map((name) => element("option", { value: name, textContent: name }));
    return element("optgroup", { label: "parameters" }, ...options);
  }

  async function parameter(shown, name) {
    shown.parameters ??= {};
    shown.parameters[name] ??= await ask("parameter", { name });
    return shown.parameters[name];
  }

  const derivative = (note, name, index) => {
    const { shown } = layers;
    return inTurn(async () => {
      if (shown !== layers.shown) return; // another pass has come
      const told = await ask("derivative", { name, index });
      note.textContent = `[${index}]: value ${told.value.toPrecision(6)}, ∂loss/∂value by hand ${told.by_hand.toPrecision(8)}, numeric ${told.numeric.toPrecision(8)}`;
    });
  };

  return {
    ask,
    inTurn,
    isChanged: () => state.changes.size > 0,
    begin,
    token,
    placeChoice,
    hideChoice,
    offerOff,
    offerPin,
    patchForm,
    parameterNames,
    parameter,
    derivative,
  };
}
