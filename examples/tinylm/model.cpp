// SPDX-License-Identifier: Apache-2.0
#include "model.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace tinylm {

struct model::pass {
  kv::host_executor& exec;
  std::span<forward_part const> parts;
  int rows;  ///< those of all parts
  kv::cache const& into;
  query_rows& queries;
  int first_query;
};

namespace {

using row_major = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Computes out = in * matrix^T, or out += for a residual. The executor's threads divide the outputs among themselves.
/// A single row is a matrix-vector product that reads the weights once.
void linear(kv::host_executor& exec, float const* in, int rows, std::vector<float> const& matrix, int width, float* out,
            bool add = false) {
  int const outputs = static_cast<int>(matrix.size()) / width;
  int const piece = std::max(64, (outputs + 2 * exec.threads() - 1) / (2 * exec.threads()));
  exec.for_each((outputs + piece - 1) / piece, [&](int i, int) {
    int const begin = i * piece;
    int const count = std::min(piece, outputs - begin);
    Eigen::Map<row_major const> const weight(matrix.data() + std::ptrdiff_t{begin} * width, count, width);
    if (rows == 1) {
      Eigen::Map<Eigen::VectorXf const> const x(in, width);
      Eigen::Map<Eigen::VectorXf> y(out + begin, count);
      if (!add) y.setZero();
      y.noalias() += weight * x;
    } else {
      Eigen::Map<row_major const> const x(in, rows, width);
      auto y = Eigen::Map<row_major>(out, rows, outputs).middleCols(begin, count);
      if (!add) y.setZero();
      y.noalias() += x * weight.transpose();
    }
  });
}

void rms_norm(float const* in, int rows, std::vector<float> const& weight, float eps, float* out) {
  auto const width = static_cast<Eigen::Index>(weight.size());
  Eigen::Map<Eigen::ArrayXf const> const scale(weight.data(), width);
  for (int r = 0; r < rows; ++r) {
    Eigen::Map<Eigen::ArrayXf const> const x(in + r * width, width);
    Eigen::Map<Eigen::ArrayXf>(out + r * width, width) = x * (1.0f / std::sqrt(x.square().mean() + eps)) * scale;
  }
}

/// Applies RoPE in place, rotating the channels d and d + half as a pair.
void rotate(float* row, int half, float const* cosine, float const* sine) {
  for (int d = 0; d < half; ++d) {
    float const a = row[d];
    float const b = row[d + half];
    row[d] = a * cosine[d] - b * sine[d];
    row[d + half] = b * cosine[d] + a * sine[d];
  }
}

float* sized(std::vector<float>& memory, int rows, int width) {
  std::size_t const floats = static_cast<std::size_t>(rows) * static_cast<std::size_t>(width);
  if (memory.size() < floats) memory.resize(floats);
  return memory.data();
}

}  // namespace

model::model(weights from) : weights_(std::move(from)) {
  int const half = about().head_dim / 2;
  for (int i = 0; i < half; ++i) {
    frequency_.push_back(
        static_cast<float>(std::pow(static_cast<double>(about().rope_theta), -static_cast<double>(i) / half)));
  }
}

void model::check(forward_part const& part, kv::cache const& into) const {
  int const tokens = part.num_new_tokens;
  kv::expects(tokens >= 1 && static_cast<std::size_t>(tokens) <= part.text.size(), "forward", "fresh", tokens,
              [&] { return "the text has " + std::to_string(part.text.size()) + " bytes"; });
  kv::expects(into.shape == about().shape(), "forward", "cache.shape", "another model's", "rows must fit");
  kv::expects(into.k.element == kv::codec::f32 && into.v.element == kv::codec::f32, "forward", "cache.element",
              "16 bits", "this model writes float32");
  kv::expects(part.sequence >= 0 && part.sequence < into.lanes.sequences, "forward", "sequence", part.sequence,
              [&] { return "the cache has " + std::to_string(into.lanes.sequences) + " sequences"; });
  int const last = static_cast<int>(part.text.size()) - 1;
  int const lanes = into.lanes.layers() * into.lanes.heads;
  for (int i = part.sequence * lanes; i < (part.sequence + 1) * lanes; ++i) {
    kv::lane const this_lane = into.lanes.at(i);
    int const count = *into.lanes.count.row(this_lane);
    int const* const position = into.lanes.position.row(this_lane);
    bool const appended =
        count >= tokens && position[count - 1] == last && position[count - tokens] == last - tokens + 1;
    kv::expects(appended, "forward", "cache", "lane " + std::to_string(i),
                "its last entries are not the text's last " + std::to_string(tokens) + ": append them first");
  }
}

std::span<float const> model::forward(kv::host_executor& exec, std::span<forward_part const> parts,
                                      kv::cache const& into, query_rows& queries, forward_hooks const& hooks) {
  for (forward_part const& part : parts) check(part, into);
  config const& c = about();
  scratch_.resize(static_cast<std::size_t>(exec.threads()));
  int const first_query = queries.rows();
  for (forward_part const& part : parts) queries.add(part.position(), part.num_new_tokens);
  int const rows = queries.rows() - first_query;
  pass const now{exec, parts, rows, into, queries, first_query};
  make_phases(now);
  embed(now);
  for (int layer = 0; layer < c.layers; ++layer) {
    attention(now, layer);
    if (hooks.before_attention) hooks.before_attention(rows_of(layer));
    // The entries at this point are complete for this layer; those of later layers are not.
    attend_all(now, layer, hooks);
    block_weights const& block = weights_.blocks[static_cast<std::size_t>(layer)];
    linear(exec, inner_.data(), rows, block.wo, c.q_heads * c.head_dim, x_.data(), true);
    mlp(now, layer);
    if (hooks.after_layer) hooks.after_layer(layer);
  }
  rms_norm(x_.data(), rows, weights_.norm, c.norm_eps, sized(normed_, rows, c.width));
  linear(exec, normed_.data(), rows, weights_.head, c.width, sized(logits_, rows, c.vocab));
  return {logits_.data(), static_cast<std::size_t>(rows) * static_cast<std::size_t>(c.vocab)};
}

/// Adds the row of the byte itself and, from each table, the row to which the last 2, 3, ... bytes hash. Bytes before
/// the start are 0.
void model::embed(pass const& now) {
  config const& c = about();
  float* x = sized(x_, now.rows, c.width);
  int const part = c.width / c.ngrams;
  int const bits = std::countr_zero(static_cast<unsigned>(c.ngram_buckets));  // a power of two
  auto const add_byte = [&](std::span<std::uint8_t const> text, int at) {
    std::uint32_t hash = text[static_cast<std::size_t>(at)];
    std::copy_n(weights_.embedding.data() + static_cast<int>(hash) * c.width, c.width, x);
    for (int i = 0; i < c.ngrams; ++i) {
      std::uint32_t const past = at > i ? text[static_cast<std::size_t>(at - i - 1)] : 0;
      hash = hash * 257u + past + 1u;
      auto const bucket = static_cast<std::ptrdiff_t>((hash * 2654435761u) >> (32 - bits));
      float const* const row = weights_.ngrams[static_cast<std::size_t>(i)].data() + bucket * part;
      for (int d = 0; d < part; ++d) x[i * part + d] += row[d];
    }
  };
  for (forward_part const& one : now.parts) {
    for (int at = one.position(); at < static_cast<int>(one.text.size()); ++at, x += c.width) add_byte(one.text, at);
  }
}

void model::make_phases(pass const& now) {
  int const half = about().head_dim / 2;
  float* const cosine = sized(cosine_, now.rows, half);
  float* const sine = sized(sine_, now.rows, half);
  int r = 0;
  for (forward_part const& part : now.parts) {
    for (int at = part.position(); at < static_cast<int>(part.text.size()); ++at, ++r) {
      for (int d = 0; d < half; ++d) {
        float const angle = static_cast<float>(at) * frequency_[static_cast<std::size_t>(d)];
        cosine[r * half + d] = std::cos(angle);
        sine[r * half + d] = std::sin(angle);
      }
    }
  }
}

void model::attention(pass const& now, int layer) {
  config const& c = about();
  block_weights const& block = weights_.blocks[static_cast<std::size_t>(layer)];
  rms_norm(x_.data(), now.rows, block.attention_norm, c.norm_eps, sized(normed_, now.rows, c.width));
  linear(now.exec, normed_.data(), now.rows, block.qkv, c.width,
         sized(wide_, now.rows, (c.q_heads + 2 * c.kv_heads) * c.head_dim));
  place_rows(now, layer);
}

/// Rotates queries and keys, then writes queries to the query rows, and keys and values to the places of the last
/// entries.
void model::place_rows(pass const& now, int layer) {
  config const& c = about();
  int const dims = c.head_dim;
  auto const bytes = static_cast<std::size_t>(dims) * sizeof(float);
  float* before = sized(keys_, now.rows, c.kv_heads * dims);
  auto const place_row = [&](forward_part const& part, int in_part, int r) {
    float* row = wide_.data() + std::ptrdiff_t{r} * (c.q_heads + 2 * c.kv_heads) * dims;
    float const* const cosine = cosine_.data() + r * (dims / 2);
    float const* const sine = sine_.data() + r * (dims / 2);
    for (int h = 0; h < c.q_heads; ++h, row += dims) {
      rotate(row, dims / 2, cosine, sine);
      std::memcpy(now.queries.row(layer, h, now.first_query + r), row, bytes);
    }
    for (int h = 0; h < c.kv_heads; ++h, row += dims, before += dims) {
      kv::lane const this_lane{part.sequence, layer, h};
      int const first = *now.into.lanes.count.row(this_lane) - part.num_new_tokens;
      kv::place const at = now.into.where.at(this_lane, first + in_part);
      std::memcpy(before, row, bytes);
      rotate(row, dims / 2, cosine, sine);
      std::memcpy(now.into.k.row(layer, at, h), row, bytes);
      std::memcpy(now.into.v.row(layer, at, h), row + c.kv_heads * dims, bytes);
    }
  };
  int r = 0;
  for (forward_part const& part : now.parts) {
    for (int i = 0; i < part.num_new_tokens; ++i, ++r) place_row(part, i, r);
  }
}

/// Each part attends to its own sequence.
void model::attend_all(pass const& now, int layer, forward_hooks const& hooks) {
  config const& c = about();
  int const width = c.q_heads * c.head_dim;
  float* out = sized(inner_, now.rows, width);
  int first = now.first_query;
  calls_.clear();
  for (forward_part const& part : now.parts) {
    calls_.push_back({now.into, now.queries, part.sequence, layer, first, part.num_new_tokens, part.position(),
                      hooks.hidden, hooks.mask, hooks.slash, out});
    first += part.num_new_tokens;
    out += std::ptrdiff_t{part.num_new_tokens} * width;
  }
  attend(now.exec, calls_, scratch_);
}

layer_rows model::rows_of(int layer) {
  config const& c = about();
  auto const bytes = [](int floats) { return std::int64_t{floats} * 4; };
  auto const keys = [&](float* first, int row) {
    kv::plane const rows{.base = reinterpret_cast<std::byte*>(first),
                         .element = kv::codec::f32,
                         .channels = c.head_dim,
                         .token_stride = bytes(row),
                         .head_stride = bytes(c.head_dim),
                         .channel_stride = bytes(1)};
    return kv::row_view{rows, kv::identity_map(1 << 30)};
  };
  int const heads = c.q_heads + 2 * c.kv_heads;
  kv::hidden_rows const normed{.base = reinterpret_cast<std::byte const*>(normed_.data()),
                               .element = kv::codec::f32,
                               .dims = c.width,
                               .sequence = 0,
                               .layer = 0,
                               .row = bytes(c.width)};
  return {layer, normed, keys(keys_.data(), c.kv_heads * c.head_dim),
          keys(wide_.data() + std::ptrdiff_t{c.q_heads} * c.head_dim, heads * c.head_dim)};
}

/// Adds SwiGLU, down(silu(gate) * up), to the residual stream.
void model::mlp(pass const& now, int layer) {
  config const& c = about();
  block_weights const& block = weights_.blocks[static_cast<std::size_t>(layer)];
  rms_norm(x_.data(), now.rows, block.mlp_norm, c.norm_eps, normed_.data());
  linear(now.exec, normed_.data(), now.rows, block.gate_up, c.width, sized(wide_, now.rows, 2 * c.hidden));
  float* const inner = sized(inner_, now.rows, c.hidden);
  for (int r = 0; r < now.rows; ++r) {
    Eigen::Map<Eigen::ArrayXf const> const gate(wide_.data() + std::ptrdiff_t{r} * 2 * c.hidden, c.hidden);
    Eigen::Map<Eigen::ArrayXf const> const up(gate.data() + c.hidden, c.hidden);
    Eigen::Map<Eigen::ArrayXf>(inner + std::ptrdiff_t{r} * c.hidden, c.hidden) = gate / (1.0f + (-gate).exp()) * up;
  }
  linear(now.exec, inner, now.rows, block.down, c.hidden, x_.data(), true);
}

}  // namespace tinylm
