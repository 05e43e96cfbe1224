"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const say = (words) => {
    document.getElementById("status").textContent = words;
  };

  const theme = document.getElementById("theme");
  const dark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const name = () => {
    theme.textContent = dark() ? "Light colours" : "Dark colours";
  };
  theme.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try {
      localStorage.setItem("pour-theme", root.dataset.theme);
    } catch (error) {
      say("This browser does not keep the choice of colours.");
    }
    name();
    document.dispatchEvent(new Event("themechange"));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    name();
    document.dispatchEvent(new Event("themechange"));
  });
  name();

  // Rows without a value stay last in both directions.
  const compare = (column, direction) => (one, other) => {
    const [a, b] = [one, other].map((row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim());
    if (a === "" || b === "") return (a === "") - (b === "");
    const numbers = [Number(a), Number(b)];
    const plain = numbers.every(Number.isFinite);
    return direction * (plain ? numbers[0] - numbers[1] : a.localeCompare(b, "en", { numeric: true }));
  };

  for (const table of all("table[data-sortable]")) {
    const body = table.tBodies[0];
    const first = [...body.rows];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      if (head.dataset.fixed !== undefined) return;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const next = { ascending: "descending", descending: null }[head.getAttribute("aria-sort")];
        const order = next === undefined ? "ascending" : next;
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        const rows = [...first];
        if (order) {
          head.setAttribute("aria-sort", order);
          rows.sort(compare(column, order === "ascending" ? 1 : -1));
        }
        body.append(...rows);
        say(order ? `Sorted by ${button.textContent.trim()}, ${order}.` : "In the first order again.");
      });
    });
  }

  const pick = document.getElementById("run");
  if (pick) {
    const show = () => {
      for (const part of all("[data-run]")) part.hidden = part.dataset.run !== pick.value;
      filter();
    };
    pick.addEventListener("change", () => {
      show();
      say(`Showing ${pick.selectedOptions[0].textContent.trim()}.`);
    });
    queueMicrotask(show);
  }

  const search = document.getElementById("search");
  const train = document.getElementById("train");
  const boxes = all("#verdict-filter input");
  function filter() {
    if (!search) return;
    const words = search.value.toLowerCase().trim();
    const allowed = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
    let shown = 0;
    let total = 0;
    for (const row of all("#verdicts tbody tr")) {
      const run = row.closest("[data-run]");
      const split = train.checked || row.dataset.train === undefined;
      const fits = split && allowed.has(row.dataset.verdict) && row.dataset.words.includes(words);
      row.hidden = !fits;
      if (run && run.hidden) continue;
      total += 1;
      shown += fits;
    }
    for (const table of all("#verdicts table")) {
      table.closest(".metrics").classList.toggle("empty", !table.querySelector("tbody tr:not([hidden])"));
    }
    document.getElementById("shown").textContent =
      shown === total ? `all ${total} measures` : `${shown} of ${total} measures`;
  }
  if (search) {
    search.addEventListener("input", filter);
    train.addEventListener("change", filter);
    boxes.forEach((box) => box.addEventListener("change", filter));
    filter();
  }

  for (const group of all("[data-group]")) {
    const choice = group.querySelector("select");
    const show = () => {
      for (const figure of all("figure", group)) figure.hidden = figure.dataset.choice !== choice.value;
    };
    choice.addEventListener("change", show);
    show();
  }

  for (const button of all("button[data-copy]")) {
    button.addEventListener("click", async () => {
      const text = document.getElementById(button.dataset.copy).textContent;
      try {
        await navigator.clipboard.writeText(text);
        say("Copied.");
        button.textContent = "Copied";
      } catch (error) {
        getSelection().selectAllChildren(document.getElementById(button.dataset.copy));
        say("Selected; copy it with the keyboard.");
      }
    });
  }

  // A part that scrolls must be reached by keyboard, and one that does not would only be in the way.
  const wide = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
      else target.removeAttribute("tabindex");
    }
  });
  all(".scroll, .formula").forEach((part) => wide.observe(part));

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = all("details:not([open])");
    opened.forEach((part) => (part.open = true));
  });
  addEventListener("afterprint", () => opened.forEach((part) => (part.open = false)));
})();
