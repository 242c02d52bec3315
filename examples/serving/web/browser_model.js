// A model in this browser: the endpoints `encode` and `step` as ONNX files, and greedy search.

import * as ort from "./ort/ort.wasm.min.mjs";
import { END, PAD, START, makeTokenizer } from "./tokens.js";

ort.env.wasm.numThreads = 1; // more need headers that few servers of files send
ort.env.logLevel = "error";

export class BrowserModel {
  // description: {encode, step: addresses; source, target: tokenizers; max_length,
  // max_input_length: numbers of tokens, the latter may be null}
  static async load(description) {
    const model = new BrowserModel();
    model.place = "in this browser";
    model.source = makeTokenizer(description.source);
    model.target = makeTokenizer(description.target);
    model.description = description;
    model.encode = await ort.InferenceSession.create(description.encode);
    model.step = await ort.InferenceSession.create(description.step);
    return model;
  }

  // {text, score, source: [S], target: [T], weights: [T][S] or null}
  async answer(text) {
    const ids = this.source.encode(text);
    const source = ids.map((id) => this.source.name(id));
    if (ids.length === 1) return { text: "", score: 0, source, target: [], weights: null };
    const { max_length: longest, max_input_length: limit } = this.description;
    if (limit && ids.length > limit) {
      throw new Error(`The text has ${ids.length} tokens; at most ${limit} are possible.`);
    }
    const encoded = await this.encode.run({ source: asTensor(ids, [1, ids.length]) });
    let states = encoded;
    const [tokens, rows] = [[], []];
    let [token, score] = [START, 0];
    while (token !== END && tokens.length < longest) {
      const found = await this.step.run(this.inputs(token, encoded, states));
      let logProbability;
      [token, logProbability] = mostLikely(found.logits.data);
      score += logProbability;
      tokens.push(token);
      if (found.attention) rows.push(Array.from(found.attention.data));
      states = found;
    }
    const target = tokens.map((id) => this.target.name(id));
    const weights = rows.length ? rows : null;
    return { text: this.target.decode(tokens), score, source, target, weights };
  }

  inputs(token, encoded, states) {
    const inputs = {};
    for (const name of this.step.inputNames) {
      if (name === "token") inputs[name] = asTensor([token], [1]);
      else if (name.startsWith("memory_")) inputs[name] = encoded[name];
      else inputs[name] = states[`next_${name}`] ?? states[name]; // after a step, or before the first
    }
    return inputs;
  }
}

function asTensor(ids, shape) {
  return new ort.Tensor("int32", Int32Array.from(ids), shape);
}

// The most likely token, PAD and START not among them, and its log-probability among all.
function mostLikely(logits) {
  let best = END;
  let largest = -Infinity;
  logits.forEach((logit, id) => {
    largest = Math.max(largest, logit);
    if (logit > logits[best] && id !== PAD && id !== START) best = id;
  });
  const sum = logits.reduce((total, logit) => total + Math.exp(logit - largest), 0);
  return [best, logits[best] - largest - Math.log(sum)];
}
