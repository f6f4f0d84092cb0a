"use strict";
// The charts that can be zoomed. All else of the page is there without this script.
(() => {
  const { parts, keys, reasons, causes, who, groups } = JSON.parse(document.getElementById("data").textContent);
  const HATCHED = ["runnable", "off_cpu", "unknown"];
  // Heights of a lane: its name and bar, and the bar of the CPU below.
  const ROW = 46;
  const CPU_ROW = 18;
  const UNKNOWN = 4;

  const element = (name, text, attributes) => {
    const made = document.createElement(name);
    made.textContent = text;
    for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
    return made;
  };
  const colour = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const UNITS = [[1, "ns"], [1e3, "us"], [1e6, "ms"], [1e9, "s"]];
  const unit = (ns) => UNITS.findLast(([size]) => Math.abs(ns) >= size) || UNITS[0];
  // A time with three digits.
  const time = (ns) => {
    const [size, name] = unit(ns);
    const value = ns / size;
    const most = Math.abs(value);
    return value.toFixed(size === 1 ? 0 : most < 9.995 ? 2 : most < 99.95 ? 1 : 0) + name;
  };
  // Formats numbers with as many digits as they have: 2.5 is not 3. More than `most` tell nothing.
  const fixed = (all, most) => {
    const step = all.length > 1 ? Math.abs(all[1] - all[0]) : 1;
    const isExact = (digits) =>
      all.every((value) => Math.abs(value - Number(value.toFixed(digits))) < step / 1000);
    let digits = 0;
    while (digits < most && !isExact(digits)) digits++;
    return all.map((value) => value.toFixed(digits));
  };
  // Times of an axis.
  const times = (all) => {
    const known = all.filter((ns) => ns !== null);
    const [size, name] = unit(Math.max(...known.map(Math.abs)));
    const texts = fixed(known.map((ns) => ns / size), 9).values();
    return all.map((ns) => (ns === null ? "" : texts.next().value + name));
  };

  // Ticks of a logarithmic axis: 1, 2 and 5 of each power of ten, or even ones where it is short.
  const ticks = (plot, index, min, max) => {
    const round = (ns) => Math.round(ns * 10) / 10;
    const most = Math.max(2, plot.over.clientWidth / 60);
    const powers = Array.from({ length: 21 }, (_, i) => 10 ** (i - 1));
    const logarithmic = [[1, 2, 5], [1, 3], [1]].map((factors) =>
      powers.flatMap((power) => factors.map((n) => n * power)));
    const even = (step) => {
      const first = Math.ceil(min / step);
      const count = Math.max(0, Math.floor(max / step) - first + 1);
      return count > 100 ? [] : Array.from({ length: count }, (_, i) => (first + i) * step);
    };
    const steps = powers.flatMap((power) => [1, 2, 5].map((n) => n * power));
    // The most ticks that have room; one alone shows no scale.
    const choices = max / min < 15 ? steps.map(even) : logarithmic;
    const inside = choices.map((all) => all.filter((ns) => ns >= min && ns <= max));
    const found = inside.find((all) => all.length >= 2 && all.length <= most);
    return (found || inside.findLast((all) => all.length >= 2) || [min, max]).map(round);
  };
  const labels = (all) => (all[1] / all[0] < 2 && all.length > 1 ? times(all)
    : all.map((ns) => { const [size, name] = unit(ns); return Number((ns / size).toPrecision(3)) + name; }));

  // Shows a part of the x axis: `factor` of what is shown now, moved by `shift` of that.
  const zoom = (plot, [from, to], factor, shift) => {
    const isLog = plot.scales.x.distr === 3;
    const map = isLog ? Math.log : (x) => x;
    const back = isLog ? Math.exp : (x) => x;
    const [least, most] = [map(from), map(to)];
    const { min, max } = plot.scales.x;
    const span = Math.min((map(max) - map(min)) * factor, most - least);
    if (!isLog && span < 10) return;
    const middle = (map(min) + map(max)) / 2 + shift * (map(max) - map(min));
    const first = Math.min(Math.max(middle - span / 2, least), most - span);
    plot.setScale("x", { min: back(first), max: back(first + span) });
  };

  const MOVES = [
    ["+", "Zoom in", 0.5, 0], ["\u2212", "Zoom out", 2, 0], ["\u25c0", "Earlier", 1, -0.25],
    ["\u25b6", "Later", 1, 0.25], ["All", "Show all", Infinity, 0],
  ];
  const KEYS = { "+": 0, "=": 0, "-": 1, ArrowLeft: 2, ArrowRight: 3, 0: 4 };

  const axis = (options) => ({
    stroke: colour("--ink"), font: "12px system-ui, sans-serif",
    grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 },
    ...options,
  });

  // Makes a chart with buttons and keys. Returns a function that makes it again.
  const chart = (place, label, describe) => {
    const tools = element("div", "", { class: "tools" });
    const box = element("div", "", { class: "chart", tabindex: "0", role: "group" });
    const readout = element("p", "", { class: "readout" });
    let plot, range;
    MOVES.forEach(([text, title, factor, shift]) => {
      const button = element("button", text, { type: "button", title, "aria-label": title });
      button.addEventListener("click", () => zoom(plot, range, factor, shift));
      tools.append(button);
    });
    box.addEventListener("keydown", (event) => {
      const move = MOVES[KEYS[event.key]];
      if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      zoom(plot, range, move[2], move[3]);
    });
    place.append(tools, box, readout);
    const width = () => Math.max(200, box.clientWidth);
    const draw = () => {
      if (plot) plot.destroy();
      const made = describe(readout);
      range = made.range;
      box.setAttribute("aria-label", label() + ". Keys: + and - zoom, arrows move, 0 shows all.");
      plot = new uPlot({ width: width(), ...made.options }, made.values, box);
      plot.root.setAttribute("aria-hidden", "true");
    };
    draw();
    new ResizeObserver(() => {
      if (plot.width !== width()) plot.setSize({ width: width(), height: plot.height });
    }).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    return { tools, draw };
  };

  const percents = (all) => {
    return fixed(all.map((part) => part * 100), 4).map((text) => text + " %");
  };

  // Which share of the regions took a time at most.
  const curve = (place, { name, x, ys, sides }) => {
    const hint = "Drag over a part to zoom; double-click shows all.";
    const range = [x[0], Math.max(x[x.length - 1], x[0] + 1)];
    // The shares of the durations that are shown.
    const shares = (plot, min, max) => {
      const { min: first, max: last } = plot.scales.x;
      if (min === null || (first <= range[0] && last >= range[1])) return [0, 1.02];
      const around = Math.max((max - min) * 0.05, 1e-4);
      return [Math.max(0, min - around), Math.min(1.02, max + around)];
    };
    const move = (readout) => (plot) => {
      const at = plot.cursor.idx;
      const share = (y, side) =>
        `${(y[at] * 100).toFixed(y[at] > 0.99 ? 3 : 1)} %${sides ? ` of ${sides[side]}` : ""}`;
      readout.textContent = at === null || at === undefined ? hint
        : `${ys.map(share).join(", ")} took ${time(Math.floor(x[at]))} or less`;
    };
    chart(place, () => `Share of the regions ${name} by duration`, (readout) => ({
      range,
      values: [x, ...ys],
      options: {
        height: 260,
        legend: { show: false },
        cursor: { y: false, drag: { x: true, y: false } },
        scales: {
          x: { time: false, distr: 3, range: (plot, min, max) => [min ?? range[0], max ?? range[1]] },
          y: { range: shares },
        },
        axes: [
          axis({ splits: ticks, filter: (plot, all) => all, values: (plot, all) => labels(all) }),
          axis({ size: 64, values: (plot, all) => percents(all) }),
        ],
        series: [{}, ...ys.map((y, side) => ({
          stroke: colour(["--on_cpu", "--runnable"][side]), width: 2, dash: side ? [8, 3] : [],
          paths: uPlot.paths.stepped({ align: 1 }), points: { show: false },
        }))],
        hooks: { setCursor: [move(readout)] },
      },
    }));
  };

  // Fills of the parts. Some have a pattern, so that colour is not all that tells them apart.
  const fills = (context) => keys.map((part) => {
    const plain = colour("--" + part);
    if (!HATCHED.includes(part)) return plain;
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const pen = tile.getContext("2d");
    pen.fillStyle = plain;
    pen.fillRect(0, 0, 8, 8);
    pen.strokeStyle = colour("--mark");
    pen.lineWidth = 1;
    pen.globalAlpha = 0.7;
    const lines = part === "unknown" ? [[0, 4, 8, 4]] : part === "runnable" ? [[-2, 10, 10, -2]] : [[-2, -2, 10, 10]];
    for (const [a, b, c, d] of lines) {
      pen.beginPath();
      pen.moveTo(a, b);
      pen.lineTo(c, d);
      pen.stroke();
    }
    return context.createPattern(tile, "repeat");
  });

  const lanes = (place, { name, windows }) => {
    const notes = element("p", "", { class: "note" });
    const choice = element("select", "", { "aria-label": "Region" });
    windows.forEach((window, index) => choice.append(element("option", window.label, { value: index })));
    const hint = "Drag over a part to zoom; double-click shows all; point at a bar for what it is.";
    const chosen = () => windows[choice.selectedIndex] || windows[0];

    // Where each lane begins, and the height of all.
    const places = (lanes) => lanes.reduce((all, lane) =>
      [...all, all.at(-1) + ROW + (lane.turns ? CPU_ROW : 0)], [0]);

    // Calls `visit` with the begin, the end and the other numbers of each time: they have the time since the one before
    // and the length in front.
    const visit = (numbers, size, from, visit) => {
      let at = from;
      for (let i = 0; i < numbers.length; i += size) {
        const begin = at + numbers[i];
        at = begin + numbers[i + 1];
        visit(begin, at, ...numbers.slice(i + 2, i + size));
      }
    };
    const owner = (other) => (other === 0 ? 0 : who[other - 1]);

    const paint = (plot) => {
      const { ctx, bbox } = plot;
      const { length, lanes, from } = chosen();
      const scale = devicePixelRatio;
      const all = fills(ctx);
      const owners = [0, 1, 2, 3].map((number) => colour("--w" + number)).concat(all[6]);
      const inks = [colour("--ink"), "#1c2126", colour("--paper"), colour("--ink")];
      const tops = places(lanes);
      const unit = bbox.height / tops.at(-1);
      const { min, max } = plot.scales.x;
      // Fills a time. Returns where what is seen of it begins, and its width.
      const fill = (begin, end, top, height) => {
        if (end < min || begin > max) return [0, 0];
        const [left, right] = [begin, end].map((ns) => plot.valToPos(ns, "x", true));
        ctx.fillRect(left, top, Math.max(right - left, 0.5), height);
        const [first, last] = [Math.max(left, bbox.left), Math.min(right, bbox.left + bbox.width)];
        return [first, last - first];
      };
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      ctx.textBaseline = "top";
      ctx.textAlign = "left";
      lanes.forEach((lane, index) => {
        const top = bbox.top + tops[index] * unit;
        visit(lane.intervals, 3, from, (begin, end, code) => {
          ctx.fillStyle = all[code % 16];
          fill(begin, end, top + 18 * scale, ROW * unit - 22 * scale);
        });
        const [under, high] = [top + ROW * unit - 3 * scale, CPU_ROW * unit - 3 * scale];
        ctx.font = `${11 * scale}px system-ui, sans-serif`;
        visit(lane.turns || [], 4, from, (begin, end, cpu, other) => {
          const is = owner(other);
          ctx.fillStyle = owners[is];
          const [x, width] = fill(begin, end, under, high);
          const text = is !== 0 ? causes[other - 1] : cpu < 0 ? "" : `CPU ${cpu}`;
          if (width < 3 * scale) return;
          ctx.fillStyle = colour("--paper");
          ctx.fillRect(x, under, scale, high);
          if (is === UNKNOWN || ctx.measureText(text).width + 5 * scale > width) return;
          ctx.fillStyle = inks[is];
          ctx.fillText(text, x + 3 * scale, under + 2 * scale);
        });
      });
      ctx.font = `${12 * scale}px system-ui, sans-serif`;
      ctx.strokeStyle = colour("--ink");
      ctx.lineWidth = 1.5 * scale;
      ctx.setLineDash([5 * scale, 3 * scale]);
      for (const edge of [0, length]) {
        const x = plot.valToPos(edge, "x", true);
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
      }
      lanes.forEach((lane, index) => {
        const top = bbox.top + tops[index] * unit;
        ctx.fillStyle = colour("--paper");
        ctx.fillRect(bbox.left, top + scale, ctx.measureText(lane.name).width + 6 * scale, 16 * scale);
        ctx.fillStyle = colour("--ink");
        ctx.fillText(lane.name, bbox.left + 3 * scale, top + 3 * scale);
      });
      ctx.restore();
    };

    const point = (readout) => (plot) => {
      const { left, top } = plot.cursor;
      const { lanes, from } = chosen();
      readout.textContent = hint;
      if (!(left >= 0 && top >= 0)) return;
      const tops = places(lanes);
      const y = (top / plot.over.clientHeight) * tops.at(-1);
      const index = tops.findLastIndex((top) => y >= top);
      const lane = lanes[index];
      if (!lane) return;
      const ns = plot.posToVal(left, "x");
      const isAt = (begin, end) => ns >= begin && ns < end;
      const say = (what, begin, end) => {
        readout.textContent = `${lane.name}${what}, ${time(end - begin)}, at ${time(begin)}`;
      };
      const isCpu = lane.turns && y >= tops[index] + ROW - 3;
      visit(lane.intervals, 3, from, (begin, end, code) => {
        if (!isAt(begin, end)) return;
        const number = Math.floor(code / 16);
        const reason = keys[code % 16] === "kernel" ? reasons[number] || "other" : causes[number - 1];
        const why = reason ? `, ${reason}` : "";
        const what = `: ${parts[code % 16]}${why}`;
        // What has a CPU, or waits for one, has a turn.
        say(!isCpu ? what : keys[code % 16] === "blocked" ? " needs no CPU" + what : ", CPU not known" + what, begin, end);
      });
      visit(isCpu ? lane.turns : [], 4, from, (begin, end, cpu, other) => {
        if (!isAt(begin, end)) return;
        const name = other === 0 ? "this thread" : causes[other - 1];
        say(`, CPU${cpu < 0 ? "" : ` ${cpu}`}: ${name}`, begin, end);
      });
    };

    const { tools, draw } = chart(place, () => `Threads around ${name}, ${chosen().label}`, (readout) => {
      const { from, to, lanes, note } = chosen();
      readout.textContent = hint;
      notes.textContent = note;
      return {
        range: [from, to],
        values: [[from, to], [0, 0]],
        options: {
          height: places(lanes).at(-1) + 40,
          legend: { show: false },
          cursor: { y: false, points: { show: false }, drag: { x: true, y: false } },
          scales: {
            x: { time: false, range: (plot, min, max) => [min ?? from, max ?? to] },
            y: { range: [0, 1] },
          },
          axes: [axis({ values: (plot, all) => times(all), space: 80 }), { show: false }],
          series: [{}, { paths: () => null, points: { show: false } }],
          hooks: { draw: [paint], setCursor: [point(readout)] },
        },
      };
    });
    tools.prepend(choice);
    place.append(notes);
    choice.addEventListener("change", draw);
  };

  for (const place of document.querySelectorAll("[data-curve]")) {
    curve(place, groups[place.dataset.curve]);
  }
  for (const place of document.querySelectorAll("[data-lanes]")) {
    lanes(place, groups[place.dataset.lanes]);
  }
})();
