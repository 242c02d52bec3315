// Text to ids and back, as the tokenizers of keras_attention do it: characters, words, bytes.

export const [PAD, START, END, UNKNOWN] = [0, 1, 2, 3];
const RESERVED = 4;
const JOIN = "‿"; // on a symbol's side: no space stands there
const WORD = /^[\p{L}\p{M}\p{N}\u203f\u200c\u200d]$/u;

// description: {kind, tokens: [V], lowercase, normalization}
export function makeTokenizer(description) {
  const makers = { CharacterTokenizer: characters, WordTokenizer: words, ByteTokenizer: bytes };
  const { split, join } = makers[description.kind](description);
  return {
    // Ids with END behind.
    encode: (text) => [...split(prepare(text, description)), END],
    decode: (ids) => {
      const end = ids.indexOf(END);
      const kept = (end < 0 ? ids : ids.slice(0, end)).filter((id) => id !== PAD && id !== START);
      const text = join(kept);
      return description.normalization ? text.normalize("NFC") : text;
    },
    name: (id) => description.tokens[id] ?? description.tokens[UNKNOWN],
  };
}

function prepare(text, { lowercase, normalization }) {
  let prepared = text.toWellFormed();
  if (lowercase) {
    if (["NFKC", "NFKD"].includes(normalization)) prepared = prepared.normalize(normalization);
    prepared = prepared.toLowerCase();
  }
  return normalization ? prepared.normalize(normalization) : prepared;
}

function finder(tokens) {
  const places = new Map(tokens.map((token, id) => [token, id]));
  return (token) => {
    const id = places.get(token) ?? UNKNOWN;
    return id < RESERVED ? UNKNOWN : id; // "<s>" in a text is no START
  };
}

function characters({ tokens }) {
  return {
    split: (text) => Array.from(text, finder(tokens)),
    join: (ids) => ids.map((id) => tokens[id] ?? tokens[UNKNOWN]).join(""),
  };
}

function bytes() {
  const unknown = Array.from(new TextEncoder().encode("⁇"));
  const raw = (id) => (id >= RESERVED && id < RESERVED + 256 ? [id - RESERVED] : unknown);
  return {
    split: (text) => Array.from(new TextEncoder().encode(text), (byte) => byte + RESERVED),
    join: (ids) =>
      new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(ids.flatMap(raw))),
  };
}

function words({ tokens }) {
  const parts = tokens.map((token, id) => partsOf(token, id));
  return {
    split: (text) => splitWords(Array.from(text)).map(finder(tokens)),
    join: (ids) =>
      ids
        .map((id) => parts[id] ?? parts[UNKNOWN])
        .map(({ text, left }, n, all) => (n && !left && !all[n - 1].right ? " " : "") + text)
        .join(""),
  };
}

// A token's text, and whether it joins what is left and right of it without a space.
function partsOf(token, id) {
  const left = token.startsWith(JOIN);
  const body = left ? token.slice(1) : token;
  const right = body.endsWith(JOIN);
  const symbol = right ? body.slice(0, -1) : body;
  if (id < RESERVED || Array.from(symbol).length !== 1 || WORD.test(symbol)) {
    return { text: token, left: false, right: false };
  }
  return { text: symbol, left, right };
}

function splitWords(letters) {
  const separates = letters.map(
    (letter, n) =>
      letter === " " &&
      n > 0 &&
      n < letters.length - 1 &&
      letters[n - 1] !== " " &&
      letters[n + 1] !== " ",
  );
  const isWord = letters.map((letter) => WORD.test(letter));
  const found = [];
  letters.forEach((letter, n) => {
    if (separates[n]) return;
    if (isWord[n]) {
      if (isWord[n - 1]) found[found.length - 1] += letter;
      else found.push(letter);
      return;
    }
    const left = n > 0 && !separates[n - 1] ? JOIN : "";
    const right = isWord[n + 1] ? JOIN : "";
    found.push(left + letter + right);
  });
  return found;
}
