/* What the page does without asking the server: moving through time, playing, the link in the address bar. */
(function () {
  "use strict";

  const floats = new WeakMap();

  function unpacked(data, name) {
    let kept = floats.get(data);
    if (!kept) floats.set(data, (kept = {}));
    if (!kept[name]) {
      const bytes = Uint8Array.from(atob(data[name]), (c) => c.charCodeAt(0));
      kept[name] = new Float32Array(bytes.buffer);
    }
    return kept[name];
  }

  function now(x, data) {
    return { type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", line: { color: data.ink, width: 1.2 } };
  }

  function held(data, i) {
    const figure = data.figures.held, points = data.points, begin = data.begin[i], end = data.end[i];
    const x = Float32Array.from({ length: points }, (_, p) => begin + ((end - begin) * (p + 0.5)) / points);
    const part = (name) => unpacked(data, name).slice(i * points, (i + 1) * points);
    const traces = figure.data.slice();
    traces[1] = { ...traces[1], x: x, y: part("recalled") };
    if (data.without) {
      traces[2] = { ...traces[2], x: x, y: part("without") };
      traces[3] = { ...traces[3], x: x, y: data.lost };
    }
    const future = {
      type: "rect", x0: end, x1: figure.layout.xaxis.range[1], y0: 0, y1: 1, yref: "paper",
      fillcolor: "rgba(255,255,255,.7)", line: { width: 0 },
    };
    return { data: traces, layout: { ...figure.layout, shapes: [future, now(end, data)] } };
  }

  function lights(data, i) {
    const figure = data.figures.lights, n = data.n;
    const size = Array.from(unpacked(data, "size").slice(i * n, (i + 1) * n));
    const marker = figure.data[0].marker;
    const dots = {
      ...figure.data[0],
      marker: { ...marker, color: size, size: size.map((v, k) => (marker.symbol[k] === "circle" ? 5 + 23 * Math.sqrt(v) : 9)) },
    };
    return { data: [dots], layout: figure.layout };
  }

  function history_(data, i) {
    const figure = data.figures.history;
    return { data: figure.data, layout: { ...figure.layout, shapes: [now(data.end[i], data)] } };
  }

  function percent(x) {
    return (100 * x).toFixed(x < 0.1 ? 1 : 0) + " %";
  }

  function sentence(data, i) {
    const all = data.moments[data.moments.length - 1] * data.block;
    const count = data.moments[i] * data.block;
    let text = `after ${count} of ${all} samples: error ${percent(data.errors[i])}`;
    if (data.block > 1) text += `, signal averaged over blocks of ${data.block}`;
    if (data.errors_without) text += `; without the masked coordinates ${percent(data.errors_without[i])}`;
    return text;
  }

  function whole(link, time) {
    if (time === null || time === undefined || time >= 1) return link || "";
    return (link ? link + "&" : "?") + "time=" + Number(time.toFixed(4));
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    explore: {
      show: function (data, time) {
        if (data === undefined) throw window.dash_clientside.PreventUpdate;
        if (!data.figures) return [data, data, data, ""];  // an empty picture that says why
        const i = Math.floor((time ?? 1) * (data.moments.length - 1) + 0.5);
        return [held(data, i), lights(data, i), history_(data, i), sentence(data, i)];
      },
      play: function (clicks, tick, time, disabled) {
        const none = window.dash_clientside.no_update;
        const cause = window.dash_clientside.callback_context.triggered.map((t) => t.prop_id)[0];
        if (cause === "play.n_clicks") {
          return [!disabled, disabled ? "Pause" : "Play", disabled && time >= 1 ? 0 : none];
        }
        if (disabled) return [none, none, none];
        const next = Math.min(1, time + 1 / 63);
        return next >= 1 ? [true, "Play", 1] : [none, none, next];
      },
      ask: function (clicks, link, time) {
        const none = window.dash_clientside.no_update;
        return clicks % 2 ? [whole(link, time), "lines"] : [none, "lines hidden"];
      },
      link: function (link, time) {
        if (link === null || link === undefined) return window.dash_clientside.no_update;
        const search = whole(link, time);
        window.history.replaceState(null, "", window.location.pathname + search);
        return window.location.origin + window.location.pathname + search;
      },
      arrange: function (view, other, measure, auto) {
        return [`view-${view} ${other ? "two" : "one"} ${measure}`, (auto || []).length > 0];
      },
      toggle: function (click, also) {
        if (!click || !click.points || !click.points.length) return window.dash_clientside.no_update;
        const k = String(click.points[0].customdata);
        const parts = (also || "").split(",").map((p) => p.trim()).filter((p) => p);
        const at = parts.indexOf(k);
        if (at >= 0) parts.splice(at, 1);
        else parts.push(k);
        return parts.join(", ");
      },
    },
  });
})();
