// SPDX-License-Identifier: Apache-2.0
// Products of keys and blocks of query rows: kernels/logits.hpp says what they promise.

/// How floats are multiplied. A number of a key has `bytes`.
struct float_products {
  static constexpr int bytes = 4;
  KVPOLICY_OP static floats add(floats sums, floats key, floats rows) { return mul_add(key, rows, sums); }
};

/// A float, or a pair of bf16, at any address.
KVPOLICY_OP float load_word(std::byte const* from) {
  float made;
  std::memcpy(&made, from, sizeof made);
  return made;
}

/// Multiplies `Step` keys and `Part` vectors of rows at once, so that their sums stay in registers. The products of the
/// first `num_stored` keys are stored. A key has `words` floats or pairs.
template <class Product, int Rows, int Step, int Part>
KVPOLICY_OP void multiply(void const* const* keys, int num_stored, int words, float const* packed, float scale,
                          step_prefetcher<Step>& next, float* out) {
  std::byte const* key[static_cast<std::size_t>(Step)];
  for (int k = 0; k < Step; ++k) key[k] = static_cast<std::byte const*>(keys[k]);
  floats sums[static_cast<std::size_t>(Step * Part)];
  unrolled<Step * Part>([&](auto i) KVPOLICY_INLINED { sums[i] = floats{}; });
  for (int begin = 0; begin < words; begin += floats_of_a_line) {
    next.next();
    int const end = begin + floats_of_a_line < words ? begin + floats_of_a_line : words;
    for (std::ptrdiff_t d = begin; d < end; ++d) {
      floats rows[static_cast<std::size_t>(Part)];
      unrolled<Part>([&](auto p) KVPOLICY_INLINED { rows[p] = load(packed + d * Rows + p * width); });
      unrolled<Step * Part>([&](auto i) KVPOLICY_INLINED {
        sums[i] = Product::add(sums[i], splat(load_word(key[i / Part] + 4 * d)), rows[i % Part]);
      });
    }
  }
  floats const factor = splat(scale);
  unrolled<Step * Part>([&](auto i) KVPOLICY_INLINED {
    if (i / Part < num_stored) store(sums[i] * factor, out + i / Part * Rows + i % Part * width);
  });
}

/// Multiplies twelve keys that are adjacent in memory, and returns true; returns false if they are not. Four pointers
/// and a distance address all keys, which leaves registers for the addresses of prefetches. So these need no branch,
/// and are spread between the products.
template <class Product, int Rows>
KVPOLICY_OP bool multiply_adjacent(void const* const* keys, std::ptrdiff_t bytes, float const* packed, float scale,
                                   float* out) {
  constexpr int part = Rows / width;
  auto const at = [&](int k) KVPOLICY_INLINED { return static_cast<std::byte const*>(keys[k]); };
  std::intptr_t gaps = 0;
  for (int k = 1; k < 12; ++k)
    gaps |= std::bit_cast<std::intptr_t>(at(k)) - std::bit_cast<std::intptr_t>(at(k - 1)) - bytes;
  if (gaps != 0) return false;
  std::byte const *key[4] = {at(0), at(3), at(6), at(9)}, *next = at(12), *after = at(24);
  std::ptrdiff_t const advance = at(12) == at(13) ? 0 : 64;  // 0: no key follows
  float const* line = out;
  floats sums[static_cast<std::size_t>(12 * part)];
  unrolled<12 * part>([&](auto i) KVPOLICY_INLINED { sums[i] = floats{}; });
  for (std::ptrdiff_t left = bytes / 4; left > 0; left -= 4, packed += 4 * Rows) {
    unrolled<4>([&](auto d) KVPOLICY_INLINED {
      if (d >= left) return;
      if (d < 3) {
        prefetch_here<3>(next), prefetch_here(after);
        next += advance, after += advance;
      } else {
        __builtin_prefetch(line, 1);
        line += floats_of_a_line;
      }
      floats rows[static_cast<std::size_t>(part)];
      unrolled<part>([&](auto p) KVPOLICY_INLINED { rows[p] = load(packed + d * Rows + p * width); });
      unrolled<12 * part>([&](auto i) KVPOLICY_INLINED {
        float const number = load_word(key[i / part / 3] + i / part % 3 * bytes + 4 * d);
        sums[i] = Product::add(sums[i], splat(number), rows[i % part]);
      });
    });
    unrolled<4>([&](auto k) KVPOLICY_INLINED {
      key[k] += 16;
      __asm__("" : "+r"(key[k]));  // g++ else adds to a vector of them, in memory
    });
  }
  unrolled<12 * part>([&](auto i) KVPOLICY_INLINED { store(sums[i] * splat(scale), out + i * width); });
  return true;
}

template <class Product, int Rows, int Step, int Part>
inline void multiply_interleaved(void const* const* keys, int count, int dims, void const* packed, float scale,
                                 float* out) {
  int const words = dims * Product::bytes / 4;
  for (int k = 0; k < count; k += Step) {
    int const num_stored = Step < count - k ? Step : count - k;
    float* const to = out + std::ptrdiff_t{k} * Rows;
    if constexpr (width == 16 && Step == 12 &&
                  Product::bytes == 4) {  // adjacent keys need fewer registers for addresses
      auto const* const rows = static_cast<float const*>(packed);
      if (num_stored == Step && multiply_adjacent<Product, Rows>(keys + k, 4 * words, rows, scale, to)) continue;
    }
    step_prefetcher<Step> next(keys + k, 4 * words, to, num_stored * Rows);
    for (int c = 0; c < Rows; c += Part * width) {
      multiply<Product, Rows, Step, Part>(keys + k, num_stored, words, static_cast<float const*>(packed) + c, scale,
                                          next, to + c);
    }
  }
}

// The sums of a step fill the registers: of 32 rows 24 of 32 registers with AVX-512, and 12 of 16 with AVX2.
constexpr int keys_of_a_step = width == 16 ? 12 : width == 8 ? 6 : 4;
template <int Rows>
constexpr int vectors_of_a_step = Rows == width ? 1 : 2;
template <class Product, int Rows>
constexpr auto interleaved_of = multiply_interleaved<Product, Rows, keys_of_a_step, vectors_of_a_step<Rows>>;

/// Multiplies few rows, and keys that are converted as they are read. The sums of a step's keys, the keys and a row are
/// in registers. Floats after the last whole vector are multiplied one by one.
template <codec Element>
inline void multiply_rows(void const* const* keys, int count, int dims, void const* packed, float scale, float* out) {
  auto const* const rows = static_cast<float const*>(packed);
  constexpr int step = width == 16 ? 4 : width == 8 ? 3 : 1;
  constexpr int bytes = bytes_of(Element);
  for (int k = 0; k < count; k += step) {
    std::byte const* key[step];
    for (int i = 0; i < step; ++i) key[i] = static_cast<std::byte const*>(keys[k + i]);
    floats sums[step * few_rows];
    unrolled<step * few_rows>([&](auto i) KVPOLICY_INLINED { sums[i] = floats{}; });
    tile_prefetcher next{keys + k + keys_of_a_tile, bytes * dims};
    std::ptrdiff_t d = 0;
    for (; d + width <= dims; d += width) {
      if (d * bytes % 64 == 0) unrolled<step>([&](auto) KVPOLICY_INLINED { next.next(); });  // a line of each key
      floats some[step];
      unrolled<step>([&](auto i)
                         KVPOLICY_INLINED { some[i] = load_elements<Element>(vector_tag{}, key[i] + d * bytes); });
      unrolled<few_rows>([&](auto r) KVPOLICY_INLINED {
        floats const row = load(rows + r * dims + d);
        unrolled<step>([&](auto i)
                           KVPOLICY_INLINED { sums[r * step + i] = mul_add(some[i], row, sums[r * step + i]); });
      });
    }
    unrolled<step>([&](auto i) KVPOLICY_INLINED {
      if (k + i >= count) return;
      float* const to = out + (k + i) * few_rows;
      if (d == dims) {
        four const made = reduce_add_each(sums[i], sums[step + i], sums[2 * step + i], sums[3 * step + i]);
        return store_raw(made.raw * scale, to);
      }
      unrolled<few_rows>([&](auto r) KVPOLICY_INLINED {
        float made = reduce_add(sums[r * step + i]);
        for (std::ptrdiff_t e = d; e < dims; ++e) made = mul_add(load_word(key[i] + 4 * e), rows[r * dims + e], made);
        to[r] = made * scale;
      });
    });
  }
}

/// Multiplies few rows: a vector has four numbers of each row, and is multiplied by the same four numbers of a key.
/// With two `Parts`, rows are sums of two numbers. Up to three keys after the last one are written, too. `Floats` is
/// `floats`.
template <class Product, int Parts, int Step, class Floats>
inline void multiply_four_dims(void const* const* keys, int count, int dims, void const* packed, float scale,
                               float* out) {
  static_assert(keys_of_a_tile % Step == 0 && Step % 4 == 0);
  int const bytes = Product::bytes * dims;
  for (int k = 0; k < count; k += Step) {
    std::byte const* key[static_cast<std::size_t>(Step)];
    for (int i = 0; i < Step; ++i) key[i] = static_cast<std::byte const*>(keys[k + i]);
    Floats sums[static_cast<std::size_t>(Step)], rest[static_cast<std::size_t>(Step)];
    unrolled<Step>([&](auto i) KVPOLICY_INLINED { sums[i] = rest[i] = floats{}; });
    tile_prefetcher next{keys + k + keys_of_a_tile, bytes};
    for (std::ptrdiff_t at = 0; at < bytes; at += 16) {
      auto const* const from = static_cast<float const*>(packed) + at * Parts;
      Floats const rows = load(from);
      unrolled<Step>([&](auto i) KVPOLICY_INLINED {
        if (i % 4 == 0) next.next();
        Floats const four_numbers = splat_four(key[i] + at);
        sums[i] = Product::add(sums[i], four_numbers, rows);
        if constexpr (Parts == 2) {
          rest[i] = Product::add(rest[i], four_numbers, load(from + 16));
        }
      });
    }
    // A rest is added only where the sum is a number: an infinite key times a zero of the rest would make it NaN.
    unrolled<Step>([&](auto i) KVPOLICY_INLINED {
      if constexpr (Parts == 2) sums[i] = choose(sums[i] - sums[i] == floats{}, sums[i] + rest[i], sums[i]);
    });
    unrolled<Step / 4>([&](auto i) KVPOLICY_INLINED {
      if (k + 4 * i >= count) return;
      Floats const by_row = add_blocks_transposed(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
      store(transposed_square(by_row) * splat(scale), out + (k + 4 * i) * few_rows);
    });
  }
}

template <int Rows>
constexpr block_products make_products() {
  block_products made{};
  made.numbers_of_a_vector = width;
  if constexpr (Rows > few_rows) {
    made.set(product_kernel::rows_interleaved, interleaved_of<float_products, Rows>);
    made.interleaved_single_key = multiply_interleaved<float_products, Rows, 1, Rows / width>;
  } else {
    made.set(product_kernel::rows, multiply_rows<codec::f32>);
    if constexpr (has_f16) made.set(product_kernel::rows_f16, multiply_rows<codec::f16>);
    if constexpr (width == 8) made.set(product_kernel::rows_bf16, multiply_rows<codec::bf16>);
    if constexpr (width == 16) made.set(product_kernel::four_dims, multiply_four_dims<float_products, 1, 8, floats>);
  }
  return made;
}
inline constexpr logits_kernels logits{make_products<few_rows>(), make_products<16>(), make_products<most_rows>()};

#if defined(KVPOLICY_PAIRS_OF_BF16)
// Products of keys and rows in pairs of bf16: one instruction multiplies and adds both.

/// How pairs are multiplied. A number of a key has `bytes`.
struct pair_products {
  static constexpr int bytes = 2;
  KVPOLICY_OP static floats add(floats sums, floats key, floats rows) { return add_product_of_pairs(sums, key, rows); }
};

template <int Rows>
constexpr block_products make_products_of_pairs() {
  block_products made = avx512::logits[Rows];  // what is not made of pairs
  if constexpr (Rows > few_rows) {
    made.set(product_kernel::rows_interleaved_bf16, interleaved_of<pair_products, Rows>);
  } else {
    made.set(product_kernel::four_dims_bf16,
             multiply_four_dims<pair_products, 1, 12, floats>);  // enough chains to hide their latency
    made.set(product_kernel::four_dims_bf16_parts, multiply_four_dims<pair_products, 2, 8, floats>);
  }
  return made;
}
inline constexpr logits_kernels logits_of_pairs{make_products_of_pairs<few_rows>(), make_products_of_pairs<16>(),
                                                make_products_of_pairs<most_rows>()};
#endif
