// Type a text, see the output and what each of its tokens looked at.
//
// page.json says where the model is: {"model": {...}} for files that run in this browser, or
// {"service": {"url", "name"}} for a server. The address can name another server:
// ?service=http://127.0.0.1:8501&name=translate

import { showAttention } from "./attention_view.js";
import { ServedModel } from "./served_model.js";

const get = (id) => document.getElementById(id);
let model;
let newest = 0;

async function open(settings) {
  const asked = new URLSearchParams(location.search);
  const service = asked.has("service")
    ? { url: asked.get("service"), name: asked.get("name") ?? "model" }
    : settings.service;
  if (service) return new ServedModel(service.url, service.name);
  const { BrowserModel } = await import("./browser_model.js"); // 14 MB of onnxruntime come with it
  return BrowserModel.load(settings.model);
}

async function answer(text) {
  const mine = ++newest;
  get("error").textContent = "";
  get("status").textContent = "Working …";
  try {
    const start = performance.now();
    const found = await model.answer(text);
    if (mine !== newest) return; // a later text was asked meanwhile
    const seconds = ((performance.now() - start) / 1000).toFixed(2);
    const score = found.score.toFixed(2);
    get("status").textContent = `${seconds} s ${model.place}; log-probability ${score}`;
    showAttention(get("attention"), {
      title: found.text || "(nothing)",
      source: found.source.map(visible),
      target: found.target.map(visible),
      names: ["attention"],
      weights: found.weights && found.target.length ? [found.weights] : null,
    });
  } catch (error) {
    if (mine !== newest) return;
    get("status").textContent = "";
    get("error").textContent = error.message;
    get("attention").replaceChildren();
  }
}

const visible = (token) => token.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥");

async function begin() {
  const answered = await fetch("page.json");
  if (!answered.ok) throw new Error("page.json is missing: this folder was not made by build.py");
  const settings = await answered.json();
  if (settings.title) document.title = get("title").textContent = settings.title;
  for (const text of settings.examples ?? []) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.onclick = () => {
      get("text").value = text;
      get("ask").requestSubmit();
    };
    get("examples").append(button);
  }
  get("ask").onsubmit = (event) => {
    event.preventDefault();
    if (model) answer(get("text").value);
  };
  get("text").onkeydown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      get("ask").requestSubmit();
    }
  };
  model = await open(settings);
  get("go").disabled = false;
  get("status").textContent = `The model is ready, ${model.place}.`;
}

begin().catch((error) => {
  get("status").textContent = "";
  get("error").textContent = error.message;
});
