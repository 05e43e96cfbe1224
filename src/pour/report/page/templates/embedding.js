"use strict";
(() => {
  const data = JSON.parse(document.getElementById("embedding-data").textContent);
  const card = document.getElementById("card");
  const tile = document.getElementById("tile");
  const words = document.getElementById("card-words");
  const only = document.getElementById("class");
  const gone = new Set(data.forgotten);
  const count = data.labels.length;
  const reach = 14;
  let current = null;

  const sheet = data.sheet ? new Image() : null;
  if (sheet) {
    sheet.addEventListener("load", () => describe());
    sheet.src = data.sheet.source;
  }

  // Hues a golden angle apart stay distinct for any number of classes; forgotten classes have the one strong red.
  const hue = (label) => (210 + label * 137.508) % 360;
  const isDark = () =>
    (document.documentElement.dataset.theme ||
      (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const colour = (label) =>
    gone.has(label) ? (isDark() ? "#ff7b72" : "#8b1a1a") : `hsl(${hue(label)} ${isDark() ? "38% 62%" : "42% 48%"})`;
  const chosen = (i) => only.value === "" || data.labels[i] === Number(only.value);

  const panels = [...document.querySelectorAll(".panel")].map((element) => {
    const canvas = element.querySelector("canvas");
    const pick = element.querySelector("select");
    const panel = { canvas, pick, size: 0 };

    panel.place = (i) => {
      const [xs, ys] = data.points[pick.value];
      const inner = panel.size - 24;
      return [12 + (inner * xs[i]) / data.grid, panel.size - 12 - (inner * ys[i]) / data.grid];
    };

    panel.draw = () => {
      const scale = devicePixelRatio || 1;
      panel.size = canvas.clientWidth;
      canvas.width = canvas.height = Math.round(panel.size * scale);
      const pen = canvas.getContext("2d");
      pen.scale(scale, scale);
      pen.clearRect(0, 0, panel.size, panel.size);
      const radius = count > 1500 ? 2 : count > 500 ? 2.6 : 3.4;
      const dot = (i, r) => {
        const [x, y] = panel.place(i);
        pen.beginPath();
        pen.arc(x, y, r, 0, 2 * Math.PI);
        pen.fill();
      };
      // Forgotten classes last, so that they lie on top.
      for (const forgotten of [false, true]) {
        for (let i = 0; i < count; i += 1) {
          if (gone.has(data.labels[i]) !== forgotten) continue;
          pen.globalAlpha = chosen(i) ? (forgotten ? 0.95 : 0.7) : 0.07;
          pen.fillStyle = colour(data.labels[i]);
          dot(i, forgotten ? radius * 1.25 : radius);
        }
      }
      pen.globalAlpha = 1;
      if (current !== null) {
        const [x, y] = panel.place(current);
        pen.fillStyle = colour(data.labels[current]);
        dot(current, radius * 1.8);
        pen.strokeStyle = getComputedStyle(document.body).color;
        pen.lineWidth = 2;
        pen.beginPath();
        pen.arc(x, y, radius * 1.8 + 3, 0, 2 * Math.PI);
        pen.stroke();
      }
    };

    panel.nearest = (event) => {
      const box = canvas.getBoundingClientRect();
      const [px, py] = [event.clientX - box.left, event.clientY - box.top];
      let best = null;
      let least = reach * reach;
      for (let i = 0; i < count; i += 1) {
        if (!chosen(i)) continue;
        const [x, y] = panel.place(i);
        const distance = (x - px) ** 2 + (y - py) ** 2;
        if (distance < least) [best, least] = [i, distance];
      }
      return best;
    };

    // The nearest point in the arrow's direction, sideways steps counted twice.
    panel.step = (dx, dy) => {
      const [x0, y0] = panel.place(current);
      let best = null;
      let least = Infinity;
      for (let i = 0; i < count; i += 1) {
        if (i === current || !chosen(i)) continue;
        const [x, y] = panel.place(i);
        const along = (x - x0) * dx + (y - y0) * dy;
        const aside = Math.abs((x - x0) * dy) + Math.abs((y - y0) * dx);
        if (along <= 0 || along + 2 * aside >= least) continue;
        [best, least] = [i, along + 2 * aside];
      }
      return best;
    };

    canvas.addEventListener("pointermove", (event) => select(panel.nearest(event), false));
    canvas.addEventListener("pointerdown", (event) => select(panel.nearest(event), false));
    canvas.addEventListener("keydown", (event) => {
      const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
      const points = [...Array(count).keys()].filter(chosen);
      if (event.key === "Escape") {
        select(null, true);
      } else if (event.key === "Home" || event.key === "End") {
        select(points.at(event.key === "Home" ? 0 : -1) ?? null, true);
      } else if (arrows[event.key]) {
        const next = current === null ? points[0] : panel.step(...arrows[event.key]);
        if (next !== null && next !== undefined) select(next, true);
      } else {
        return;
      }
      event.preventDefault();
    });
    pick.addEventListener("change", () => {
      panel.draw();
      describe();
    });
    new ResizeObserver(panel.draw).observe(canvas);
    return panel;
  });

  function select(index, byKeyboard) {
    if (index === current) return;
    current = index;
    panels.forEach((panel) => panel.draw());
    describe();
    if (byKeyboard) document.getElementById("status").textContent = index === null ? "No point." : words.innerText;
  }

  function line(term, text, mark) {
    const [dt, dd] = [document.createElement("dt"), document.createElement("dd")];
    dt.textContent = term;
    dd.textContent = text;
    if (mark) dd.className = mark;
    return [dt, dd];
  }

  function describe() {
    card.dataset.point = current === null ? "" : String(current);
    if (current === null) {
      words.replaceChildren(...line("Point", "Move over a map, tap it, or use the arrow keys on it."));
      tile.hidden = true;
      return;
    }
    const truth = data.labels[current];
    const first = [...new Set(panels.map((panel) => panel.pick.value))];
    const models = [...first, ...data.models.filter((model) => !first.includes(model))];
    const forgotten = gone.has(truth) ? " (forgotten)" : "";
    words.replaceChildren(
      ...line("True class", `${data.classes[truth]}${forgotten}`, gone.has(truth) ? "gone" : ""),
      ...models.flatMap((model) => {
        const answer = data.predictions[model][current];
        return line(`${model} answers`, `${data.classes[answer]}${answer === truth ? ", right" : ", wrong"}`);
      }),
      ...line("Image", `number ${data.rows[current]}`),
    );
    const place = data.sheet ? data.sheet.place[current] : -1;
    tile.hidden = place < 0 || !sheet.complete;
    if (tile.hidden) return;
    const { width, height, columns } = data.sheet;
    tile.width = width;
    tile.height = height;
    const pen = tile.getContext("2d");
    pen.drawImage(sheet, (place % columns) * width, Math.floor(place / columns) * height, width, height, 0, 0, width, height);
    tile.setAttribute("aria-label", `The image, of class ${data.classes[truth]}`);
  }

  only.addEventListener("change", () => {
    if (current !== null && !chosen(current)) current = null;
    panels.forEach((panel) => panel.draw());
    describe();
  });
  document.addEventListener("themechange", () => panels.forEach((panel) => panel.draw()));
  describe();
})();
