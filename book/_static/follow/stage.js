// The stage: the picture (picture.js) with its runs, its sentence, and eight steps through it. `stage.start(host,
// data, options)` puts it into an element: on the front page, in a chapter at one step, or, with full.js, on its own
// page, where the model runs. `data` is what pages/follow.py wrote.
const stage = (() => {
  "use strict";
  const { make, clamp, signed, percent } = dom, { say, bars, score, above, alone } = picture;
  const LAST = 8, RUNS = { intact: "Intact", cut: "✂ Cut the notes", one: "One layer" };

  // ---- words -----------------------------------------------------------------------------------------------------
  const strong = (...words) => make("b", {}, ...words);
  /** A view with what the words ask of it: whether the low head's note at the found token is the token before. */
  function completed(view, heads) {
    const { followed, back, names } = view, induces = view.one || view.high === heads.induction;
    const noted = Boolean(back) && view.low === heads.previous && (followed < 1 || back[followed][followed - 1] >= 0.3);
    return { ...view, noted, induces, known: heads.previous, asks: names[view.at],
      share: followed < 0 ? NaN : view.row[followed] };
  }
  const best = (view) => [...view.next].sort((a, b) => b[1] - a[1])[0];
  const chance = (view) => view.next.find(([name]) => name === view.answer)?.[1] ?? 0;

  /** What stands at the arcs. */
  function labels(v, step) {
    const early = v.then && !v.noted && v.low === v.known;
    const low = early ? say`head ${v.low} leaves no note yet` : v.lowOff ? say`head ${v.low} is off: no notes` : v.cut ?
      say`notes of head ${v.low}, cut from the keys of head ${v.high}`
      : !v.noted ? say`where head ${v.low} attends, in the first layer` : v.followed < 0 ?
        say`head ${v.low} notes at each token what came before it`
      : say`head ${v.low} leaves a note: “before me: ${v.asks}”`;
    const high = v.then && !v.one && v.followed >= 0 && v.share < 0.3 ? say`head ${v.high} finds no match yet`
      : v.highOff ? say`head ${v.high} is off` : v.one ? say`the best head of one layer`
      : !v.induces ? say`where head ${v.high} attends, in the second layer` : v.followed < 0 ?
        say`head ${v.high} finds no match`
      : v.cut && v.share < 0.5 ? say`head ${v.high} finds no note that fits`
      : step === 6 ? say`head ${v.high} copies ${v.answer}` : say`head ${v.high} looks for “before me: ${v.asks}”`;
    return { low: v.one || step === 1 ? null : low, high: step === 0 || step > 3 ? high : null };
  }

  /** The sentence below the picture. */
  function summary(v, intact, changed) {
    const [guess, p] = best(v), answer = [v.answer], asks = [v.asks], rest = percent(v.row[0]),
      seen = strong(percent(v.share));
    if (v.followed < 0) {
      const first = v.at === 0 ? say`The text begins here. ` :
        say`${asks} is new in this text, so there is nothing to look up. `;
      const rests = v.at && v.induces && !v.then;
      return [...first, ...(rests ? say`Head ${v.high} rests on the start token (${rest}). ` : []),
        ...say`The model’s best guess is ${[guess]}: ${strong(percent(p))}.`];
    }
    const expects = guess === v.answer ? say`The model expects ${answer}: ${strong(percent(p))}.`
      : say`The model expects ${[guess]} (${percent(p)}), and ${answer}: ${strong(percent(chance(v)))}.`;
    if (v.then) {
      const whole = (x) => strong(`${Math.round(100 * x)}%`), unknown = Number.isNaN(chance(v)), said = v.one ?
        say`the best head of the one layer puts ${whole(v.share)} of its attention on ${answer}. `
        : say`the note at ${answer} is ${whole(v.back[v.followed][v.followed - 1])} of what head ${v.low} read there.
          From ${asks}, head ${v.high} puts ${whole(v.share)} of its attention on ${answer}. `;
      return [...say`After ${strong(v.then)} tokens of training: `, ...said, ...(unknown ?
        say`The model expects ${[guess]} (${percent(p)}); ${answer} is not among its five best guesses.` : expects)];
    }
    if (v.one) return [...say`Another model, of one layer, trained on the same text. All its heads read before any has
      written, so there is no note to read. The best one puts ${seen} on ${answer}. `, ...expects];
    if (changed) return [...say`${changed}: head ${v.high}’s attention to ${answer} goes from ${percent(intact.share)}
      to ${seen}, and ${rest} rests on the start token. `, ...expects];
    if (v.cut) return [...say`All keys hold the same average note of head ${v.low} now, so its notes no longer tell them
      apart. Head ${v.high}’s attention to ${answer} goes from ${percent(intact.share)} to ${seen}, and it raises the
      logit of ${answer} by ${signed(v.adds)}, not ${signed(intact.adds)}. Each point less divides the odds by about
      2.7. `, ...expects];
    if (!v.induces || !v.noted) return [...say`At ${asks}, head ${v.high} puts ${seen} of its attention on ${answer},
      which followed ${asks} last time. `, ...expects];
    const found = say`At the last ${asks}, head ${v.high} puts ${seen} of its attention on ${answer}, the token whose
      note says ${strong("before me: ", v.asks)}. `;
    if (guess === v.answer || v.share < 0.5) return [...found, ...expects];
    return [...found, ...say`Other parts push harder: the model expects ${[guess]} (${percent(p)}), and ${answer}:
      ${strong(percent(chance(v)))}. To find is not yet to predict.`];
  }

  /** A step's title, its words, and a list of bars, for a view v and the intact one. */
  function explained(v, intact, step) {
    const answer = [v.answer], asks = [v.asks], { low, high } = v, seen = percent(v.share), also = v.also;
    const raises = signed(v.adds), [guess, p] = best(v), title = v.one && step > 1 && step < 4 ?
      say`One layer: no notes` : [
      say`Every token starts a stream`, say`Head ${low} looks one token back`, say`It leaves a note`,
        say`Head ${high} asks: what followed ${asks} last time?`,
      say`Softmax turns scores into attention`, say`It copies what it found`, say`The prediction`,
        say`Cut the notes, and the lookup fails`][step - 1];
    const moved = (v.paths ?? []).filter(([path]) => path.startsWith(high)), named = ([path, x]) => {
      const [second, first] = path.split("·"), mine = first === low;
      const words = !path ? "the last token itself" : first ?
        (mine ? `${second}, of the note` : `${second}, of what ${first} wrote`) : `head ${second}, of the tokens`;
      return [words, x, x < 0 ? "red" : path.startsWith("1") ? "second" : path ? "first" : "bar"];
    };
    const sees = v.alsoSees?.length ? ` (of ${v.alsoSees.join(", ")})` : "";
    const own = v.paths?.find(([path]) => path === `${high}·${low}`)?.[1];
    const why = own < 0 ? say` The note itself, moved along, speaks for ${asks} and so against ${answer}
      (${signed(own)}): head ${low} says where, not what.` : [];
    const words = {
      1: say`A stream is a list of numbers. Two layers of heads read it and add to it. The underlined run occurs
        twice.`,
      2: v.one ? say`There is no earlier layer whose notes a head could read.` :
        say`In the first layer, it attends from nearly every token to the one before. Thicker is more.`,
      3: v.one ? say`A key is made from its token and its place alone. Nothing in it says what came before.` :
        say`What it reads, it adds to the stream. The stream at ${answer} now says: the token before me is ${asks}.`,
      4: v.one ? say`Of all heads in the layer, ${high} attends to ${answer} most. It cannot ask for “the token after
        ${asks}”: no key holds the answer.` : [
        ...say`Its query meets the key of every token. The score of ${answer} wins, by its note (orange). Keys that
          read what an earlier head wrote: the paper calls it K-composition.`],
      5: v.one ? say`${answer} gets ${seen}, little more than its share of a short text. The rest is spread.` :
        say`Differences become shares: ${answer} gets ${seen}. By its note alone it would get
          ${percent(alone(v.parts.note, v.followed))}; among the hundreds of keys of a long text, that is not enough
          (chapter 7).`,
      6: v.one ? say`The head raises the logit of ${answer} by ${raises}.` :
        [...say`Attention says where. What is moved is ${answer} itself: the head adds ${raises} to its logit.`,
          ...why],
      7: guess === v.answer ? say`A path leads from tokens to the logit: directly, through one head, or through two.
        All together give ${answer} ${percent(p)}. What followed ${asks} last time is expected again: induction.`
        : say`The best guess is ${[guess]} (${percent(p)}). ${answer} gets
          ${percent(chance(v))}${v.one ? `; with two layers, ${percent(chance(intact))}` : ""}.`,
      8: v.one ? say`One layer has no notes to cut. This is what the two-layer model does without them.` :
        say`Every key of head ${high} gets the same average note of head ${low}, so its notes no longer tell keys
          apart. Attention to ${answer} falls from ${percent(intact.share)} to ${seen}. The head adds
          ${signed(v.adds)} to its logit, not ${signed(intact.adds)}. Each point less divides the odds by about 2.7: its
          chance falls from ${percent(chance(intact))} to ${percent(chance(v))}.`,
    }[step];
    const split = v.parts && [[say`its note “before me: ${v.asks}”`, above(v.parts.note, v.followed), "first"],
      [`what head ${also} wrote${sees}`, above(v.parts.also, v.followed), "bar"],
      ["all else", above(v.parts.token, v.followed) + above(v.parts.rest, v.followed), "bar"]];
    const others = v.others ? [[`the ${v.others[0]} others, added up`, v.others[1], "faint"]] : [];
    const lists = { 4: split && [say`Score of ${answer}, above the mean key: ${signed(score(v, v.followed))}`, split],
      6: moved.length && [say`What head ${high} moves to the logit of ${answer}`, moved.map(named)],
      7: v.paths && [say`Every path to the logit of ${answer}`, [...v.paths.map(named), ...others]] };
    return { title, words, list: lists[step] || null };
  }

  // ---- the stage --------------------------------------------------------------------------------------------------
  /**
   * Options: `step` (0: the whole picture), `steps` (whether it can be explained), `own`: what full.js adds: views(),
   * preset(run), stepped(), and choose and cut for the picture.
   */
  function start(host, { heads, sentences }, { step = 0, steps = true, own = null } = {}) {
    const now = { run: "intact", step }, given = Object.values(sentences)[0].runs;
    const sheet = make("div", { className: "tc-scene" }), told = make("p", { className: "tc-say", ariaLive: "polite" });
    const pic = picture.create(sheet, { choose: own?.choose, cut: own?.cut });
    const button = (text, onclick, className) =>
      make("button", { type: "button", textContent: text, onclick, className });
    const pressed = Object.entries(RUNS).map(([run, text]) => button(text, () => choose(run), "tc-run"));
    const story = make("section", { className: "tc-story", hidden: true, ariaLabel: "Explanation" });
    const walk = button("▶ Step through it", () => go(1), "tc-walk");
    const runs = make("div", { className: "tc-runs", role: "group", ariaLabel: "What the model may use" }, ...pressed);
    const controls = make("div", { className: "tc-controls" }, runs, ...(steps ? [walk] : []));
    let asked = 0;

    function choose(run) {
      if (now.step === LAST && run !== "cut") now.step = 0;
      now.run = run;
      return own ? own.preset(run) : draw();
    }
    async function go(to) {
      const before = now.step;
      now.step = clamp(to, 0, LAST);
      own?.stepped();
      if (now.step === LAST && now.run === "intact") choose("cut");
      else if (before === LAST && now.run === "cut") choose("intact");
      await draw();
      const next = now.step ? story.querySelector("button.tc-next-step") : walk;
      if (Boolean(before) !== Boolean(now.step)) next.focus({ preventScroll: true });
    }
    async function draw() {
      const mine = ++asked, found = own ? await own.views() : { now: given[now.run], intact: given.intact,
        run: now.run };
      if (mine !== asked || !found) return;
      const { run, changed } = found, intact = completed(found.intact, heads);
      const view = completed({ cut: run === "cut", ...found.now, one: run === "one" }, heads);
      const simple = view.then || view.followed < 0 || (!view.noted && !view.one) || !view.induces; // no story
      now.run = run;
      if (simple && own) now.step = 0;
      pressed.forEach((each, k) => each.setAttribute("aria-pressed", Object.keys(RUNS)[k] === run));
      pressed[1].disabled = Boolean(view.then); // the notes of then are not there to be cut
      pic.show(view, { step: now.step, before: intact, words: labels(view, now.step) });
      walk.hidden = now.step > 0 || Boolean(own && simple);
      told.hidden = now.step > 0, story.hidden = !now.step;
      told.replaceChildren(...summary(view, intact, run === "cut" ? "" : changed));
      if (now.step) tell(explained(view, intact, now.step));
    }
    function tell({ title, words, list }) {
      const at = document.activeElement, name = story.contains(at) ? at.className : null, end = now.step === LAST;
      const back = button("‹ Back", () => go(now.step - 1), "tc-back-step");
      const next = button(end ? "Done" : "Next ›", () => go(end ? 0 : now.step + 1), "tc-next-step");
      const said = [make("p", { className: "tc-story-title" }, ...title), make("p", {}, ...words)];
      story.replaceChildren(make("div", {}, make("p", { className: "tc-step" }, `Step ${now.step} of ${LAST}`),
          make("div", { ariaLive: "polite" }, ...said),
          make("div", { className: "tc-steps" }, back, next)),
        ...(list ? [make("div", {}, make("p", { className: "tc-bars-title" }, ...list[0]), bars(list[1]))] : []));
      if (name) story.querySelector(`.${name}`)?.focus({ preventScroll: true });
    }

    host.classList.add("tc-stage");
    host.append(sheet, controls, told, story);
    host.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key], target = /** @type {HTMLElement} */ (event.target);
      if (!now.step || !by || target.matches("input, textarea, select, [role=listbox], [role=radio]")) return;
      event.preventDefault();
      go(now.step + by);
    });
    draw();
    return { draw, now };
  }
  return Object.freeze({ start });
})();
