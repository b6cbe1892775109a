// SPDX-License-Identifier: Apache-2.0
// The Eigen peer, alone in its file: it is built for this very processor, which Eigen must be to be at its best.
#include <Eigen/Core>
#include <cmath>
#include <cstdint>
#include <vector>

namespace bench::peers {

void eigen_mass(float const* keys, float const* queries, int entries, int rows, int dims, float* out,
                std::vector<float>& temp_storage);
void eigen_mass(std::uint16_t const* keys, std::uint16_t const* queries, int entries, int rows, int dims, float* out,
                std::vector<float>& temp_storage);
void eigen_product(float const* rows, float const* weights, int count, int columns, int units, float* out);

namespace {

using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

void mass_of(Eigen::Map<matrix const> const& keys, Eigen::Map<matrix const> const& queries, float* out,
             float* temp_storage) {
  Eigen::Map<matrix> weights(temp_storage, queries.rows(), keys.rows());
  weights.noalias() = queries * keys.transpose();
  weights *= 1.0f / std::sqrt(static_cast<float>(keys.cols()));
  for (Eigen::Index r = 0; r < weights.rows(); ++r) {
    auto row = weights.row(r).array();
    row = (row - row.maxCoeff()).exp();
    row /= row.sum();
  }
  Eigen::Map<Eigen::RowVectorXf>(out, keys.rows()) = weights.colwise().sum();
}

}  // namespace

void eigen_mass(float const* keys, float const* queries, int entries, int rows, int dims, float* out,
                std::vector<float>& temp_storage) {
  temp_storage.resize(static_cast<std::size_t>(rows) * static_cast<std::size_t>(entries));
  mass_of({keys, entries, dims}, {queries, rows, dims}, out, temp_storage.data());
}

void eigen_mass(std::uint16_t const* keys, std::uint16_t const* queries, int entries, int rows, int dims, float* out,
                std::vector<float>& temp_storage) {
  using halves = Eigen::Matrix<std::uint16_t, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  auto const size = [](int a, int b) { return static_cast<std::size_t>(a) * static_cast<std::size_t>(b); };
  temp_storage.resize(size(rows, entries) + size(entries, dims) + size(rows, dims));
  // bf16 is the upper half of a float: widened first, for a product of floats.
  auto const widen = [](std::uint16_t const* from, int count, int width, float* to) {
    Eigen::Map<Eigen::Matrix<std::uint32_t, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(
        reinterpret_cast<std::uint32_t*>(to), count, width) =
        Eigen::Map<halves const>(from, count, width).cast<std::uint32_t>() * 65536u;
  };
  float* const wide_keys = temp_storage.data() + size(rows, entries);
  float* const wide_queries = wide_keys + size(entries, dims);
  widen(keys, entries, dims, wide_keys);
  widen(queries, rows, dims, wide_queries);
  mass_of({wide_keys, entries, dims}, {wide_queries, rows, dims}, out, temp_storage.data());
}

void eigen_product(float const* rows, float const* weights, int count, int columns, int units, float* out) {
  Eigen::Map<matrix>(out, count, units).noalias() =
      Eigen::Map<matrix const>(rows, count, columns) * Eigen::Map<matrix const>(weights, units, columns).transpose();
}

}  // namespace bench::peers
