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

// What a list offers, by number: names, the tokens of a text, or the first few numbers.
const choices = (names) => names.map((name, i) => element("option", { value: i, textContent: name }));
const tokenChoices = (tokens) => choices(tokens.map((token, i) => `${i} ${token}`));
const numbers = (count) => [...Array(count).keys()];
const numberChoices = (count) => choices(numbers(count));
const slices = (items, size) =>
  numbers(Math.ceil(items.length / size)).map((i) => items.slice(i * size, (i + 1) * size));

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

// A text that is to be squeezed into some room: no more of it than stays legible.
function legible(context, text, room) {
  let letters = [...text];
  while (letters.length > 1 && context.measureText(text).width > 1.5 * room) {
    letters = letters.slice(0, -1);
    text = `${letters.join("")}…`;
  }
  return text;
}

// In one line with a number, a text that runs from right to left would take the number with it.
const apart = (text) => `\u2068${text}\u2069`;

// What the rows of a value are called: the tokens, and of an XLNet the query besides.
const rowsOf = ({ tokens }, rows) => [...tokens, ...Array(rows - tokens.length).fill("query")];

// Is this the guess that the loss is about?
const isAnswer = (look, guess) => guess.number === look.answer;

// What the page does not hold yet, it asks for; an offline page holds everything (live.js is not part of it).
const live = typeof startLive === "function" ? startLive() : null;

async function tensorOf(shown, name) {
  shown.tensors[name] ??= await live.ask("tensor", { name });
  return shown.tensors[name];
}
