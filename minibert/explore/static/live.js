"use strict";
// With a model behind the page: other sentences, other answers, and what would be if. Loaded before all others.

function startLive() {
  const changes = new Map(); // by what they change, so that a new one replaces the old
  let { text, second } = data.live,
    hidden = new Set(),
    place = null,
    answer = null,
    asked = 0;

  async function ask(name, body) {
    const request = {
      method: "POST",
      headers: { "X-Token": data.live.token },
      body: JSON.stringify(body),
    };
    const response = await fetch(`/${name}`, request).catch(() => {
      throw new Error("minibert explore does not answer any more. Start it again, and open its new address.");
    });
    const told = await response.json();
    if (told?.error) throw new Error(told.error);
    return told;
  }

  const fail = (error) => {
    $("trouble").textContent = error.message;
  };

  async function look() {
    const turn = ++asked;
    try {
      const seen = await ask("look", {
        text,
        second,
        hidden: [...hidden],
        place,
        answer,
        changes: [...changes.values()].map((c) => c.change),
      });
      if (turn !== asked) return; // an answer that nobody waits for any more
      $("trouble").textContent = "";
      show({ text, look: seen, tensors: {}, words: null });
    } catch (error) {
      fail(error);
    }
    list();
  }

  // The changes that hold, each with a button that takes it back.
  function list() {
    const remove = (told, undo) =>
      element("button", {
        className: "chip",
        textContent: `${told} ×`,
        onclick: () => {
          undo();
          look();
        },
      });
    $("changes").replaceChildren(
      ...[...hidden].map((token) => remove(`token ${token} hidden`, () => hidden.delete(token))),
      ...[...changes].map(([key, { told }]) => remove(told, () => changes.delete(key))),
    );
  }

  function change(key, told, made) {
    changes.set(key, { told, change: made });
    look();
  }

  function begin() {
    $("live").hidden = false;
    window.addEventListener("unhandledrejection", (event) => fail(event.reason));
    $("text").value = text;
    $("second").value = second ?? "";
    $("ask").onsubmit = (event) => {
      event.preventDefault();
      if ($("text").value !== text || $("second").value !== (second ?? "")) {
        hidden.clear();
        changes.clear();
        place = null;
      }
      text = $("text").value;
      second = $("second").value || null;
      answer = $("answer").value || null;
      look();
    };
    $("step").onclick = async () => {
      try {
        await ask("step", { rate: Number($("rate").value) });
        await look();
      } catch (error) {
        fail(error);
      }
    };
    $("reset").onclick = async () => {
      try {
        await ask("reset", {});
        await look();
      } catch (error) {
        fail(error);
      }
    };
    look();
  }

  // Clicks on the name of a token hide it, then ask about it, then show it again.
  function token(index) {
    if (!hidden.has(index)) hidden.add(index);
    else if (place !== index) place = index;
    else {
      hidden.delete(index);
      place = null;
    }
    look();
  }

  // Which token the question is about, hidden or not.
  function placeChoice(seen) {
    const which = element("select", { ariaLabel: "token that is asked about" }, ...tokenChoices(seen.tokens));
    which.value = seen.place;
    which.onchange = () => {
      place = Number(which.value);
      look();
    };
    return which;
  }

  function offerOff(caption, layer, head) {
    const key = `head ${layer}.${head}`,
      box = element("input", { type: "checkbox", checked: changes.has(key) });
    box.onchange = () =>
      box.checked
        ? change(key, `layer ${layer}, head ${head} off`, { kind: "head", layer, head })
        : (changes.delete(key), look());
    caption.append(" ", element("label", {}, box, " off"));
  }

  function offerPin(parent, layer, head, query, key, weight) {
    const slider = element("input", { type: "range", min: 0, max: 1, step: 0.01, value: weight });
    slider.onchange = () =>
      change(
        `weight ${layer}.${head}.${query}`,
        `layer ${layer}, head ${head}: ${query} → ${key} at ${slider.value}`,
        { kind: "weight", layer, head, query, key, weight: Number(slider.value) },
      );
    parent.append(element("label", { className: "hint" }, "what if this weight were … ", slider));
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
      "what if token ",
      which,
      " had here the state of the same place in ",
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

  async function derivative(note, name, index) {
    try {
      const told = await ask("derivative", { name, index });
      note.textContent = `[${index}]: value ${told.value.toPrecision(6)}, ∂loss/∂value by hand ${told.by_hand.toPrecision(8)}, numeric ${told.numeric.toPrecision(8)}`;
    } catch (error) {
      fail(error);
    }
  }

  return {
    ask,
    begin,
    token,
    placeChoice,
    offerOff,
    offerPin,
    patchForm,
    parameterNames,
    parameter,
    derivative,
  };
}
