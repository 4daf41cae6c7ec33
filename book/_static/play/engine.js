// The model of the page "Play" (transformer_circuits/pages/play.py): tokenizer, forward pass, removal of heads. It draws nothing:
// play.js runs these functions in a worker, from their own source text, so that none may use what is outside it.

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

// ---- products of matrices ----------------------------------------------------------------------------------------------------

// C[n, m] = A[n, k] B[k, m], in a memory of single-precision numbers. n is a multiple of 4, m of 8; B lies in panels of 8 columns,
// [panel][k][8]; `lda`, `ldb`, `ldc`: numbers from row to row of A, panel to panel of B, row to row of C. All other arguments are
// places in memory. In WebAssembly with SIMD, assembled here from its instructions, or where that is refused in plain loops.
function playMemory(numbers) {
  const pages = Math.ceil(numbers / 16384);
  try {
    const memory = new WebAssembly.Memory({ initial: pages, maximum: pages });
    const instance = new WebAssembly.Instance(new WebAssembly.Module(assemble()), { m: { m: memory } });
    const { matmul } = instance.exports;
    return {
      simd: true,
      F: new Float32Array(memory.buffer),
      matmul: (A, lda, B, ldb, C, ldc, n, k, m) => n && k && m && matmul(4 * A, 4 * lda, 4 * B, 4 * ldb, 4 * C, 4 * ldc, n, k, m),
    };
  } catch {
    const F = new Float32Array(numbers);
    return { simd: false, F, matmul: (...sizes) => plain(F, ...sizes) };
  }

  function plain(F, A, lda, B, ldb, C, ldc, n, k, m) {
    for (let panel = 0; panel < m / 8; panel++) {
      for (let i = 0; i < n; i++) {
        let c0 = 0, c1 = 0, c2 = 0, c3 = 0, c4 = 0, c5 = 0, c6 = 0, c7 = 0, b = B + panel * ldb;
        for (let a = A + i * lda; a < A + i * lda + k; a++, b += 8) {
          const x = F[a];
          c0 += x * F[b], c1 += x * F[b + 1], c2 += x * F[b + 2], c3 += x * F[b + 3];
          c4 += x * F[b + 4], c5 += x * F[b + 5], c6 += x * F[b + 6], c7 += x * F[b + 7];
        }
        F.set([c0, c1, c2, c3, c4, c5, c6, c7], C + i * ldc + 8 * panel);
      }
    }
  }

  // The same loops, with four rows of A at a time: for each panel of B, for each four rows, for each k.
  function assemble() {
    const unsigned = (x) => (x < 128 ? [x] : [(x & 127) | 128, ...unsigned(x >>> 7)]);
    const signed = (x) => (x >= -64 && x < 64 ? [x & 127] : [(x & 127) | 128, ...signed(x >> 7)]);
    const sized = (bytes) => [...unsigned(bytes.length), ...bytes];
    const section = (id, ...items) => [id, ...sized([items.length, ...items.flat()])];
    const names = ["A", "lda", "B", "ldb", "C", "ldc", "n", "k", "m", "a0", "a1", "a2", "a3", "b", "c", "rows", "left", "row"];
    const vectors = ["s00", "s01", "s10", "s11", "s20", "s21", "s30", "s31", "b0", "b1", "x"];
    const local = (name) => [...names, ...vectors].indexOf(name);
    const I32 = 0x7f, V128 = 0x7b, VOID = 0x40;
    const get = (name) => [0x20, local(name)], set = (name, ...value) => [...value.flat(), 0x21, local(name)];
    const number = (x) => [0x41, ...signed(x)];
    const add = (x, y) => [...x, ...y, 0x6a], subtract = (x, y) => [...x, ...y, 0x6b], shift = (x, by) => [...x, ...number(by), 0x74];
    const loop = (...body) => [0x03, VOID, ...body.flat(), 0x0b];
    const againIf = (x) => [...x, 0x0d, 0];
    const vector = (code, ...rest) => [0xfd, ...unsigned(code), ...rest];
    const load = (from, offset) => [...get(from), ...vector(0, 2, offset)], splat = (from) => [...get(from), ...vector(9, 2, 0)];
    const store = (to, offset, value) => [...get(to), ...get(value), ...vector(11, 2, offset)];
    const times = (x, y) => [...get(x), ...get(y), ...vector(0xe6)], plus = (x, y) => [...get(x), ...y, ...vector(0xe4)];
    const zero = vector(12, ...Array(16).fill(0));
    const four = [0, 1, 2, 3];

    const inner = loop(
      set("b0", load("b", 0)), set("b1", load("b", 16)),
      ...four.map((r) => [
        ...set("x", splat(`a${r}`)), ...set(`s${r}0`, plus(`s${r}0`, times("x", "b0"))), ...set(`s${r}1`, plus(`s${r}1`, times("x", "b1"))),
      ]),
      ...four.map((r) => set(`a${r}`, add(get(`a${r}`), number(4)))),
      set("b", add(get("b"), number(32))),
      set("left", subtract(get("left"), number(1))), againIf(get("left")),
    );
    const rows = loop(
      ...four.flatMap((r) => [set(`s${r}0`, zero), set(`s${r}1`, zero)]),
      set("a0", get("row")), ...[1, 2, 3].map((r) => set(`a${r}`, add(get(`a${r - 1}`), get("lda")))),
      set("b", get("B")), set("left", get("k")),
      inner,
      ...four.map((r) => [...store("c", 0, `s${r}0`), ...store("c", 16, `s${r}1`), ...set("c", add(get("c"), get("ldc")))]),
      set("row", add(get("row"), shift(get("lda"), 2))),
      set("rows", subtract(get("rows"), number(4))), againIf(get("rows")),
    );
    const panels = loop(
      set("c", get("C")), set("row", get("A")), set("rows", get("n")),
      rows,
      set("B", add(get("B"), get("ldb"))), set("C", add(get("C"), number(32))),
      set("m", subtract(get("m"), number(8))), againIf(get("m")),
    );
    const body = [2, names.length - 9, I32, vectors.length, V128, ...panels, 0x0b];
    return new Uint8Array([
      ...[0, 97, 115, 109, 1, 0, 0, 0],
      ...section(1, [0x60, 9, ...Array(9).fill(I32), 0]), // type: nine i32 to nothing
      ...section(2, [1, 109, 1, 109, 2, 1, ...unsigned(pages), ...unsigned(pages)]), // import m.m: the memory
      ...section(3, [0]),
      ...section(7, [...sized(Array.from("matmul", (c) => c.charCodeAt(0))), 0, 0]),
      ...section(10, sized(body)),
    ]);
  }
}

// ---- the model ---------------------------------------------------------------------------------------------------------------

// A two-layer attention-only transformer, positions added to what queries and keys read. `bytes`: its weights in half precision,
// W_E, then W_Q W_K W_V W_O of each layer, then W_U, all as [in, out]; `means`: what each head mixes on average [layer][head][d_head].
function playEngine({ config, means }, bytes, room = playMemory) {
  const { d_model: D, n_heads: H, d_head, d_vocab: V, n_ctx } = config;
  const W = H * d_head, N = Math.ceil(n_ctx / 8) * 8;
  let used = 0;
  const take = (numbers) => (used += Math.ceil(numbers / 4) * 4) - Math.ceil(numbers / 4) * 4; // a multiple of 16 bytes
  const W_E = take(V * D), layers = [0, 1].map(() => ({ Q: take(D * W), K: take(D * W), V: take(D * W), O: take(W * D) }));
  const panelsOut = Math.ceil(V / 8) * 8, W_U = take(D * panelsOut), meanU = take(D);
  const E = take(N * D), P = take(N * D), X = take(N * D), part = take(N * D), stream = take(N * D);
  const q0 = take(N * W), k0 = take(N * W), v0 = take(N * W), z0 = take(N * W), kept = take(N * W);
  const full = take(N * D), hidden = take(N * D); // what is there after layer 0: all of it, and without the heads that are off
  const copy = () => ({ Q: take(N * W), K: take(N * W), V: take(N * W), z: take(N * W), logits: take(N * panelsOut) });
  const intact = copy(), now = copy();
  const scores = take(N * N), keys = take(N * d_head), values = take(N * d_head);
  const { F, matmul, simd } = room(used);
  load();

  function load() {
    const half = new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 2);
    const table = new Float32Array(65536);
    for (let i = 0; i < 65536; i++) {
      const exponent = (i >> 10) & 31, fraction = i & 1023;
      table[i] = (i >> 15 ? -1 : 1) * (exponent ? (exponent === 31 ? NaN : 2 ** (exponent - 15) * (1 + fraction / 1024)) : 2 ** -24 * fraction);
    }
    let from = 0;
    for (let i = 0; i < V * D; i++) F[W_E + i] = table[half[from++]];
    const panels = (to, k, m) => {
      for (let row = 0; row < k; row++) for (let j = 0; j < m; j++) F[to + (j >> 3) * 8 * k + row * 8 + (j & 7)] = table[half[from++]];
    };
    for (const { Q, K, V: values, O } of layers) panels(Q, D, W), panels(K, D, W), panels(values, D, W), panels(O, W, D);
    panels(W_U, D, V);
    for (let row = 0; row < D; row++) {
      let sum = 0;
      for (let j = 0; j < V; j++) sum += F[W_U + (j >> 3) * 8 * D + row * 8 + (j & 7)];
      F[meanU + row] = sum / V;
      const rate = Math.exp((row % (D / 2)) * -2 * Math.log(10000) / D);
      for (let i = 0; i < n_ctx; i++) F[P + i * D + row] = row < D / 2 ? Math.sin(i * rate) : Math.cos(i * rate);
    }
  }

  // Rows from `first`, a multiple of 4, to n.
  const project = (A, k, B, C, m, n, first = 0) => matmul(A + first * k, k, B, 8 * k, C + first * m, m, n - first, k, m);
  const sum = (to, a, b, size) => {
    for (let i = 0; i < size; i++) F[to + i] = F[a + i] + F[b + i];
  };

  // All heads of a layer: patterns [head, destination, source], and z, which they mix. With `given` patterns only z. Rows before `start`
  // are there already: z in its place, patterns in `old`.
  function attend(Q, K, values_, z, n, given, start = 0, old = undefined) {
    const padded = Math.ceil(n / 4) * 4, wide = Math.ceil(n / 8) * 8, patterns = given ?? new Float32Array(H * n * n);
    const scale = 1 / Math.sqrt(d_head), block = 64;
    for (let h = 0; h < H; h++) {
      const mine = h * d_head;
      for (let j = 0; j < wide; j++) {
        for (let d = 0; d < d_head; d++) {
          F[keys + (j >> 3) * 8 * d_head + d * 8 + (j & 7)] = j < n ? F[K + j * W + mine + d] : 0;
          F[values + (d >> 3) * 8 * wide + j * 8 + (d & 7)] = j < n ? F[values_ + j * W + mine + d] : 0;
        }
      }
      for (let i = 0; i < start; i++) patterns.set(old.patterns.subarray((h * old.n + i) * old.n, (h * old.n + i) * old.n + i + 1), (h * n + i) * n);
      for (let first = start; first < padded; first += block) { // only the keys that a block of queries can see
        const rows = Math.min(block, padded - first), seen = Math.min(wide, Math.ceil((first + rows) / 8) * 8), S = scores + first * wide;
        if (!given) matmul(Q + first * W + mine, W, keys, 8 * d_head, S, wide, rows, d_head, seen);
        for (let i = first; i < first + rows; i++) {
          const row = scores + i * wide, out = (h * n + i) * n;
          if (i < n && !given) {
            let most = -Infinity, total = 0;
            for (let j = 0; j <= i; j++) most = Math.max(most, F[row + j]);
            for (let j = 0; j <= i; j++) total += patterns[out + j] = Math.exp((F[row + j] - most) * scale);
            for (let j = 0; j <= i; j++) patterns[out + j] /= total;
          }
          if (i < n) for (let j = 0; j <= i; j++) F[row + j] = patterns[out + j];
          F.fill(0, row + (i < n ? i + 1 : 0), row + seen);
        }
        matmul(S, wide, values, 8 * wide, z + first * W + mine, W, rows, seen, d_head);
      }
    }
    return patterns;
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
    for (let i = 0; i < found.length; i++) found[i] = old[i] ?? normalizer(logits, i) - F[logits + i * panelsOut + ids[i + 1]];
    return found;
  }

  function normalizer(logits, i) { // log of the sum of exponentials
    let most = -Infinity, total = 0;
    const row = logits + i * panelsOut;
    for (let t = 0; t < V; t++) if (F[row + t] > most) most = F[row + t];
    for (let t = 0; t < V; t++) total += Math.exp(F[row + t] - most);
    return most + Math.log(total);
  }

  let text = null; // what was computed of the intact model, for one text; and what `now` holds of layer 1, by what it was made from
  let held = {};

  // A token does not see those after it: what begins as the text before did is not computed again.
  function read(ids) {
    const n = ids.length, padded = Math.ceil(n / 4) * 4, old = text ?? { ids: [], n: 0 };
    const same = ids.findIndex((id, i) => id !== old.ids[i]), common = same < 0 ? n : same, first = Math.floor(common / 4) * 4;
    const earlier = (patterns) => ({ patterns, n: old.n });
    F.fill(0, E + first * D, E + padded * D);
    for (let i = first; i < n; i++) F.copyWithin(E + i * D, W_E + ids[i] * D, W_E + (ids[i] + 1) * D);
    text = { ids, n, padded };
    held = {};
    reads(layers[0], "Q", E, q0, first), reads(layers[0], "K", E, k0, first), reads(layers[0], "V", E, v0, first);
    text.patterns0 = attend(q0, k0, v0, z0, n, undefined, first, earlier(old.patterns0));
    text.lengths0 = lengths(v0, n);
    writes(0, z0, E, full, first);
    for (const side of "QKV") reads(layers[1], side, full, intact[side], first);
    text.patterns1 = attend(intact.Q, intact.K, intact.V, intact.z, n, undefined, first, earlier(old.patterns1));
    text.lengths1 = lengths(intact.V, n);
    writes(1, intact.z, full, stream, first);
    project(stream, D, W_U, intact.logits, panelsOut, padded, first);
    text.losses = losses(intact.logits, ids, old.losses?.subarray(0, Math.max(0, common - 1)));
  }

  function reads(layer, side, from, to, first = 0) {
    if (side !== "V") sum(X + first * D, from + first * D, P + first * D, (text.padded - first) * D);
    project(side === "V" ? from : X, D, layer[side], to, W, text.padded, first);
  }

  function writes(layer, z, onto, to, first = 0) {
    project(z, W, layers[layer].O, part, D, text.padded, first);
    sum(to + first * D, onto + first * D, part + first * D, (text.padded - first) * D);
  }

  // `edits`: off [[layer, head]], mean (a head that is off adds its mean), from ("" or a side: heads of layer 0 that are off are missing
  // there alone), cut (sides of layer 1 that read the embedding alone), frozen (patterns of the intact model).
  function run(ids, { off = [], mean = false, from = "", cut = "", frozen = false } = {}) {
    if (!text || ids.length !== text.n || ids.some((id, i) => id !== text.ids[i])) read(ids);
    const { n, padded } = text, offIn = (layer) => off.filter(([l]) => l === layer).map(([, h]) => h).sort((a, b) => a - b);
    const [off0, off1] = [offIn(0), offIn(1)], touched = off0.length > 0;
    const removal = `${off0}${mean}`;
    if (touched && held.hidden !== removal) {
      writes(0, without(off0, 0, z0, mean, n), E, hidden);
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
          reads(layers[1], side, made[side] === "embedding" ? E : hidden, now[side]);
          held[side] = made[side];
        }
      }
    }
    const looking = frozen || (made.Q === "all" && made.K === "all") ? "all" : `${made.Q}|${made.K}`, mixing = `${looking}|${made.V}`;
    let z = intact.z;
    if (mixing !== "all|all") {
      z = now.z;
      if (held.mixing !== mixing) {
        held.patterns = attend(at.Q, at.K, at.V, z, n, looking === "all" ? text.patterns1 : undefined);
        held.mixing = mixing;
      }
    }
    const patterns1 = looking === "all" ? text.patterns1 : held.patterns;
    const before = touched && !from ? hidden : full;
    const changed = mixing !== "all|all" || off1.length || before === hidden;
    if (changed) {
      writes(1, off1.length ? without(off1, 1, z, mean, n) : z, before, stream);
      project(stream, D, W_U, now.logits, panelsOut, padded);
    }
    text.last = { off0, off1, mean, from, z, logits: changed ? now.logits : intact.logits };
    return {
      n, patterns: [text.patterns0, patterns1], intactPatterns: text.patterns1,
      lengths: [text.lengths0, made.V === "all" ? text.lengths1 : lengths(at.V, n)], intactLengths: text.lengths1,
      losses: changed ? losses(now.logits, ids) : text.losses, intactLosses: text.losses,
    };
  }

  const rowOf = (logits, i) => F.slice(logits + i * panelsOut, logits + i * panelsOut + V);
  const allLogits = () => [text.last.logits, intact.logits].map((logits) => {
    const found = new Float32Array(text.n * V);
    for (let i = 0; i < text.n; i++) found.set(rowOf(logits, i), i * V);
    return found;
  });

  // What is predicted after a position, now and by the intact model, and what each part adds to the logit of `target` (by default the
  // token that comes next, at the end the best one), above the mean over the vocabulary, which softmax does not see.
  function look(i, target, k = 8) {
    const probabilities = [text.last.logits, intact.logits].map((logits) => {
      const lse = normalizer(logits, i);
      return rowOf(logits, i).map((x) => Math.exp(x - lse));
    });
    const best = (p) => Array.from(p.keys()).sort((a, b) => p[b] - p[a]);
    const order = best(probabilities[0]), wanted = i + 1 < text.n ? text.ids[i + 1] : order[0];
    const listed = [...new Set([...order.slice(0, k), ...best(probabilities[1]).slice(0, k), wanted, ...(target === undefined ? [] : [target])])];
    const rows = listed.map((id) => ({ id, rank: order.indexOf(id) + 1, now: probabilities[0][id], intact: probabilities[1][id] }));
    const chosen = target ?? wanted, up = new Float32Array(D);
    for (let d = 0; d < D; d++) up[d] = F[W_U + (chosen >> 3) * 8 * D + d * 8 + (chosen & 7)] - F[meanU + d];
    const { off0, off1, mean, from, z } = text.last;
    const adds = [[z0, from ? [] : off0], [z, off1]].map(([source, off], layer) =>
      Array.from({ length: H }, (_, h) => {
        let total = 0;
        for (let w = h * d_head; w < (h + 1) * d_head; w++) {
          const amount = !off.includes(h) ? F[source + i * W + w] : mean ? means[layer][h][w - h * d_head] : 0;
          let onward = 0;
          for (let d = 0; d < D; d++) onward += F[layers[layer].O + (d >> 3) * 8 * W + w * 8 + (d & 7)] * up[d];
          total += amount * onward;
        }
        return total;
      }));
    let direct = 0;
    for (let d = 0; d < D; d++) direct += F[E + i * D + d] * up[d];
    return { i, target: chosen, next: i + 1 < text.n ? wanted : null, rows: rows.sort((a, b) => a.rank - b.rank), adds, direct };
  }

  return { run, look, allLogits, simd, numbers: used };
}

// ---- what the worker does ----------------------------------------------------------------------------------------------------

// Answers messages { id, kind, ... } with { id, ... } or { id, error }: "load" with the script's data, then "run" and "look".
function playServer() {
  let tokenizer, engine, config, held; // `held`: the text and edits that the engine ran last

  function decoded(text) {
    const binary = atob(text), bytes = new Uint8Array(binary.length);
    for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
    return bytes;
  }
  function crc32(bytes) {
    const table = Uint32Array.from({ length: 256 }, (_, n) => {
      for (let k = 0; k < 8; k++) n = n & 1 ? (n >>> 1) ^ 0xedb88320 : n >>> 1;
      return n;
    });
    let crc = -1;
    for (let i = 0; i < bytes.length; i++) crc = table[(crc ^ bytes[i]) & 255] ^ (crc >>> 8);
    return (crc ^ -1) >>> 0;
  }

  const kinds = {
    load({ model }) {
      const bytes = decoded(model.weights);
      if (crc32(bytes) !== model.crc32) throw new Error("its checksum is wrong");
      ({ config } = model);
      tokenizer = playTokenizer(model.tokenizer);
      engine = playEngine(model, bytes);
      return { simd: engine.simd, bytes: 4 * engine.numbers };
    },
    run({ text, edits, logits }) {
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
  return (message) => {
    try {
      return { id: message.id, ...kinds[message.kind](message) };
    } catch (error) {
      return { id: message.id, error: error.message };
    }
  };
}
