"use strict";
(() => {
  const { groups, panels } = JSON.parse(document.getElementById("data").textContent);
  const root = document.getElementById("panels");
  const hidden = new Set();
  const SVG = "http://www.w3.org/2000/svg";
  const MARGIN = { left: 52, right: 14, top: 8, bottom: 26 };
  // Ticks of the error scale: the second row for curves that the first gives too few.
  const ACCURACIES = [
    [50, 80, 90, 95, 98, 99, 99.5, 99.8, 99.9],
    [20, 40, 60, 70, 75, 80, 85, 88, 90, 92, 93, 94, 95, 96, 97, 97.5, 98, 98.5, 98.8, 99, 99.2, 99.4, 99.6, 99.8],
  ];
  const FEWEST_TICKS = 4;
  const SMALLEST_ERROR = 0.01; // percent: one image in 10,000

  const element = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const shape = (name, attributes = {}, ...children) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };

  // Scales: how a value becomes a height, how a height becomes a value again, and which values get a tick.
  const steps = (low, high, count) => {
    const raw = (high - low) / Math.max(count, 1);
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].find((n) => n * power >= raw * 0.999) * power;
    const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
    return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)) + 0);
  };
  const SCALES = {
    linear: { height: (v) => v, value: (h) => h, ticks: steps },
    log: {
      height: Math.log10,
      value: (h) => 10 ** h,
      ticks: (low, high, count) => {
        const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
        const every = Math.max(1, Math.ceil((last - first) / (count + 1)));
        const within = last - first < 3 ? [1, 2, 5] : [1];
        const ticks = [];
        for (let e = first; e <= last; e += every) ticks.push(...within.map((n) => n * 10 ** e));
        return ticks.filter((t) => t >= low && t <= high);
      },
    },
    error: {
      height: (v) => -Math.log10(Math.max(100 - v, SMALLEST_ERROR)),
      value: (h) => 100 - 10 ** -h,
      ticks: (low, high) => {
        const rows = ACCURACIES.map((row) => row.filter((t) => t >= low && t <= high));
        return rows.find((row) => row.length >= FEWEST_TICKS) ?? steps(low, high, FEWEST_TICKS);
      },
    },
  };
  const range = (curves, log) => {
    let low = Infinity, high = -Infinity;
    for (const c of curves) {
      for (const v of c.low) if (!log || v > 0) low = Math.min(low, v);
      for (const v of c.high) if (!log || v > 0) high = Math.max(high, v);
    }
    if (!(low <= high)) return [log ? 0.1 : 0, 1];
    if (log) low = Math.max(low, high * 1e-6); // zeros and what is next to nothing lie on the floor
    return [low, high];
  };

  const plain = (v) => v.toLocaleString("en", { maximumFractionDigits: 6 });
  const raised = (n) => n.replace(/./g, (c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)] ?? "");
  const powerText = (v, digits) => {
    const [mantissa, exponent] = v.toExponential(digits).split("e");
    return (mantissa === "1" ? "" : `${mantissa}·`) + `10${raised(exponent)}`;
  };
  const plainly = (v) => v === 0 || (Math.abs(v) >= 0.000999 && Math.abs(v) < 1e6);
  const tickText = (v) => (plainly(v) ? plain(v) : powerText(v, 0));
  const valueText = (panel, v) => {
    if (panel.scale === "error") return v.toFixed(2);
    return plainly(v) ? plain(Number(v.toPrecision(4))) : powerText(v, 2);
  };

  const swatch = (group) => document.querySelector(`.legend button[data-group="${group}"] .swatch`).cloneNode(true);
  const shown = (panel) => panel.curves.filter((c) => !hidden.has(c.group));

  // The value of a curve at an iteration, between its own records.
  const at = (curve, key, iteration) => {
    const { x } = curve;
    if (iteration < x[0] || iteration > x[x.length - 1]) return null;
    const i = x.findIndex((v) => v >= iteration);
    if (x[i] === iteration || i === 0) return curve[key][i];
    const part = (iteration - x[i - 1]) / (x[i] - x[i - 1]);
    return curve[key][i - 1] + part * (curve[key][i] - curve[key][i - 1]);
  };

  const build = (panel) => {
    panel.log = panel.scale !== "linear";
    panel.svg = shape("svg", { class: "plot", tabindex: 0, role: "application" });
    panel.svg.setAttribute("aria-label", `${panel.title}, over the iterations. The arrow keys read the values.`);
    panel.values = element("div", { class: "values", "aria-live": "polite" });
    const kind = panel.scale === "error" ? "log of the error" : "log scale";
    const toggle = element("button", { type: "button", "aria-pressed": panel.log }, kind);
    toggle.addEventListener("click", () => {
      panel.log = !panel.log;
      toggle.setAttribute("aria-pressed", panel.log);
      draw(panel);
    });
    const point = (event) => {
      const box = panel.svg.getBoundingClientRect();
      look(panel, panel.iterationAt(((event.clientX - box.left) / box.width) * panel.width));
    };
    panel.svg.addEventListener("pointermove", point);
    panel.svg.addEventListener("pointerdown", point);
    panel.svg.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && look(null));
    panel.svg.addEventListener("blur", () => look(null));
    panel.svg.addEventListener("keydown", (event) => {
      const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") look(null);
      if (!way || !panel.places.length) return;
      event.preventDefault();
      const end = panel.places.length - 1;
      const next = panel.looked == null ? (way > 0 ? 0 : end) : panel.places.indexOf(panel.looked) + way;
      look(panel, panel.places[Math.min(Math.max(next, 0), end)]);
    });
    const title = element("figcaption", {}, panel.title, toggle);
    const figure = element("figure", { class: "panel" }, title, panel.svg, panel.values);
    new ResizeObserver(() => panel.svg.clientWidth !== panel.width && draw(panel)).observe(figure);
    return figure;
  };

  const draw = (panel, fixed) => {
    const { svg } = panel;
    const width = (panel.width = fixed || svg.clientWidth || 560);
    const height = (panel.height = root.firstElementChild.contains(svg) && width > 700 ? 320 : 230);
    const right = width - MARGIN.right, bottom = height - MARGIN.bottom;
    const scale = SCALES[panel.log ? panel.scale === "error" ? "error" : "log" : "linear"];
    const curves = shown(panel);
    panel.places = [...new Set(curves.flatMap((c) => c.x))].sort((a, b) => a - b);
    let [floor, top] = range(curves, scale === SCALES.log).map(scale.height);
    const margin = 0.05 * (top - floor || 1);
    [floor, top] = [floor - margin, top + margin];
    const last = Math.max(...panels.flatMap((p) => p.curves.map((c) => c.x[c.x.length - 1]))) || 1;
    const px = (panel.px = (iteration) => MARGIN.left + (iteration / last) * (right - MARGIN.left));
    const py = (panel.py = (v) => {
      const h = scale === SCALES.log && v <= 0 ? floor : Math.max(scale.height(v), floor);
      return bottom - ((h - floor) / (top - floor)) * (bottom - MARGIN.top);
    });
    panel.iterationAt = (x) => ((x - MARGIN.left) / (right - MARGIN.left)) * last;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);

    const back = shape("g");
    for (const tick of scale.ticks(scale.value(floor), scale.value(top), 5)) {
      back.append(shape("line", { class: "grid", x1: MARGIN.left, x2: right, y1: py(tick), y2: py(tick) }));
      back.append(shape("text", { x: MARGIN.left - 7, y: py(tick) + 3.5, "text-anchor": "end" }, tickText(tick)));
    }
    for (const tick of steps(0, last, Math.floor(width / 110))) {
      back.append(shape("line", { class: "grid", x1: px(tick), x2: px(tick), y1: MARGIN.top, y2: bottom }));
      const anchor = tick === last ? "end" : "middle";
      back.append(shape("text", { x: px(tick), y: bottom + 16, "text-anchor": anchor }, plain(tick)));
    }
    back.append(shape("line", { class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom }));

    const points = (xs, ys) => xs.map((x, i) => `${px(x).toFixed(1)},${py(ys[i]).toFixed(1)}`);
    const drawn = [...curves].reverse().map((c) => { // the best group last, on top
      const kind = `curve c${groups[c.group].colour}${c.thin ? " thin" : ""}`;
      const g = shape("g", { class: kind, "data-group": c.group });
      const ranged = !c.thin && c.low.some((v, i) => v !== c.high[i]);
      const outline = ranged ? [...points(c.x, c.high), ...points(c.x, c.low).reverse()] : [];
      if (ranged) g.append(shape("path", { class: "band", d: `M${outline.join("L")}Z` }));
      const line = shape("path", { d: `M${points(c.x, c.mean).join("L")}` });
      if (c.x.length === 1) g.append(shape("circle", { cx: px(c.x[0]), cy: py(c.mean[0]), r: 3 }));
      const unit = c.thin ? 0.9 : 1.8; // dashes are counted in widths of the line
      if (c.dash.length) line.setAttribute("stroke-dasharray", c.dash.map((n) => n * unit).join(" "));
      g.append(line);
      return g;
    });
    panel.marks = shape("g");
    svg.replaceChildren(back, ...drawn, panel.marks);
  };

  // Show the values at an iteration: a line in every panel, the numbers in the one looked at.
  const look = (panel, iteration) => {
    const closer = (best, i) => (Math.abs(i - iteration) < Math.abs(best - iteration) ? i : best);
    const here = panel?.places.length ? panel.places.reduce(closer) : null;
    for (const p of panels) {
      p.values.replaceChildren();
      p.looked = p === panel ? here : null;
      p.marks.replaceChildren();
      if (here == null) continue;
      const x = p.px(here);
      p.marks.append(shape("line", { class: "cross", x1: x, x2: x, y1: MARGIN.top, y2: p.height - MARGIN.bottom }));
      for (const c of shown(p)) {
        const value = at(c, "mean", here);
        if (value == null || c.thin) continue;
        const dot = shape("circle", { cx: x, cy: p.py(value), r: 3 });
        p.marks.append(shape("g", { class: `curve c${groups[c.group].colour}` }, dot));
      }
    }
    if (here != null) tell(panel, here);
  };

  const tell = (panel, iteration) => {
    const curves = shown(panel);
    const text = (curve, key) => valueText(panel, at(curve, key, iteration));
    const rows = curves
      .filter((c) => !c.thin && at(c, "mean", iteration) != null)
      .sort((a, b) => at(b, "mean", iteration) - at(a, "mean", iteration))
      .map((c) => {
        const [low, high] = [text(c, "low"), text(c, "high")];
        const thin = curves.find((t) => t.thin && t.group === c.group && at(t, "mean", iteration) != null);
        return element("tr", {},
          element("td", { class: "name" }, swatch(c.group), groups[c.group].label),
          element("td", { class: "number" }, text(c, "mean")),
          element("td", { class: "range none" }, low === high ? "" : `${low} – ${high}`),
          element("td", { class: "none" }, thin ? `relaxed ${text(thin, "mean")}` : ""));
      });
    const caption = element("caption", {}, `iteration ${plain(iteration)}`);
    panel.values.replaceChildren(element("table", {}, caption, element("tbody", {}, ...rows)));
    const box = panel.svg.getBoundingClientRect(), outer = panel.svg.parentElement.getBoundingClientRect();
    const x = (panel.px(iteration) * box.width) / panel.width, width = panel.values.offsetWidth;
    const left = x + 14 + width > box.width && x - 14 - width >= 0 ? x - 14 - width : x + 14;
    panel.values.style.left = `${Math.max(0, Math.min(left, box.width - width))}px`;
    const top = Math.max(8, Math.min(box.top + 8, innerHeight - panel.values.offsetHeight - 8)); // within the window
    panel.values.style.top = `${top - outer.top}px`;
  };
  document.addEventListener("pointerdown", (event) => event.target.closest(".plot") || look(null));

  const buttons = [...document.querySelectorAll(".legend button[data-group]")];
  const all = document.querySelector(".legend .all");
  const refresh = () => {
    for (const b of buttons) b.setAttribute("aria-pressed", !hidden.has(Number(b.dataset.group)));
    all.textContent = hidden.size ? "show all" : "hide all";
    panels.forEach((panel) => draw(panel));
  };
  const stress = (group) => { // one group's curves stand out, null for none
    root.classList.toggle("one", group != null && !hidden.has(group));
    for (const g of root.querySelectorAll(".plot > .curve")) {
      g.classList.toggle("chosen", Number(g.dataset.group) === group);
    }
  };
  for (const button of buttons) {
    const group = Number(button.dataset.group);
    button.addEventListener("click", () => {
      if (!hidden.delete(group)) hidden.add(group);
      refresh();
      stress(null);
    });
    button.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && stress(group));
    button.addEventListener("pointerleave", () => stress(null));
  }
  all.addEventListener("click", () => {
    if (hidden.size) hidden.clear();
    else buttons.forEach((b) => hidden.add(Number(b.dataset.group)));
    refresh();
  });

  root.replaceChildren(...(panels.length ? panels.map(build) : ["Nothing was recorded yet."]));
  refresh();
  window.addEventListener("beforeprint", () => panels.forEach((panel, i) => draw(panel, i ? 350 : 720)));
  window.addEventListener("afterprint", refresh);
})();
