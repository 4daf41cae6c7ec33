// The models of the stage (book_build/pages/engine.py): tokenizer, removal of heads and connections, and what
// everything adds. It draws nothing: stage.js runs these functions in a worker, with those of forward.js.

// ---- a byte-level BPE, as tokenizers (Python) does it ---------------------------------------------------------------
function playTokenizer({ vocabulary, merges, start }) {
  // Bytes are written as printable characters: themselves, or from U+0100 on (GPT-2's alphabet).
  const letters = [];
  let next = 256;
  for (let b = 0; b < 256; b++) letters[b] = String.fromCharCode((b > 32 && b < 127) || (b > 160 && b !== 173) ? b :
    next++);
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
  const others = `[^${S}\\p{L}\\p{N}]`, spaces = `[${S}]+(?![^${S}])|[${S}]+`;
  const word = new RegExp(`'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?${others}+|${spaces}`, "gu");
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

  // At most `limit` ids, the start token first; whether there would be more. The start token typed as text is the start
  // token.
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
  const visible = { " ": "·", "\n": "↵", "\t": "⇥", "\r": "⇤", "\xa0": "⍽", "\x7f": "␡" };
  function show(id) {
    if (id === 0) return start;
    const bytes = Uint8Array.from(vocabulary[id], (letter) => byteOf.get(letter));
    let text;
    try {
      text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    } catch {
      const hex = (b) => `<${b.toString(16).toUpperCase().padStart(2, "0")}>`;
      return Array.from(bytes, (b) => (b > 32 && b < 127 ? String.fromCharCode(b) : hex(b))).join("");
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

// ---- the model ---------------------------------------------------------------------------------------------------
// An attention-only transformer with one or two layers. `bytes`: its weights in half precision, W_E, then W_Q W_K W_V
// W_O of each layer, then W_U, all as [in, out]; `means`: what each head mixes on average [layer][head][d_head].
function playEngine({ config, means }, bytes) {
  const { d_model: D, n_heads: H, d_head, d_vocab: V, n_ctx, n_layers: L } = config, W = H * d_head;
  const N = 8 * Math.ceil(n_ctx / 8), memory = {}, { take, used } = forwardPlaces();
  const pass = forwardPass(memory, take, config), { V8 } = pass;
  const W_E = take(V * D), meanU = take(D), E = take(N * D), stream = take(N * D), kept = take(N * W);
  const full = take(N * D), hidden = take(N * D); // after layer 0: all of it, and without the heads that are off
  const gone = take(N * D), goneSide = take(N * W); // what a cut connection carried, and what a side makes of it
  const part = () => ({ Q: take(N * W), K: take(N * W), V: take(N * W), z: take(N * W) });
  const first = part(), intact = L > 1 ? part() : first, now = part();
  const logits = take(N * V8);
  Object.assign(memory, forwardMemory(used()));
  const { F } = memory;
  load();

  function load() {
    const table = new Float32Array(65536); // of each number in half precision
    for (let i = 0; i < 65536; i++) {
      const exponent = (i >> 10) & 31, fraction = i & 1023, sign = i >> 15 ? -1 : 1;
      const size = exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction;
      table[i] = exponent === 31 ? NaN : sign * size;
    }
    const stored = new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 2);
    const half = new Float32Array(stored.length);
    for (let i = 0; i < half.length; i++) half[i] = table[stored[i]];
    let from = V * D;
    const pack = (to, k, m) => (pass.pack(to, half, from, k, m, m, 1), (from += k * m));
    F.set(half.subarray(0, from), W_E);
    for (const { Q, K, V: values, O } of pass.layers) pack(Q, D, W), pack(K, D, W), pack(values, D, W), pack(O, W, D);
    for (let row = 0; row < D; row++) {
      F[meanU + row] = half.subarray(from + row * V, from + (row + 1) * V).reduce((a, b) => a + b, 0) / V;
    }
    pack(pass.U, D, V);
    pass.place();
  }

  // A copy of z without the heads in `off`: in their place zero, or their mean.
  function without(off, layer, z, mean, n) {
    F.copyWithin(kept, z, z + n * W);
    for (const h of off) for (let i = 0; i < n; i++) for (let d = 0; d < d_head; d++) {
      F[kept + i * W + h * d_head + d] = mean ? means[layer][h][d] : 0;
    }
    return kept;
  }

  // What `heads` of layer 0 wrote, less its mean over the text, at `gone`.
  function varying(heads, { n, padded }) {
    F.fill(0, kept, kept + padded * W);
    for (const h of heads) for (let w = h * d_head; w < (h + 1) * d_head; w++) {
      let mean = 0;
      for (let i = 0; i < n; i++) mean += F[first.z + i * W + w] / n;
      for (let i = 0; i < n; i++) F[kept + i * W + w] = F[first.z + i * W + w] - mean;
    }
    pass.project(kept, W, pass.layers[0].O, gone, D, padded);
  }

  function normalizer(i) { // log of the sum of exponentials of row i of the logits
    let most = -Infinity, total = 0;
    const row = logits + i * V8;
    for (let t = 0; t < V; t++) if (F[row + t] > most) most = F[row + t];
    for (let t = 0; t < V; t++) total += Math.exp(F[row + t] - most);
    return most + Math.log(total);
  }

  let text = null; // what was computed of the intact model, for one text

  function read(ids) {
    const n = ids.length, all = (place) => ({ Q: place, K: place, V: place });
    F.fill(0, E, E + 4 * Math.ceil(n / 4) * D);
    for (let i = 0; i < n; i++) F.copyWithin(E + i * D, W_E + ids[i] * D, W_E + (ids[i] + 1) * D);
    text = { ids, n, padded: 4 * Math.ceil(n / 4), patterns: Array.from({ length: L }, () =>
      new Float32Array(H * n * n)) };
    pass.layer(0, all(E), first, E, full, n, { patterns: text.patterns[0] });
    if (L > 1) pass.layer(1, all(full), intact, full, stream, n, { patterns: text.patterns[1] });
  }

  // Whether head r of layer 1 does not read, on a side, what head w of layer 0 wrote; -1 in a cut stands for all heads.
  const isCut = (cut, side, r, w) => cut.some(([a, s, b]) => s === side && (a < 0 || a === r) && (b < 0 || b === w));

  // `edits`: off [[layer, head]], mean (a head that is off adds its mean), cut [[reader, side, writer]] (what it reads
  // there is the mean over the text), frozen (patterns of the intact model).
  function run(ids, { off = [], mean = false, cut = [], frozen = false } = {}) {
    if (!text || ids.length !== text.n || ids.some((id, i) => id !== text.ids[i])) read(ids);
    const [off0, off1] = [0, 1].map((layer) => off.filter(([l]) => l === layer).map(([, h]) => h));
    const { n, padded } = text, touched = off0.length > 0, before = touched ? hidden : full,
      every = [...Array(H).keys()];
    const patterns = [...text.patterns], at = { ...intact }; // `at`: where queries, keys and values of layer 1 are
    let z = first.z, after = before;
    if (touched) pass.write(0, without(off0, 0, first.z, mean, n), E, hidden, padded);
    for (const side of L > 1 ? "QKV" : "") {
      if (touched) pass.read(1, side, hidden, (at[side] = now[side]), padded);
      for (const h of every) {
        const writers = every.filter((g) => !off0.includes(g) && isCut(cut, side, h, g));
        if (!writers.length) continue;
        if (at[side] !== now[side]) F.copyWithin((at[side] = now[side]), intact[side], intact[side] + padded * W);
        varying(writers, text);
        pass.project(gone, D, pass.layers[1][side], goneSide, W, padded);
        for (let i = 0; i < n; i++) for (let w = h * d_head; w < (h + 1) * d_head; w++) {
          F[now[side] + i * W + w] -= F[goneSide + i * W + w];
        }
      }
    }
    if (L > 1) {
      const looks = !frozen && (at.Q === now.Q || at.K === now.K), changed = looks || at.V === now.V;
      z = changed ? now.z : intact.z, after = stream;
      if (looks) patterns[1] = new Float32Array(H * n * n);
      if (changed) pass.attend({ ...at, z }, n, { patterns: patterns[1], given: !looks });
      pass.write(1, off1.length ? without(off1, 1, z, mean, n) : z, before, stream, padded);
    }
    text.last = { at, off0, off1, mean, cut, z, patterns, after };
    return { n, patterns };
  }

  const rowOf = (i) => F.slice(logits + i * V8, logits + i * V8 + V);
  function allLogits() {
    const found = new Float32Array(text.n * V);
    pass.unembed(text.last.after, logits, text.padded);
    for (let i = 0; i < text.n; i++) found.set(rowOf(i), i * V);
    return found;
  }

  // For each row of a packed matrix [W, D]: its product with `up`, [W].
  function through(matrix, up) {
    const found = new Float32Array(W);
    for (let d = 0; d < D; d++) {
      const column = matrix + (d >> 3) * 8 * W + (d & 7), x = up[d];
      for (let w = 0; w < W; w++) found[w] += F[column + 8 * w] * x;
    }
    return found;
  }
  // The combination of rows `from` to `to` of columns: what a head's weights [D, d_head] make of a vector [d_head].
  function spread(matrix, h, vector) {
    const found = new Float32Array(D);
    for (let c = 0; c < d_head; c++) {
      const w = h * d_head + c, column = matrix + (w >> 3) * 8 * D + (w & 7);
      for (let d = 0; d < D; d++) found[d] += F[column + 8 * d] * vector[c];
    }
    return found;
  }
  const dot = (place, vector, from = 0, size = vector.length) => {
    let total = 0;
    for (let d = 0; d < size; d++) total += F[place + d] * vector[from + d];
    return total;
  };

  // What head g of layer 0 wrote at each token, seen by `up` [W] (through W_O): as it is, off, or cut for a reader.
  function written(g, up, reader = -1, side = "") {
    const { off0, mean, cut } = text.last, from = g * d_head;
    let values = Array.from({ length: text.n }, (_, j) => dot(first.z + j * W + from, up, from, d_head));
    if (off0.includes(g)) {
      const left = mean ? means[0][g].reduce((sum, x, d) => sum + x * up[from + d], 0) : 0;
      values = values.fill(left);
    }
    return isCut(cut, side, reader, g) ? values.fill(values.reduce((a, b) => a + b, 0) / text.n) : values;
  }

  // What is predicted after token i, with `target` in the list; what each head adds to the target's logit above the
  // mean over the vocabulary, which softmax does not see; and the scores of all keys for the query of `head` there,
  // split into what they are made of.
  function explain(i, head, target, k = 8) {
    const { off0, off1, mean, z, at, after, patterns } = text.last, four = i - (i % 4);
    pass.unembed(after + four * D, logits + four * V8, 4);
    const lse = normalizer(i);
    const p = rowOf(i).map((x) => Math.exp(x - lse)), best = Array.from(p.keys()).sort((a, b) => p[b] - p[a]);
    const listed = best.slice(0, k).map((id) => [id, p[id]]), chosen = target < 0 ? best[0] : target;
    if (!listed.some(([id]) => id === chosen)) listed.push([chosen, p[chosen]]);
    const up = Float32Array.from({ length: D }, (_, d) => F[pass.U + (chosen >> 3) * 8 * D + d * 8 +
      (chosen & 7)] - F[meanU + d]);
    const ups = pass.layers.map(({ O }) => through(O, up)), zs = L > 1 ? [first.z, z] : [first.z], offs = [off0, off1];
    const adds = zs.map((from, l) => Array.from({ length: H }, (_, h) => {
      if (!offs[l].includes(h)) return dot(from + i * W + h * d_head, ups[l], h * d_head, d_head);
      return mean ? means[l][h].reduce((sum, x, d) => sum + x * ups[l][h * d_head + d], 0) : 0;
    }));
    const found = { next: listed, adds, direct: dot(E + i * D, up), target: chosen };
    if (L === 1) return found;

    // The same of second-layer heads, by what they moved: of the token itself, or of what a first-layer head wrote.
    found.moved = Array.from({ length: H }, (_, h) => {
      if (off1.includes(h)) return null;
      const reads = spread(pass.layers[1].V, h, ups[1].subarray(h * d_head, (h + 1) * d_head));
      const row = patterns[1].subarray((h * text.n + i) * text.n, (h * text.n + i + 1) * text.n);
      const mixed = (values) => values.reduce((sum, x, j) => sum + row[j] * x, 0),
        wrote = through(pass.layers[0].O, reads);
      const own = mixed(Array.from({ length: text.n }, (_, j) => dot(E + j * D, reads)));
      return [own, ...Array.from({ length: H }, (_, g) => mixed(written(g, wrote, h, "V")))];
    });
    const query = F.slice(at.Q + i * W + head * d_head, at.Q + i * W + (head + 1) * d_head).map((x) =>
      x / Math.sqrt(d_head));
    const asks = spread(pass.layers[1].K, head, query), wrote = through(pass.layers[0].O, asks);
    const tokens = Array.from({ length: i + 1 }, (_, j) => dot(E + j * D, asks));
    const places = tokens.map((_, j) => dot(pass.P + j * D, asks));
    const notes = Array.from({ length: H }, (_, g) => written(g, wrote, head, "K").slice(0, i + 1));
    return { ...found, parts: { tokens, places, notes } };
  }

  return { run, explain, allLogits };
}

// ---- what the worker does ----------------------------------------------------------------------------------------
// Answers questions: "load" with the script's data of a model, "run", and "encode".
function playServer() {
  const engines = {};
  let tokenizer;
  return {
    load({ name, model, bytes }) {
      tokenizer ??= playTokenizer(model.tokenizer);
      engines[name] = { config: model.config, ...playEngine(model, bytes) };
      return {};
    },
    // The text, or the tokens `ids`, with these edits, and what is to be said of the token `at` (the last one, if there
    // are fewer).
    run({ name, text, ids: given, edits, at, head, logits = false }) {
      const began = performance.now(), { run, explain, allLogits, config } = engines[name];
      const { ids, cut } = given ? { ids: given, cut: false } : tokenizer.encode(text, config.n_ctx);
      const i = Math.min(at ?? Infinity, ids.length - 1);
      const followed = i ? ids.lastIndexOf(ids[i], i - 1) + 1 || -1 : -1; // what followed token i last time
      const found = run(ids, edits), patterns = found.patterns.map((p) => p.slice());
      const said = head === undefined ? {} : explain(i, head, ids[followed] ?? ids[i + 1] ?? -1);
      const next = said.next?.map(([id, p]) => [tokenizer.show(id), p]);
      const answer = said.next && tokenizer.show(said.target), names = ids.map(tokenizer.show);
      const all = logits && allLogits(), milliseconds = performance.now() - began;
      return { ...found, ...said, patterns, ids, names, overlong: cut, at: i, followed, next, answer, logits: all,
        milliseconds };
    }, encode: ({ texts }) => ({ ids: texts.map((text) => tokenizer.encode(text, Infinity).ids) }), };
}
