"use strict";
(() => {
  const { summary, styles } = JSON.parse(document.getElementById("data").textContent);
  const COMPONENTS = ["#1b6ca8", "#d1495b", "#3a7d44", "#b87a0a", "#6a4c93", "#00798c", "#8c5a3c", "#5b6670"];
  const MARKED = 30; // of a longer curve only some points are marked
  const MARKS = 9; // as many
  const SVG = new Set(["svg", "g", "path", "line", "text", "circle", "rect", "clipPath", "defs"]);

  // ---- small things ----

  function element(name, attributes = {}, ...children) {
    const node = SVG.has(name) ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
    }
    node.append(...children);
    return node;
  }

  const superscript = (n) => String(n).replace(/[-0-9]/g, (c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]);

  /** Four significant digits; powers of ten when very small or large; a dash for none. */
  function number(value) {
    if (typeof value !== "number" || !Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    let text;
    if (Number.isInteger(value) && size < 1e6) text = String(value);
    else if (size < 1e-3 || size >= 1e5) {
      const [mantissa, exponent] = value.toExponential(2).split("e");
      text = `${Number(mantissa)}×10${superscript(Number(exponent))}`;
    } else text = size >= 9999.5 ? String(Math.round(value)) : String(Number(value.toPrecision(4)));
    return text.replace(/^-/, "−");
  }

  /** Colours are those of print; on a dark page they are lifted towards white. */
  const tone = (colour) => `color-mix(in srgb, ${colour}, white var(--lift))`;
  const drawn = (value, scale) => typeof value === "number" && Number.isFinite(value) && (scale !== "log" || value > 0);
  const unique = (values) => [...new Set(values)];

  // ---- axes ----

  function evenTicks(low, high, count) {
    const rough = (high - low) / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
    const ticks = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k += 1) ticks.push(k * step);
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    const wide = Math.max(Math.abs(low), Math.abs(high));
    const label = (v) => (digits > 4 || wide >= 1e5 ? (v === 0 ? "0" : number(v)) : v.toFixed(digits).replace(/^-/, "−"));
    return ticks.map((value) => ({ value, label: label(value) }));
  }

  function logTicks(low, high, count) {
    const span = Math.log10(high / low);
    if (span < 0.7) return evenTicks(low, high, count);
    const factors = span < 2 ? [1, 2, 5] : [1];
    const stride = Math.max(1, Math.ceil(span / count));
    const plain = low >= 0.005 && high <= 50000;
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
      if (power % stride) continue;
      for (const factor of factors) {
        const value = factor * 10 ** power;
        const head = factor === 1 ? "" : `${factor}×`;
        const label = plain ? String(Number(value.toPrecision(1))) : `${head}10${superscript(power)}`;
        if (value >= low && value <= high) ticks.push({ value, label });
      }
    }
    return ticks;
  }

  /** Maps values to pixels between two ends, with ticks. Few whole numbers on a log axis are their own ticks. */
  function axis(scale, values, from, to, count, margin) {
    let low = Infinity;
    let high = -Infinity;
    for (const value of values) {
      if (!drawn(value, scale)) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    if (low > high) [low, high] = [scale === "log" ? 0.1 : 0, 1];
    if (low === high) [low, high] = scale === "log" ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
    const forth = scale === "log" ? Math.log10 : (v) => v;
    const back = scale === "log" ? (v) => 10 ** v : (v) => v;
    const pad = margin * (forth(high) - forth(low));
    const [start, end] = [forth(low) - pad, forth(high) + pad];
    const at = (value) => from + ((forth(value) - start) / (end - start)) * (to - from);
    const own = unique(values.filter((v) => drawn(v, scale))).sort((a, b) => a - b);
    const few = scale === "log" && own.length > 1 && own.length <= 8 && own.every(Number.isInteger);
    const fitting = scale === "log" ? logTicks(back(start), back(end), count) : evenTicks(start, end, count);
    const ticks = few ? own.map((value) => ({ value, label: number(value) })) : fitting;
    return { scale, at, ticks, foot: back(start) };
  }

  // ---- curves ----

  /** Stretches of consecutive points that can be drawn: missing values are gaps. */
  function stretches(length, present) {
    const found = [];
    for (let i = 0; i < length; i += 1) {
      if (!present(i)) continue;
      if (i > 0 && present(i - 1)) found[found.length - 1].push(i);
      else found.push([i]);
    }
    return found;
  }

  const point = (x, y) => `${x.toFixed(1)} ${y.toFixed(1)}`;

  function linePath(curve, x, y) {
    const present = (i) => drawn(curve.x[i], x.scale) && drawn(curve.y[i], y.scale);
    const pieces = stretches(curve.x.length, present);
    return pieces.map((piece) => "M" + piece.map((i) => point(x.at(curve.x[i]), y.at(curve.y[i]))).join("L")).join("");
  }

  function bandPath(curve, x, y) {
    if (!curve.low || !curve.high) return "";
    const present = (i) => drawn(curve.x[i], x.scale) && drawn(curve.low[i]) && drawn(curve.high[i], y.scale);
    const lower = (i) => y.at(drawn(curve.low[i], y.scale) ? curve.low[i] : y.foot);
    const pieces = stretches(curve.x.length, present);
    const edge = (piece, side) => piece.map((i) => point(x.at(curve.x[i]), side(i))).join("L");
    return pieces.map((piece) => `M${edge(piece, (i) => y.at(curve.high[i]))}L${edge([...piece].reverse(), lower)}Z`).join("");
  }

  const MARKERS = {
    o: (x, y) => `M${point(x - 3.4, y)}a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0 -6.8 0Z`,
    s: (x, y) => `M${point(x - 3.1, y - 3.1)}h6.2v6.2h-6.2Z`,
    "^": (x, y) => `M${point(x, y - 4)}l3.9 6.9h-7.8Z`,
    D: (x, y) => `M${point(x, y - 4.2)}l4.2 4.2l-4.2 4.2l-4.2 -4.2Z`,
  };

  function strokes(curve, line, markers) {
    const colour = tone(curve.colour);
    const look = `fill: none; stroke: ${colour}; stroke-width: ${curve.width || 1.7}; opacity: ${curve.opacity || 1}`;
    const fill = curve.dash.length ? "var(--paper)" : colour;
    const dash = curve.dash.join(" ") || null;
    const nodes = [element("path", { d: line, style: look, "stroke-dasharray": dash, "stroke-linejoin": "round", class: "curve" })];
    if (markers) nodes.push(element("path", { d: markers, style: `fill: ${fill}; stroke: ${colour}; stroke-width: 1.4` }));
    return nodes;
  }

  function swatch(curve) {
    const marker = curve.marker ? MARKERS[curve.marker](15, 7) : "";
    return element("svg", { width: 30, height: 14, "aria-hidden": "true" }, ...strokes(curve, "M1 7L29 7", marker));
  }

  // ---- charts ----

  /** Draws `describe()` into `host`, again whenever its width changes; returns the function that redraws. */
  function chart(host, describe) {
    const svg = element("svg", { tabindex: 0, role: "img" });
    const tip = element("div", { class: "tip", role: "status", hidden: "" });
    host.append(svg, tip);
    let points = [];
    let spot = null;
    let current = null;

    function draw() {
      const width = Math.round(host.clientWidth);
      if (!width) return;
      const spec = describe();
      const height = Math.round(Math.min(spec.tallest || 360, Math.max(230, width * 0.66)));
      const lines = spec.lines || [];
      const heights = spec.curves.flatMap((c) => [...c.y, ...(c.low || []), ...(c.high || [])]);
      const bottom = height - 42;
      const y = axis(spec.yscale, [...heights, ...lines.map((line) => line.y)], bottom, 26, Math.round(height / 60), 0.05);
      const left = Math.max(spec.left || 0, 12 + 7 * Math.max(1, ...y.ticks.map((tick) => tick.label.length)));
      const right = width - 14;
      const x = axis(spec.xscale, spec.extent, left, right, Math.max(2, Math.round(width / 95)), 0.03);
      const clip = `clip-${host.dataset.panel || host.id}`;
      const frame = { x: left, y: 26, width: Math.max(right - left, 1), height: bottom - 26 };
      const inside = element("g", { "clip-path": `url(#${clip})` });
      for (const curve of spec.curves) {
        const band = bandPath(curve, x, y);
        const look = `fill: ${tone(curve.colour)}; stroke: ${tone(curve.colour)}; opacity: 0.13`;
        if (band) inside.append(element("path", { d: band, style: look, class: "band" }));
      }
      for (const line of lines.filter((item) => drawn(item.y, y.scale))) {
        inside.append(element("line", { class: "level", x1: left, x2: right, y1: y.at(line.y), y2: y.at(line.y) }));
      }
      points = [];
      for (const curve of spec.curves) {
        const own = [];
        curve.x.forEach((value, i) => {
          if (drawn(value, x.scale) && drawn(curve.y[i], y.scale)) own.push({ curve, i, x: x.at(value), y: y.at(curve.y[i]) });
        });
        if (own.length) points.push(own);
        const shape = curve.marker ? MARKERS[curve.marker] : null;
        const every = curve.x.length <= MARKED ? 1 : Math.floor(curve.x.length / MARKS);
        const marks = shape ? own.filter((p) => p.i % every === 0).map((p) => shape(p.x, p.y)).join("") : "";
        inside.append(...strokes(curve, linePath(curve, x, y), marks));
      }
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      svg.setAttribute("aria-label", `${spec.title}. Arrow keys read its values.`);
      svg.replaceChildren(
        element("defs", {}, element("clipPath", { id: clip }, element("rect", frame))),
        ...rulings(x, y, left, right, bottom),
        element("text", { x: 0, y: 11 }, spec.ylabel),
        element("text", { x: (left + right) / 2, y: height - 5, "text-anchor": "middle" }, spec.xlabel),
        inside,
        ...lines.filter((item) => drawn(item.y, y.scale)).map((line) => lineLabel(line, y.at(line.y), left, right, points.flat())),
      );
      if (!spec.curves.length) svg.append(element("text", { x: (left + right) / 2, y: height / 2, "text-anchor": "middle" }, "nothing selected"));
      hide();
    }

    function show(found) {
      const { curve, i } = found;
      const spec = describe();
      if (spot) spot.remove();
      spot = element("circle", { class: "spot", cx: found.x, cy: found.y, r: 6 });
      svg.append(spot);
      const interval = curve.low && curve.high && drawn(curve.low[i]) && drawn(curve.high[i]);
      const range = interval ? ` (${number(curve.low[i])} to ${number(curve.high[i])})` : "";
      tip.replaceChildren(element("b", {}, curve.name), `${spec.xlabel} = ${number(curve.x[i])}: ${number(curve.y[i])}${range}`);
      tip.hidden = false;
      const zoom = host.clientWidth / svg.viewBox.baseVal.width;
      const most = host.clientWidth - tip.offsetWidth;
      tip.style.left = `${Math.max(0, Math.min(most, found.x * zoom - tip.offsetWidth / 2))}px`;
      const above = found.y * zoom - tip.offsetHeight - 12;
      tip.style.top = `${above >= 0 ? above : found.y * zoom + 12}px`;
    }

    function hide() {
      tip.hidden = true;
      current = null;
      if (spot) spot.remove();
    }

    function nearest(event) {
      const box = svg.getBoundingClientRect();
      const zoom = svg.viewBox.baseVal.width / box.width;
      const [px, py] = [(event.clientX - box.left) * zoom, (event.clientY - box.top) * zoom];
      let best = null;
      let distance = 40 ** 2;
      points.forEach((own, c) => own.forEach((p, k) => {
        const away = (p.x - px) ** 2 + (p.y - py) ** 2;
        if (away < distance) [best, distance] = [[c, k], away];
      }));
      return best;
    }

    function go(place) {
      if (!place || !points.length) return hide();
      const c = (place[0] + points.length) % points.length;
      const k = Math.max(0, Math.min(points[c].length - 1, place[1]));
      show(points[c][k]);
      current = [c, k];
    }

    svg.addEventListener("pointermove", (event) => go(nearest(event)));
    svg.addEventListener("pointerdown", (event) => go(nearest(event)));
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("focus", () => { if (svg.matches(":focus-visible")) go([0, 0]); });
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (event.key === "Escape") hide();
      if (!move) return;
      event.preventDefault();
      go(current ? [current[0] + move[0], current[1] + move[1]] : [0, 0]);
    });
    let seen = 0;
    new ResizeObserver(() => {
      if (host.clientWidth === seen) return;
      seen = host.clientWidth;
      requestAnimationFrame(draw);
    }).observe(host);
    draw();
    return draw;
  }

  /** The name of a horizontal line, at the end where the curves keep farther away. */
  function lineLabel(line, at, left, right, points) {
    const quarter = (right - left) / 4;
    const room = (near) => points.filter(near).reduce((least, p) => Math.min(least, Math.abs(p.y - at + 9)), 1e9);
    const early = room((p) => p.x < left + quarter) > room((p) => p.x > right - quarter);
    return element("text", { class: "halo", x: early ? left + 4 : right - 4, y: at - 5, "text-anchor": early ? "start" : "end" }, line.label);
  }

  /** Grid, ticks and their labels; labels that would touch the one before are left out. */
  function rulings(x, y, left, right, bottom) {
    const nodes = [];
    for (const tick of y.ticks) {
      const at = y.at(tick.value);
      nodes.push(element("line", { class: "grid", x1: left, x2: right, y1: at, y2: at }));
      nodes.push(element("text", { x: left - 8, y: at + 4, "text-anchor": "end" }, tick.label));
    }
    let end = -Infinity;
    for (const tick of x.ticks) {
      const at = x.at(tick.value);
      const half = 3.5 * tick.label.length;
      nodes.push(element("line", { class: "grid", x1: at, x2: at, y1: 26, y2: bottom }));
      if (at - half < end + 6) continue;
      end = at + half;
      nodes.push(element("text", { x: at, y: bottom + 16, "text-anchor": "middle" }, tick.label));
    }
    nodes.push(element("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
    return nodes;
  }

  // ---- figures ----

  function curveOf(series) {
    return { ...series, ...styles[series.label], name: series.label };
  }

  for (const group of document.querySelectorAll(".group")) {
    const hidden = new Set();
    const entries = new Map();
    const redraw = [...group.querySelectorAll(".chart")].map((host) => {
      const panel = summary.panels[Number(host.dataset.panel)];
      const curves = panel.series.map(curveOf);
      const extent = curves.flatMap((curve) => curve.x);
      curves.forEach((curve) => entries.has(curve.name) || entries.set(curve.name, curve));
      return chart(host, () => ({ ...panel, extent, curves: curves.filter((curve) => !hidden.has(curve.name)) }));
    });
    for (const [name, curve] of entries) {
      const button = element("button", { type: "button", "aria-pressed": "true" }, swatch(curve), name);
      button.addEventListener("click", () => {
        if (!hidden.delete(name)) hidden.add(name);
        button.setAttribute("aria-pressed", String(!hidden.has(name)));
        redraw.forEach((draw) => draw());
      });
      group.querySelector(".legend").append(button);
    }
  }

  // ---- policy explorer ----

  function explorer({ context, quantity, components, entries }, end) {
    const part = (name) => document.getElementById(name + end);
    const keys = ["basis", "N", "solver"];
    const picked = { ...entries[0] };
    const shown = components.map((_, k) => k < 4);
    const colour = (k) => COMPONENTS[k % COMPONENTS.length];
    const common = { xlabel: context.label, xscale: "linear", extent: context.values, left: 54 };
    let entry = entries[0];

    /** Offers for each key what exists given the keys before it, and keeps a choice that still does. */
    function offer() {
      let pool = entries;
      for (const key of keys) {
        const options = unique(pool.map((item) => item[key]));
        if (!options.includes(picked[key])) {
          const away = (value) => (typeof value === "number" ? Math.abs(value - picked[key]) : 0);
          picked[key] = options.reduce((best, value) => (away(value) < away(best) ? value : best));
        }
        const select = part(`pick-${key}`);
        select.replaceChildren(...options.map((value) => element("option", { selected: value === picked[key] && "" }, String(value))));
        select.onchange = () => {
          picked[key] = options[select.selectedIndex];
          offer();
          update();
        };
        pool = pool.filter((item) => item[key] === picked[key]);
      }
      entry = pool[0];
    }

    function policyCurves() {
      return components.flatMap((name, k) => !shown[k] ? [] : [
        { name: `${name}, exact`, x: context.values, y: entry.exact[k], colour: colour(k), dash: [], width: 5, opacity: 0.35 },
        { name: `${name}, policy`, x: context.values, y: entry.policy[k], colour: colour(k), dash: [6, 3], width: 1.8 },
      ]);
    }

    function words() {
      const errors = entry.error.map((value, i) => [value, context.values[i]]).filter(([value]) => drawn(value));
      const name = `${entry.basis}, N = ${entry.N}, ${entry.solver}`;
      if (!errors.length) return `${name}: no error was measured.`;
      const [most, where] = errors.reduce((best, pair) => (pair[0] > best[0] ? pair : best));
      const mean = Math.sqrt(errors.reduce((sum, [value]) => sum + value ** 2, 0) / errors.length);
      return `${name}: the largest error is ${number(most)}, at ${context.label} ${number(where)}; the root mean square is ${number(mean)}.`;
    }

    const top = chart(part("policy-chart"), () => ({
      ...common, title: `Policy over exact ${quantity}`, yscale: "linear", curves: policyCurves(),
      ylabel: `${quantity} (thick: exact; dashed: policy)`, tallest: 340,
    }));
    const lower = chart(part("error-chart"), () => ({
      ...common, title: `Error of the ${quantity}`, yscale: "log", ylabel: `error of the ${quantity}`, tallest: 240,
      curves: [{ name: "error", x: context.values, y: entry.error, colour: "#5b6670", dash: [] }],
    }));

    function update() {
      part("policy-words").textContent = words();
      top();
      lower();
    }

    components.forEach((name, k) => {
      const box = element("input", { type: "checkbox", checked: shown[k] && "" });
      box.addEventListener("change", () => {
        shown[k] = box.checked;
        update();
      });
      part("components").append(element("label", {}, box, swatch({ colour: colour(k), dash: [], width: 4 }), name));
    });
    offer();
    update();
  }

  const explored = [summary.policies].flat().filter((one) => one && one.entries && one.entries.length);
  explored.forEach((one, k) => explorer(one, k ? `-${k + 1}` : ""));

  // ---- print: what is folded on screen is wanted on paper ----

  const folded = () => [...document.querySelectorAll("details:not([open])")];
  let opened = [];
  window.addEventListener("beforeprint", () => (opened = folded()).forEach((node) => (node.open = true)));
  window.addEventListener("afterprint", () => opened.forEach((node) => (node.open = false)));
})();
