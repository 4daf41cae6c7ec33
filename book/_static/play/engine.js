// The model of the page "Play" (book_build/pages/play.py): tokenizer, removal of heads, what each adds. It draws nothing:
// play.js runs these functions in a worker, with those of forward.js.

// ---- a byte-level BPE, as tokenizers (Python) does it ------------------------------------------------------------------------

function playTokenizer({ vocabulary, merges, start }) {
  // Bytes are written as printable characters: themselves, or from U+0100 on (GPT-2's alphabet).
  const letters = [];
  let next = 256;
  for (let b = 0; b < 256; b++) letters[b] = String.fromCharCode((b > 32 && b < 127) || (b > 160 && b !== 173) ? b : next++);
  const byteOf = new Map(letters.map((letter, b) => [letter, b]));
  const idOf = new Map(vocabulary.map((token, id) => [token, id]));
  const size = vocabulary.length;
  const made = new Map(); // of two tokens side by side: the rank of their merge, and what it makes
  for (let rank = 0; 2 * rank < merges.length; rank++) {
    const [a, b] = [merges[2 * rank], merges[2 * rank + 1]];
    made.set(a * size + b, { rank, id: idOf.get(vocabulary[a] + vocabulary[b]) });
  }
  // \s of JavaScript is not that of Unicode: it has U+FEFF and lacks U+0085.
  const S = "\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
  const word = new RegExp(`'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^${S}\\p{L}\\p{N}]+|[${S}]+(?![^${S}])|[${S}]+`, "gu");
  const utf8 = new TextEncoder(); // half of a surrogate pair becomes U+FFFD
  const known = new Map();

  // The lowest rank first, and of equal ones the leftmost: a heap of rank * 2^32 + place, for words that are very long.
  function merged(bytes) {
    const ids = Array.from(bytes, (b) => idOf.get(letters[b]));
    const after = ids.map((_, i) => i + 1), before = ids.map((_, i) => i - 1);
    const heap = [];
    const push = (i) => {
      const merge = i >= 0 && after[i] < ids.length && made.get(ids[i] * size + ids[after[i]]);
      if (!merge) return;
      let at = heap.push(merge.rank * 2 ** 32 + i) - 1;
      for (let up; at && heap[(up = (at - 1) >> 1)] > heap[at]; at = up) [heap[up], heap[at]] = [heap[at], heap[up]];
    };
    const pop = () => {
      const top = heap[0], last = heap.pop();
      if (!heap.length) return top;
      let at = 0;
      for (let down; (down = 2 * at + 1) < heap.length; at = down) {
        if (heap[down + 1] < heap[down]) down++;
        if (heap[down] >= last) break;
        heap[at] = heap[down];
      }
      heap[at] = last;
      return top;
    };
    ids.forEach((_, i) => push(i));
    while (heap.length) {
      const top = pop(), i = top % 2 ** 32, j = after[i];
      const merge = ids[i] >= 0 && j < ids.length && made.get(ids[i] * size + ids[j]);
      if (!merge || merge.rank !== (top - i) / 2 ** 32) continue; // one of the two has been merged meanwhile
      ids[i] = merge.id;
      ids[j] = -1;
      after[i] = after[j];
      if (after[i] < ids.length) before[after[i]] = i;
      push(before[i]), push(i);
    }
    return ids.filter((id) => id >= 0);
  }

  // At most `limit` ids, the start token first; whether there would be more. The start token typed as text is the start token.
  function encode(text, limit) {
    const ids = [0];
    for (const [n, part] of text.split(start).entries()) {
      if (n) ids.push(0);
      for (const [piece] of part.matchAll(word)) {
        if (ids.length > limit) break;
        let found = known.get(piece);
        if (!found) {
          found = merged(utf8.encode(piece));
          if (piece.length < 50) known.set(piece, found);
        }
        for (const id of found) ids.push(id);
      }
    }
    return { ids: ids.slice(0, limit), cut: ids.length > limit };
  }

  // The bytes of a token as text in which everything can be seen; a piece of a character as its bytes.
  const visible = { " ": "·", "\n": "↵", "\t": "⇥", "\r": "␍", "\xa0": "⍽", "\x7f": "␡" };
  function show(id) {
    if (id === 0) return start;
    const bytes = Uint8Array.from(vocabulary[id], (letter) => byteOf.get(letter));
    let text;
    try {
      text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    } catch {
      return Array.from(bytes, (b) => (b > 32 && b < 127 ? String.fromCharCode(b) : `<${b.toString(16).toUpperCase().padStart(2, "0")}>`)).join("");
    }
    return Array.from(text, (c) => {
      const code = c.codePointAt(0);
      if (visible[c]) return visible[c];
      if (code < 32) return String.fromCharCode(0x2400 + code);
      return /[\p{C}\p{Z}\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\ufe00-\ufe0f]/u.test(c)
        ? `<U+${code.toString(16).toUpperCase().padStart(4, "0")}>` : c;
    }).join("");
  }
  return { encode, show };
}

// ---- the model ---------------------------------------------------------------------------------------------------------------

// A two-layer attention-only transformer. `bytes`: its weights in half precision, W_E, then W_Q W_K W_V W_O of each layer, then W_U, all as
// [in, out]; `means`: what each head mixes on average [layer][head][d_head].
function playEngine({ config, means }, bytes) {
  const { d_model: D, n_heads: H, d_head, d_vocab: V, n_ctx } = config, W = H * d_head, N = 8 * Math.ceil(n_ctx / 8);
  const memory = {}, { take, used } = forwardPlaces(), pass = forwardPass(memory, take, { ...config, n_layers: 2 }), { V8 } = pass;
  const W_E = take(V * D), meanU = take(D), E = take(N * D), stream = take(N * D), kept = take(N * W);
  const full = take(N * D), hidden = take(N * D); // what is there after layer 0: all of it, and without the heads that are off
  const part = () => ({ Q: take(N * W), K: take(N * W), V: take(N * W), z: take(N * W) });
  const first = part(), intact = part(), now = part(), intactLogits = take(N * V8), nowLogits = take(N * V8);
  Object.assign(memory, forwardMemory(used()));
  const { F } = memory;
  load();

  function load() {
    const table = new Float32Array(65536); // of each number in half precision
    for (let i = 0; i < 65536; i++) {
      const exponent = (i >> 10) & 31, fraction = i & 1023;
      table[i] = (i >> 15 ? -1 : 1) * (exponent ? (exponent === 31 ? NaN : 2 ** (exponent - 15) * (1 + fraction / 1024)) : 2 ** -24 * fraction);
    }
    const stored = new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 2), half = new Float32Array(stored.length);
    for (let i = 0; i < half.length; i++) half[i] = table[stored[i]];
    let from = V * D;
    const pack = (to, k, m) => (pass.pack(to, half, from, k, m, m, 1), (from += k * m));
    F.set(half.subarray(0, from), W_E);
    for (const { Q, K, V: values, O } of pass.layers) pack(Q, D, W), pack(K, D, W), pack(values, D, W), pack(O, W, D);
    for (let row = 0; row < D; row++) F[meanU + row] = half.subarray(from + row * V, from + (row + 1) * V).reduce((a, b) => a + b, 0) / V;
    pack(pass.U, D, V);
    pass.place();
  }

  // Length of each head's value at each position, [head, position].
  function lengths(values, n) {
    const found = new Float32Array(H * n);
    for (let j = 0; j < n; j++) {
      for (let h = 0; h < H; h++) {
        let square = 0;
        for (let d = 0; d < d_head; d++) square += F[values + j * W + h * d_head + d] ** 2;
        found[h * n + j] = Math.sqrt(square);
      }
    }
    return found;
  }

  // A copy of z without the heads in `off`: in their place zero, or their mean.
  function without(off, layer, z, mean, n) {
    F.copyWithin(kept, z, z + n * W);
    for (const h of off) {
      for (let i = 0; i < n; i++) for (let d = 0; d < d_head; d++) F[kept + i * W + h * d_head + d] = mean ? means[layer][h][d] : 0;
    }
    return kept;
  }

  function losses(logits, ids, old = []) {
    const found = new Float32Array(Math.max(0, ids.length - 1));
    for (let i = 0; i < found.length; i++) found[i] = old[i] ?? normalizer(logits, i) - F[logits + i * V8 + ids[i + 1]];
    return found;
  }

  function normalizer(logits, i) { // log of the sum of exponentials
    let most = -Infinity, total = 0;
    const row = logits + i * V8;
    for (let t = 0; t < V; t++) if (F[row + t] > most) most = F[row + t];
    for (let t = 0; t < V; t++) total += Math.exp(F[row + t] - most);
    return most + Math.log(total);
  }

  let text = null; // what was computed of the intact model, for one text; and what `now` holds of layer 1, by what it was made from
  let held = {};

  // A token does not see those after it: what begins as the text before did is not computed again.
  function read(ids) {
    const n = ids.length, old = text ?? { ids: [], n: 0 };
    const same = ids.findIndex((id, i) => id !== old.ids[i]), common = same < 0 ? n : same, start = Math.floor(common / 4) * 4;
    const earlier = (patterns) => ({ patterns, n: old.n }), all = (place) => ({ Q: place, K: place, V: place });
    F.fill(0, E + start * D, E + 4 * Math.ceil(n / 4) * D);
    for (let i = start; i < n; i++) F.copyWithin(E + i * D, W_E + ids[i] * D, W_E + (ids[i] + 1) * D);
    text = { ids, n, padded: 4 * Math.ceil(n / 4), patterns0: new Float32Array(H * n * n), patterns1: new Float32Array(H * n * n) };
    held = {};
    pass.layer(0, all(E), first, E, full, n, { first: start, patterns: text.patterns0, old: earlier(old.patterns0) });
    pass.layer(1, all(full), intact, full, stream, n, { first: start, patterns: text.patterns1, old: earlier(old.patterns1) });
    pass.unembed(stream, intactLogits, text.padded, start);
    text.lengths0 = lengths(first.V, n), text.lengths1 = lengths(intact.V, n);
    text.losses = losses(intactLogits, ids, old.losses?.subarray(0, Math.max(0, common - 1)));
  }

  // `edits`: off [[layer, head]], mean (a head that is off adds its mean), from ("" or a side: heads of layer 0 that are off are missing
  // there alone), cut (sides of layer 1 that read the embedding alone), frozen (patterns of the intact model).
  function run(ids, { off = [], mean = false, from = "", cut = "", frozen = false } = {}) {
    if (!text || ids.length !== text.n || ids.some((id, i) => id !== text.ids[i])) read(ids);
    const { n, padded } = text, offIn = (layer) => off.filter(([l]) => l === layer).map(([, h]) => h).sort((a, b) => a - b);
    const [off0, off1] = [offIn(0), offIn(1)], touched = off0.length > 0;
    const removal = `${off0}${mean}`;
    if (touched && held.hidden !== removal) {
      pass.write(0, without(off0, 0, first.z, mean, n), E, hidden, padded);
      held = { hidden: removal };
    }
    const at = {}; // where queries, keys and values of layer 1 are
    const made = {}; // and what they are made from
    for (const side of "QKV") {
      made[side] = cut.includes(side) ? "embedding" : touched && (!from || from === side) ? removal : "all";
      if (made[side] === "all") at[side] = intact[side];
      else {
        at[side] = now[side];
        if (held[side] !== made[side]) {
          pass.read(1, side, made[side] === "embedding" ? E : hidden, now[side], padded);
          held[side] = made[side];
        }
      }
    }
    const looking = frozen || (made.Q === "all" && made.K === "all") ? "all" : `${made.Q}|${made.K}`, mixing = `${looking}|${made.V}`;
    let z = intact.z;
    if (mixing !== "all|all") {
      z = now.z;
      if (held.mixing !== mixing) {
        const given = looking === "all";
        held.patterns = given ? text.patterns1 : new Float32Array(H * n * n);
        pass.attend({ ...at, z }, n, { patterns: held.patterns, given });
        held.mixing = mixing;
      }
    }
    const patterns1 = looking === "all" ? text.patterns1 : held.patterns;
    const before = touched && !from ? hidden : full;
    const changed = mixing !== "all|all" || off1.length || before === hidden;
    if (changed) {
      pass.write(1, off1.length ? without(off1, 1, z, mean, n) : z, before, stream, padded);
      pass.unembed(stream, nowLogits, padded);
    }
    text.last = { off0, off1, mean, from, z, logits: changed ? nowLogits : intactLogits };
    return {
      n, patterns: [text.patterns0, patterns1], intactPatterns: text.patterns1,
      lengths: [text.lengths0, made.V === "all" ? text.lengths1 : lengths(at.V, n)], intactLengths: text.lengths1,
      losses: changed ? losses(nowLogits, ids) : text.losses, intactLosses: text.losses,
    };
  }

  const rowOf = (logits, i) => F.slice(logits + i * V8, logits + i * V8 + V);
  const allLogits = () => [text.last.logits, intactLogits].map((logits) => {
    const found = new Float32Array(text.n * V);
    for (let i = 0; i < text.n; i++) found.set(rowOf(logits, i), i * V);
    return found;
  });

  // What is predicted after a position, now and by the intact model, and what each part adds to the logit of `target` (by default the
  // token that comes next, at the end the best one), above the mean over the vocabulary, which softmax does not see.
  function look(i, target, k = 8) {
    const probabilities = [text.last.logits, intactLogits].map((logits) => {
      const lse = normalizer(logits, i);
      return rowOf(logits, i).map((x) => Math.exp(x - lse));
    });
    const best = (p) => Array.from(p.keys()).sort((a, b) => p[b] - p[a]);
    const order = best(probabilities[0]), wanted = i + 1 < text.n ? text.ids[i + 1] : order[0];
    const listed = [...new Set([...order.slice(0, k), ...best(probabilities[1]).slice(0, k), wanted, ...(target === undefined ? [] : [target])])];
    const rows = listed.map((id) => ({ id, rank: order.indexOf(id) + 1, now: probabilities[0][id], intact: probabilities[1][id] }));
    const chosen = target ?? wanted, up = new Float32Array(D);
    for (let d = 0; d < D; d++) up[d] = F[pass.U + (chosen >> 3) * 8 * D + d * 8 + (chosen & 7)] - F[meanU + d];
    const { off0, off1, mean, from, z } = text.last;
    const adds = [[first.z, from ? [] : off0], [z, off1]].map(([source, off], layer) =>
      Array.from({ length: H }, (_, h) => {
        let total = 0;
        for (let w = h * d_head; w < (h + 1) * d_head; w++) {
          const amount = !off.includes(h) ? F[source + i * W + w] : mean ? means[layer][h][w - h * d_head] : 0;
          let onward = 0;
          for (let d = 0; d < D; d++) onward += F[pass.layers[layer].O + (d >> 3) * 8 * W + w * 8 + (d & 7)] * up[d];
          total += amount * onward;
        }
        return total;
      }));
    let direct = 0;
    for (let d = 0; d < D; d++) direct += F[E + i * D + d] * up[d];
    return { i, target: chosen, next: i + 1 < text.n ? wanted : null, rows: rows.sort((a, b) => a.rank - b.rank), adds, direct };
  }

  return { run, look, allLogits, numbers: used() };
}

// ---- what the worker does ----------------------------------------------------------------------------------------------------

// Answers questions: "load" with the script's data, then "run" and "look".
function playServer() {
  let tokenizer, engine, config, held; // `held`: the text and edits that the engine ran last
  const kinds = {
    load({ model, bytes }) {
      ({ config } = model);
      tokenizer = playTokenizer(model.tokenizer);
      engine = playEngine(model, bytes);
      return { bytes: 4 * engine.numbers };
    },
    run({ text, edits, logits = false }) {
      const began = performance.now(), { ids, cut } = tokenizer.encode(text, config.n_ctx), found = engine.run(ids, edits);
      held = JSON.stringify([text, edits]);
      const copy = { ...found, patterns: found.patterns.map((p) => p.slice()), intactPatterns: found.intactPatterns.slice() };
      return { ...copy, ids, names: ids.map(tokenizer.show), cut, logits: logits && engine.allLogits(), milliseconds: performance.now() - began };
    },
    look({ text, edits, at, target }) {
      if (held !== JSON.stringify([text, edits])) kinds.run({ text, edits });
      const found = engine.look(at, target);
      for (const row of found.rows) row.name = tokenizer.show(row.id);
      return { ...found, name: tokenizer.show(found.target) };
    },
    encode: ({ texts }) => ({ ids: texts.map((text) => tokenizer.encode(text, Infinity).ids) }),
  };
  return kinds;
}
