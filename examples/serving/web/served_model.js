// A model behind TensorFlow Serving, kserve_server.py or ray_server.py.

export class ServedModel {
  constructor(url, name) {
    this.address = `${url.replace(/\/+$/, "")}/v1/models/${encodeURIComponent(name)}:predict`;
    this.place = `at ${url}`;
  }

  // {text, score, source: [S], target: [T], weights: [T][S] or null}
  async answer(text) {
    let response;
    try {
      response = await fetch(this.address, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ instances: [{ text }] }),
      });
    } catch {
      throw new Error(
        `${this.address} can not be reached. Does the server run, and allow pages of ` +
          `${location.origin} to ask it (--allow-origin)?`,
      );
    }
    const content = await response.json().catch(() => ({}));
    const row = content.predictions?.[0];
    if (!response.ok || !row) throw new Error(content.error ?? `status ${response.status}`);
    if (!("translation" in row)) throw new Error("this model does not translate texts");
    const source = row.source_tokens.filter((token) => token !== "");
    const target = row.target_tokens.filter((token) => token !== "");
    const weights = row.attention
      ?.slice(0, target.length)
      .map((step) => step.slice(0, source.length));
    return { text: row.translation, score: row.score, source, target, weights: weights ?? null };
  }
}
