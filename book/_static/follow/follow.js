// "Follow a name": one sentence from its tokens to the prediction, through two heads, with the numbers of pages/follow.py.
// `follow.start(host, numbers, options)` puts the picture into an element. Everything that is drawn is a mark: an SVG element, and a function that gives its
// attributes for the present values `v`, which move from step to step.
const follow = (() => {
  "use strict";
  const { make, svg, clamp, signed, percent } = dom;
  const NAMES = ["Streams", "Look back", "Write", "Ask", "Attend", "Copy", "Predict", "Cut"], CUT = NAMES.length, ASK = 4;
  // At steps 1 to 8: how much of each part is there, and how much of it is in color.
  const TRACKS = {
    streams: "11111111", look: "01111111", notes: "00111111", scores: "00011111", softmax: "00001111", carry: "00000111", next: "00000011",
    streamsLit: "10000000", lookLit: "01000000", noteLit: "00110001", askLit: "00010000", attendLit: "00001101", carryLit: "00000110",
  };
  const WIDE = 560; // pixels from which on streams rise instead of running to the right

  // ---- numbers and words --------------------------------------------------------------------------------------------------

  const ease = (t) => t * t * (3 - 2 * t);
  const mix = (a, b, t) => (1 - t) * a + t * b; // exactly b at 1
  const mean = (values) => values.reduce((a, b) => a + b) / values.length;
  const code = (token) => make("code", { className: "token", textContent: token });
  /** Tagged template: a list of strings, and of tokens, each in a list of its own. `nodes` makes elements of them. */
  const say = (strings, ...values) => strings.flatMap((text, i) => (i < values.length ? [text, Array.isArray(values[i]) ? values[i] : [values[i]].join()] : [text]));
  const nodes = (parts) => parts.map((part) => (Array.isArray(part) ? code(part[0]) : part));

  /** What the picture reads from the numbers of a sentence. `v.cut` and `v.one` mix the three runs. */
  function reading(data, heads) {
    const { tokens, runs, parts } = data, last = tokens.length - 1, rank = data.likely.indexOf(data.answer);
    const mixed = (read, v) => mix(mix(read(runs.intact), read(runs.cut), v.cut), read(runs.one), v.one);
    const above = (values, i) => values[i] - mean(values);
    return {
      ...data, heads, last, rank, asked: tokens[last],
      score: (i, v) => mixed((run) => above(run.scores, i), v), // above the mean key: what softmax sees
      attention: (i, v) => mixed((run) => run.pattern[last][i], v),
      part: (name, i) => above(parts[name], i),
      adds: (v) => mixed((run) => run.adds, v),
      chance: (i, v) => mixed((run) => run.probabilities[i], v),
      most: Math.max(...tokens.map((_, i) => above(runs.intact.scores, i))),
      /** The tokens that the previous-token head mostly attended to. */
      note: (i) => tokens.filter((_, j) => i > 0 && data.look_back[i][j] >= 0.3).join(" ") || tokens[i],
    };
  }

  /** The title of a step and its sentence, for the run that is shown: "intact", "cut" or "one". */
  function words(d, step, shown) {
    const [le, ram, start] = [[d.answer], [d.asked], [d.tokens[0]]], { induction, previous, also } = d.heads, run = d.runs[shown];
    const seen = percent(run.pattern[d.last][d.target]), likely = percent(run.probabilities[d.rank]);
    const guess = d.likely[run.probabilities.indexOf(Math.max(...run.probabilities))], best = [guess], chance = percent(Math.max(...run.probabilities));
    const rest = percent(run.pattern[d.last][0]), found = percent(d.runs.intact.pattern[d.last][d.target]), intact = percent(d.runs.intact.probabilities[d.rank]);
    const head = shown === "one" ? d.one : induction, raised = run.adds.toFixed(1);
    const title = [
      say`Every token starts a stream`, say`Head ${previous} looks one token back`, say`It leaves a note`,
      say`Head ${head} asks: what followed ${ram} last time?`, say`Softmax turns scores into attention`, say`It copies what it found`, say`The prediction`,
      shown === "cut" ? say`Without the notes, the lookup mostly fails` : say`With the notes, the lookup works`,
    ][step - 1];
    const intactWords = [
      say`A stream is a list of numbers. It rises through two layers of heads, which read it and add to it. At the end of the last one, the model guesses what comes next. The underlined run occurs twice.`,
      say`In the first layer, head ${previous} attends from nearly every token to the one before. Thicker is more: ${le} attends to ${ram} with ${percent(d.look_back[d.target][d.target - 1])}.`,
      say`What it reads, it adds to the stream. So the stream at ${le} now carries a note: the token before me is ${ram}. (Where the head looked at two tokens, the note has both.)`,
      say`Its query at the last ${ram} meets the key of every token. ${le} matches best, mostly because of its note (orange), and not because of the token itself. Other notes match less. The key of head ${induction} reads what head ${previous} wrote: this is K-composition. (Numbers are scores above the mean of all keys: softmax sees nothing else.)`,
      say`The best match takes almost everything: ${seen} of the attention is on ${le}.`,
      say`Attention only says where. What is moved is ${le} itself, and a little of what earlier heads wrote there: the head raises its logit by ${raised}.`,
      guess === d.answer ? say`All paths together give ${le} ${likely}. What followed ${ram} last time is expected again. This is induction.`
        : say`The head found ${le}, but other paths add to other tokens. ${best} gets ${chance}, and ${le} ${likely}. To find is not yet to predict.`,
      say`With the notes, the chance of ${le} is ${likely}. Turn the switch to cut them again.`,
    ];
    const cutWords = {
      3: say`The notes are there, but the keys of head ${induction} no longer read them: they get the average note.`,
      4: say`Without notes, little speaks for ${le}. What is left comes from other heads, such as ${also}.`,
      5: say`${start} gets ${rest}: the head rests there when it finds no match. ${le} gets ${seen}.`,
      6: say`Little of ${le} arrives. The head raises its logit by ${raised}, and not by ${d.runs.intact.adds.toFixed(1)}.`,
      7: say`The best guess is now ${best} with ${chance}. ${le} has ${likely}.`,
      8: say`All keys get the same average note. The attention to ${le} falls from ${found} to ${seen}, and its chance from ${intact} to ${likely}.`,
    };
    const oneWords = {
      1: say`The same sentence in a model with one layer. Its heads read what tokens and places say, and nothing else.`,
      2: say`There is no earlier layer: no head can leave a note for another.`,
      3: say`The key at ${le} is made from ${le} and its place alone. Nothing in it says what came before.`,
      4: say`Of all twelve heads, ${d.one} attends to ${le} most. Its query cannot ask for “the token after ${ram}”, because no key has that answer.`,
      5: say`${le} gets ${seen} of its attention. (The text is short: spread evenly, every token would get ${percent(1 / d.tokens.length)}.)`,
      6: say`The head raises the logit of ${le} by ${raised}.`,
      7: say`The best guess is ${best} with ${chance}. ${le} has ${likely}. With two layers it has ${intact}.`,
      8: say`There are no notes to cut in a model with one layer.`,
    };
    const sentence = (shown === "cut" && cutWords[step]) || (shown === "one" && oneWords[step]) || intactWords[step - 1];
    return [make("b", {}, ...nodes(shown === "one" && (step < 5 || step === 8) ? say`One layer: no notes` : title)), " ", ...nodes(sentence)];
  }

  // ---- where everything is --------------------------------------------------------------------------------------------------

  /** `place(i, depth)` puts a depth of a token's stream on the page: streams rise, or on a narrow page run to the right. */
  function geometry(width, n) {
    if (width >= WIDE) {
      const left = 78, right = 72, pitch = (width - left - right) / n, height = 474, x = (i) => left + pitch * (i + 0.5);
      return {
        wide: true, width, height, pitch, thick: Math.min(24, 0.6 * pitch), font: pitch < 34 ? 11 : 13, place: (i, depth) => [x(i), height - depth],
        at: { token: 14, start: 32, look: 38, note: 124, cut: 160, base: 176, full: 268, leave: 288, arrive: 326, out: 352 },
        split: { x: left, y: 14, width: Math.min(330, width - 330), label: 158 }, next: { x: width - 200, y: 14, width: 200, label: 62 }, lists: 100,
      };
    }
    const pitch = 21, top = 30, bottom = top + n * pitch, note = 0.4 * width, half = width / 2 - 12;
    return {
      wide: false, width, height: bottom + 132, pitch, thick: 11, font: 12, place: (i, depth) => [depth, top + pitch * (i + 0.5)],
      at: { token: 50, start: 58, look: 62, note, cut: note + 26, base: note + 36, full: width - 92, leave: width - 46, arrive: width - 22, out: width - 8 },
      split: { x: 0, y: bottom + 22, width: half + 30, label: 96 }, next: { x: half + 40, y: bottom + 22, width: half - 22, label: 54 }, lists: 118,
    };
  }

  // ---- the picture ------------------------------------------------------------------------------------------------------------

  function draw(root, d, G) {
    const marks = [], { place, at, wide } = G, n = d.tokens.length, two = (v) => 1 - v.one;
    const ink = (color, part, other = "faint") => `color-mix(in srgb, var(--f-${color}) ${(100 * clamp(part)).toFixed(0)}%, var(--f-${other}))`;
    const set = (element, { text = undefined, ...attributes }) => {
      for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
      if (text !== undefined && element.textContent !== text) element.textContent = text;
    };
    const mark = (tag, attributes, fit) => {
      const element = svg(tag, tag === "text" ? { fill: "var(--f-soft)" } : { fill: "none" });
      set(element, attributes);
      root.append(element);
      if (fit) marks.push((v) => set(element, fit(v)));
      return element;
    };
    const line = (...points) => `M${points.map((point) => point.join()).join("L")}`;
    const hook = (from, start, turn, to, end) => `${line(place(from, start), place(from, turn))}Q${place(from, end)} ${place(to, end)}`;
    const drawn = (part) => ({ pathLength: 1, "stroke-dasharray": "1 1", "stroke-dashoffset": 1 - part, visibility: part > 0 ? "visible" : "hidden" });
    const beyond = (i, depth) => {
      const [x, y] = place(i, depth + 5);
      return wide ? { x, y, "text-anchor": "middle" } : { x, y: y + 4 };
    };
    const box = (i, from, to) => {
      const [x0, y0] = place(i, from), [x1, y1] = place(i, to), thick = G.thick;
      return wide ? { x: x0 - thick / 2, y: y1, width: thick, height: Math.max(0, y0 - y1) } : { x: x0, y: y0 - thick / 2, width: Math.max(0, x1 - x0), height: thick };
    };

    function band(from, to, lines, only = false) {
      const [x0, y0] = place(0, from), [x1, y1] = place(d.last, to), pad = G.pitch / 2, [across, down] = wide ? [pad, 0] : [0, pad];
      const size = { width: x1 - x0 + 2 * across, height: Math.abs(y1 - y0) + 2 * down };
      mark("rect", { x: x0 - across, y: Math.min(y0, y1) - down, ...size, rx: 4, fill: "var(--f-band)" }, (v) => ({ opacity: only ? two(v) : 1 }));
      lines.forEach(([words, color], k) => mark("text", wide ? { x: 0, y: (y0 + y1) / 2 - 4 + 15 * k } : { x: x0 + 2, y: 11 + 14 * k }, (v) => ({ text: words(v), fill: `var(--f-${color})` })));
    }
    band(at.look, at.note, [[(v) => (v.one > 0.5 ? "" : "first layer"), "soft"], [(v) => (v.one > 0.5 ? "" : `head ${d.heads.previous}`), "first-ink"]], true);
    band(at.base, at.arrive, [[(v) => (v.one > 0.5 ? "the layer" : "second layer"), "soft"], [(v) => `head ${v.one > 0.5 ? d.one : d.heads.induction}`, "second-ink"]]);

    // The streams, and their tokens; those that occur twice in a row are underlined.
    let run = 1;
    while (d.tokens[d.last - run] === d.tokens[d.target - 1 - run]) run++;
    const again = (i) => (i > d.last - run || (i < d.target && i >= d.target - run) ? 1 : 0);
    d.tokens.forEach((token, i) => {
      const [x, y] = place(i, at.start), [tx, ty] = place(i, at.token), half = G.pitch / 2, end = i < d.last ? at.arrive + 8 : at.out;
      const shade = (v) => ink("ink", Math.max(0.7 * v.streamsLit, i === d.last ? 0.55 : 0));
      mark("path", { d: line([x, y], place(i, end)), "stroke-width": i === d.last ? 2.5 : 1.5 }, (v) => ({ ...drawn(v.streams), stroke: shade(v) }));
      mark("circle", { cx: x, cy: y, r: 2.5 }, (v) => ({ fill: shade(v) }));
      const key = [d.target - 1, d.target, d.last].includes(i);
      mark("text", { class: "token", x: tx, y: ty + (wide ? 0 : 4), "text-anchor": wide ? "middle" : "end", "font-size": G.font, text: token },
        (v) => ({ fill: ink("ink", key ? 1 : Math.max(v.streamsLit, v.lookLit), "soft") }));
      if (again(i)) mark("path", { d: wide ? line([tx - half, ty + 7], [tx + half, ty + 7]) : line([3, ty - half], [3, ty + half]), stroke: "var(--f-soft)", "stroke-width": 2 });
    });

    // Head 0.1 looks back, and what it reads becomes a note in the stream.
    d.look_back.forEach((row, i) => row.forEach((weight, j) => {
      if (i === j || weight < 0.02) return;
      const chosen = i === d.target && j === i - 1 ? 1 : 0;
      mark("path", { d: hook(j, at.look, at.look, i, at.note), "stroke-width": 1 + 4 * weight },
        (v) => ({ ...drawn(v.look * two(v)), opacity: mix(0.45, 1, v.lookLit), stroke: ink("first", Math.max(v.lookLit, chosen * v.noteLit)) }));
    }));
    mark("path", { d: line(place(d.target, at.note), place(d.target, at.base)), stroke: "var(--f-first)", "stroke-width": 5 },
      (v) => ({ opacity: v.askLit * (1 - v.cut) * two(v) }));
    function chip(text, path, color, fit, size = 11) {
      const way = mark("path", { d: path }), length = way.getTotalLength(), width = (size / 11) * (8 + 7 * text.length);
      const back = mark("rect", { x: -width / 2, y: -8, width, height: 16, rx: 8 }), label = mark("text", { class: "token", "text-anchor": "middle", y: 4, "font-size": size, text });
      marks.push((v) => {
        const { part, opacity, lit, gone = 0 } = fit(v), { x, y } = way.getPointAtLength(length * clamp(part)), shared = { transform: `translate(${x} ${y})`, opacity };
        set(back, { ...shared, fill: ink(color, lit * (1 - gone), "paper"), stroke: ink(color, lit * (1 - gone)), "stroke-dasharray": gone > 0.5 ? "2 3" : "none" });
        set(label, { ...shared, fill: gone > 0.5 ? "var(--f-faint)" : ink(`on-${color}`, 2 * lit - 0.8, "soft") });
      });
    }
    for (let i = 1; i < n; i++) {
      const source = d.look_back[i].indexOf(Math.max(...d.look_back[i])), chosen = i === d.target ? 1 : 0;
      const crowded = wide && G.pitch < 34 && !chosen && d.note(i).length > 4; // full-sized chips would cover each other
      chip(d.note(i), hook(source, at.look, at.look, i, at.note), "first",
        (v) => ({ part: v.notes, opacity: clamp(3 * v.notes) * two(v), lit: chosen ? v.noteLit : 0.15 * v.noteLit * (1 - v.askLit), gone: v.cut }), crowded ? 8 : 11);
    }
    const [nx, ny] = place(d.target, at.note);
    mark("text", { ...(wide ? { x: nx, y: ny - 13, "text-anchor": "middle" } : { x: nx - 8 - 4 * d.asked.length, y: ny + 4, "text-anchor": "end" }), class: "halo", fill: "var(--f-first-ink)", text: "before me:" },
      (v) => ({ opacity: clamp(2 * v.notes - 1) * v.noteLit * (1 - v.cut) * two(v) }));
    const [cx, cy] = place(0, at.cut), cutText = wide ? { x: cx - G.pitch / 2 - 6, y: cy + 4, text: "keys cut" } : { x: cx, y: 25, text: "cut" };
    const gone = (v) => ({ opacity: v.cut * v.notes * two(v) });
    mark("path", { d: line([cx, cy], place(d.last, at.cut)), stroke: "var(--f-red)", "stroke-width": 2, "stroke-dasharray": "5 5" }, gone);
    mark("text", { ...cutText, "text-anchor": "end", fill: "var(--f-red-ink)" }, gone);

    // Scores of the keys, which become attention. The query meets the nearest key first.
    const grown = (i, v) => ease(clamp(2 * v.scores - (d.last - i) / d.last));
    const tall = (i, v) => grown(i, v) * mix(Math.max(0, d.score(i, v)) / d.most, d.attention(i, v), v.softmax);
    const depth = (share) => mix(at.base, at.full, share);
    for (let i = 0; i < d.last; i++) {
      mark("path", {}, (v) => ({
        d: hook(i, Math.min(at.leave, depth(tall(i, v)) + (wide ? 18 : 44)), at.leave, d.last, at.arrive), ...drawn(v.softmax), "stroke-width": 7 * d.attention(i, v), stroke: ink("second", v.attendLit),
      }));
    }
    for (let i = 0; i < n; i++) {
      const byNote = (v) => grown(i, v) * Math.min(Math.max(0, d.score(i, v)), Math.max(0, d.part("previous", i)) * (1 - v.cut) * two(v)) / d.most * clamp(1 - 2 * v.softmax);
      mark("rect", {}, (v) => ({ ...box(i, at.base, depth(tall(i, v))), fill: ink("second", v.softmax * v.attendLit) }));
      mark("rect", { fill: "var(--f-first)" }, (v) => box(i, depth(tall(i, v) - byNote(v)), depth(tall(i, v))));
      mark("text", { class: "halo", "font-size": 11 }, (v) => {
        const share = d.attention(i, v), score = d.score(i, v), strong = i === d.target || v.softmax > 0.5;
        const text = v.softmax < 0.5 ? (score > 0.5 ? signed(score) : "") : share >= 0.02 ? percent(share) : "";
        return { ...beyond(i, depth(tall(i, v))), text, opacity: grown(i, v), fill: `var(--f-${strong ? "ink" : "soft"})`, "font-weight": strong ? 600 : 400 };
      });
    }
    const [qx, qy] = place(d.last, at.base);
    mark("path", { d: line(place(d.last, at.base - 4), place(0, at.base - 4)), stroke: "var(--f-second)", "stroke-width": 2 }, (v) => ({ ...drawn(clamp(1.5 * v.scores)), opacity: v.askLit }));
    ["query:", `I am ${d.asked}`].forEach((text, k) =>
      mark("text", { ...(wide ? { x: qx + 14, y: qy - 8 + 14 * k } : { x: qx + 40 * k, y: qy + 22 }), text, fill: "var(--f-second-ink)", "font-weight": 400 + 200 * k }, (v) => ({ opacity: v.askLit })));

    // What is copied, and the prediction.
    mark("path", { d: line(place(d.last, at.arrive), place(d.last, at.out)), stroke: "var(--f-second)", "stroke-width": 4 }, (v) => ({ ...drawn(v.carry), opacity: v.carryLit }));
    chip(d.answer, hook(d.target, at.leave, at.leave, d.last, at.arrive), "second",
      (v) => ({ part: v.carry, opacity: clamp(4 * v.carry) * Math.max(0.25, d.attention(d.target, v)), lit: v.carryLit }));
    const [ox, oy] = place(d.last, at.out);
    mark("text", { ...(wide ? { x: ox, y: oy - 8, "text-anchor": "middle" } : { x: ox, y: oy - 12, "text-anchor": "end" }), class: "halo", "font-weight": 600, fill: "var(--f-second-ink)" },
      (v) => ({ text: `${d.answer} ${signed(d.adds(v))}`, opacity: clamp(2 * v.carry - 1) * v.carryLit * (1 - v.next) }));

    function list({ x, y, width, label }, rows, { title, most, text, opacity }) {
      const zero = x + label + 14, unit = (width - label - 60) / most; // room for a small negative bar
      mark("text", { x, y, "font-weight": 600, fill: "var(--f-ink)" }, (v) => ({ opacity: opacity(v), text: title(v) }));
      rows.forEach(({ name, token, color, value, order }, k) => {
        const down = (v) => y + 20 + 17 * (order ? order(v) : k), seen = (v) => (down(v) > y + 20 + 17 * 4.5 ? 0 : opacity(v)), size = (v) => value(v) * unit;
        mark("text", { x: zero - 14, class: token ? "token" : "", "text-anchor": "end", text: name }, (v) => ({ y: down(v), opacity: seen(v) }));
        mark("rect", { height: 10 }, (v) => ({ x: zero + Math.min(0, size(v)), y: down(v) - 9, width: Math.abs(size(v)), opacity: seen(v), fill: `var(--f-${color(v)})` }));
        mark("text", {}, (v) => ({ x: zero + Math.max(0, size(v)) + 5, y: down(v), opacity: seen(v), text: text(value(v)) }));
      });
    }
    const part = (name, words, color = "bar", left = (_) => 1) => ({ name: words, color: () => color, value: (v) => d.part(name, d.target) * left(v) });
    const rows = [
      part("previous", wide ? `its note “before me: ${d.asked}”` : "its note", "first", (v) => 1 - v.cut), part("token", wide ? `the token ${d.answer} itself` : "the token itself"),
      part("also", `${wide ? "what " : ""}head ${d.heads.also}${wide ? " wrote" : ""}`), part("rest", "all else"),
    ];
    list(G.split, rows, { title: (v) => `${wide ? "Score of " : ""}${d.answer}${wide ? ", above the mean key" : ""}: ${signed(d.score(d.target, v))}`, most: d.most, text: signed, opacity: (v) => v.askLit * two(v) });
    const rank = (i, v) => d.likely.filter((_, k) => d.chance(k, v) > d.chance(i, v) || (k < i && d.chance(k, v) === d.chance(i, v))).length;
    const order = (i) => (v) => (i === d.rank ? Math.min(rank(i, v), 4) : rank(i, v) + Number(rank(i, v) === 4 && rank(d.rank, v) > 4)); // the answer is always among the five that are seen
    const guesses = d.likely.map((name, i) => ({ name, token: true, color: () => (i === d.rank ? "second" : "bar"), value: (v) => d.chance(i, v), order: order(i) }));
    list(G.next, guesses, { title: () => "next token", most: 1, text: percent, opacity: (v) => v.next });
    return (v) => marks.forEach((fit) => fit(v));
  }

  // ---- the two lenses and the paths: below the picture on its own page -----------------------------------------------------------

  /** The two choices of a head, each with a strip of tokens to choose from. `cut(on)` cuts the notes. */
  function lenses(d) {
    let run = d.runs.intact;
    function lens(title, label, prefix, first, show) {
      let at = first;
      const tokens = d.tokens.map((token, i) => heads.token(i, prefix, token, make("small"))), told = make("div", { ariaLive: "polite" });
      const draw = () => show(at, tokens, told);
      const list = heads.strip(() => at, (i) => { at = i; draw(); }, prefix, label);
      list.append(...tokens);
      return { box: make("div", {}, make("h3", {}, title), make("p", {}, label), list, told), draw };
    }
    const looks = lens("QK: where to look", "The token that asks", "tc-asks", d.last, (i, tokens, told) => {
      const row = run.pattern[i], best = row.indexOf(Math.max(...row));
      heads.attend(tokens, (j) => row[j], i, -1, "tc-asks");
      tokens.forEach((token, j) => (token.lastChild.textContent = row[j] >= 0.02 ? percent(row[j]) : ""));
      told.replaceChildren(make("p", {}, code(d.tokens[i]), " attends most to ", code(d.tokens[best]), `, with ${percent(row[best])}.`));
    });
    const moves = lens("OV: what to move", "The token that is attended to", "tc-moves", d.target, (i, tokens, told) => {
      const [names, values] = d.moves[i];
      heads.attend(tokens, () => 0, i, -1, "tc-moves");
      told.replaceChildren(make("p", {}, "With all attention on ", code(d.tokens[i]), ", the head would raise these logits most:"),
        make("ul", {}, ...names.map((name, k) => make("li", {}, code(name), make("i", { style: `width: ${(10 * Math.max(0, values[k])).toFixed(0)}px` }), signed(values[k])))));
    });
    const cut = (on) => {
      run = d.runs[on ? "cut" : "intact"];
      looks.draw();
    };
    looks.draw(), moves.draw();
    return { box: make("div", { className: "tc-follow-lenses" }, looks.box, moves.box), cut };
  }

  /** Every path to the logit of the answer, as a strand: as thick as what it adds, blue if it raises the logit, red if it lowers it. */
  function strands(d, narrow) {
    const direct = narrow ? "directly" : "directly, from the last token", after = (second, first) => (narrow ? `${second} after ${first}` : `head ${second}, of what ${first} moved`);
    const name = (path) => (path === "" ? direct : path.includes("·") ? after(...path.split("·")) : `head ${path} alone`);
    const rows = [...d.paths, [`${d.others[0]} other paths`, d.others[1]]], step = 26, height = step * rows.length + 10, most = Math.max(...rows.map(([, x]) => Math.abs(x)));
    const total = rows.reduce((sum, [, x]) => sum + x, 0), [width, left] = narrow ? [372, 168] : [640, 196], picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Paths to the logit of ${d.answer}` });
    if (!narrow) picture.style.maxWidth = "42rem";
    rows.forEach(([path, value], k) => {
      const y = step * (k + 0.5) + 5, thick = Math.max(1, 14 * Math.abs(value) / most), color = value < 0 ? "red" : "second";
      const title = k < d.paths.length ? name(path) : path;
      picture.append(svg("path", { d: `M${left + 44} ${y}C${width - 110} ${y} ${width - 140} ${height / 2} ${width - 72} ${height / 2}`, fill: "none", stroke: `var(--f-${color})`, "stroke-width": thick, opacity: 0.65 }),
        svg("text", { x: left, y: y + 4, "text-anchor": "end", fill: "var(--f-ink)" }, title), svg("text", { x: left + 38, y: y + 4, "text-anchor": "end", fill: "var(--f-ink)" }, signed(value)));
    });
    picture.append(svg("text", { x: width - 66, y: height / 2 - 4, class: "token", "font-size": 15, fill: "var(--f-ink)" }, d.answer), svg("text", { x: width - 66, y: height / 2 + 14, fill: "var(--f-ink)" }, signed(total)));
    return picture;
  }

  // ---- time, and the controls ----------------------------------------------------------------------------------------------------

  /** Put the picture into `host`. Options: `step` at which it waits, `play` (once, when it is seen), `whole` (with the paths and lenses below). */
  function start(host, { heads: circuit, sentences }, { step = 1, play = false, whole = false } = {}) {
    const labels = Object.keys(sentences), still = matchMedia("(prefers-reduced-motion: reduce)");
    const now = { at: step, cut: 0, one: 0 }, goal = { ...now };
    let dragged = false, d, paint = (_) => {}, below = null, chosen = null, frame = null, before = 0;
    let listed = play || whole || step >= ASK; // until the reader gets to the lists, there is no empty room for them
    const told = make("p", { className: "tc-follow-say", ariaLive: "polite" }), picture = svg("svg", { role: "img", "aria-label": "The residual streams of all tokens, through two heads, to the prediction" });
    const scrub = make("input", { type: "range", min: 1, max: NAMES.length, step: 0.01, ariaLabel: "Step" });
    const button = (text, ariaLabel, onclick) => make("button", { type: "button", textContent: text, ariaLabel, onclick });
    const toggle = (words, onchange) => make("label", { className: "tc-follow-switch" }, make("input", { type: "checkbox", role: "switch", onchange }), words);
    const cutter = toggle(`cut the notes (keys from ${circuit.previous})`, (event) => { chosen = event.target.checked; show(); });
    const layer = toggle("one layer", (event) => { goal.one = Number(event.target.checked); show(); });
    const menu = make("select", { ariaLabel: "Sentence", onchange: () => load(menu.value) }, ...labels.map((label) => make("option", { value: label, textContent: `${label}: “${sentences[label].text.trim()}…”` })));
    const rest = make("div", { className: "tc-follow-below" });
    const stops = make("ol", { ariaHidden: "true" }, ...NAMES.map((name, i) => make("li", { textContent: name, onclick: () => go(i + 1) })));

    const at = () => Math.max(1, Math.round(goal.at));
    const steps = dom.stepper({ at: () => at() - 1, last: () => NAMES.length - 1, go: (i) => go(i + 1), pace: () => 3800 });
    function values() {
      const i = Math.min(Math.floor(now.at), NAMES.length) - 1, t = ease(now.at - 1 - i), next = Math.min(i + 1, NAMES.length - 1);
      const tracks = Object.entries(TRACKS).map(([key, track]) => [key, mix(Number(track[i]), Number(track[next]), t)]);
      return { ...Object.fromEntries(tracks), cut: ease(now.cut), one: ease(now.one) };
    }
    function tick(time) {
      const passed = Math.min(0.05, Math.max(0, (time - before) / 1000)); // the page may have slept
      before = time;
      for (const key of Object.keys(now)) {
        const left = goal[key] - now[key], most = passed * Math.max(1, 1.2 * Math.abs(left));
        now[key] = still.matches || Math.abs(left) <= most ? goal[key] : now[key] + Math.sign(left) * most;
      }
      paint(values());
      if (!dragged) scrub.value = String(now.at);
      frame = Object.keys(now).every((key) => now[key] === goal[key]) ? null : requestAnimationFrame(tick);
    }
    function show() {
      const cut = (chosen ?? at() === CUT) && !goal.one, shown = goal.one ? "one" : cut ? "cut" : "intact";
      goal.cut = Number(cut);
      cutter.querySelector("input").checked = cut;
      cutter.querySelector("input").disabled = Boolean(goal.one);
      const words_ = words(d, at(), shown), text = words_.map((part) => part.textContent ?? part).join("");
      if (told.textContent !== text) told.replaceChildren(...words_); // a screen reader would read the same words again
      scrub.ariaValueText = `${at()}, ${NAMES[at() - 1]}`;
      [...stops.children].forEach((stop, i) => stop.classList.toggle("now", i + 1 === at()));
      if (below) below.cut(cut);
      rest.hidden = Boolean(goal.one); // it is about the model with two layers
      before = performance.now();
      frame ??= requestAnimationFrame(tick);
    }
    function go(to) {
      const step = Math.min(NAMES.length, Math.max(1, to));
      if ((step === CUT) !== (at() === CUT)) chosen = null; // the last step cuts, and going back from it undoes that
      goal.at = step;
      if (!listed && step >= ASK) {
        listed = true;
        build();
      }
      show();
    }
    function build() {
      const width = picture.clientWidth || host.clientWidth, G = geometry(width, d.tokens.length);
      const empty = listed ? 0 : G.lists, height = G.height - empty; // the lists are above the streams, or on a narrow page below
      picture.replaceChildren();
      for (const [key, value] of Object.entries({ viewBox: `0 ${G.wide ? empty : 0} ${width} ${height}`, height })) picture.setAttribute(key, value);
      paint = draw(picture, d, G);
      paint(values());
    }
    function load(label) {
      d = reading(sentences[label], circuit);
      build();
      if (whole) {
        below = lenses(d);
        const inAll = `Head ${d.heads.induction} adds ${signed(d.runs.intact.adds)} in all, as above: what it adds alone, and what it adds of what the first layer moved.`;
        rest.replaceChildren(make("h2", {}, `Head ${d.heads.induction} through two lenses`), make("p", {}, "A head makes two choices, with different weights. One circuit (QK) chooses where to look, the other (OV) what to move from there. Cut the notes above: only the left side changes."), below.box,
          make("h2", {}, "Every path to the prediction"), make("p", {}, "With attention patterns kept as they are, the logit of the answer is a sum over paths: directly from the last token, through one head, or through one head of each layer. Each number is relative to the mean logit. " + inAll), strands(d, host.clientWidth < WIDE));
      }
      show();
    }
    scrub.oninput = () => { dragged = true; steps.stop(); go(Number(scrub.value)); now.at = goal.at; };
    scrub.onchange = () => { dragged = false; go(Math.round(Number(scrub.value))); };
    host.classList.add("tc-follow");
    host.replaceChildren(make("div", { className: "tc-follow-top" }, menu, told), picture,
      make("div", { className: "tc-follow-controls" }, button("‹", "Previous step", () => { steps.stop(); go(at() - 1); }), steps.button, button("›", "Next step", () => { steps.stop(); go(at() + 1); }),
        make("div", { className: "tc-follow-line" }, scrub, stops), make("div", { className: "tc-follow-switches" }, cutter, layer)), ...(whole ? [rest] : []));
    host.onkeydown = (event) => {
      if (["ArrowLeft", "ArrowRight"].includes(event.key) && !event.target.matches("select, [role=listbox]")) steps.keyed(event);
    };
    load(labels[0]);
    new ResizeObserver(() => picture.clientWidth && String(picture.clientWidth) !== picture.getAttribute("viewBox").split(" ")[2] && build()).observe(host);
    if (play && still.matches) go(7);
    else if (play) {
      const seen = new IntersectionObserver((entries) => { if (entries.some((entry) => entry.isIntersecting)) { seen.disconnect(); steps.play(); } }, { threshold: 1 });
      seen.observe(steps.button);
      for (const touched of ["pointerdown", "keydown"]) host.addEventListener(touched, () => seen.disconnect()); // the reader has begun
    }
  }
  return Object.freeze({ start });
})();
