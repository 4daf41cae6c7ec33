// What the stage and the page "Grow one" share to compute with: products of matrices, and the forward pass of an
// attention-only transformer. Workers run these functions from their own source text, so that none may use what is
// outside it but the others.

// ---- products of matrices -------------------------------------------------------------------------------------------
// C[n, m] = A[n, k] B[k, m], in a memory of single-precision numbers. n is a multiple of 4, m of 8; B lies in panels of
// 8 columns, [panel][k][8]; `lda`, `ldb`, `ldc`: numbers from row to row of A, panel to panel of B, row to row of C.
// All other arguments are places in memory. In WebAssembly with SIMD, assembled here from its instructions: 4 to 8
// times as fast as plain loops.
function forwardMemory(numbers) {
  if (!globalThis.WebAssembly) throw new Error("this browser has no WebAssembly");
  const pages = Math.ceil(numbers / 16384), memory = new WebAssembly.Memory({ initial: pages, maximum: pages });
  const instance = new WebAssembly.Instance(new WebAssembly.Module(assemble()), { m: { m: memory } });
  const { matmul } = /** @type {any} */ (instance.exports), bytes = (...all) => all.map((x) => 4 * x);
  return {
    F: new Float32Array(memory.buffer),
    matmul: (A, lda, B, ldb, C, ldc, n, k, m) => n && k && m && matmul(...bytes(A, lda, B, ldb, C, ldc), n, k, m),
  };

  // For each panel of B, for each four rows of A, for each k. An instruction is a list of bytes, after its operands.
  function assemble() {
    const unsigned = (x) => (x < 128 ? [x] : [(x & 127) | 128, ...unsigned(x >>> 7)]); // LEB128: seven bits a byte
    const signed = (x) => (x >= -64 && x < 64 ? [x & 127] : [(x & 127) | 128, ...signed(x >> 7)]); // the same, signed
    const sized = (bytes) => [...unsigned(bytes.length), ...bytes]; // bytes, after their number
    const section = (id, ...items) => [id, ...sized([items.length, ...items.flat()])]; // a part of a module
    const names = "A lda B ldb C ldc n k m a0 a1 a2 a3 b c rows left row".split(" "); // nine parameters, nine integers
    const vectors = "s00 s01 s10 s11 s20 s21 s30 s31 b0 b1 x".split(" "); // of four numbers: sums, two of B, one of A
    const I32 = 0x7f, V128 = 0x7b, VOID = 0x40; // types: integer, vector, none
    const local = (name) => [...names, ...vectors].indexOf(name);
    const get = (name) => [0x20, local(name)]; // local.get
    const set = (name, ...value) => [...value.flat(), 0x21, local(name)]; // local.set
    const number = (x) => [0x41, ...signed(x)]; // i32.const
    const add = (x, y) => [...x, ...y, 0x6a], subtract = (x, y) => [...x, ...y, 0x6b]; // i32.add, i32.sub
    const shift = (x, by) => [...x, ...number(by), 0x74]; // i32.shl
    const loop = (...body) => [0x03, VOID, ...body.flat(), 0x0b]; // loop … end
    const againIf = (x) => [...x, 0x0d, 0]; // br_if: to the beginning of the loop, unless x is 0
    const vector = (code, ...rest) => [0xfd, ...unsigned(code), ...rest]; // an instruction of SIMD
    const load = (from, offset) => [...get(from), ...vector(0, 2, offset)]; // v128.load: four numbers
    const splat = (from) => [...get(from), ...vector(9, 2, 0)]; // v128.load32_splat: one number, four times
    const store = (to, offset, value) => [...get(to), ...get(value), ...vector(11, 2, offset)]; // v128.store
    const times = (x, y) => [...get(x), ...get(y), ...vector(0xe6)]; // f32x4.mul
    const plus = (x, y) => [...get(x), ...y, ...vector(0xe4)]; // f32x4.add
    const zero = vector(12, ...Array(16).fill(0)), four = [0, 1, 2, 3]; // v128.const; the rows of A
    const step = (r, half) => set(`s${r}${half}`, plus(`s${r}${half}`, times("x", `b${half}`)));

    // for each k: eight numbers of B, times one of each row of A, added to the sums
    const ldc = get("ldc"), inner = loop(
      set("b0", load("b", 0)), set("b1", load("b", 16)), // a row of the panel, in two vectors
      ...four.map((r) => [...set("x", splat(`a${r}`)), ...step(r, 0), ...step(r, 1)]), // sums of row r
      ...four.map((r) => set(`a${r}`, add(get(`a${r}`), number(4)))), // the next number in each row of A
      set("b", add(get("b"), number(32))), // the next row of the panel
      set("left", subtract(get("left"), number(1))), againIf(get("left")),
    );
    const writes = (r) => [...store("c", 0, `s${r}0`), ...store("c", 16, `s${r}1`), ...set("c", add(get("c"), ldc))];
    const rows = loop( // for each four rows of A
      ...four.flatMap((r) => [set(`s${r}0`, zero), set(`s${r}1`, zero)]), // sums from zero
      set("a0", get("row")), ...[1, 2, 3].map((r) => set(`a${r}`, add(get(`a${r - 1}`), get("lda")))), // their places
      set("b", get("B")), set("left", get("k")), // the panel from its beginning
      inner,
      ...four.map(writes), // the sums into C, row by row
      set("row", add(get("row"), shift(get("lda"), 2))), // four rows on
      set("rows", subtract(get("rows"), number(4))), againIf(get("rows")),
    );
    const panels = loop( // for each panel of B
      set("c", get("C")), set("row", get("A")), set("rows", get("n")), // all rows, into these columns of C
      rows,
      set("B", add(get("B"), get("ldb"))), set("C", add(get("C"), number(32))), // the next panel, eight columns on
      set("m", subtract(get("m"), number(8))), againIf(get("m")),
    );
    const body = [2, names.length - 9, I32, vectors.length, V128, ...panels, 0x0b]; // locals; the code; end
    return new Uint8Array([
      ...[0, 97, 115, 109, 1, 0, 0, 0], // "\0asm", version 1
      ...section(1, [0x60, 9, ...Array(9).fill(I32), 0]), // type 0: nine integers to nothing
      ...section(2, [1, 109, 1, 109, 2, 1, ...unsigned(pages), ...unsigned(pages)]), // import m.m: the memory
      ...section(3, [0]), // one function, of type 0
      ...section(7, [...sized(Array.from("matmul", (c) => c.charCodeAt(0))), 0, 0]), // export it as matmul
      ...section(10, sized(body)), // its code
    ]);
  }
}

// ---- the forward pass -----------------------------------------------------------------------------------------------
// Places of numbers in a memory that is made when all are taken: multiples of 16 bytes.
function forwardPlaces() {
  let used = 0;
  return { take: (numbers) => (used += Math.ceil(numbers / 4) * 4) - Math.ceil(numbers / 4) * 4, used: () => used };
}

// A model with positions added to what queries and keys read, for `rows` texts at once. `memory` may be filled in after
// this call. Matrices are [in, out], in panels: `layers[l].Q` is W_Q of all heads next to one another.
function forwardPass(memory, take, { n_layers, n_heads: H, d_head, d_model: D, d_vocab: V, n_ctx, rows = 1 }) {
  const W = H * d_head, N = 8 * Math.ceil(n_ctx / 8), V8 = 8 * Math.ceil(V / 8);
  const layers = Array.from({ length: n_layers }, () =>
    ({ Q: take(D * W), K: take(D * W), V: take(D * W), O: take(W * D) }));
  const U = take(D * V8), P = take(N * D), X = take(rows * N * D), added = take(rows * N * D);
  const scores = take(N * N), keys = take(N * d_head), values = take(N * d_head);

  // Write a matrix [k, m] as panels; it is at `from` of an array, `row` numbers from row to row and `column` from
  // column to column.
  function pack(to, array, from, k, m, row, column) {
    const { F } = memory;
    for (let j = 0; j < m; j++) {
      for (let i = 0, at = to + (j >> 3) * 8 * k + (j & 7), source = from + j * column; i < k;
      i++, at += 8, source += row) F[at] = array[source];
    }
  }

  // Sinusoidal positions, or none.
  function place(on = true) {
    for (let c = 0; c < D; c++) {
      const rate = Math.exp(((c % (D / 2)) * -2 * Math.log(10000)) / D), wave = c < D / 2 ? Math.sin : Math.cos;
      for (let i = 0; i < N; i++) memory.F[P + i * D + c] = on ? wave(i * rate) : 0;
    }
  }

  const project = (A, k, B, C, m, n) => memory.matmul(A, k, B, 8 * k, C, m, n, k, m);

  // A stream with positions, in a place that the next call fills again.
  function placed(from, n) {
    const { F } = memory;
    for (let t = 0; t < n; t++) for (let c = 0; c < D; c++) F[X + t * D + c] = F[from + t * D + c] +
      F[P + (t % N) * D + c];
    return X;
  }

  // Queries, keys or values of a layer.
  const read = (l, side, from, to, n) => project(side === "V" ? from : placed(from, n), D, layers[l][side], to, W, n);

  // The stream `onto`, with what a layer's heads write: z by W_O.
  function write(l, z, onto, to, n) {
    const { F } = memory;
    project(z, W, layers[l].O, added, D, n);
    for (let i = 0; i < n * D; i++) F[to + i] = F[onto + i] + F[added + i];
  }

  const unembed = (from, to, n) => project(from, D, U, to, V8, n);

  // All heads of a layer in one text of n tokens: patterns [head, destination, source] at `at` of the array `patterns`,
  // and z, which they mix. `given`: the patterns are there.
  function attend({ Q = 0, K = 0, V = 0, z }, n, { patterns, at = 0, given = false }) {
    const { F, matmul } = memory, padded = Math.ceil(n / 4) * 4, wide = Math.ceil(n / 8) * 8;
    const scale = 1 / Math.sqrt(d_head), block = 64;
    for (let h = 0; h < H; h++) {
      const mine = h * d_head, pattern = at + h * n * n;
      for (let j = 0; j < wide; j++) for (let d = 0; d < d_head; d++) {
        F[keys + (j >> 3) * 8 * d_head + d * 8 + (j & 7)] = j < n ? F[K + j * W + mine + d] : 0;
        F[values + (d >> 3) * 8 * wide + j * 8 + (d & 7)] = j < n ? F[V + j * W + mine + d] : 0;
      }
      for (let first = 0; first < padded; first += block) { // only the keys that a block of queries can see
        const rows = Math.min(block, padded - first), seen = Math.min(wide, Math.ceil((first + rows) / 8) * 8),
          S = scores + first * wide;
        if (!given) matmul(Q + first * W + mine, W, keys, 8 * d_head, S, wide, rows, d_head, seen);
        for (let i = first; i < first + rows; i++) {
          const row = scores + i * wide, out = pattern + i * n;
          if (i < n && !given) softmax(row, i + 1, scale, patterns, out);
          if (i < n) for (let j = 0; j <= i; j++) F[row + j] = patterns[out + j];
          F.fill(0, row + (i < n ? i + 1 : 0), row + seen);
        }
        matmul(S, wide, values, 8 * wide, z + first * W + mine, W, rows, seen, d_head);
      }
    }
  }

  // The n numbers at `from`, times `scale`, as probabilities at `to` of an array.
  function softmax(from, n, scale, array, to) {
    const { F } = memory;
    let most = -Infinity, total = 0;
    for (let j = 0; j < n; j++) if (F[from + j] > most) most = F[from + j];
    for (let j = 0; j < n; j++) total += array[to + j] = Math.exp((F[from + j] - most) * scale);
    for (let j = 0; j < n; j++) array[to + j] /= total;
  }

  // A whole layer. `from`: where its three sides read; `part`: where q, k, v and z go; `onto`, `to`: the stream before
  // and after. `n`: tokens of a text. `edit`: a change of z before it is written.
  function layer(l, from, part, onto, to, n, { patterns, at = 0, edit = undefined }) {
    const all = rows === 1 ? Math.ceil(n / 4) * 4 : rows * n, mine = Object.entries(part);
    for (const side of "QKV") read(l, side, from[side], part[side], all);
    for (let row = 0; row < rows; row++) {
      const text = /** @type {any} */ (Object.fromEntries(mine.map(([name, place]) => [name, place + row * n * W])));
      attend(text, n, { patterns, at: at + row * H * n * n });
    }
    edit?.(part.z);
    write(l, part.z, onto, to, all);
  }

  return { layers, U, P, V8, pack, place, placed, project, read, write, unembed, attend, softmax, layer };
}
