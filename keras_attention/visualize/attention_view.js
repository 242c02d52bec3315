// Two rows of tokens and the matrix of weights between them. Point at a token to see its weights.

const SIDES = ["source", "target"];

function element(tag, attributes = {}, text = "") {
  const made = Object.assign(document.createElement(tag), attributes);
  if (text) made.textContent = text; // never as HTML: tokens are anybody's text
  return made;
}

function meanOf(matrices) {
  return matrices[0].map((row, t) =>
    row.map((_, s) => matrices.reduce((sum, matrix) => sum + matrix[t][s], 0) / matrices.length),
  );
}

function percent(weight) {
  return weight >= 0.005 ? `${Math.round(weight * 100)}%` : "";
}

// data: {title, source: [S], target: [T], names: [N], weights: [N][T][S]}; weights may be null.
export function showAttention(place, data) {
  const view = element("section", { className: "attention-view" });
  place.replaceChildren(view);
  if (data.title) view.append(element("h2", { dir: "auto" }, data.title));
  const matrices = data.weights ?? [];
  let matrix = matrices.length ? meanOf(matrices) : null;
  if (matrices.length > 1) {
    const select = element("select", { ariaLabel: "which weights" });
    ["mean", ...data.names].forEach((name, n) => select.append(new Option(name, n)));
    select.onchange = () => {
      const n = Number(select.value);
      matrix = n ? matrices[n - 1] : meanOf(matrices);
      draw();
      show(kept);
    };
    view.append(select);
  }

  const rows = {};
  let kept = null; // the token that was clicked at
  for (const side of SIDES) {
    const row = element("div", { className: "tokens", dir: "auto" });
    row.dataset.side = side;
    rows[side] = data[side].map((text, place) => {
      const token = element("button", { className: "token", type: "button" }, text || "∅");
      const choice = { side, place };
      token.onmouseenter = token.onfocus = () => show(choice);
      token.onmouseleave = token.onblur = () => show(kept);
      token.onclick = () => {
        kept = kept?.side === side && kept.place === place ? null : choice;
        show(choice);
      };
      row.append(token);
      return token;
    });
    view.append(element("h3", {}, side), row);
  }
  if (!matrix || !data.source.length || !data.target.length) return;

  const hint = "Point at a token to see its weights; click to keep it so.";
  view.append(element("p", { className: "hint" }, hint));
  const cell = Math.max(3, Math.min(24, Math.floor(640 / data.source.length)));
  const canvas = element("canvas", {
    width: cell * data.source.length,
    height: cell * data.target.length,
  });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "weights: a row for each target token");
  canvas.onmousemove = (event) => {
    const t = Math.floor((event.offsetY / canvas.clientHeight) * data.target.length);
    const s = Math.floor((event.offsetX / canvas.clientWidth) * data.source.length);
    if (matrix[t]?.[s] === undefined) return; // on the border
    show({ side: "target", place: t });
    rows.source[s].classList.add("chosen");
  };
  canvas.onmouseleave = () => show(kept);
  view.append(canvas);

  function draw() {
    const context = canvas.getContext("2d");
    const style = getComputedStyle(view);
    context.globalAlpha = 1;
    context.fillStyle = style.getPropertyValue("--paper");
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.fillStyle = style.getPropertyValue("--accent");
    matrix.forEach((row, t) =>
      row.forEach((weight, s) => {
        context.globalAlpha = Math.min(weight, 1);
        context.fillRect(s * cell, t * cell, cell, cell);
      }),
    );
  }

  function show(choice) {
    if (!matrix) return; // a model without attention, or an empty output
    for (const side of SIDES) {
      rows[side].forEach((token, place) => {
        const chosen = choice?.side === side && choice.place === place;
        let weight = 0;
        if (choice && choice.side !== side) {
          weight = side === "source" ? matrix[choice.place][place] : matrix[place][choice.place];
        }
        token.classList.toggle("chosen", chosen);
        token.style.setProperty("--weight", Math.min(weight, 1));
        token.dataset.percent = percent(weight);
      });
    }
  }

  draw();
}
