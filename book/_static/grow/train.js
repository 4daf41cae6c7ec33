// The training of the page "Grow one" (book_build/pages/grow.py): rows of tokens, backward pass, optimizers, measures.
// It draws nothing: grow.js runs these functions in a worker, with those of forward.js.

// Numbers from 0 to 1 (mulberry32), and normal ones, always the same for a seed.
function growRandom(seed) {
  let state = seed >>> 0;
  const uniform = () => {
    let t = (state = (state + 0x6d2b79f5) | 0);
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  const normal = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
  return { uniform, normal, whole: (n) => Math.floor(n * uniform()) };
}

// Rows of random tokens, in which a segment of different tokens, found nowhere else, occurs twice. `repeats`: in "all"
// rows, in "half" of them, in "none", or always at the "same" distance of half a row. `target[row * n_ctx + i]`: the
// place after the first occurrence of the token at i, if it is in the second copy and not its last token; else -1.
function growRows({ rows, n_ctx, d_vocab, repeats }, random) {
  const ids = new Int32Array(rows * n_ctx), target = new Int32Array(rows * n_ctx).fill(-1),
    names = Array.from({ length: d_vocab }, (_, id) => id);
  for (let row = 0; row < rows; row++) {
    const length = 4 + random.whole(n_ctx / 2 - 4), distance = repeats === "same" ? n_ctx / 2 : length;
    const places = [0, 0].map(() => random.whole(n_ctx - length - distance + 1)), first = Math.min(...places);
    const second = repeats === "same" ? first + distance : Math.max(...places) + length;
    const twice = repeats !== "none" && (repeats !== "half" || random.uniform() < 0.5);
    for (let i = 0; i < length; i++) {
      const other = i + random.whole(d_vocab - i);
      [names[i], names[other]] = [names[other], names[i]];
    }
    for (let i = 0, t = row * n_ctx; i < n_ctx; i++, t++) {
      const copy = i >= first && i < first + length ? i - first : twice && i >= second && i < second + length ?
        i - second : -1;
      ids[t] = names[copy < 0 ? length + random.whole(d_vocab - length) : copy];
      if (i >= second && copy >= 0 && copy < length - 1) target[t] = first + copy + 1;
    }
  }
  return { ids, target };
}

// A model of one or two layers in training. `shape`: layers, heads, d_head, d_model, d_vocab, n_ctx, rows; `settings`:
// cut ("", "K" or "Q": what of the second layer reads embedding and position alone), positions, repeats, lr, seed. The
// settings cut, positions, repeats and lr, and `removed` (a set of heads: layer * heads + head), may change between
// steps.
function growTrainer(shape, settings) {
  const { layers: L, heads: H, d_head: d, d_model: D, d_vocab: V, n_ctx: N, rows } = shape, W = H * d, T = rows * N;
  const random = growRandom(settings.seed), removed = new Set();
  const WARMUP = 50, BETAS = [0.9, 0.95], MOMENTUM = 0.95, LIKE_ADAMW = 0.2, COEFFICIENTS = [3.4445, -4.775, 2.0315];

  const memory = {}, { take, used } = forwardPlaces();
  // All weights are [out, in] as torch stores them, but O is [heads * d_head, d_model]: so each head has d_head rows in
  // each of its four.
  const at = { E: take(V * D), U: take(V * D) };
  for (let l = 0; l < L; l++) for (const side of "QKVO") at[side + l] = take(W * D);
  const size = used(), grad = take(size), first = take(size), second = take(size);
  const pass = forwardPass(memory, take, { n_layers: L, n_heads: H, d_head: d, d_model: D, d_vocab: V, n_ctx: N,
    rows });
  const wide = () => take(T * Math.max(D, W)), X = Array.from({ length: L + 1 }, wide);
  const parts = Array.from({ length: L }, () => ({ Q: wide(), K: wide(), V: wide(), z: wide() })),
    A = parts.map(() => take(rows * H * N * N));
  const logits = take(T * V), dX = wide(), dStart = wide(), dz = wide(), dq = wide(), dk = wide(), dv = wide(),
    spare = wide();
  const scores = take(N * N), turned = take(T * Math.max(D, V, W)), panels = take(T * Math.max(D, V, W)),
    product = take(T * Math.max(D, V, W));
  const gram = take(d * d), factor = take(d * d), whole = take(d * d), square = take(d * d), heading = take(d * D);
  Object.assign(memory, forwardMemory(used()));
  const { F, matmul } = memory;

  /**
   * C[n, m] = A[n, k] B[k, m], added to C if asked for. An operand is its place, the numbers from row to row, and
   * whether it is stored
   * transposed. The kernel takes A by rows and B in panels of 8 columns.
   * @typedef {[place: number, row: number, transposed?: boolean]} Operand
   * @type {(C: number | Operand, A: Operand, B: Operand, n: number, k: number, m: number, add?: boolean) => void}
   */
  function multiply(C, [A, lda, flipA], [B, ldb, flipB], n, k, m, add = false) {
    if (flipA) {
      for (let row = 0; row < k; row++) for (let i = 0; i < n; i++) F[turned + i * k + row] = F[A + row * lda + i];
      A = turned, lda = k;
    }
    pass.pack(panels, F, B, k, m, ...(flipB ? [1, ldb] : [ldb, 1]));
    const [place, ldc] = Array.isArray(C) ? C : [C, m];
    matmul(A, lda, panels, 8 * k, add ? product : place, add ? m : ldc, n, k, m);
    if (add) for (let i = 0; i < n; i++) for (let j = 0; j < m; j++) F[place + i * ldc + j] += F[product + i * m + j];
  }

  const scale = { E: 0.3, U: 0.02, Q: 0.5 / Math.sqrt(D), K: 0.5 / Math.sqrt(D), V: 0.5 / Math.sqrt(D),
    O: 0.3 / Math.sqrt(W) };
  for (const [name, place] of Object.entries(at)) {
    for (let i = 0; i < (name.length === 1 ? V : W) * D; i++) F[place + i] = scale[name[0]] * random.normal();
  }

  const cut = (l, side) => l === 1 && settings.cut === side;

  // Where the three sides of a layer read: the stream, or, where they are cut off, the embedding.
  const reads = (l) => Object.fromEntries(Array.from("QKV", (side) => [side, X[cut(l, side) ? 0 : l]]));

  function withoutRemoved(z, l) {
    for (const head of removed) if (Math.floor(head / H) === l) for (let t = 0; t < T;
    t++) F.fill(0, z + t * W + (head % H) * d, z + t * W + (head % H) * d + d);
  }

  // The mean loss over all tokens but the first of each row; then `logits` has the probabilities.
  function forward(ids) {
    pass.place(settings.positions);
    pass.layers.forEach((layer, l) => {
      for (const side of "QKV") pass.pack(layer[side], F, at[side + l], D, W, 1, D);
      pass.pack(layer.O, F, at["O" + l], W, D, D, 1);
    });
    pass.pack(pass.U, F, at.U, D, V, 1, D);
    for (let t = 0; t < T; t++) F.copyWithin(X[0] + t * D, at.E + ids[t] * D, at.E + (ids[t] + 1) * D);
    for (let l = 0; l < L; l++) {
      pass.layer(l, reads(l), parts[l], X[l], X[l + 1], N,
        { patterns: F, at: A[l], edit: (z) => withoutRemoved(z, l) });
    }
    pass.unembed(X[L], logits, T);
    let loss = 0;
    for (let t = 0; t < T; t++) {
      pass.softmax(logits + t * V, V, 1, F, logits + t * V);
      if ((t + 1) % N) loss -= Math.log(F[logits + t * V + ids[t + 1]] + 1e-30);
    }
    return loss / (rows * (N - 1));
  }

  // Gradients of that loss, in `grad`, in the order of the weights.
  function backward(ids) {
    const of = (name) => at[name] + grad, counted = rows * (N - 1);
    for (let t = 0; t < T; t++) {
      const last = (t + 1) % N === 0;
      for (let id = 0; id < V; id++) F[logits + t * V + id] = last ? 0 :
        (F[logits + t * V + id] - Number(id === ids[t + 1])) / counted;
    }
    multiply(of("U"), [logits, V, true], [X[L], D], V, T, D);
    multiply(dX, [logits, V], [at.U, D], T, V, D);
    F.fill(0, dStart, dStart + T * D); // what reaches the embedding past the stream: through sides that are cut off
    for (let l = L - 1; l >= 0; l--) {
      const { Q, K, V: v, z } = parts[l], read = (side) => /** @type {Operand} */ ([pass.placed(reads(l)[side], T), D]);
      multiply(dz, [dX, D], [at["O" + l], D, true], T, D, W);
      withoutRemoved(dz, l);
      multiply(of("O" + l), [z, W, true], [dX, D], W, T, D);
      for (let b = 0; b < rows; b++) for (let h = 0; h < H; h++) {
        const here = b * N * W + h * d, pattern = A[l] + (b * H + h) * N * N;
        multiply(scores, [dz + here, W], [v + here, W, true], N, d, N);
        multiply([dv + here, W], [pattern, N, true], [dz + here, W], N, N, d);
        for (let i = 0; i < N; i++) {
          let mean = 0;
          for (let j = 0; j <= i; j++) mean += F[pattern + i * N + j] * F[scores + i * N + j];
          for (let j = 0; j < N; j++) F[scores + i * N + j] =
            (F[pattern + i * N + j] * (F[scores + i * N + j] - mean)) / Math.sqrt(d);
        }
        multiply([dq + here, W], [scores, N], [K + here, W], N, N, d);
        multiply([dk + here, W], [scores, N, true], [Q + here, W], N, N, d);
      }
      multiply(of("Q" + l), [dq, W, true], read("Q"), W, T, D);
      multiply(of("K" + l), [dk, W, true], read("K"), W, T, D);
      multiply(of("V" + l), [dv, W, true], [X[l], D], W, T, D);
      multiply(cut(l, "Q") ? dStart : dX, [dq, W], [at["Q" + l], D], T, W, D, true);
      multiply(cut(l, "K") ? dStart : dX, [dk, W], [at["K" + l], D], T, W, D, true);
      multiply(dX, [dv, W], [at["V" + l], D], T, W, D, true);
    }
    F.fill(0, of("E"), of("E") + V * D);
    for (let t = 0; t < T; t++) for (let c = 0; c < D; c++) F[of("E") + ids[t] * D + c] += F[dX + t * D + c] +
      F[dStart + t * D + c];
  }

  let steps = 0;

  function update() {
    steps++;
    const lr = settings.lr * Math.min(1, steps / WARMUP), [b1, b2] = BETAS;
    for (let i = 0; i < 2 * V * D; i++) {
      const g = F[grad + i];
      F[first + i] += (1 - b1) * (g - F[first + i]), F[second + i] += (1 - b2) * (g * g - F[second + i]);
      F[i] -= (lr * F[first + i]) / (1 - b1 ** steps) / (Math.sqrt(F[second + i] / (1 - b2 ** steps)) + 1e-8);
    }
    // each head's part of Q, K, V or O: [d_head, d_model]
    for (let matrix = 2 * V * D; matrix < size; matrix += d * D) {
      let square2 = 0;
      for (let i = 0; i < d * D; i++) {
        const g = F[grad + matrix + i],
          average = (F[first + matrix + i] += (1 - MOMENTUM) * (g - F[first + matrix + i]));
        square2 += (F[heading + i] = g + MOMENTUM * (average - g)) ** 2;
      }
      const norm = Math.max(Math.sqrt(square2), 1e-7);
      for (let i = 0; i < d * D; i++) F[heading + i] /= norm;
      orthogonalize();
      multiply(spare, [whole, d], [heading, D], d, d, D);
      for (let i = 0; i < d * D; i++) F[matrix + i] -= lr * LIKE_ADAMW * Math.sqrt(Math.max(d, D)) * F[spare + i];
    }
  }

  // The product of five Newton-Schulz factors in `whole`, from the Gram matrix of `heading`.
  function orthogonalize() {
    const [a, b, c] = COEFFICIENTS, square_ = (place) => /** @type {Operand} */ ([place, d]);
    multiply(gram, [heading, D], [heading, D, true], d, D, d);
    for (let i = 0; i < d * d; i++) F[whole + i] = i % (d + 1) ? 0 : 1;
    for (let round = 0; round < 5; round++) {
      multiply(square, square_(gram), square_(gram), d, d, d);
      for (let i = 0; i < d * d; i++) F[factor + i] = (i % (d + 1) ? 0 : a) + b * F[gram + i] + c * F[square + i];
      multiply(square, square_(factor), square_(whole), d, d, d);
      F.copyWithin(whole, square, square + d * d);
      multiply(square, square_(factor), square_(gram), d, d, d);
      multiply(gram, square_(square), square_(factor), d, d, d);
    }
  }

  function step() {
    const { ids, target } = growRows({ ...shape, repeats: settings.repeats }, random), loss = forward(ids),
      right = firstGuesses(ids, target);
    backward(ids);
    update();
    return { step: steps, loss, right };
  }

  const guess = (t) => {
    let best = 0;
    for (let id = 1; id < V; id++) if (F[logits + t * V + id] > F[logits + t * V + best]) best = id;
    return best;
  };

  // How often the first guess is right in second copies, of the rows that ran last; NaN if there are none.
  function firstGuesses(ids, target) {
    let right = 0, all = 0;
    target.forEach((place, t) => place >= 0 && (all++, (right += Number(guess(t) === ids[t + 1]))));
    return right / all;
  }

  // Mean attention of each head to the previous token, and from second copies to the token that followed last time.
  function scoresOf(target) {
    return Array.from({ length: L * H }, (_, head) => {
      let previous = 0, induction = 0, all = 0;
      const patterns = A[Math.floor(head / H)];
      for (let t = 0; t < T; t++) {
        const i = t % N, row = patterns + ((Math.floor(t / N) * H + (head % H)) * N + i) * N;
        if (i > 1) previous += F[row + i - 1];
        if (target[t] >= 0) all++, (induction += F[row + target[t]]);
      }
      return { previous: previous / (rows * (N - 2)), induction: induction / all };
    });
  }

  // How strongly the keys, queries or values of second-layer heads read what first-layer heads write, 1 by chance: |A
  // B| sqrt(D) / (|A| |B|) for circuits A and B. [reader, writer]
  function composition(side) {
    if (L < 2) return [];
    const other = { K: "Q", Q: "K", V: "O" }[side], part = (name, h) => at[name] + h * d * D;
    const norm = (a, b) => { // of the circuit [d_model, d_model] that two parts of a head make up
      multiply(spare, [a, D, true], [b, D], D, d, D);
      return Math.sqrt(F.subarray(spare, spare + D * D).reduce((total, x) => total + x * x, 0));
    };
    return Array.from({ length: H * H }, (_, pair) => {
      const [r, s] = [side, other].map((name) => part(name + 1, Math.floor(pair / H))),
        [w, o] = ["V0", "O0"].map((name) => part(name, pair % H));
      multiply(gram, [o, D], [r, D, true], d, D, d);
      multiply(heading, [gram, d], [s, D], d, d, D);
      return (norm(w, heading) * Math.sqrt(D)) / (norm(w, o) * norm(r, s));
    });
  }

  // What is shown: scores and first guesses on rows that are always the same, and patterns and guesses of the first of
  // them.
  const test = growRows({ ...shape, repeats: "all" }, growRandom(12345));
  function look(side = "K") {
    forward(test.ids);
    const patterns = A.map((place) => F.slice(place, place + H * N * N)), places = Array.from({ length: N }, (_, i) =>
      i);
    const chance = places.map((i) => (i + 1 < N ? F[logits + i * V + test.ids[i + 1]] : NaN));
    return { step: steps, right: firstGuesses(test.ids, test.target), scores: scoresOf(test.target),
      composition: composition(side), patterns,
      ids: [...test.ids.slice(0, N)], target: [...test.target.slice(0, N)], guesses: places.map(guess), chance,
        removed: [...removed] };
  }

  // For tests: weights by name, in place, and the gradients of one batch.
  const weights = (from = 0) => Object.fromEntries(Object.entries(at).map(([name, place]) =>
    [name, F.subarray(from + place, from + place + (name.length === 1 ? V : W) * D)]));
  return { step, look, removed, settings, weights, gradients: () => weights(grad), forward, backward, update };
}

// Answers questions. Runs are known by name, and `advance` trains each that is named.
function growServer() {
  const runs = {};
  const kinds = {
    start({ name, shape, settings }) {
      runs[name] = growTrainer(shape, settings);
      return { look: runs[name].look() };
    },
    // Settings that may change in the middle, and the heads that are removed from here on.
    change({ name, settings, removed, side }) {
      const run = runs[name];
      Object.assign(run.settings, settings);
      run.removed.clear();
      removed.forEach((head) => run.removed.add(head));
      return { look: run.look(side) };
    },
    advance({ names, steps, side }) {
      const began = performance.now(), history = Object.fromEntries(names.map((name) =>
          [name, Array.from({ length: steps }, () => runs[name].step())]));
      return { history, looks: Object.fromEntries(names.map((name) => [name, runs[name].look(side)])),
        milliseconds: performance.now() - began };
    },
    // Composition ratios, loss and gradients for weights and a batch that a test gives, and the weights after one
    // update.
    check({ shape, settings, weights, ids, removed = [] }) {
      const run = growTrainer(shape, settings), copied = (found) =>
        Object.fromEntries(Object.entries(found).map(([name, x]) => [name, [...x]]));
      removed.forEach((head) => run.removed.add(head));
      for (const [name, to] of Object.entries(run.weights())) to.set(weights[name]);
      const composition = Array.from("QKV", (side) => run.look(side).composition), loss = run.forward(ids);
      run.backward(ids);
      const gradients = copied(run.gradients());
      run.update();
      return { loss, composition, gradients, weights: copied(run.weights()) };
    },
  };
  return kinds;
}
